"""`presage health`: what is unusual in telemetry, and who is to blame.

The commands compose; `observe.health` does the work.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import typer

from presage.cli._health_input import (
    AsJson,
    Id,
    Ignore,
    Telemetry,
    Time,
    check_table,
    read,
    write_table,
)
from presage.cli._input import seconds
from presage.cli._output import check_file, print_json, progress, say
from presage.cli._tables import Column, show_table
from presage.cli.health_failures import failures
from presage.cli.health_kinds import kinds
from presage.observe.health.anomalies import AnomalyModel, Judged, usual_time
from presage.observe.health.causes import Causes, find_causes, service_graph
from presage.page import counted, duration_text
from presage.telemetry.readers import InputRows, read_moment, read_table

__all__ = ["health"]

_DAY_S, _FEW_DAYS = 86_400.0, 3.0
"""Alarms are stated per day: in fewer days of telemetry there are too few to count."""

health = typer.Typer(
    help="See what is unusual in telemetry, who is to blame, and which runs will fail.",
    no_args_is_help=True,
)
health.add_typer(failures, name="failures")
health.add_typer(kinds, name="kinds")


@health.command()
def fit(
    telemetry: Telemetry,
    out: Annotated[Path, typer.Option(help="The bundle to write.")],
    id: Id = None,
    time: Time = None,
    ignore: Ignore = None,
    every: Annotated[
        str | None,
        typer.Option(
            help="How long a sample stands for: 15s, 1m.",
            show_default="the median time between samples",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Learn from TELEMETRY, without labels, what series of its kind usually do."""
    every_s = None if every is None else seconds(every, "--every")
    check_file(out, "--out")
    rows = read(telemetry, id, time, ignore)
    with progress(f"learning from {len(rows.series):,} series") as report:
        model = AnomalyModel.fit(rows.series, every_s or usual_time(rows.series), report)
    samples = sum(map(len, rows.series))
    data = f"{telemetry.name}: {len(rows.series):,} series, {samples:,} samples"
    model.save(out, date=datetime.now(UTC).date().isoformat(), data=data)
    if json:
        print_json(
            {
                "written": str(out),
                "series": len(rows.series),
                "samples": samples,
                "every_s": model.every_s,
                "metrics": list(model.metrics),
                "left_out": list(rows.left_out),
            }
        )
        return
    each = duration_text(model.every_s)
    typer.echo(f"{counted(len(model.metrics), 'metric')}, a sample every {each}; {data}")
    days = samples * model.every_s / _DAY_S
    if days < _FEW_DAYS:
        say(f"learned from {days:.2g} days in all: alarms may come more often than stated")
    say(f"written to {out}")


@health.command()
def score(
    telemetry: Telemetry,
    bundle: Annotated[Path, typer.Option(help="What `presage health fit` wrote.")],
    out: Annotated[Path, typer.Option(help="The .csv or .parquet to write.")],
    id: Id = None,
    time: Time = None,
    ignore: Ignore = None,
    false_alarms_per_day: Annotated[
        float,
        typer.Option(min=1e-6, help="How often a day a series that is well may raise an alarm."),
    ] = 1.0,
    json: AsJson = False,
) -> None:
    """Write, for each row of TELEMETRY, how unusual it is and which metrics speak for it."""
    check_table(out)
    model = AnomalyModel.load(bundle)
    rows = read(telemetry, id, time, ignore)
    _compare_metrics(model, rows)
    with progress(f"scoring {len(rows.series):,} series") as report:
        judged = model.judge(rows.series, report)
    table = _scores(model, rows, judged, false_alarms_per_day)
    write_table(table, out)
    alarms = _alarms_by_series(rows, judged, false_alarms_per_day)
    if json:
        print_json(
            {
                "written": str(out),
                "rows": len(table),
                "alarm_rows": int(table["alarm"].sum()),
                "false_alarms_per_day": false_alarms_per_day,
                "series": alarms,
            }
        )
        return
    _show_alarms(alarms)
    say(f"{len(table):,} rows written to {out}")


@health.command()
def causes(
    telemetry: Telemetry,
    since: Annotated[str, typer.Option("--from", help="When the trouble began.")],
    until: Annotated[str, typer.Option("--to", help="When it ended; not itself part of it.")],
    id: Id = None,
    time: Time = None,
    ignore: Ignore = None,
    graph: Annotated[
        Path | None, typer.Option(help="A table of services: caller and callee.")
    ] = None,
    most: Annotated[int, typer.Option(min=1, help="How many to name at most.")] = 5,
    json: AsJson = False,
) -> None:
    """Say which series, and which of its metrics, is the likely cause of trouble in TELEMETRY."""
    rows = read(telemetry, id, time, ignore)
    begin = read_moment(since, rows.time_column, "--from")
    end = read_moment(until, rows.time_column, "--to")
    edges = None if graph is None else service_graph(read_table(graph), rows.series)
    ranking = find_causes(rows.series, begin, end, edges, most)
    for note in ranking.notes:
        say(note)
    if json:
        print_json(ranking.to_json())
    else:
        _show_causes(ranking)


def _compare_metrics(model: AnomalyModel, rows: InputRows) -> None:
    """Say what one side has and the other has not."""
    here = dict.fromkeys(name for pod in rows.series for name in pod.features)
    if here.keys().isdisjoint(model.metrics):
        return  # the model refuses this, in one line
    if missing := [name for name in model.metrics if name not in here]:
        say(f"not in the telemetry, and not judged: {', '.join(missing)}")
    if new := [name for name in here if name not in model.metrics]:
        say(f"not in the bundle, and not judged: {', '.join(new)}")


def _scores(
    model: AnomalyModel, rows: InputRows, judged: list[Judged], per_day: float
) -> pl.DataFrame:
    """A row for each row of the input, in its order."""
    lengths = [len(pod) for pod in rows.series]
    starts = np.concatenate([[0], np.cumsum(lengths)])[:-1]
    place = starts[rows.pod_of_row] + rows.sample_of_row()
    value = np.concatenate([one.score for one in judged])[place]
    alarm = np.concatenate([one.alarm(per_day) for one in judged])[place]
    speak = np.concatenate([one.speak for one in judged])[place]
    names = np.array(model.metrics, dtype=object)
    ids = np.array([pod.pod for pod in rows.series], dtype=object)[rows.pod_of_row]
    metrics: dict[str, Any] = {}
    for at in range(3):
        column = names[speak[:, at]] if at < speak.shape[1] else [None] * len(place)
        metrics[f"metric_{at + 1}"] = pl.Series(column, dtype=pl.String)
    return pl.DataFrame(
        {
            "id": pl.Series(ids, dtype=pl.String),
            "time": rows.times,
            "score": pl.Series(value).fill_nan(None),
            "alarm": alarm,
            **metrics,
        }
    )


def _alarms_by_series(
    rows: InputRows, judged: list[Judged], per_day: float
) -> dict[str, dict[str, Any]]:
    alarms = {}
    for pod, one in zip(rows.series, judged, strict=True):
        known = one.score[np.isfinite(one.score)]
        alarms[pod.pod] = {
            "samples": len(pod),
            "alarm_samples": int(one.alarm(per_day).sum()),
            "highest": float(known.max()) if len(known) else None,
        }
    return alarms


_SHOWN = 20


def _show_alarms(alarms: dict[str, dict[str, Any]]) -> None:
    """The series with the most samples in alarm."""
    worst = sorted(alarms, key=lambda name: -alarms[name]["alarm_samples"])
    columns = [Column("SERIES"), *(Column(n, right=True) for n in ("SAMPLES", "ALARM", "HIGHEST"))]
    body = [
        [
            name,
            f"{alarms[name]['samples']:,}",
            f"{alarms[name]['alarm_samples']:,}",
            "" if alarms[name]["highest"] is None else f"{alarms[name]['highest']:.3f}",
        ]
        for name in worst[:_SHOWN]
    ]
    show_table(columns, body)
    if len(worst) > _SHOWN:
        say(f"… and {len(worst) - _SHOWN:,} more series")


def _show_causes(ranking: Causes) -> None:
    if not ranking.causes:
        typer.echo("nothing stands out")
        return
    columns = [Column("CAUSE"), Column("METRIC"), Column("CHANCE", right=True), Column("EVIDENCE")]
    body = [
        [cause.name, cause.metric, f"{cause.probability:.0%}", cause.evidence]
        for cause in ranking.causes
    ]
    show_table(columns, body)
