"""Preemption by rank, as SRTF and Tiresias are published: running and waiting jobs in one ranking,
and the first of them that the cluster's GPUs hold by number are the ones to run.

A running job outside that set gives way while one inside it waits for GPUs of a kind that it
holds, even if the waiting one needs still more room than that: so room collects for large jobs.
For preemption that never stops anyone in vain, see `reclaim.make_room`.

A pass looks at running jobs from the last to the first, and only at as many as could give way.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace
from math import inf
from operator import itemgetter

from presage.core.plan import Plan
from presage.core.ports import Predictor, SortKey
from presage.core.workers import devices_of
from presage.model.cluster import Worker
from presage.model.job import Job, JobState, Reason, ReasonCode, StopIntent
from presage.policy.backlog import Group, waits
from presage.policy.reclaim import lend
from presage.policy.request import nodes_for
from presage.policy.runs import Runs
from presage.policy.start import Starter
from presage.policy.walks.last import Last
from presage.policy.walks.line import Placing

__all__ = ["Ranked"]

_PENDING = JobState.PENDING
_REQUEUE = StopIntent.REQUEUE
_FIRST = itemgetter(0)
_Entry = tuple[SortKey, Job, Group]
_Lane = list[_Entry]


class Ranked(Placing):
    """By rank."""

    def __init__(self, starter: Starter, runs: Runs) -> None:
        super().__init__(starter)
        self._last = Last(runs, starter.rules.order)
        self._lanes: dict[int, _Lane] = {}
        """Who waits, in order, for each number of milli-GPUs. An entry that is not the one in
        `_known` is out of date."""
        self._known: dict[Job, _Entry] = {}

    def reset(self) -> None:
        """Nobody waits."""
        self._lanes, self._known = {}, {}

    def push(self, key: SortKey, job: Job, group: Group, plan: Plan) -> None:
        """Add a job."""
        self._known[job] = entry = key, job, group
        lane = self._lanes.get(group.milli)
        if lane is None:
            self._lanes[group.milli] = [entry]
        else:
            insort(lane, entry, key=_FIRST)

    def waiting(self, plan: Plan) -> Iterator[tuple[Job, SortKey]]:
        """All that are there."""
        for key, job, _ in self._known.values():
            if waits(job, plan.state):
                yield job, key

    def walk(self, plan: Plan, predict: Predictor) -> None:
        """Start the waiting jobs that rank high enough, on the room of running ones that do
        not."""
        if not self._known:
            return
        chosen, losers = self._rank(plan, predict)
        if not losers:
            if chosen:
                self._place(chosen, plan, lent=False)
            return
        for loser in losers:
            lend(plan, (loser, loser.allocation), 1)
        waiting, placed = self._place(chosen, plan, lent=True)
        for loser in reversed(losers):
            lend(plan, (loser, loser.allocation), -1)
        state = plan.state
        for job, workers in placed:
            if state.ready(job.spec.id) and not _is_lent(workers, losers):
                plan.place(job, workers)
            else:
                waiting.append(job)
        _stop(plan, losers, waiting)

    def _place(
        self, chosen: list[_Entry], plan: Plan, lent: bool
    ) -> tuple[list[Job], list[tuple[Job, tuple[Worker, ...]]]]:
        """Find places, to start there or to wait for them if they are `lent`; who finds none goes
        on waiting in its lane."""
        capacity, rules = plan.state.capacity, self.rules
        queues, released = rules.queues if rules.queues.bounded else None, capacity.released
        most = capacity.most_whole()
        waiting: list[Job] = []
        placed: list[tuple[Job, tuple[Worker, ...]]] = []
        full: set[Group] = set()
        for entry in chosen:
            _, job, group = entry
            workers = None
            if (
                group.whole <= most
                and (group not in full if lent else group.failed_at != released)
                and (queues is None or not queues.admit(job, plan, group.milli))
            ):
                placer = rules.placer if job.spec.placement is None else rules.placer_of(job)
                workers = placer.find(job, plan, group.least)
                if workers is None and group.one_role:
                    full.add(group)
                    group.failed_at = released
            if workers is None:
                waiting.append(job)
                continue
            self._drop(entry)
            if lent:
                plan.reserve(job, workers)
                placed.append((job, workers))
            else:
                plan.place(job, workers)
            most = capacity.most_whole()
        return waiting, placed

    def _drop(self, entry: _Entry) -> None:
        """Take one off its lane that is among the first there."""
        del self._known[entry[1]]
        milli = entry[2].milli
        lane = self._lanes[milli]
        lane.remove(entry)
        if not lane:
            del self._lanes[milli]

    def _rank(self, plan: Plan, predict: Predictor) -> tuple[list[_Entry], list[Job]]:
        """Waiting jobs that rank high enough, and running ones that do not."""
        state, last, lanes, known = plan.state, self._last, self._lanes, self._known
        reserved = state.reservations
        last.begin(plan, predict)
        spare = state.capacity.open_milli - sum(state.usage.values())
        """What is left when the chosen and all running jobs that have not lost are served."""
        limit: float = inf
        """Whoever needs as much as one that was refused is refused, too."""
        chosen: list[_Entry] = []
        losers: list[Job] = []
        heads = [(lane[0][0], milli, 0, lane) for milli, lane in lanes.items()]
        heapify(heads)
        smallest = min(lanes) if heads else 0
        while heads:
            key, milli, at, lane = heads[0]
            if milli >= limit:
                heappop(heads)
                continue
            if spare < 0 and (loser := last.loser(-spare)) >= 0 and not last.is_behind(loser, key):
                losers.append(last.drop(loser))
                spare += losers[-1].held_milli
                continue
            if milli > spare and not last.hold(key, milli - spare):
                if milli == smallest:
                    break
                limit = milli
                heappop(heads)
                continue
            entry = lane[at]
            job = entry[1]
            if known.get(job) is not entry:
                del lane[at]
            elif job.state is _PENDING and (not reserved or job.spec.id not in reserved):
                spare -= milli
                chosen.append(entry)
                at += 1
            else:  # it waits no longer
                del known[job], lane[at]
            if at < len(lane):
                heapreplace(heads, (lane[at][0], milli, at, lane))
            else:
                heappop(heads)
                if not lane:
                    del lanes[milli]
        while spare < 0 and (loser := last.loser(-spare)) >= 0:
            losers.append(last.drop(loser))
            spare += losers[-1].held_milli
        return chosen, losers


def _is_lent(workers: tuple[Worker, ...], losers: list[Job]) -> bool:
    """Whether workers use devices that running jobs have to give back first."""
    devices = devices_of(workers)
    return any(not devices.isdisjoint(devices_of(loser.allocation)) for loser in losers)


def _stop(plan: Plan, losers: list[Job], waiting: list[Job]) -> None:
    """Stop the losers who hold a kind of GPU that somebody who ranks higher waits for."""
    if not waiting:
        return
    capacity = plan.state.capacity
    wanted = 0
    for job in waiting:
        for role in job.spec.roles:
            wanted |= nodes_for(role, capacity)
        if wanted == capacity.open:
            break
    reason = Reason(ReasonCode.PREEMPTED, f"{len(waiting)} waiting jobs rank before it")
    for loser in losers:
        for worker in loser.allocation:
            if wanted >> capacity.index[worker.node] & 1:
                plan.stop(loser, _REQUEUE, reason)
                break
