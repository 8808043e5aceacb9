"""The `presage` command: puts the commands together and turns errors into one line and a code.

Commands live in their own modules. This one only composes them; a traceback on a user's screen is
a bug here.
"""

from __future__ import annotations

import gc
import os
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from presage import __version__
from presage.model.errors import PresageError

__all__ = ["app", "main"]

_INTERRUPTED = 130


# A command's module is imported when the command is used: `presage predict` need not wait for the
# parts of `presage serve`.
_PANELS = {
    "Run jobs": {
        "init": "manifest:init",
        "lint": "manifest:lint",
        "submit": "jobs:submit",
        "ps": "jobs:ps",
        "status": "jobs:status",
        "explain": "jobs:explain",
        "diagnose": "diagnose:diagnose",
        "logs": "logs:logs",
        "results": "results:results",
        "rm": "rm:rm",
        "wait": "jobs:wait",
        "stop": "jobs:stop",
        "halt": "jobs:halt",
        "resume": "jobs:resume",
        "scale": "scale:scale",
        "best": "sweep:best",
        "resubmit": "sweep:resubmit",
        "run": "run:run",
        "notebook": "run:notebook",
        "exec": "live:execute",
        "shell": "live:shell",
        "forward": "live:forward",
        "secrets": "secrets:secrets",
        "login": "login:login",
        "logout": "login:logout",
    },
    "Run a cluster": {
        "serve": "serve:serve",
        "watch": "watch:watch",
        "top": "top:top",
        "nodes": "cluster:nodes",
        "drain": "cluster:drain",
        "undrain": "cluster:undrain",
        "queues": "cluster:queues",
        "share": "share:share",
        "users": "users:users",
        "usage": "usage:usage",
        "policy": "policy:policy",
        "what-if": "whatif:what_if",
        "models": "models:models",
        "backup": "backup:backup",
        "restore": "backup:restore",
        "doctor": "doctor:doctor",
    },
    "Foresee a training": {
        "predict": "predict:predict",
        "plan": "plan:plan",
        "foresee": "foresee:foresee",
        "gpus": "gpus:gpus",
        "graph": "graph:graph",
        "runtime": "runtime:runtime",
        "tune": "tune:tune",
        "profile": "profile:profile",
        "fit": "predict:fit",
    },
    "Study policies and telemetry": {
        "simulate": "simulate:simulate",
        "trace": "trace:trace",
        "gym": "gym:gym",
        "phases": "phases:phases",
        "health": "health:health",
        "rightsize": "rightsize:rightsize",
        "reproduce": "reproduce:reproduce",
    },
}
"""Commands by what people come for -> where they are in `presage.cli`."""
_COMMANDS = {name: at for panel in _PANELS.values() for name, at in panel.items()}
_PANEL = {name: panel for panel, names in _PANELS.items() for name in names}
_HELP = {"help_option_names": ["-h", "--help"]}
_SETTINGS: dict[str, dict[str, Any]] = {
    # What stands after the command's name is the command's own, options included.
    "profile": {"allow_interspersed_args": False},
    "run": {"allow_interspersed_args": False},
}


_ASK_A_SERVER = (
    *("cluster", "jobs", "live", "login", "logs", "results", "rm", "run", "scale", "secrets"),
    *("diagnose", "policy", "sweep", "top", "tune", "usage", "users", "whatif"),
)
"""Modules whose commands do."""


_MISUSE: Any = typer.BadParameter.__mro__[1]
"""What is wrong with the words of a command: the kind has no name of its own in typer."""


class _Commands(TyperGroup):
    """Runs a command; what Presage says on purpose, and what is wrong with the command's words,
    ends as one line on stderr and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name].partition(":")
        target = getattr(import_module(f"presage.cli.{module}"), name)
        if isinstance(target, typer.Typer):
            command: Any = typer.main.get_command(target)
        else:
            alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            settings = {**_HELP, **_SETTINGS.get(cmd_name, {})}
            alone.command(cmd_name, context_settings=settings)(target)
            command = typer.main.get_command(alone)
        command.name = cmd_name
        command.rich_help_panel = _PANEL[cmd_name]
        if module in _ASK_A_SERVER:
            asking = typer.Typer(add_completion=False)
            asking.command()(_ask)
            for one in getattr(command, "commands", {cmd_name: command}).values():
                one.params += typer.main.get_command(asking).params
        return command

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PresageError as error:
            typer.echo(f"error: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(error.exit_code) from None
        except _MISUSE as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                raise
            asked = error.ctx.command_path if error.ctx else "presage"
            said = " ".join(error.format_message().split()).rstrip(".")
            typer.echo(f"error: {said}; see {asked} -h", err=True)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(_INTERRUPTED) from None


def _set_no_wait(wanted: bool) -> None:
    if wanted:
        os.environ["PRESAGE_WAIT_S"] = "0"


def _ask(
    no_wait: Annotated[
        bool,
        typer.Option(
            "--no-wait",
            callback=_set_no_wait,
            expose_value=False,
            help="Fail at once when no server answers; else it is given 10 seconds.",
        ),
    ] = False,
) -> None:
    """What every command that asks a server takes beside its own."""


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=_HELP,
)


def main() -> None:
    """The entry point of the `presage` command."""
    # Imports make a hundred thousand objects and no garbage: do not look through them for it.
    gc.set_threshold(50_000, 20, 100)
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
