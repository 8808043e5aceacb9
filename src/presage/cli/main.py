"""The `presage` command: puts the commands together and turns errors into one line and a code.

Commands live in their own modules. This one only composes them; a traceback on a user's screen is
a bug here.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from presage import __version__
from presage.cli import cluster, jobs
from presage.cli.gpus import gpus
from presage.cli.graph import graph
from presage.cli.manifest import init, lint
from presage.cli.phases import phases
from presage.cli.predict import fit, predict
from presage.cli.profile import profile
from presage.cli.rightsize import rightsize
from presage.cli.scale import scale
from presage.cli.serve import serve
from presage.cli.simulate import simulate
from presage.cli.trace import trace
from presage.model.errors import PresageError

__all__ = ["app", "main"]

_INTERRUPTED = 130


class _Commands(TyperGroup):
    """Runs a command; what Presage says on purpose ends as one line on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PresageError as error:
            typer.echo(f"error: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(_INTERRUPTED) from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(gpus)
# What stands after the command's name is the command's own, options included.
app.command(context_settings={"allow_interspersed_args": False})(profile)
app.command()(predict)
app.command()(fit)
app.command()(simulate)
app.command()(graph)
app.add_typer(trace, name="trace")
app.add_typer(phases, name="phases")
app.command()(rightsize)
app.command()(serve)
app.command()(init)
app.command()(lint)
for command in (
    jobs.submit,
    jobs.ps,
    jobs.status,
    jobs.wait,
    jobs.logs,
    jobs.explain,
    jobs.stop,
    jobs.halt,
    jobs.resume,
    scale,
    cluster.nodes,
    cluster.drain,
    cluster.undrain,
    cluster.queues,
):
    app.command()(command)
app.add_typer(cluster.users, name="users")


def main() -> None:
    """The entry point of the `presage` command."""
    app()


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"presage {__version__}")
        raise typer.Exit


@app.callback()
def _presage(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Presage: schedule deep-learning jobs, and foresee how a cluster would have fared."""
