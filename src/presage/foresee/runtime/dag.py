"""A query as a DAG of stages, and how long it takes on so many executors.

The simulation is a list schedule: a free executor takes the next task of the first stage, in the
order of their numbers, that is ready. The first wave of a stage is slower than the rest (code is
compiled and caches are filled), so a stage has two durations. Ties of the event loop are broken by
serial numbers, so that the same stages always give the same times. Nothing here is learned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from presage.model.errors import UserError

__all__ = ["Edges", "Schedule", "StageWork", "in_order", "simulate"]

Edges = Sequence[tuple[int, int]]
"""(from, to): the second stage starts when the first has ended."""


@dataclass(frozen=True, slots=True)
class StageWork:
    """What one stage has to do."""

    first_tasks: int
    rest_tasks: int
    first_s: float
    """How long a task of the first wave takes."""
    rest_s: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """When each stage starts and ends, and when all have ended."""

    start_s: dict[int, float]
    end_s: dict[int, float]
    total_s: float


def in_order(stages: Sequence[int], edges: Edges) -> list[int]:
    """The stages, each after those it waits for; an error names the stages of a cycle."""
    known = set(stages)
    for edge in edges:
        for stage in edge:
            if stage not in known:
                raise UserError(
                    f"edge {edge[0]} → {edge[1]} names stage {stage}, which the table of stages"
                    " does not have"
                )
    waits = {stage: 0 for stage in known}
    after: dict[int, list[int]] = {stage: [] for stage in known}
    for before, then in set(edges):
        waits[then] += 1
        after[before].append(then)
    ready = sorted((stage for stage in known if not waits[stage]), reverse=True)
    order: list[int] = []
    while ready:
        stage = ready.pop()
        order.append(stage)
        for then in after[stage]:
            waits[then] -= 1
            if not waits[then]:
                ready.append(then)
        ready.sort(reverse=True)
    if len(order) < len(known):
        loop = _cycle(known - set(order), after)
        raise UserError(
            f"the stages wait for one another in a cycle: {' → '.join(map(str, loop))};"
            " remove one of these edges"
        )
    return order


def _cycle(stuck: set[int], after: Mapping[int, Sequence[int]]) -> list[int]:
    """One cycle among stages that are on, or behind, a cycle."""
    before = {then: stage for stage in stuck for then in after[stage] if then in stuck}
    stage, seen = min(stuck), list[int]()
    while stage not in seen:
        seen.append(stage)
        stage = before[stage]
    loop = seen[seen.index(stage) :][::-1]
    first = loop.index(min(loop))
    return [*loop[first:], *loop[: first + 1]]


def simulate(works: Mapping[int, StageWork], edges: Edges, executors: int) -> Schedule:
    """Run the stages on so many executors."""
    if executors < 1:
        raise UserError(f"a query needs 1 executor or more, not {executors}")
    in_order(list(works), edges)
    return _ListRun(works, edges, executors).to_end()


class _ListRun:
    """The event loop: batches of equal tasks, by when they end."""

    def __init__(self, works: Mapping[int, StageWork], edges: Edges, executors: int) -> None:
        self._works, self._free = works, executors
        self._waits = {stage: 0 for stage in works}
        self._after: dict[int, list[int]] = {stage: [] for stage in works}
        for before, then in set(edges):
            self._waits[then] += 1
            self._after[before].append(then)
        self._open = {stage: work.first_tasks + work.rest_tasks for stage, work in works.items()}
        self._left = dict(self._open)
        self._ready = [stage for stage in sorted(works) if not self._waits[stage]]
        self._ends: list[tuple[float, int, int, int]] = []
        self._serial = 0
        self._start_s: dict[int, float] = {}
        self._end_s: dict[int, float] = {}

    def to_end(self) -> Schedule:
        now = 0.0
        self._assign(now)
        while self._ends:
            now, _, stage, tasks = heappop(self._ends)
            self._finish(now, stage, tasks)
            while self._ends and self._ends[0][0] == now:
                _, _, stage, tasks = heappop(self._ends)
                self._finish(now, stage, tasks)
            self._assign(now)
        return Schedule(self._start_s, self._end_s, now)

    def _assign(self, now: float) -> None:
        while self._free and self._ready:
            stage = self._ready[0]
            work, opened = self._works[stage], self._open[stage]
            self._start_s.setdefault(stage, now)
            first = opened - work.rest_tasks
            batch = min(self._free, first if first > 0 else opened)
            if batch:
                lasts_s = work.first_s if first > 0 else work.rest_s
                self._serial += 1
                heappush(self._ends, (now + lasts_s, self._serial, stage, batch))
            self._free -= batch
            self._open[stage] -= batch
            if not self._open[stage]:
                self._ready.pop(0)
                if not opened:  # a stage without tasks ends as it starts
                    self._end(now, stage)

    def _finish(self, now: float, stage: int, tasks: int) -> None:
        self._free += tasks
        self._left[stage] -= tasks
        if not self._left[stage]:
            self._end(now, stage)

    def _end(self, now: float, stage: int) -> None:
        self._end_s[stage] = now
        for then in self._after[stage]:
            self._waits[then] -= 1
            if not self._waits[then]:
                self._ready.append(then)
        self._ready.sort()
