"""`presage secrets`: what jobs get as variables and nobody sees."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from presage.cli._output import print_json, say
from presage.client import Client, to_json
from presage.model.errors import UserError
from presage.model.server_answers import SecretInfo

__all__ = ["secrets"]

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Name = Annotated[str, typer.Argument(help="Name that manifests call it by.")]
Team = Annotated[str | None, typer.Option(help="Of this team instead of your own.")]

secrets = typer.Typer(help="Secrets of yours and of your team.", invoke_without_command=True)


@secrets.callback()
def all_secrets(context: typer.Context, json: Json = False) -> None:
    """Secrets that your jobs may use: a list, or `set` and `rm`."""
    if context.invoked_subcommand is None:
        list_secrets(json)


@secrets.command(name="list")
def list_secrets(json: Json = False) -> None:
    """List the secrets that your jobs may use, by name."""
    with Client() as client:
        known = client.secrets()
    if json:
        print_json({"secrets": [to_json(secret) for secret in known]})
        return
    if not known:
        say("no secrets; make one with: presage secrets set NAME")
        return
    table = Table(box=None, pad_edge=False)
    for name in ("SECRET", "WHOSE"):
        table.add_column(name)
    for secret in known:
        table.add_row(secret.name, _whose(secret))
    Console().print(table)


@secrets.command(name="set")
def set_secret(
    name: Name,
    team: Team = None,
    file: Annotated[
        Path | None, typer.Option(help="File with the content.", show_default="stdin")
    ] = None,
    json: Json = False,
) -> None:
    """Keep a secret: its content is read from stdin or a file, never from the command line."""
    content = _content(name, file)
    with Client() as client:
        kept = client.set_secret(name, content, team)
    _tell(kept, "kept", json)


@secrets.command()
def rm(name: Name, team: Team = None, json: Json = False) -> None:
    """Take a secret away."""
    with Client() as client:
        gone = client.remove_secret(name, team)
    _tell(gone, "removed", json)


def _content(name: str, file: Path | None) -> bytes:
    if file is None and sys.stdin.isatty():
        typed: str = typer.prompt(f"Content of {name}", hide_input=True, err=True)
        return typed.encode()
    try:
        return sys.stdin.buffer.read() if file is None else file.read_bytes()
    except OSError as error:
        raise UserError(f"--file {file} cannot be read: {error.strerror}") from None


def _whose(secret: SecretInfo) -> str:
    return secret.user or (f"team {secret.team}" if secret.team else "everybody")


def _tell(secret: SecretInfo, what: str, json: bool) -> None:
    if json:
        print_json(to_json(secret))
    else:
        typer.echo(f"{secret.name} of {_whose(secret)} {what}")
