"""Tables of tasks that ran: what their owners asked for against what sizing by history would have
given, each task sized at its submission by the runs that had ended then.

A run that gets too little wastes all it had for as long as it takes, and runs again; one that gets
enough wastes what it did not use. No try gets more than was asked for, unless that was too little.
Reads no file and knows no cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from heapq import heappop, heappush
from typing import Any

import polars as pl

from presage.model.errors import UserError
from presage.provision.tasks import SizingCost, TaskSize, TaskSizer

__all__ = [
    "SizedTask",
    "TaskOutcome",
    "TaskRun",
    "read_tasks",
    "replay_each",
    "replay_tasks",
    "together",
]

_MIB = {"bytes": 2.0**-20, "KiB": 2.0**-10, "MiB": 1.0, "GiB": 2.0**10}
_NEXTFLOW = {
    "task": "process",
    "peak": "peak_rss",
    "asked": "memory",
    "took": "realtime",
    "submitted": "submit",
    "ended": "complete",
}
"""Columns of a Nextflow trace: amounts in bytes, times in milliseconds."""


@dataclass(frozen=True, slots=True)
class TaskRun:
    """One run of a task that ended by itself."""

    task: str
    peak_mib: float
    hours: float
    asked_mib: float | None
    submitted_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class SizedTask:
    """What the next run of one task should get."""

    task: str
    size: TaskSize | None
    """None where too little is known."""
    largest_mib: float

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        size = {"size": asdict(self.size), "reason": self.size.reason} if self.size else {}
        return {"task": self.task, "largest_mib": self.largest_mib, **size}


@dataclass(slots=True)
class TaskOutcome:
    """What sizing would have done on a table."""

    runs: int = 0
    cold: int = 0
    """Runs that got what was asked for, as too little was known."""
    failed_tries: int = 0
    failed_runs: int = 0
    """Runs of which the first try failed."""
    wasted_gib_h: float = 0.0
    asked_wasted_gib_h: float = 0.0
    """What would be wasted if all got what they asked for."""
    used_gib_h: float = 0.0
    next: list[SizedTask] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"next": [one.to_dict() for one in self.next]}


_COUNTS = [one.name for one in fields(TaskOutcome) if one.name != "next"]


def read_tasks(
    table: pl.DataFrame,
    *,
    task: str | None = None,
    peak: str | None = None,
    asked: str | None = None,
    seconds: str | None = None,
    unit: str = "MiB",
) -> list[TaskRun]:
    """The runs in a table, in the order of their submission. A Nextflow trace is known by its
    columns; other tables are in the order in which their runs went, one after the other."""
    nextflow = task is None and set(_NEXTFLOW.values()) <= set(table.columns)
    if nextflow:
        rows = (
            table.filter(pl.col("status") == "COMPLETED") if "status" in table.columns else table
        )
        names, unit, per_s = _NEXTFLOW, "bytes", 1000.0
    else:
        given = {"task": task, "peak": peak, "asked": asked, "took": seconds}
        for option, name in (("--task", task), ("--peak", peak)):
            if name is None:
                raise UserError(
                    f"name the column with {option}: the table is no trace of Nextflow; it has"
                    f" {', '.join(table.columns[:12])}"
                )
        names, rows, per_s = {key: name for key, name in given.items() if name}, table, 1.0
    for name in names.values():
        if name not in table.columns:
            raise UserError(
                f"the table has no column {name}; it has {', '.join(table.columns[:12])}"
            )
    amounts = {key: _numbers(rows, names, key, _MIB[unit]) for key in ("peak", "asked")}
    times = {k: _numbers(rows, names, k, 1 / per_s) for k in ("took", "submitted", "ended")}
    runs = []
    for at, name in enumerate(rows[names["task"]].cast(pl.String).to_list()):
        peak_mib, took_s = amounts["peak"][at], times["took"][at]
        if peak_mib is None:
            continue
        submitted, ended = times["submitted"][at], times["ended"][at]
        runs.append(
            TaskRun(
                str(name),
                peak_mib,
                1.0 if took_s is None else took_s / 3600,
                amounts["asked"][at],
                float(at) if submitted is None else submitted,
                at + 0.5 if ended is None else ended,
            )
        )
    if not runs:
        raise UserError("no run of the table says how much memory it held")
    return sorted(runs, key=lambda run: run.submitted_s)


def _numbers(
    table: pl.DataFrame, names: dict[str, str], key: str, factor: float
) -> Sequence[float | None]:
    """A column as numbers; None where there is none, and for a peak of 0, which says nothing."""
    name = names.get(key)
    if name is None:
        return [None] * table.height
    values = table[name].cast(pl.Float64, strict=False).fill_nan(None)
    if (values < 0).any():
        row = int((values < 0).arg_true()[0])
        raise UserError(f"column {name} has {values[row]:g} in row {row + 1}, which is below 0")
    out: list[float | None] = (values * factor).to_list()
    return [None if one == 0 and key == "peak" else one for one in out]


def replay_tasks(runs: Sequence[TaskRun], cost: SizingCost | None = None) -> TaskOutcome:
    """Size every run by those that had ended when it was submitted, and count."""
    return together(replay_each(runs, cost).values())


def together(outcomes: Iterable[TaskOutcome]) -> TaskOutcome:
    """Several outcomes as one."""
    total = TaskOutcome()
    for one in outcomes:
        for name in _COUNTS:
            setattr(total, name, getattr(total, name) + getattr(one, name))
        total.next += one.next
    return total


def replay_each(runs: Sequence[TaskRun], cost: SizingCost | None = None) -> dict[str, TaskOutcome]:
    """The same for each task, of which all teach each other."""
    sizer, made = TaskSizer(cost), {run.task: TaskOutcome() for run in runs}
    going: list[tuple[float, int]] = []
    for number, run in enumerate(runs):
        while going and going[0][0] <= run.submitted_s:
            _learn(sizer, runs[heappop(going)[1]])
        _count(made[run.task], sizer, run)
        heappush(going, (run.ended_s, number))
    for _, number in sorted(going):
        _learn(sizer, runs[number])
    largest: dict[str, float] = {}
    for run in runs:
        largest[run.task] = max(run.peak_mib, largest.get(run.task, 0.0))
    for task, outcome in made.items():
        outcome.next.append(SizedTask(task, sizer.size(task), largest[task]))
    return made


def _learn(sizer: TaskSizer, ended: TaskRun) -> None:
    sizer.learn(ended.task, ended.peak_mib, ended.hours)


def _count(made: TaskOutcome, sizer: TaskSizer, run: TaskRun) -> None:
    size, asked = sizer.size(run.task), run.asked_mib
    most = asked if asked is not None else float("inf")
    if size is None and asked is None:
        return  # nobody could say what it gets
    given = min(size.amount_mib, most) if size is not None else most
    made.cold += size is None
    made.failed_runs += given < run.peak_mib
    gib_h = run.hours / 1024
    while given < run.peak_mib:
        made.failed_tries += 1
        made.wasted_gib_h += given * gib_h
        more = sizer.after_failure(run.task, given)
        given = min(more, most) if given < most else more
    made.runs += 1
    made.wasted_gib_h += (given - run.peak_mib) * gib_h
    made.used_gib_h += run.peak_mib * gib_h
    made.asked_wasted_gib_h += max(0.0, (asked or 0.0) - run.peak_mib) * gib_h
