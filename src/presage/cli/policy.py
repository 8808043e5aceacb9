"""`presage policy`: what decides on the server, and the choice of another policy."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from presage.cli._output import print_json, say
from presage.client import Client, to_json
from presage.model.errors import ConfigError
from presage.model.server_answers import PolicyStatus
from presage.plugins import is_file

__all__ = ["policy"]

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]

policy = typer.Typer(help="What decides on the server.", invoke_without_command=True)


@policy.callback()
def show(context: typer.Context, json: Json = False) -> None:
    """What decides on the server; `set` has another policy decide, `reset` takes that back."""
    if context.invoked_subcommand is not None:
        return
    with Client() as client:
        status = client.policy()
    if json:
        print_json(to_json(status))
        return
    typer.echo(status.name)
    say(_why(status))
    if status.guard:
        say(status.guard)
    others = [name for name in status.choices if name != status.name]
    say(f"others: {', '.join(others)}")
    say("compare: presage what-if --policy NAME; then: presage policy set NAME")


@policy.command(name="set")
def choose(
    wanted: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE.yaml[:NAME]",
            help="A policy that the server knows, or a pipeline of a YAML file (policies:).",
        ),
    ],
    json: Json = False,
) -> None:
    """Have another policy decide from now on, also after a restart; for admins.

    Nothing that runs is stopped by it.
    """
    name, config = _read(wanted)
    with Client() as client:
        before = client.policy().name
        status = client.set_policy(name, config)
    _tell(status, before, json)


@policy.command()
def reset(json: Json = False) -> None:
    """Have the policy decide that the server was started with; for admins."""
    with Client() as client:
        before = client.policy().name
        status = client.set_policy(None)
    _tell(status, before, json)


def _tell(status: PolicyStatus, before: str, json: bool) -> None:
    if json:
        print_json(to_json(status))
        return
    typer.echo(f"{status.name} decides now; before: {before}")
    preempts = (status.config or {}).get("preempt", "none") != "none"
    later = ", but it may stop them for others from now on" if preempts else ""
    say(f"running jobs stay as they are{later}")
    if status.chosen:
        say("it stays after a restart, whatever --policy says, until presage policy reset")


def _why(status: PolicyStatus) -> str:
    own = f"of {status.origin}, " if status.origin else ""
    if not status.chosen:
        return f"{own}what the server was started with"
    when = "" if status.at is None else time.strftime(" %Y-%m-%d %H:%M", time.localtime(status.at))
    by = f" by {status.by}" if status.by else ""
    return f"chosen{by}{when}; the server was started with {status.started_with}"


def _read(wanted: str) -> tuple[str, str | None]:
    """A policy's name, and the text of the file that has it."""
    if is_file(wanted):
        raise ConfigError(
            f"{wanted}: code is loaded only by the server's own command line: presage serve "
            f"--policy {wanted}"
        )
    file, name = wanted, ""
    if not wanted.endswith((".yaml", ".yml")):
        file, _, name = wanted.rpartition(":")
        if not file:
            return wanted, None
    try:
        text = Path(file).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    return name or _only(file, text), text


def _only(file: str, text: str) -> str:
    """The name of the one policy of a file."""
    from presage.edge import parse_yaml
    from presage.manifest import LIMITS
    from presage.policy.config import ConfigFile

    names = list(parse_yaml(text, ConfigFile, ConfigError, file, LIMITS).policies)
    if len(names) != 1:
        there = ", ".join(names) or "none"
        raise ConfigError(f"{file} has {len(names)} policies ({there}); say which: {file}:NAME")
    return names[0]
