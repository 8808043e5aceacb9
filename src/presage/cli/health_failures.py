"""`presage health failures`: the chance that runs fail, learned from a table of runs that ended.

Thin: `observe.health.run_tables` reads tables, `observe.health.failures` foresees.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import typer

from presage.cli._health_input import AsJson, check_table, write_table
from presage.cli._input import listed, seconds
from presage.cli._output import check_file, print_json, progress, say
from presage.cli._runs import read_runs
from presage.cli._tables import Column, show_table
from presage.model.errors import BundleError, UserError
from presage.observe.health.failures import FailureChance, FailureModel
from presage.observe.health.history import in_words
from presage.observe.health.run_tables import (
    RunColumns,
    RunRows,
    describe_runs,
    find_columns,
)
from presage.page import counted
from presage.telemetry.readers import read_telemetry

__all__ = ["failures"]

failures = typer.Typer(
    help="Foresee which runs fail, from their request, their owner's history and their start.",
    no_args_is_help=True,
)

_LANDMARK = "60s"
_SHOWN = 20
_REASONS = 3

Runs = Annotated[Path, typer.Argument(help="A .csv or .parquet file, a run in each row.")]
Measured = Annotated[
    Path | None,
    typer.Option("--telemetry", help="What they used; they are judged after a minute then."),
]


def _column(option: str, what: str) -> Any:
    return typer.Option(option, help=f"The column of {what}.", show_default="by its name")


@failures.command()
def fit(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="The bundle to write.")],
    run: Annotated[str | None, _column("--run", "names of runs")] = None,
    owner: Annotated[str | None, _column("--owner", "owners")] = None,
    submitted: Annotated[str | None, _column("--submitted", "times of submission")] = None,
    started: Annotated[str | None, _column("--started", "starts")] = None,
    ended: Annotated[str | None, _column("--ended", "ends")] = None,
    state: Annotated[str | None, _column("--state", "how runs ended")] = None,
    request: Annotated[
        str | None,
        typer.Option(help="What was asked for: columns with commas.", show_default="by names"),
    ] = None,
    telemetry: Measured = None,
    after: Annotated[
        str | None,
        typer.Option(help="With --telemetry, judge so long after the start.", show_default="60s"),
    ] = None,
    json: AsJson = False,
) -> None:
    """Learn from RUNS that ended which ones fail."""
    check_file(out, "--out")
    if telemetry is None and after is not None:
        raise UserError("--after belongs to --telemetry")
    table = read_runs(runs)
    named = {"run": run, "owner": owner, "submitted": submitted, "started": started}
    asked = None if request is None else listed(request, "--request")
    columns = find_columns(table, {**named, "ended": ended, "state": state}, asked)
    if not columns.state:
        raise UserError("nothing says how runs ended; name the column with --state")
    series = read_telemetry(telemetry) if telemetry is not None else []
    if series:
        if not columns.run:
            raise UserError("nothing says which run telemetry is of; name the column with --run")
        metrics = tuple(dict.fromkeys(name for pod in series for name in pod.features))
        landmark_s = seconds(after or _LANDMARK, "--after")
        columns = replace(columns, landmark_s=landmark_s, metrics=metrics)
    rows = describe_runs(table, columns, series)
    usable = rows.order[(rows.judged & rows.alive)[rows.order]]
    if not columns.submitted:  # no order of time: the mixture's part is drawn
        usable = np.random.default_rng(0).permutation(usable)
    with progress("learning"):
        model = FailureModel().fit(rows.features[usable], rows.failed[usable], columns.features)
    failed = int(rows.failed[usable].sum())
    data = f"{runs.name}: {len(usable):,} runs, {failed:,} failed"
    today = datetime.now(UTC).date().isoformat()
    model.save(out, date=today, data=data, more={"columns": columns.to_card()})
    if json:
        told = {"written": str(out), "runs": len(usable), "failed": failed}
        print_json({**told, "left_out": len(table) - len(usable), **columns.to_card()})
        return
    typer.echo(data)
    typer.echo(f"from: {', '.join(columns.request) or 'no request'}{_also(columns)}")
    if left := len(table) - len(usable):
        say(f"not learned from: {counted(left, 'run')} (cancelled, not over, or not alive)")
    say(f"written to {out}")


def _also(columns: RunColumns) -> str:
    more = f"; the history of each {columns.owner}" if columns.owner else ""
    if columns.metrics:
        more += f"; {counted(len(columns.metrics), 'metric')} of its first "
        more += f"{columns.landmark_s:g} s"
    return more


@failures.command()
def score(
    runs: Runs,
    bundle: Annotated[Path, typer.Option(help="What `presage health failures fit` wrote.")],
    out: Annotated[Path, typer.Option(help="The .csv or .parquet to write.")],
    telemetry: Measured = None,
    reasons: Annotated[
        int, typer.Option(min=0, help="Say what speaks for so many of the likeliest.")
    ] = 100,
    json: AsJson = False,
) -> None:
    """Write, for each of RUNS, the chance that it fails and what speaks for it.

    RUNS has those to foresee and those that ended before: they are the history.
    """
    check_table(out)
    model = FailureModel.load(bundle)
    try:
        columns = RunColumns.from_card(model.card_["columns"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BundleError(f"{bundle} was not written by `presage health failures fit`") from None
    if (telemetry is not None) != bool(columns.landmark_s):
        needs = "needs" if columns.landmark_s else "was fitted without"
        raise UserError(f"{bundle} {needs} --telemetry")
    series = read_telemetry(telemetry) if telemetry is not None else []
    rows = describe_runs(read_runs(runs), columns, series)
    with progress("scoring") as report:
        chances = np.full(len(rows.names), np.nan)
        chances[rows.alive] = model.predict(rows.features[rows.alive])
        order = np.argsort(-np.nan_to_num(chances, nan=-1.0), kind="stable")
        explained = {}
        for done, at in enumerate(order[:reasons].tolist()):
            if rows.alive[at]:
                explained[at] = model.foresee(rows.features[at])
            report(done + 1, min(reasons, len(order)))
    write_table(_table(rows, chances, explained), out)
    told = _summary(rows, chances)
    if json:
        print_json({"written": str(out), **told})
        return
    _show(rows, chances, explained, order[:_SHOWN].tolist())
    if told["known"]:
        say(
            f"of {told['known']:,} whose end is known {told['failed']:.1%} failed, "
            f"{told['foreseen']:.1%} were foreseen to (Brier score {told['brier']:.3f})"
        )
    say(f"{len(rows.names):,} rows written to {out}")


def _table(
    rows: RunRows, chances: np.ndarray[Any, Any], explained: dict[int, FailureChance]
) -> pl.DataFrame:
    count = len(rows.names)
    table = {
        "run": pl.Series(rows.names, dtype=pl.String),
        "chance": pl.Series(chances).fill_nan(None),
    }
    for title, part in (("low", "p10"), ("high", "p90")):
        known = [
            getattr(explained[at].estimate, part) if at in explained else None
            for at in range(count)
        ]
        table[title] = pl.Series(known, dtype=pl.Float64)
    for number in range(_REASONS):
        texts = [_reason(explained.get(at), number) for at in range(count)]
        table[f"reason_{number + 1}"] = pl.Series(texts, dtype=pl.String)
    return pl.DataFrame(table)


def _reason(chance: FailureChance | None, number: int) -> str | None:
    if chance is None or number >= len(chance.reasons):
        return None
    one = chance.reasons[number]
    return f"{in_words(one.feature, one.value)} ({one.adds:+.0%})"


def _summary(rows: RunRows, chances: np.ndarray[Any, Any]) -> dict[str, Any]:
    known = rows.judged & rows.alive
    told: dict[str, Any] = {"rows": len(chances), "judged": int(rows.alive.sum())}
    told["known"] = int(known.sum())
    if known.any():
        failed, said = rows.failed[known], chances[known]
        told |= {"failed": float(failed.mean()), "foreseen": float(said.mean())}
        told["brier"] = float(np.mean((said - failed) ** 2))
    return told


def _show(
    rows: RunRows,
    chances: np.ndarray[Any, Any],
    explained: dict[int, FailureChance],
    order: list[int],
) -> None:
    columns = [Column("RUN"), Column("CHANCE", right=True), Column("BECAUSE")]
    body = []
    for at in order:
        if not np.isnan(chances[at]):
            because = [_reason(explained.get(at), k) for k in range(_REASONS)]
            body.append([rows.names[at], f"{chances[at]:.0%}", ", ".join(filter(None, because))])
    show_table(columns, body)
