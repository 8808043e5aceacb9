"""`presage tune`: which configuration, for time or for money, in a few trials.

The command reads, composes and prints; `presage.foresee.runtime` searches.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from presage.cli._output import print_json, say
from presage.cli._runs import read_runs
from presage.cli._tables import Column, show_table
from presage.foresee.runtime.search import ConfigSearch, Tuning, settings_for, teach
from presage.foresee.runtime.trials import Objective, Trials, read_trials
from presage.model.errors import UserError

__all__ = ["tune"]


def tune(
    table: Annotated[Path, typer.Argument(help="Measured runs: CSV or Parquet.")],
    objective: Annotated[
        Literal["time", "cost"], typer.Option(help="What to make small: time or cost.")
    ] = "time",
    runs: Annotated[int, typer.Option(min=1, help="Trials at most.")] = 6,
    known: Annotated[
        Path | None, typer.Option(help="Runs of other workloads, to learn from.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="The column with the time.")] = None,
    cost: Annotated[str | None, typer.Option(help="The column with the money of a run.")] = None,
    workload: Annotated[
        str | None, typer.Option(help="Columns that say what runs, with commas between.")
    ] = None,
    later_runs: Annotated[
        float,
        typer.Option(min=1, help="Runs that will use the choice: what a trial may cost."),
    ] = 1000.0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Choose the best configuration of a table's, looking at few of its times."""
    rows = read_runs(table)
    tables = [rows] if known is None else [rows, read_runs(known)]
    found = read_trials(tables, objective, target=target, cost=cost, workload=workload)
    done = _search_all(found, objective, runs, later_runs)
    if json:
        many = [one.to_dict() for one in done]
        print_json(many[0] if len(many) == 1 else {"workloads": many})
        return
    for one in done:
        _show(one)


def _search_all(
    found: list[Trials], objective: Objective, runs: int, later_runs: float
) -> list[Tuning]:
    trials = found[0]
    other = found[1] if len(found) > 1 else None
    settings = settings_for(other, runs)
    done = []
    for name in sorted(set(trials.workload.tolist())):
        values = trials.of(name)
        words = trials.words.get(name, ())
        taught = teach(_others(other, name), trials.configs.height, trials.features, words)
        search = ConfigSearch(trials, list(values), taught, settings)
        done.append(
            search.run(
                values.__getitem__, runs, workload=name, objective=objective, later_runs=later_runs
            )
        )
    if not done:
        raise UserError("the table has no workload to tune")
    return done


def _others(known: Trials | None, name: str) -> Trials | None:
    """The known workloads but for the one that is tuned: its own runs would give it away."""
    return None if known is None else known.only(set(known.programs) - {name})


def _show(done: Tuning) -> None:
    unit = "s" if done.objective == "time" else "$"
    say(f"{done.workload}: {len(done.picks)} trials; taught by {done.taught_by} other workloads")
    names = list(done.chosen)
    columns = [
        Column("TRIAL", right=True),
        Column(f"TOOK {unit}", right=True),
        Column(f"EXPECTED {unit}", right=True),
        Column("10–90 %", right=True, spare=1),
        Column("GAIN %", right=True),
        Column("CONFIGURATION"),
    ]
    rows = [
        [
            str(number),
            _number(pick.took),
            _number(pick.expected),
            f"{_number(pick.low)}–{_number(pick.high)}",
            f"{pick.gain_pct:.1f}",
            ", ".join(f"{name} {pick.config[name]}" for name in names),
        ]
        for number, pick in enumerate(done.picks, 1)
    ]
    show_table(columns, rows)
    chosen = ", ".join(f"{name} {value}" for name, value in done.chosen.items())
    say(f"chosen: {chosen} ({_number(done.took)} {unit}); stopped: {done.stopped}")


def _number(value: float) -> str:
    return f"{value:,.1f}" if value >= 10 else f"{value:.3g}"
