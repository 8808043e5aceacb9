"""Preemption by rank, as SRTF and Tiresias are published: running and waiting jobs in one ranking,
and the first of them that the cluster's GPUs hold by number are the ones to run.

A running job outside that set gives way while one inside it waits for GPUs of a kind that it
holds, even if the waiting one needs still more room than that: so room collects for large jobs.
For preemption that never stops anyone in vain, see `reclaim.make_room`.

A pass looks at running jobs from the last to the first, and only at as many as could give way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace
from math import inf
from typing import Any

from presage.core.plan import Plan
from presage.core.ports import Predictor, SortKey
from presage.core.workers import devices_of
from presage.model.job import Job, Reason, ReasonCode, StopIntent
from presage.policy.backlog import Group, waits
from presage.policy.order import HasStanding
from presage.policy.reclaim import can_stop, lend
from presage.policy.runs import Runs
from presage.policy.start import Starter
from presage.policy.walks.turns import Grouped

__all__ = ["Ranked"]

_Chosen = tuple[SortKey, Job, Group]
_Ranked = tuple[SortKey, Job]


class Ranked(Grouped):
    """By rank."""

    def __init__(self, starter: Starter, runs: Runs) -> None:
        super().__init__(starter)
        self._runs = runs
        order = self.rules.order
        self._differ = order.differ if isinstance(order, HasStanding) else _unknown

    def walk(self, plan: Plan, predict: Predictor) -> None:
        """Start the waiting jobs that rank high enough, on the room of running ones that do
        not."""
        if not self.backlog.groups:
            return
        state = plan.state
        chosen, losers = self._rank(plan, predict)
        for loser in losers:
            lend(plan, (loser, loser.allocation), 1)
        waiting = self._place(chosen, losers, plan)
        for loser in reversed(losers):
            lend(plan, (loser, loser.allocation), -1)
        if losers:
            lent = set[tuple[str, int]]().union(*(devices_of(one.allocation) for one in losers))
            for _, job, _ in chosen:
                if job.id in state.reservations:
                    in_use = lent & devices_of(state.reservations[job.id])
                    if state.ready(job.id) and not in_use:
                        plan.place(job, state.reservations[job.id])
                    else:
                        waiting.append(job)
            _stop(plan, losers, waiting)

    def _place(self, chosen: list[_Chosen], losers: list[Job], plan: Plan) -> list[Job]:
        """Find places; who finds none goes back to the queue."""
        capacity, queues = plan.state.capacity, self.rules.queues
        waiting: list[Job] = []
        full: set[Group] = set()
        for key, job, group in chosen:
            found = None
            stuck = group in full or (group.failed_at == capacity.released and not losers)
            stuck = stuck or not capacity.has_whole(group.whole)
            if not stuck and not (queues.bounded and queues.admit(job, plan, group.milli)):
                found = self.rules.placer_of(job).find(job, plan, group.least)
                if found is None and group.one_role:
                    full.add(group)
                    group.failed_at = capacity.released
            if found is None:
                self.backlog.push(key, job, group)
                waiting.append(job)
            elif losers:
                plan.reserve(job, found)
            else:
                plan.place(job, found)
        return waiting

    def _rank(self, plan: Plan, predict: Predictor) -> tuple[list[_Chosen], list[Job]]:
        """Waiting jobs that rank high enough, taken off the backlog, and running ones that do
        not."""
        state, backlog = plan.state, self.backlog
        last = _Last(self._last_first(plan, predict))
        spare = state.capacity.open_milli - sum(state.usage.values())
        """What is left when the chosen and all running jobs that have not lost are served."""
        chosen: list[_Chosen] = []
        seen: set[str] = set()  # a job that was halted and resumed while it waited is there twice
        losers: list[Job] = []
        groups = backlog.groups.values()
        heads: list[Any] = [(group.heap[0][0], k, group) for k, group in enumerate(groups)]
        heapify(heads)
        smallest, refused = min([group.milli for group in groups]), inf
        """Whoever needs as much as one that was refused is refused, too."""
        while heads or spare < 0:
            loser = last.loser(-spare) if spare < 0 else None
            if loser is not None and (not heads or loser[0] < heads[0][0]):
                losers.append(loser[1])
                spare += last.drop(loser)
                continue
            if not heads:
                break
            head, k, group = heads[0]
            need = group.milli - spare
            if group.milli >= refused or (need > 0 and last.behind(head, need) < need):
                refused = min(refused, group.milli)
                if refused <= smallest:
                    heads = []
                else:
                    heappop(heads)
                continue
            job = group.heap[0][1]
            backlog.pop(group)
            if waits(job, state) and job.id not in seen:
                seen.add(job.id)
                spare -= group.milli
                chosen.append((head, job, group))
            if group.heap:
                heapreplace(heads, (group.heap[0][0], k, group))
            else:
                heappop(heads)
        return chosen, losers

    def _last_first(self, plan: Plan, predict: Predictor) -> Iterator[_Ranked]:
        """Running jobs that can be stopped and their keys, the last in the order first."""
        order, now, line = self.rules.order, plan.now, self._runs.look(plan, predict)
        end = len(line)
        while end:
            begin = end - 1
            while begin and not self._differ(line[begin - 1][0], line[begin][0], now):
                begin -= 1
            jobs = [job for _, _, job in line[begin:end] if can_stop(job)]
            part = [(order(job, plan, predict), job) for job in jobs]
            if len(part) > 1:
                part.sort(reverse=True)
            yield from part
            end = begin


def _unknown(lower: float, higher: float, now: float) -> bool:
    return False


class _Last:
    """Running jobs from the last on, as far as somebody has looked."""

    def __init__(self, more: Iterator[_Ranked]) -> None:
        self._more = more
        self._jobs: list[_Ranked] = []
        self._milli: list[int] = []
        """What each and all behind it hold."""
        self._behind = 0
        self._left = -1
        """How many of them have not lost and are behind those that did; -1: nobody lost."""

    def behind(self, key: SortKey, enough: int) -> int:
        """Milli-GPUs that jobs behind a key hold, counted up to what is enough. Keys rise from
        call to call."""
        jobs, count = self._jobs, self._behind
        while count and jobs[count - 1][0] < key:
            count -= 1
        while count == len(jobs) and (not count or self._milli[-1] < enough) and self._look():
            count += not jobs[-1][0] < key
        self._behind = count
        return self._milli[count - 1] if count else 0

    def loser(self, over: int) -> _Ranked | None:
        """The first who has to go when so much is held too much; None when nobody is left."""
        milli = self._milli
        while self._left < 0 and (not milli or milli[-1] < over) and self._look():
            pass
        left = self._left if self._left >= 0 else len(milli)
        return self._jobs[min(bisect_left(milli, over, 0, left), left - 1)] if left else None

    def drop(self, loser: _Ranked) -> int:
        """Somebody lost; returns what that brings."""
        self._left = self._jobs.index(loser)
        return loser[1].held_milli

    def _look(self) -> bool:
        for ranked in self._more:
            held = self._milli[-1] if self._milli else 0
            self._jobs.append(ranked)
            self._milli.append(held + ranked[1].held_milli)
            return True
        return False


def _stop(plan: Plan, losers: list[Job], waiting: list[Job]) -> None:
    """Stop the losers who hold a kind of GPU that somebody who ranks higher waits for."""
    capacity = plan.state.capacity
    wanted = 0
    for job in waiting:
        for role in job.spec.roles:
            wanted |= capacity.accepts(role.gpu_types)
    for loser in losers:
        if any(wanted >> capacity.index[worker.node] & 1 for worker in loser.allocation):
            reason = Reason(ReasonCode.PREEMPTED, f"{len(waiting)} waiting jobs rank before it")
            plan.stop(loser, StopIntent.REQUEUE, reason)
