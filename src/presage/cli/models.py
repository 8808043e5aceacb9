"""`presage models`: what was learned from own runs, which version answers, and who says so."""

from __future__ import annotations

import json as json_module
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from math import expm1
from pathlib import Path
from typing import Annotated, Any

import typer

from presage.cli._output import print_json, say
from presage.cli._tables import Column, show_table
from presage.foresee.champions import QUANTITIES, Champions, EstimateDrift, Standing, error_of
from presage.layout import Layout
from presage.model.errors import UserError

__all__ = ["models"]

models = typer.Typer(
    name="models",
    add_completion=False,
    help="What was learned from own runs: list, compare, pin and roll back versions.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

_Data = Annotated[
    Path | None,
    typer.Option(help="The server's --data.", show_default="~/.local/share/presage/server"),
]
_Db = Annotated[
    str | None,
    typer.Option(help="The server's --db.", show_default="SQLite in --data"),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
_Quantity = Annotated[str, typer.Argument(help=f"{', '.join(QUANTITIES)}.")]


@models.callback(invoke_without_command=True)
def _list(context: typer.Context, data: _Data = None, db: _Db = None, json: _Json = False) -> None:
    """List the versions of every quantity; the one that answers is marked."""
    if context.invoked_subcommand is None:
        listing(data, db, json)


@models.command("list")
def listing(data: _Data = None, db: _Db = None, json: _Json = False) -> None:
    """List the versions of every quantity; the one that answers is marked."""
    with _champions(data, db) as champions:
        standings = {name: champions.standing(name) for name in QUANTITIES}
        drifts = {name: champions.drift(name) for name in QUANTITIES}
    if json:
        answer = {name: _as_json(standing) for name, standing in standings.items()}
        for name, drift in drifts.items():
            answer[name]["drift"] = asdict(drift) if drift else None
        print_json(answer)
        return
    rows = [row for name, standing in standings.items() for row in _rows(name, standing)]
    show_table(_COLUMNS, rows)
    for name, standing in standings.items():
        pinned = " (pinned)" if standing.pinned else ""
        say(f"{name}: version {standing.champion} answers{pinned}; {_latest(drifts[name])}")
    if not any(standing.versions for standing in standings.values()):
        say("nothing was learned yet; run jobs with a model reference")


@models.command()
def compare(
    quantity: _Quantity,
    first: Annotated[int, typer.Argument(help="A version; 0 is the estimators alone.")],
    second: Annotated[int, typer.Argument(help="Another one.")],
    last: Annotated[int, typer.Option(min=1, help="Runs to compare on, the latest.")] = 20,
    data: _Data = None,
    db: _Db = None,
    json: _Json = False,
) -> None:
    """Compare two versions on the latest runs; both may have learned from some of them."""
    with _champions(data, db) as champions:
        runs = champions.runs(quantity)[-last:]
        if not runs:
            raise UserError(f"no runs were kept of {quantity}; there is nothing to compare on")
        errors = {n: error_of(champions.model(quantity, n), runs) for n in (first, second)}
    if json:
        print_json(
            {
                "quantity": quantity,
                "runs": len(runs),
                "errors": {str(n): errors[n] for n in errors},
            }
        )
        return
    for number, error in errors.items():
        told = "knows none of them" if error is None else f"off by {_percent(error)} on average"
        say(f"{quantity} {number}: {told} ({len(runs)} runs)")


@models.command()
def pin(
    quantity: _Quantity,
    version: Annotated[int, typer.Argument(help="The version that is to answer.")],
    data: _Data = None,
    db: _Db = None,
    json: _Json = False,
) -> None:
    """Have a version answer, whatever challengers come, until `unpin`."""
    with _champions(data, db, change=True) as champions:
        _told(quantity, champions.pin(quantity, version), json)


@models.command()
def unpin(quantity: _Quantity, data: _Data = None, db: _Db = None, json: _Json = False) -> None:
    """Let better challengers replace the champion again."""
    with _champions(data, db, change=True) as champions:
        _told(quantity, champions.unpin(quantity), json)


@models.command()
def rollback(quantity: _Quantity, data: _Data = None, db: _Db = None, json: _Json = False) -> None:
    """Have the champion before the present one answer again, pinned."""
    with _champions(data, db, change=True) as champions:
        _told(quantity, champions.rollback(quantity), json)


@contextmanager
def _champions(data: Path | None, db: str | None, *, change: bool = False) -> Iterator[Champions]:
    """The models in the store of a server; nothing where there is none yet."""
    from presage.control.site.files import take_over_files
    from presage.control.site.settings import default_data
    from presage.store import open_store
    from presage.store.memory import MemoryKnowledge

    layout = Layout((data or default_data()).expanduser())
    if not db and not layout.database.exists():
        if change:
            raise UserError(f"there is no server's database in {layout.data}; give --data or --db")
        yield Champions(MemoryKnowledge())
        return
    store = open_store(db or f"sqlite:///{layout.database}")
    try:
        if data or not db:
            take_over_files(layout, store.knowledge)
        yield Champions(store.knowledge)
    finally:
        store.close()


def _told(quantity: str, standing: Standing, json: bool) -> None:
    if json:
        print_json({quantity: _as_json(standing)})
        return
    pinned = ", pinned" if standing.pinned else ""
    say(f"{quantity}: version {standing.champion} answers{pinned}")


def _as_json(standing: Standing) -> dict[str, Any]:
    body: dict[str, Any] = json_module.loads(json_module.dumps(asdict(standing)))
    return body


_COLUMNS = (
    Column("QUANTITY"),
    Column("VERSION", right=True),
    Column("ANSWERS"),
    Column("FITTED"),
    Column("RUNS", right=True),
    Column("ERROR", right=True),
    Column("CHAMPION'S", right=True),
    Column("NOTE"),
)


def _rows(name: str, standing: Standing) -> list[list[str]]:
    def answers(number: int) -> str:
        return "" if number != standing.champion else "pinned" if standing.pinned else "yes"

    rows = [[name, "0", answers(0), "", "", "", "", "the estimators alone"]]
    for one in standing.versions:
        fitted = datetime.fromtimestamp(one.at, UTC).strftime("%Y-%m-%dT%H:%M")
        errors = [_percent(one.error), _percent(one.champion_error)]
        note = one.note or ("accepted" if one.accepted else "refused")
        number = one.number
        rows.append([name, str(number), answers(number), fitted, str(one.runs), *errors, note])
    return rows


def _latest(drift: EstimateDrift | None) -> str:
    """How far what was said to users was off."""
    if drift is None:
        return "no estimate was judged yet"
    told = f"the latest {drift.judged} estimates were off by {_percent(drift.error)} on average"
    far = "; ALERT: far more than promised" if drift.drifted else ""
    return f"{told}{far}"


def _percent(error: float | None) -> str:
    """A mean distance in logarithms as what a typical prediction is off by."""
    return "" if error is None else f"{100 * expm1(error):.1f}%"
