"""The walk in which jobs may pass others: greedy, limits of queues, queues that take turns.

Jobs that every rule treats alike wait in one group; where the first does not fit, none does.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace
from itertools import chain
from typing import Any

from presage.core.capacity import Capacity
from presage.core.plan import Plan
from presage.core.ports import Predictor, SortKey
from presage.model.job import Job
from presage.policy.backlog import Backlog, Group, waits
from presage.policy.order import HasBand
from presage.policy.start import HELD_BACK, NO_ROOM, Starter
from presage.policy.walks.line import Placing

__all__ = ["Head", "Turns"]

Head = tuple[SortKey, SortKey, int, Group]
"""The first job of a group: the band of its queue, its key, and the number of the group."""


class Turns(Placing):
    """In order, but for those who are held back and, if greedy, those who do not fit."""

    def __init__(self, starter: Starter) -> None:
        super().__init__(starter)
        self.backlog = Backlog()
        rules, order = starter.rules, starter.rules.order
        self._passes = rules.greedy and rules.gang and not starter.makes_room
        """Whether nothing follows from one who does not fit."""
        self._band = order.band if isinstance(order, HasBand) else None

    def reset(self) -> None:
        """Nobody waits."""
        self.backlog = Backlog()

    def push(self, key: SortKey, job: Job, group: Group, plan: Plan) -> None:
        """Add a job."""
        self.backlog.push(key, job, group)

    def waiting(self, plan: Plan) -> Iterator[tuple[Job, SortKey]]:
        """All that are there."""
        for group in self.backlog.groups.values():
            there = chain(group.front, group.heap)
            yield from ((job, key) for key, job in there if waits(job, plan.state))

    def walk(self, plan: Plan, predict: Predictor) -> None:
        """Start jobs, the first of each group in turn."""
        self.start_some(plan, predict)

    def start_some(self, plan: Plan, predict: Predictor) -> list[Head]:
        """The walk; who is left when one blocks the others, the blocked one first."""
        state, starter, greedy = plan.state, self.starter, self.rules.greedy
        heads, capacity, passes = self._heads(plan), state.capacity, self._passes
        failed: list[Group] = []
        while heads:
            band, _, _, group = heads[0]
            if self._band is not None and (now := self._band(group.queue, plan)) != band:
                heapreplace(heads, (now, *heads[0][1:]))
                continue
            if not group.front or not waits(group.front[0][1], state):
                self.advance(heads)
                continue
            if passes and _stuck(group, capacity):
                heappop(heads)
                continue
            job = group.front[0][1]
            if not starter.makes_room and any(small.at_most(group) for small in failed):
                heappop(heads)
                continue
            kept = starter.start(job, group, plan, predict)
            if kept is None:
                self.advance(heads)
            elif kept is HELD_BACK or greedy:
                heappop(heads)
                if kept is NO_ROOM:
                    failed = [small for small in failed if not group.at_most(small)] + [group]
            else:
                if not waits(job, state):  # some of its workers were launched
                    self.advance(heads)
                break
        return heads

    def advance(self, heads: list[Head]) -> None:
        """The first job of the leading group is done with: go on to its next."""
        band, _, number, group = heads[0]
        if group.front:
            self.backlog.pop(group)
        if group.front:
            heapreplace(heads, (band, group.front[0][0], number, group))
        else:
            heappop(heads)

    def _heads(self, plan: Plan) -> list[Head]:
        """The first job of every group as a heap."""
        band, groups = self._band, list(self.backlog.groups.values())
        if self._passes:
            capacity = plan.state.capacity
            groups = [group for group in groups if not _stuck(group, capacity)]
        heads: list[Any] = [
            (() if band is None else band(group.queue, plan), group.front[0][0], k, group)
            for k, group in enumerate(groups)
        ]
        heapify(heads)
        return heads


def _stuck(group: Group, capacity: Capacity) -> bool:
    """Whether it is known that none of a group fits."""
    return (
        group.failed_at == capacity.released
        or group.milli > capacity.free_milli
        or not capacity.has_whole(group.whole)
    )
