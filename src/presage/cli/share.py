"""`presage share`: the daemon that enforces shares of GPUs on a node, who has how much, and what a
share is worth. Thin: `executors.node.shares` does it."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from presage.cli._output import print_json, say
from presage.cli._tables import Column, show_table
from presage.control.site.settings import default_data
from presage.executors.node.shares.terms import call, read_terms, write_terms
from presage.executors.node.shares.turns import ShareTerms
from presage.layout import Layout
from presage.manifest import quantities
from presage.model.errors import NotFound, UserError

__all__ = ["share"]

share = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Shares of this node's GPUs, enforced."
)
Home = Annotated[
    Path | None,
    typer.Option(help="The directory of the shares; the server's own when it is left out."),
]


@share.command("serve")
def serve(home: Home = None) -> None:
    """Give processes their turns on this node's GPUs until it is stopped."""
    from presage.executors.node.shares.daemon import ShareDaemon

    daemon = ShareDaemon(_home(home))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: daemon.stop())
    say(f"shares of {_home(home)}")
    daemon.run()


@share.command("ls")
def ls(
    home: Home = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Show what each share asked for and what it had in the last ten seconds."""
    rows = _ask(_home(home), "status")
    if json:
        print_json({"shares": rows})
        return
    heads = [Column("SHARE"), Column("GPU"), *(Column(head, right=True) for head in _HEADS)]
    show_table(heads, [_row(row) for row in rows])


_HEADS = ("REQUEST", "LIMIT", "GOT", "WAITED", "MEMORY", "OF")


@share.command("set")
def change(
    name: Annotated[str, typer.Argument(help="The share, as `presage share ls` calls it.")],
    request: Annotated[float | None, typer.Option(help="What it gets at least, 0 to 1.")] = None,
    limit: Annotated[float | None, typer.Option(help="What it gets at most, 0 to 1.")] = None,
    memory: Annotated[str | None, typer.Option(help="What it may hold, such as 8Gi.")] = None,
    weight: Annotated[float | None, typer.Option(help="Its part of what is left over.")] = None,
    soft: Annotated[
        bool | None, typer.Option("--soft/--hard", help="Whether it may pass its limit alone.")
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Make the share if there is none.")] = False,
    home: Home = None,
) -> None:
    """Change what a share is worth; its processes feel it at their next turn."""
    place = _home(home)
    terms = read_terms(place, name) or (ShareTerms() if new else None)
    if terms is None:
        raise NotFound(f"there is no share {name}; `presage share ls` lists them")
    changes: dict[str, Any] = {"request": request, "limit": limit, "weight": weight}
    changes["memory"] = None if memory is None else _bytes(memory)
    changes["hard"] = None if soft is None else not soft
    said = {key: value for key, value in changes.items() if value is not None}
    write_terms(place, name, replace(terms, **said))
    if call(place, {"ask": "reload"}) is None:
        say("no share daemon runs here; the change holds from its start on")


def _bytes(text: str) -> int:
    try:
        return quantities.memory_mib(quantities.memory(text)) << 20
    except ValueError as wrong:
        raise UserError(f"--memory: {wrong}") from None


def _home(home: Path | None) -> Path:
    return home if home is not None else Layout(default_data()).shares


def _ask(home: Path, question: str) -> list[dict[str, Any]]:
    answer = call(home, {"ask": question})
    if answer is None:
        raise UserError(f"no share daemon serves {home}; start one with `presage share serve`")
    rows: list[dict[str, Any]] = answer["shares"]
    return rows


def _row(row: dict[str, Any]) -> list[str]:
    of = row["memory_limit_bytes"]
    return [
        row["share"],
        row["device"][:8],
        *(f"{row[key]:.0%}" for key in ("request", "limit", "got", "waited")),
        f"{row['memory_bytes'] / (1 << 20):.0f}Mi",
        f"{of / (1 << 20):.0f}Mi" if of else "–",
    ]
