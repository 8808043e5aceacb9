"""`presage users`: who may use a server, asked of it or, on its machine, of its database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Protocol

import typer

from presage.cli._output import print_json, say
from presage.cli._tables import Column, show_table
from presage.client import Client, to_json
from presage.model.errors import MissingExtra, UserError
from presage.model.server_answers import NewUser, UserInfo

__all__ = ["users"]

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Name = Annotated[str, typer.Argument(help="A user.")]
Data = Annotated[
    Path | None,
    typer.Option(
        help="Data directory of a server: change its database here, without asking the server."
    ),
]
Db = Annotated[
    str | None, typer.Option(help="The same for a server with a database of its own: its URL.")
]

users = typer.Typer(help="Who may use the server.", invoke_without_command=True)


class _UserDesk(Protocol):
    """Where users are changed: a server, or its database."""

    def users(self) -> list[UserInfo]: ...
    def add_user(self, name: str, role: str, team: str = "") -> NewUser: ...
    def set_user(
        self, name: str, *, role: str | None = None, team: str | None = None
    ) -> UserInfo: ...
    def new_token(self, name: str, *, keep: bool = False) -> NewUser: ...
    def remove_user(self, name: str) -> UserInfo: ...


@users.callback()
def list_users(
    context: typer.Context, data: Data = None, db: Db = None, json: Json = False
) -> None:
    """Who may use the server: a list, or `add`, `set`, `token` and `remove`."""
    if context.invoked_subcommand is not None:
        if data or db:
            raise UserError(f"put --data and --db behind {context.invoked_subcommand}")
        return
    with _desk(data, db) as desk:
        known = desk.users()
    if json:
        print_json({"users": [to_json(user) for user in known]})
        return
    if not known:
        say("no users: whoever reaches the loopback address may do everything")
        return
    heads = [Column("USER"), Column("ROLE"), Column("TEAM")]
    show_table(heads, [[user.name, user.role, user.team] for user in known])


@users.command()
def add(
    name: Annotated[str, typer.Argument(help="Lower case letters, digits, dots and dashes.")],
    role: Annotated[str, typer.Option(help="viewer, user, operator or admin.")] = "user",
    team: Annotated[str, typer.Option(help="Users see the jobs of their team.")] = "",
    data: Data = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """Let somebody in; the token is printed this once. A user who is there is left alone."""
    with _desk(data, db) as desk:
        made = desk.add_user(name, role, team)
    _show(made, json)


@users.command(name="set")
def change(
    name: Name,
    role: Annotated[str | None, typer.Option(help="viewer, user, operator or admin.")] = None,
    team: Annotated[str | None, typer.Option(help="A team; '' for none.")] = None,
    data: Data = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """Give somebody another role or team; tokens stay good."""
    if role is None and team is None:
        raise UserError(f"say what is to change: presage users set {name} --role ROLE --team TEAM")
    with _desk(data, db) as desk:
        after = desk.set_user(name, role=role, team=team)
    if json:
        print_json(to_json(after))
    else:
        of = f" of team {after.team}" if after.team else ", without a team"
        typer.echo(f"{after.name} is now {after.role}{of}")


@users.command()
def token(
    name: Name,
    keep: Annotated[bool, typer.Option("--keep", help="Let the tokens so far stay good.")] = False,
    data: Data = None,
    db: Db = None,
    json: Json = False,
) -> None:
    """Print a new token of somebody; those before stop working. Anybody may do so for oneself."""
    with _desk(data, db) as desk:
        made = desk.new_token(name, keep=keep)
    _show(made, json)


@users.command()
def remove(name: Name, data: Data = None, db: Db = None, json: Json = False) -> None:
    """Take somebody's access away; the jobs stay."""
    with _desk(data, db) as desk:
        gone = desk.remove_user(name)
    if json:
        print_json(to_json(gone))
    else:
        typer.echo(f"{gone.name} removed")


def _show(made: NewUser, json: bool) -> None:
    if json:
        print_json(to_json(made))
        return
    typer.echo(made.token)
    say(f"{made.name} has the role {made.role}; the token is not shown again (PRESAGE_TOKEN)")


@contextmanager
def _desk(data: Path | None, db: str | None) -> Iterator[_UserDesk]:
    """The server of PRESAGE_URL, or a database that is named."""
    if data is None and db is None:
        with Client() as client:
            yield client
        return
    try:
        from presage.control.people.offline import OfflineUsers
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("presage"):
            raise
        raise MissingExtra("server", "a server's database") from None
    with OfflineUsers(data, db, by=f"uid {os.getuid()}, offline") as desk:
        yield desk
