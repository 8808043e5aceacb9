"""The walk in which nobody ever passes the first job: one look at a time is enough."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from presage.core.plan import Plan
from presage.core.ports import Predictor, SortKey
from presage.model.cluster import Worker
from presage.model.job import Job, JobState, Reason
from presage.policy.backlog import Group, waits
from presage.policy.elastic import least_workers
from presage.policy.explain import why_no_room
from presage.policy.start import Starter

__all__ = ["Line", "Placing"]

_PENDING = JobState.PENDING


class Placing:
    """What the walks have in common in which a job gets devices of its own."""

    def __init__(self, starter: Starter) -> None:
        self.starter = starter
        self.rules = starter.rules

    def find(self, job: Job, plan: Plan, predict: Predictor) -> tuple[Worker, ...] | None:
        """Where the placement puts it."""
        return self.rules.placer_of(job).find(job, plan, least_workers(job))

    def why(self, job: Job, plan: Plan, predict: Predictor, ahead: int) -> Reason:
        """What it needs beside what there is."""
        return why_no_room(job, plan, ahead, self.rules.placer)


class Line(Placing):
    """Strictly in order."""

    def __init__(self, starter: Starter) -> None:
        super().__init__(starter)
        self._line: list[tuple[SortKey, Job, Group]] = []

    def reset(self) -> None:
        """Nobody waits."""
        self._line.clear()

    def push(self, key: SortKey, job: Job, group: Group, plan: Plan) -> None:
        """Add a job."""
        heappush(self._line, (key, job, group))

    def walk(self, plan: Plan, predict: Predictor) -> None:
        """Start jobs up to the first that does not fit."""
        line, state, starter = self._line, plan.state, self.starter
        capacity, reservations, stuck = state.capacity, state.reservations, not starter.makes_room
        while line:
            _, job, group = line[0]
            if job.state is _PENDING and (not reservations or waits(job, state)):
                released = capacity.released
                if stuck and (group.failed_at == released or not capacity.has_whole(group.whole)):
                    group.failed_at = released
                    return
                if starter.start(job, group, plan, predict) is not None:
                    if job.state is not _PENDING:  # some of its workers were launched
                        heappop(line)
                    return
            heappop(line)

    def waiting(self, plan: Plan) -> Iterator[tuple[Job, SortKey]]:
        """All that are there."""
        return ((job, key) for key, job, _ in self._line if waits(job, plan.state))
