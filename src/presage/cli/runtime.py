"""`presage runtime`: how long jobs run, from tables of measured runs, queries from their DAGs,
and how much memory tasks need that are run again and again.

The commands read, compose and print; `presage.foresee.runtime` and `presage.provision` do the
work.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from presage.cli._output import check_file, print_json, progress, say
from presage.cli._runs import read_runs
from presage.cli._tables import Column, show_table
from presage.model.errors import UserError

if TYPE_CHECKING:
    import polars as pl

    from presage.foresee.runtime.queries import QueryTimes
    from presage.provision.task_table import SizedTask

__all__ = ["runtime"]

runtime = typer.Typer(
    help="Foresee run times of jobs and queries, and the memory of repeated tasks.",
    no_args_is_help=True,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Bundle = Annotated[Path, typer.Option(help="What `presage runtime fit` wrote.")]
Runs = Annotated[Path, typer.Argument(help="A CSV or Parquet file, a run in each row.")]


@runtime.command("fit")
def fit(
    table: Runs,
    out: Annotated[Path, typer.Option(help="The bundle to write.")],
    target: Annotated[str | None, typer.Option(help="The column with the time.")] = None,
    group: Annotated[
        str | None,
        typer.Option(help="A column that will have new values: a cluster, a benchmark."),
    ] = None,
    also: Annotated[str | None, typer.Option(help="Another such column.")] = None,
    edges: Annotated[
        Path | None, typer.Option(help="TABLE has stages of queries; these are their edges.")
    ] = None,
    seed: Annotated[int, typer.Option(help="For folds and fits.")] = 0,
    json: AsJson = False,
) -> None:
    """Learn run times from a table of runs, or of the stages of queries (with --edges)."""
    check_file(out, "--out")
    rows = read_runs(table)
    today = datetime.now(UTC).date().isoformat()
    if edges is not None:
        card = _fit_queries(rows, read_runs(edges, empty=True), out, today, table.name, seed)
    else:
        if target is None or group is None:
            raise UserError("give --target and --group, or --edges for a table of stages")
        groups = [group] if also is None else [group, also]
        card = _fit_runs(rows, target, groups, out, today, table.name, seed)
    if json:
        print_json({"written": str(out), **{k: v for k, v in card.items() if k != "columns"}})
        return
    say(f"{rows.height:,} rows learned; errors on rows left out: {_errors(card['errors'])}")
    say(f"written to {out}")


def _fit_runs(
    rows: pl.DataFrame, target: str, groups: list[str], out: Path, today: str, data: str, seed: int
) -> dict[str, Any]:
    from presage.foresee.runtime.columns import nearly_numbers
    from presage.foresee.runtime.groups import LEAST_GROUPS
    from presage.foresee.runtime.model import JobTimes

    def report(step: str) -> None:
        say(f"fitting {step}")

    model = JobTimes.fit(rows, target, groups, seed=seed, report=report)
    for name, why in model.columns.left_out.items():
        say(f"note: {name} is not used: it {why}")
    for name, word in nearly_numbers(rows, model.columns).items():
        say(f"note: {name} counts as words, not as a number: a row has {word}")
    for name in set(model.groups) - set(model.new):
        say(f"note: of {name}, {LEAST_GROUPS} values are needed to tell what a new one is like")
    if model.odd_runs:
        say(
            f"note: {model.odd_runs:,} runs are not used: they took over 4 times as long as like"
            " runs, or under a quarter"
        )
    return model.save(out, today, data)


def _fit_queries(
    rows: pl.DataFrame, edges: pl.DataFrame, out: Path, today: str, data: str, seed: int
) -> dict[str, Any]:
    from presage.foresee.runtime.queries import QueryModel

    with progress("fitting queries") as report:
        model = QueryModel.fit(rows, edges, seed=seed, report=report)
    return model.save(out, today, data)


def _errors(errors: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in errors.items()) or "none measured"


@runtime.command("predict")
def predict(
    table: Runs,
    bundle: Bundle,
    out: Annotated[Path, typer.Option(help="The CSV or Parquet file to write.")],
    seen: Annotated[
        Path | None, typer.Option(help="Runs of new groups, with their times.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Foresee the time of each row: the table with columns p10, p50 and p90."""
    import polars as pl

    from presage.foresee.runtime.model import load_run_times

    check_file(out, "--out")
    if out.suffix.lower() not in (".csv", ".parquet"):
        raise UserError(f"--out {out}: a table is written as .csv or .parquet; name such a file")
    if out.resolve() in {one.resolve() for one in (table, seen, bundle) if one is not None}:
        raise UserError(f"--out {out} is read, too: name another file")
    model, rows = load_run_times(bundle), read_runs(table)
    taken = [name for name in ("p10", "p50", "p90") if name in rows.columns]
    if taken:
        raise UserError(f"the table has a column {taken[0]} already: drop it or rename it")
    runs = None if seen is None else read_runs(seen)
    said = model.predict(rows, runs)
    columns = [pl.Series(name, said[:, i]) for i, name in enumerate(("p10", "p50", "p90"))]
    answered = rows.with_columns(columns)
    _write(answered, out)
    notes = _notes(model, rows, runs)
    if json:
        print_json({"written": str(out), "rows": rows.height, "notes": notes})
        return
    for note in notes:
        say(f"note: {note}")
    say(f"{rows.height:,} row{'s' if rows.height > 1 else ''} written to {out}")


def _write(table: pl.DataFrame, path: Path) -> None:
    (table.write_csv if path.suffix.lower() == ".csv" else table.write_parquet)(path)


def _notes(model: Any, rows: pl.DataFrame, runs: pl.DataFrame | None) -> list[str]:
    """What the numbers rest on where that is little."""
    notes = []
    for name, values in model.strangers(rows).items():
        for value in values:
            shown = 0 if runs is None else int((runs[name].cast(str) == value).sum())
            like = {} if runs is None else model.likest(name, value, runs)
            best = sorted(like.items(), key=lambda one: -one[1])[:3]
            most = ", ".join(f"{other} {100 * share:.0f} %" for other, share in best)
            told = f"; it is like {most}" if best else "; the interval is as wide as they differ"
            notes.append(
                f"{name} {value or '(none)'} was not in the fit, {shown}"
                f" {'run of it is' if shown == 1 else 'runs of it are'} shown{told}"
            )
    for name, values in model.columns.unknown(rows).items():
        if name not in model.groups:
            known = ", ".join(model.columns.categories[name][:8])
            said = ", ".join(value or "(none)" for value in values[:5])
            notes.append(f"{name} {said} was never seen (known: {known})")
    for name, count in model.columns.missing(rows).items():
        usual = model.columns.numeric[name]
        notes.append(f"{name} is missing in {count:,} of the rows, and taken as {usual:g}")
    for name, (value, end) in model.columns.beyond(rows).items():
        notes.append(f"{name} {value:g} is beyond what was measured (to {end:g})")
    if runs is not None:
        asked = {name: set(values) for name, values in model.strangers(rows).items()}
        shown_of = {name: set(runs[name].cast(str).to_list()) for name in model.groups}
        if not any(asked[name] & shown_of[name] for name in asked):
            notes.append("no run of --seen is of a group that is new here: it changes nothing")
    return notes


@runtime.command("stages")
def stages(
    log: Annotated[Path, typer.Argument(help="Spark's event log of one application.")],
    out: Annotated[Path, typer.Option(help="The stages to write: CSV or Parquet.")],
    edges: Annotated[Path, typer.Option(help="The edges to write: CSV or Parquet.")],
    scale_gb: Annotated[
        float, typer.Option(help="Size of the data in GB, which the log does not tell.")
    ] = 1.0,
    time: Annotated[
        Literal["wall", "cpu"],
        typer.Option(help="Of a task: from launch to end, or what it used of its core."),
    ] = "wall",
    json: AsJson = False,
) -> None:
    """Read the stages of queries, and the edges between them, from Spark's event log."""
    from presage.foresee.runtime.spark_log import read_spark_log

    check_file(out, "--out")
    check_file(edges, "--edges")
    if out.resolve() == edges.resolve():
        raise UserError("--out and --edges name one file; name two")
    if not 0 < scale_gb < float("inf"):
        raise UserError(f"--scale-gb is a size above 0; {scale_gb:g} is none")
    run = read_spark_log(log, scale_gb=scale_gb, cpu_time=time == "cpu")
    _write(run.stages, out)
    _write(run.edges, edges)
    if json:
        queries = run.queries.select("query", "executors", "elapsed_ms").to_dicts()
        answer = {"stages": str(out), "edges": str(edges), "queries": queries}
        print_json({**answer, "failed": list(run.failed)})
        return
    if run.failed:
        named = ", ".join(run.failed[:5]) + (", …" if len(run.failed) > 5 else "")
        say(f"note: left out, as they failed or did not end: {named}")
    stages_of = dict(run.stages.group_by("query").n_unique().select("query", "stage").iter_rows())
    show_table(
        [*(Column(name, right=True) for name in ("STAGES", "CORES", "TOOK s")), Column("QUERY")],
        [
            [str(stages_of[name]), str(cores), f"{took_ms / 1000:,.2f}", name]
            for name, cores, took_ms in run.queries.select(
                "query", "executors", "elapsed_ms"
            ).iter_rows()
        ],
    )
    say(f"written to {out} and {edges}")


@runtime.command("query")
def query(
    stages: Annotated[Path, typer.Argument(help="Stages of queries: CSV or Parquet.")],
    edges: Annotated[Path, typer.Option(help="Edges between the stages.")],
    executors: Annotated[int, typer.Option(min=1, help="Tasks that run at once.")],
    bundle: Bundle,
    scale_gb: Annotated[float | None, typer.Option(help="Size of the data in GB.")] = None,
    json: AsJson = False,
) -> None:
    """Foresee a query: how many stages, how long each takes, and the whole."""
    from presage.foresee.runtime.queries import load_query_model

    model = load_query_model(bundle)
    answers = model.answer(read_runs(stages), read_runs(edges, empty=True), executors, scale_gb)
    if json:
        print_json({"queries": [answer.to_dict() for answer in answers]})
        return
    for answer in answers:
        _show_query(answer)


def _show_query(answer: QueryTimes) -> None:
    total, count = answer.total_s, len(answer.stages)
    say(
        f"query {answer.query}, {answer.scale_gb:g} GB, {answer.executors} executors:"
        f" {count} {'stage' if count == 1 else 'stages'}, {total[1]:,.1f} s"
        f" ({total[0]:,.1f}–{total[2]:,.1f}); {answer.why}"
    )
    columns = [
        Column("STAGE", right=True),
        Column("TASKS", right=True),
        Column("START s", right=True),
        Column("END s", right=True),
        Column("TAKES s", right=True),
    ]
    show_table(
        columns,
        [
            [
                str(stage.stage),
                f"{stage.tasks:,}",
                f"{stage.start_s:,.1f}",
                f"{stage.end_s:,.1f}",
                f"{stage.end_s - stage.start_s:,.1f}",
            ]
            for stage in answer.stages
        ],
    )


@runtime.command("tasks")
def tasks(
    table: Runs,
    task: Annotated[str | None, typer.Option(help="The column that names the task.")] = None,
    peak: Annotated[str | None, typer.Option(help="The most memory that a run held.")] = None,
    asked: Annotated[str | None, typer.Option(help="The memory that it asked for.")] = None,
    seconds: Annotated[str | None, typer.Option(help="How long it took, in seconds.")] = None,
    unit: Annotated[
        Literal["bytes", "KiB", "MiB", "GiB"], typer.Option(help="Of the memory.")
    ] = "MiB",
    failure_gib_h: Annotated[
        float,
        typer.Option(min=0, help="What a failure costs beside its waste: so many GiB hours."),
    ] = 16.0,
    json: AsJson = False,
) -> None:
    """Say how much memory repeated tasks should get, and what that would have saved."""
    from presage.provision.task_table import read_tasks, replay_tasks
    from presage.provision.tasks import SizingCost

    runs = read_tasks(
        read_runs(table), task=task, peak=peak, asked=asked, seconds=seconds, unit=unit
    )
    made = replay_tasks(runs, SizingCost(failure_mib_h=1024 * failure_gib_h))
    if json:
        print_json(made.to_dict())
        return
    show_table(
        [
            *(
                Column(name, right=True)
                for name in ("RUNS", "LARGEST MiB", "GIVE MiB", "QUANTILE", "MARGIN", "FAILED")
            ),
            Column("TASK"),
        ],
        [_task_row(one) for one in made.next],
    )
    if made.asked_wasted_gib_h:
        say(f"as asked for, {made.asked_wasted_gib_h:,.1f} GiB h were wasted")
    say(
        f"sized by the runs before, {made.wasted_gib_h:,.1f} GiB h of {made.runs:,} runs, of which"
        f" {made.failed_runs:,} fail at first; {made.cold:,} get what they asked for"
    )


def _task_row(one: SizedTask) -> list[str]:
    size, largest = one.size, f"{one.largest_mib:,.0f}"
    if size is None:
        return ["1", largest, "", "", "", "", one.task]
    rule = [f"{size.quantile:.0%}", f"+{size.margin:.0%}", str(size.failed)]
    return [str(size.runs), largest, f"{size.amount_mib:,.0f}", *rule, one.task]
