"""A query that was measured, at another size of data or on other executors.

Each stage is carried over by `stagelaws`, and all are scheduled by `dag.simulate`. To a size that
nobody has measured the whole is carried over, too: a Gaussian process of the query's totals, which
knows no stages and errs in other ways. The answer lies between both. Foresees nothing of queries
that were not measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from presage.foresee.runtime.dag import Schedule, StageWork, simulate
from presage.foresee.runtime.stagelaws import at_places
from presage.foresee.runtime.stages import (
    MeasuredWave,
    Query,
    measured_total,
    place_row,
    rows_of,
)
from presage.learn import Floats

__all__ = ["LEAST_MEASURED", "joined", "known_schedules", "stretched", "without"]

LEAST_MEASURED = 3
"""Measurements that each stage must have."""
_ROUND_S = 0.001
_BY_TOTALS = 0.3
"""Share of the process of totals where the size is new. This and the numbers below were best for
sizes left out, each in turn, of what is there without yet another one."""
_LEAST_TOTALS = 6
_LEVEL, _NOISE, _PRODUCT = 25.0, 0.0036, 0.01
_BY_SIZE, _BY_RATIO = (0.15, 7.0), (14.0, 6.0)
"""Variance and length of what varies with the size, and with its ratio to the executors."""

Place = tuple[float, int]
"""Size in GB, executors."""


def known_schedules(query: Query, places: Sequence[Place], powers: Floats) -> list[Schedule]:
    """How the query will run at each place."""
    measured, made = query.places(), []
    sizes = {size for size, _ in measured}
    enough = len(sizes) > 1 and len(measured) >= _LEAST_TOTALS
    for place, works in zip(places, _carried_over(query, places, powers), strict=True):
        schedule = simulate(works, query.edges, place[1])
        if enough and place[0] not in sizes:
            by_stages = max(schedule.total_s, _ROUND_S) ** (1 - _BY_TOTALS)
            schedule = stretched(schedule, by_stages * _total_s(query, place) ** _BY_TOTALS)
        made.append(schedule)
    return made


def _total_s(query: Query, place: Place) -> float:
    """The whole at a place, after the whole where it was measured."""
    known = {there: measured_total(query, *there) for there in query.places()}
    rows = np.log(np.array(list(known)))
    logs = np.log([max(one.total_s, _ROUND_S) for one in known.values() if one is not None])
    near, asked = rows - rows.mean(axis=0), np.log([place]) - rows.mean(axis=0)
    told = np.linalg.solve(_kernel(near, near) + _NOISE * np.eye(len(near)), logs - logs.mean())
    return float(np.exp(_kernel(asked, near)[0] @ told + logs.mean()))


def _kernel(left: Floats, right: Floats) -> Floats:
    size, executors = (left[:, [n]] - right[:, n][None] for n in (0, 1))
    out: Floats = (
        _LEVEL
        + _PRODUCT * np.outer(left.prod(axis=1), right.prod(axis=1))
        + _BY_SIZE[0] * np.exp(-0.5 * (size / _BY_SIZE[1]) ** 2)
        + _BY_RATIO[0] * np.exp(-0.5 * ((size - executors) / _BY_RATIO[1]) ** 2)
    )
    return out


def _carried_over(
    query: Query, places: Sequence[Place], powers: Floats
) -> list[dict[int, StageWork]]:
    """The work of each stage at each place, from where it was measured."""
    works: list[dict[int, StageWork]] = [{} for _ in places]
    for stage in query.order:
        measured = query.measured[stage]
        sizes = {one.scale_gb: query.tasks_at(stage, one.scale_gb) for one in measured}
        rows = rows_of(measured, sizes)
        logs = np.log(np.array([max(one.mean_s, _ROUND_S) for one in measured]))
        counts = [query.tasks_at(stage, scale_gb) for scale_gb, _ in places]
        asked = np.array(
            [
                place_row(*place, tasks, first)
                for place, tasks in zip(places, counts, strict=True)
                for first in (True, False)
            ]
        )
        times = np.exp(at_places(rows, logs, asked, powers)).reshape(-1, 2)
        for at, (place, tasks) in enumerate(zip(places, counts, strict=True)):
            first = _first_tasks(measured, sizes, *place, tasks)
            works[at][stage] = StageWork(
                first, tasks - first, float(times[at, 0]), float(times[at, 1])
            )
    return works


def _first_tasks(
    measured: Sequence[MeasuredWave],
    sizes: Mapping[float, int],
    scale_gb: float,
    executors: int,
    tasks: int,
) -> int:
    """How many tasks the first wave has: fewer than executors where stages run side by side."""
    most = min(executors, tasks)
    ones = [one for one in measured if one.first]
    if not ones:
        return most
    logs = np.array([np.log(one.tasks / min(one.executors, sizes[one.scale_gb])) for one in ones])
    apart = np.array(
        [
            (np.log(one.scale_gb / scale_gb) / 0.7) ** 2
            + (np.log(one.executors / executors) / 0.4) ** 2
            for one in ones
        ]
    )
    near = np.exp(-0.5 * (apart - apart.min()))
    return int(np.clip(round(most * float(np.exp(near @ logs / near.sum()))), 1, most))


def stretched(schedule: Schedule, total_s: float) -> Schedule:
    factor = total_s / schedule.total_s if schedule.total_s > 0 else 1.0
    return Schedule(
        {stage: at * factor for stage, at in schedule.start_s.items()},
        {stage: at * factor for stage, at in schedule.end_s.items()},
        total_s,
    )


def without(query: Query, by: int, value: float) -> Query:
    """A query as if nothing had been measured at one scale, or on so many executors."""
    measured = {
        stage: [one for one in rows if (one.scale_gb, one.executors)[by] != value]
        for stage, rows in query.measured.items()
    }
    tasks = {
        stage: {scale: n for scale, n in said.items() if by == 1 or scale != value}
        for stage, said in query.tasks.items()
    }
    return Query(query.name, query.edges, query.order, measured, tasks)


def joined(asked: Query, known: Query | None) -> Query:
    """What is asked with what was measured of the same query before."""
    if known is None or set(known.order) != set(asked.order):
        return asked
    measured, tasks = {}, {}
    for stage in asked.order:
        own = asked.measured.get(stage, [])
        taken = {(one.scale_gb, one.executors, one.first) for one in own}
        before = [
            one
            for one in known.measured.get(stage, [])
            if (one.scale_gb, one.executors, one.first) not in taken
        ]
        measured[stage] = [*before, *own]
        said = {k: v for k, v in asked.tasks.get(stage, {}).items() if k > 0}
        tasks[stage] = {**known.tasks.get(stage, {}), **said}
    return Query(asked.name, asked.edges, asked.order, measured, tasks)
