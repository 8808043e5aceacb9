"""`presage tune`: which configuration, for time or for money, in a few trials.

The command reads, composes and prints; `presage.foresee.runtime` searches.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from presage.cli._output import check_file, print_json, say
from presage.cli._runs import read_runs
from presage.cli._tables import Column, show_table
from presage.foresee.runtime.search import ConfigSearch, Pick, Tuning, settings_for, teach
from presage.foresee.runtime.trials import Objective, Trials, read_trials, trials_ahead
from presage.model.errors import UserError

if TYPE_CHECKING:
    from presage.cli.tune_jobs import TrialJobs

__all__ = ["tune"]

_TIME = "elapsed_time"


def tune(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="TABLE | MANIFEST | -- COMMAND",
            help="Measured runs (CSV or Parquet); or a manifest with a sweep, or a command:"
            " its trials are jobs.",
        ),
    ],
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
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="NAME=A,B,C",
            help="COMMAND: values for {NAME} in it, the usual one first; repeatable.",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="Jobs: make this small that they report, not their time; NAME:max."),
    ] = None,
    gpus: Annotated[float | None, typer.Option(min=0, help="COMMAND: GPUs of a trial.")] = None,
    cpus: Annotated[
        float | None, typer.Option(min=0.001, help="COMMAND: CPUs of a trial.")
    ] = None,
    memory: Annotated[str | None, typer.Option(help="COMMAND: memory of a trial.")] = None,
    folder: Annotated[
        bool, typer.Option("--folder/--no-folder", help="COMMAND: send this folder along.")
    ] = True,
    keep: Annotated[
        Path | None, typer.Option(help="Jobs: add the trials to this CSV, for --known.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Choose the best configuration: of a table's, looking at few of its times, or by trials."""
    alone = Path(what[0]) if len(what) == 1 and not vary else None
    if alone is not None and alone.suffix.lower() not in (".yaml", ".yml"):
        if metric or keep:
            raise UserError(
                "--metric and --keep go with a command or a manifest, not with a table"
            )
        tables = [read_runs(alone)] + ([] if known is None else [read_runs(known)])
        trials = read_trials(tables, objective, target=target, cost=cost, workload=workload)
        for file, one in zip((alone, known), trials, strict=False):
            if one.unused:
                say(
                    f"note: {one.unused:,} rows of {file} are not used: they have no time above 0,"
                    " or did not complete"
                )
        _print(_search_all(trials, objective, runs, later_runs), json)
        return
    if target or cost or workload:
        raise UserError("--target, --cost and --workload go with a table of measured runs")
    from presage.cli.tune_jobs import from_command, from_manifest, words_of
    from presage.client import Client

    if keep is not None:
        check_file(keep, "--keep")
    money = objective == "cost"
    with Client() as client:
        if alone is not None:
            jobs = from_manifest(client, alone, metric=metric, money=money)
        else:
            asked = {"gpus": gpus, "cpus": cpus, "memory": memory}
            resources = {name: value for name, value in asked.items() if value is not None}
            jobs = from_command(
                client,
                what,
                vary or (),
                resources=resources,
                metric=metric,
                money=money,
                folder=folder,
            )
        name = alone.stem if alone is not None else words_of(what)
        done = _run_trials(jobs, name, known, runs, objective, later_runs)
    if keep is not None:
        _keep(keep, done)
    _print([done], json, jobs)


def _run_trials(
    jobs: TrialJobs,
    name: str,
    known: Path | None,
    runs: int,
    objective: Objective,
    later_runs: float,
) -> Tuning:
    """Trials one after the other, each a job."""
    points = jobs.table
    ahead, taught_by = trials_ahead(points, None if known is None else read_runs(known), _TIME)
    taught = teach(taught_by, ahead.configs.height)
    settings = settings_for(taught_by, runs)
    search = ConfigSearch(ahead, list(range(points.height)), taught, settings)
    say(f"{points.height:,} configurations, at most {runs} trials")

    def told(pick: Pick) -> None:
        words = ", ".join(f"{key} {value}" for key, value in pick.config.items())
        took = "failed" if pick.failed else f"{_number(pick.took)} {jobs.unit}"
        say(f"{jobs.jobs[-1]}: {words}: {took}")

    return search.run(
        jobs.measure, runs, workload=name, objective=objective, later_runs=later_runs, told=told
    )


def _keep(path: Path, done: Tuning) -> None:
    """Add the trials to a table that the next search learns from."""
    import polars as pl

    rows = [
        {"workload": done.workload, **pick.config, _TIME: pick.took}
        for pick in done.picks
        if not pick.failed
    ]
    table = pl.DataFrame(rows)
    if path.is_file() and path.stat().st_size:
        before = read_runs(path)
        table = pl.concat([before, table], how="diagonal_relaxed")
    table.write_csv(path)


def _search_all(
    tables: list[Trials], objective: Objective, runs: int, later_runs: float
) -> list[Tuning]:
    trials = tables[0]
    other = tables[1] if len(tables) > 1 else None
    settings = settings_for(other, runs)
    done = []
    for name in sorted(set(trials.workload.tolist())):
        values = trials.of(name)
        words = trials.words.get(name, ())
        taught = teach(_others(other, name), trials.configs.height, words)
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


def _print(done: list[Tuning], json: bool, jobs: TrialJobs | None = None) -> None:
    if json:
        many: list[dict[str, Any]] = [one.to_dict() for one in done]
        if jobs is not None:
            many[0] |= {"jobs": jobs.jobs, "unit": jobs.unit}
        print_json(many[0] if len(many) == 1 else {"workloads": many})
        return
    for one in done:
        _show(one, jobs.unit if jobs is not None else "s" if one.objective == "time" else "$")


def _show(done: Tuning, unit: str) -> None:
    trials = f"{len(done.picks)} trial{'s' if len(done.picks) > 1 else ''}"
    other = f"{done.taught_by} known workload{'s' if done.taught_by != 1 else ''}"
    say(f"{done.workload}: {trials}; taught by {other}")
    names = list(done.chosen)
    columns = [
        Column("TRIAL", right=True),
        Column(f"TOOK {unit}", right=True),
        Column(f"EXPECTED {unit}", right=True),
        Column("10–90 %", right=True, spare=1),
        Column("GAIN %", right=True),
        Column("10–90 %", right=True, spare=2),
        Column("CONFIGURATION"),
    ]
    rows = [
        [
            str(number),
            "failed" if pick.failed else _number(pick.took),
            _number(pick.expected),
            "" if pick.low is None else f"{_number(pick.low)}–{_number(pick.high)}",
            f"{pick.gain_pct:.1f}",
            ""
            if pick.gain_low_pct is None
            else f"{pick.gain_low_pct:.0f}–{pick.gain_high_pct:.0f}",
            ", ".join(f"{name} {pick.config[name]}" for name in names),
        ]
        for number, pick in enumerate(done.picks, 1)
    ]
    show_table(columns, rows)
    chosen = ", ".join(f"{name} {value}" for name, value in done.chosen.items())
    say(f"chosen: {chosen} ({_number(done.took)} {unit}); stopped: {done.stopped}")


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.1f}" if value >= 10 else f"{value:.3g}"
