"""Tables of the stages of queries: checked, joined, and as the numbers that models look at.

A row is what was measured of one wave of a stage: `first_wave` and `rest_wave` add up to the
stage; `fresh_durations` repeats a part of the first wave and is not used. Where a stage ran
several times at one place, the median of its times counts. A table may also hold nothing but
stages and their tasks. Nothing here is learned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from presage.foresee.runtime.dag import Edges, Schedule, StageWork, in_order, simulate
from presage.learn import Floats
from presage.model.errors import UserError

__all__ = ["MeasuredWave", "Query", "is_stages", "measured_total", "read_queries", "structure"]

_FIRST, _REST = "first_wave", "rest_wave"
_WAVES = (_FIRST, _REST)
_LEAST_TASKS = 1


@dataclass(frozen=True, slots=True)
class MeasuredWave:
    """One wave of one stage."""

    scale_gb: float
    executors: int
    first: bool
    tasks: int
    mean_s: float


@dataclass(slots=True)
class Query:
    """One query: its DAG, and what was measured of each stage."""

    name: str
    edges: Edges
    order: list[int]
    measured: dict[int, list[MeasuredWave]] = field(default_factory=dict)
    tasks: dict[int, dict[float, int]] = field(default_factory=dict)
    """Stage -> scale -> number of tasks."""

    def tasks_at(self, stage: int, scale_gb: float) -> int:
        """As said for that scale, else on the line through the nearest two scales; from the least
        number that there is at several scales, in proportion to the larger one."""
        said = self.tasks.get(stage, {})
        if not said:
            raise UserError(
                f"query {self.name} has no tasks for stage {stage} (where rows have a"
                f" wave, those of {' and '.join(_WAVES)} count)"
            )
        if scale_gb in said:
            return said[scale_gb]
        known = sorted(said)
        if len(known) == 1:
            return said[known[0]]
        after = int(np.clip(np.searchsorted(known, scale_gb), 1, len(known) - 1))
        low, high = known[after - 1], known[after]
        least = min(said.values())
        if said[low] == least < said[high] and list(said.values()).count(least) > 1:
            return max(least, round(said[high] * scale_gb / high))
        slope = (said[high] - said[low]) / (high - low)
        return max(_LEAST_TASKS, round(said[low] + slope * (scale_gb - low)))

    def works(self, scale_gb: float, executors: int) -> dict[int, StageWork] | None:
        """What was measured at one place; None where a stage lacks it."""
        works = {}
        for stage in self.order:
            here = [
                one
                for one in self.measured.get(stage, ())
                if one.scale_gb == scale_gb and one.executors == executors
            ]
            if not here:
                return None
            first = [one for one in here if one.first]
            rest = [one for one in here if not one.first]
            works[stage] = StageWork(
                sum(one.tasks for one in first),
                sum(one.tasks for one in rest),
                first[0].mean_s if first else 0.0,
                rest[0].mean_s if rest else 0.0,
            )
        return works

    def places(self) -> list[tuple[float, int]]:
        """Where all stages were measured: scale and executors."""
        seen = {(one.scale_gb, one.executors) for rows in self.measured.values() for one in rows}
        return sorted(place for place in seen if self.works(*place) is not None)


def measured_total(query: Query, scale_gb: float, executors: int) -> Schedule | None:
    """The list schedule of what was measured: the truth that models are judged by."""
    works = query.works(scale_gb, executors)
    return None if works is None else simulate(works, query.edges, executors)


def is_stages(table: pl.DataFrame) -> bool:
    """Whether a table looks like stages of queries."""
    return {"stage", "tasks", "mean_ms"} <= set(table.columns)


def read_queries(stages: pl.DataFrame, edges: pl.DataFrame) -> dict[str, Query]:
    """The queries in a table of stages and one of edges."""
    for name, table, what in (
        ("stage", stages, "stages"),
        ("from_stage", edges, "edges"),
        ("to_stage", edges, "edges"),
    ):
        if name not in table.columns:
            raise UserError(
                f"the table of {what} lacks the column {name}; it has {', '.join(table.columns)}"
            )
    stages = _checked(stages, "stages", ("stage", "tasks", "executors", "scale_gb", "mean_ms"))
    edges = _checked(edges, "edges", ("from_stage", "to_stage"))
    by_query = _edges_by_query(edges)
    queries: dict[str, Query] = {}
    keyed = stages if "query" in stages.columns else stages.with_columns(query=pl.lit("0"))
    names = {str(name) for name in keyed["query"].unique()}
    if by_query and not (names | {""}) & set(by_query):
        raise UserError(
            f"the edges are of query {', '.join(sorted(by_query)[:5])}, the stages of"
            f" {', '.join(sorted(names)[:5])}: give both the same names"
        )
    for (name,), rows in keyed.group_by("query", maintain_order=True):
        mine = by_query.get(str(name), by_query.get("", []))
        try:
            order = in_order(sorted(set(rows["stage"].to_list())), mine)
        except UserError as error:
            raise UserError(f"query {name}: {error}") from None
        query = Query(str(name), mine, order)
        _take(query, rows)
        queries[query.name] = query
    return queries


_WHOLE = ("stage", "from_stage", "to_stage", "tasks", "executors")
_NEEDED = ("stage", "from_stage", "to_stage")


def _checked(table: pl.DataFrame, what: str, names: Sequence[str]) -> pl.DataFrame:
    """The table with numbers in these columns, as far as it has them; an error names the row."""
    for name in names:
        if name not in table.columns:
            continue
        values = table[name].cast(pl.Float64, strict=False)
        wrong = table[name].is_not_null() & (values.is_null() | ~values.is_finite() | (values < 0))
        says = "a number, 0 or more"
        if name in _WHOLE:
            wrong, says = wrong | (values != values.round()), "a whole number, 0 or more"
        if name in _NEEDED:
            wrong = wrong | table[name].is_null()
        if (row := wrong.fill_null(False).arg_max()) is not None and wrong[row]:
            raise UserError(
                f"column {name} of the table of {what} has {_shown(table[name][row])} in row"
                f" {row + 1}; it must be {says}"
            )
        kind = pl.Int64 if name in _WHOLE else pl.Float64
        table = table.with_columns(values.cast(kind).alias(name))
    return table


def _shown(value: object) -> str:
    return "nothing" if value is None else str(value)


def _edges_by_query(edges: pl.DataFrame) -> dict[str, list[tuple[int, int]]]:
    keyed = edges if "query" in edges.columns else edges.with_columns(query=pl.lit(""))
    by_query: dict[str, dict[tuple[int, int], None]] = {}
    for row in keyed.select("query", "from_stage", "to_stage").iter_rows():
        by_query.setdefault(str(row[0]), {})[int(row[1]), int(row[2])] = None
    return {name: list(pairs) for name, pairs in by_query.items()}


def _take(query: Query, rows: pl.DataFrame) -> None:
    columns = set(rows.columns)
    timed = {"wave", "executors", "mean_ms", "tasks", "scale_gb"} <= columns
    seen: dict[tuple[int, float, int], dict[str | None, list[tuple[int, float | None]]]] = {}
    for row in rows.iter_rows(named=True):
        wave = row.get("wave")
        if row.get("tasks") is None or (wave is not None and wave not in _WAVES):
            continue
        place = (int(row["stage"]), float(row.get("scale_gb") or 0.0))
        here = seen.setdefault((*place, int(row.get("executors") or 0)), {})
        here.setdefault(wave, []).append((int(row["tasks"]), row.get("mean_ms")))
    for (stage, scale, executors), waves in seen.items():
        repeats = max(map(len, waves.values()))
        tasks = _tasks_of_one(waves, repeats)
        if not any(tasks.values()):
            continue
        said = query.tasks.setdefault(stage, {})
        said[scale] = max(said.get(scale, 0), sum(tasks.values()))
        for wave, runs in waves.items():
            times = [ms for _, ms in runs if ms is not None]
            if timed and times and wave is not None and executors and tasks[wave]:
                mean_s = float(np.median(times)) / 1000
                one = MeasuredWave(scale, executors, wave == _FIRST, tasks[wave], mean_s)
                query.measured.setdefault(stage, []).append(one)


def _tasks_of_one(
    waves: Mapping[str | None, list[tuple[int, float | None]]], repeats: int
) -> dict[str | None, int]:
    """How many tasks each wave has in one of so many runs of a stage."""
    sums = {wave: sum(tasks for tasks, _ in runs) for wave, runs in waves.items()}
    one = {wave: round(tasks / repeats) for wave, tasks in sums.items()}
    if _REST in one:
        one[_REST] = max(round(sum(sums.values()) / repeats) - one.get(_FIRST, 0), 0)
    return one


def structure(query: Query, stage: int, scale_gb: float) -> list[float]:
    """What a stage is in its DAG, for models that have never seen the query."""
    parents: Mapping[int, list[int]] = {s: [] for s in query.order}
    children: Mapping[int, list[int]] = {s: [] for s in query.order}
    for before, then in query.edges:
        parents[then].append(before)
        children[before].append(then)
    depth: dict[int, int] = {}
    for one in query.order:
        depth[one] = 1 + max((depth[before] for before in parents[one]), default=-1)
    tasks = {one: query.tasks_at(one, scale_gb) for one in query.order}
    fed = [tasks[one] for one in parents[stage]]
    feeds = [tasks[one] for one in children[stage]]
    leaves = [tasks[one] for one in parents[stage] if not parents[one]]
    own = tasks[stage]
    return [
        np.log(own),
        own / scale_gb,
        np.log(scale_gb / own),
        float(depth[stage]),
        float(max(depth.values()) - depth[stage]),
        float(len(fed)),
        float(len(feeds)),
        np.log(max(fed, default=0) + 1.0),
        np.log(sum(fed) + 1.0),
        np.log(min(fed, default=0) + 1.0),
        max(leaves, default=0) / scale_gb,
        sum(leaves) / scale_gb,
        np.log(max(feeds, default=0) + 1.0),
        float(len(query.order)),
        float(sum(value for one, value in tasks.items() if not parents[one])) / scale_gb,
    ]


def rows_of(measured: list[MeasuredWave], tasks: Mapping[float, int]) -> Floats:
    """Logarithms a model of one stage looks at: scale, data a task, executors, tasks at once,
    wave."""
    return np.array(
        [
            place_row(one.scale_gb, one.executors, tasks[one.scale_gb], one.first)
            for one in measured
        ]
    ).reshape(len(measured), 5)


def place_row(scale_gb: float, executors: int, tasks: int, first: bool) -> tuple[float, ...]:
    """One row of `rows_of`."""
    return (
        float(np.log(scale_gb)),
        float(np.log(scale_gb / tasks)),
        float(np.log(executors)),
        float(np.log(min(executors, tasks))),
        0.5 if first else -0.5,
    )
