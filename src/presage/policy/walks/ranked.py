"""Preemption by rank, as SRTF and Tiresias are published: running and waiting jobs in one ranking,
and the first of them that the cluster's GPUs hold by number are the ones to run.

A running job outside that set gives way while one inside it waits for GPUs of a kind that it
holds, even if the waiting one needs still more room than that: so room collects for large jobs.
For preemption that never stops anyone in vain, see `reclaim.make_room`.

A pass looks at running jobs from the last to the first, and only at as many as could give way.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace

from presage.core.plan import Plan
from presage.core.ports import Predictor, SortKey
from presage.core.workers import devices_of
from presage.model.cluster import Worker
from presage.model.job import Job, JobState, Reason, ReasonCode, StopIntent
from presage.policy.backlog import Group, waits
from presage.policy.reclaim import lend
from presage.policy.runs import Runs
from presage.policy.start import Starter
from presage.policy.walks.last import Last
from presage.policy.walks.line import Placing

__all__ = ["Ranked"]

_PENDING = JobState.PENDING
_Entry = tuple[SortKey, Job]
_Chosen = tuple[_Entry, Group]


class Ranked(Placing):
    """By rank."""

    def __init__(self, starter: Starter, runs: Runs) -> None:
        super().__init__(starter)
        self._last = Last(runs, starter.rules.order)
        self._lanes: dict[int, list[_Entry]] = {}
        """Who waits, as a heap for each number of milli-GPUs. An entry that is not the one in
        `_known` is out of date."""
        self._known: dict[Job, _Chosen] = {}

    def reset(self) -> None:
        """Nobody waits."""
        self._lanes, self._known = {}, {}

    def push(self, key: SortKey, job: Job, group: Group, plan: Plan) -> None:
        """Add a job."""
        entry = key, job
        self._known[job] = entry, group
        lane = self._lanes.get(group.milli)
        if lane is None:
            self._lanes[group.milli] = [entry]
        else:
            heappush(lane, entry)

    def waiting(self, plan: Plan) -> Iterator[tuple[Job, SortKey]]:
        """All that are there."""
        for job, ((key, _), _) in self._known.items():
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
        lent = set[tuple[str, int]]().union(*(devices_of(one.allocation) for one in losers))
        for job, workers in placed:
            if lent.isdisjoint(devices_of(workers)) and state.ready(job.spec.id):
                plan.place(job, workers)
            else:
                waiting.append(job)
        _stop(plan, losers, waiting)

    def _place(
        self, chosen: list[_Chosen], plan: Plan, lent: bool
    ) -> tuple[list[Job], list[tuple[Job, tuple[Worker, ...]]]]:
        """Find places, to start there or to wait for them if they are `lent`; who finds none goes
        back to the queue."""
        capacity, rules = plan.state.capacity, self.rules
        queues, released, lanes = rules.queues, capacity.released, self._lanes
        waiting: list[Job] = []
        placed: list[tuple[Job, tuple[Worker, ...]]] = []
        full: set[Group] = set()
        for entry, group in chosen:
            job = entry[1]
            found = None
            stuck = group in full if lent else group.failed_at == released
            stuck = stuck or not capacity.has_whole(group.whole)
            if not stuck and not (queues.bounded and queues.admit(job, plan, group.milli)):
                found = rules.placer_of(job).find(job, plan, group.least)
                if found is None and group.one_role:
                    full.add(group)
                    group.failed_at = released
            if found is None:
                heappush(lanes[group.milli], entry)
                waiting.append(job)
                continue
            del self._known[job]
            if lent:
                plan.reserve(job, found)
                placed.append((job, found))
            else:
                plan.place(job, found)
        return waiting, placed

    def _rank(self, plan: Plan, predict: Predictor) -> tuple[list[_Chosen], list[Job]]:
        """Waiting jobs that rank high enough, taken off their lanes, and running ones that do
        not."""
        state, known, last = plan.state, self._known, self._last
        reservations = state.reservations
        last.begin(plan, predict)
        spare = state.capacity.open_milli - sum(state.usage.values())
        """What is left when the chosen and all running jobs that have not lost are served."""
        chosen: list[_Chosen] = []
        losers: list[Job] = []
        heads = self._heads()
        while heads:
            key, milli, lane = heads[0]
            if spare < 0 and (loser := last.loser(-spare)) >= 0 and not last.is_behind(loser, key):
                losers.append(last.drop(loser))
                spare += losers[-1].held_milli
                continue
            need = milli - spare
            if need > 0 and last.behind(key, need) < need:
                # Whoever needs as much as one that was refused is refused, too.
                heads = [head for head in heads if head[1] < milli]
                heapify(heads)
                continue
            entry = heappop(lane)
            job = entry[1]
            one = known.get(job)
            if one is not None and one[0] is entry:
                if job.state is _PENDING and (not reservations or waits(job, state)):
                    spare -= milli
                    chosen.append(one)
                else:
                    del known[job]
            if lane:
                heapreplace(heads, (lane[0][0], milli, lane))
            else:
                heappop(heads)
        while spare < 0 and (loser := last.loser(-spare)) >= 0:
            losers.append(last.drop(loser))
            spare += losers[-1].held_milli
        return chosen, losers

    def _heads(self) -> list[tuple[SortKey, int, list[_Entry]]]:
        """The first job of every lane as a heap."""
        lanes = self._lanes
        heads = [(lane[0][0], milli, lane) for milli, lane in lanes.items() if lane]
        if len(heads) < len(lanes):
            self._lanes = {milli: lane for milli, lane in lanes.items() if lane}
        heapify(heads)
        return heads


def _stop(plan: Plan, losers: list[Job], waiting: list[Job]) -> None:
    """Stop the losers who hold a kind of GPU that somebody who ranks higher waits for."""
    capacity = plan.state.capacity
    wanted = 0
    for job in waiting:
        for role in job.spec.roles:
            wanted |= capacity.accepts(role.gpu_types)
    reason = Reason(ReasonCode.PREEMPTED, f"{len(waiting)} waiting jobs rank before it")
    for loser in losers:
        if any(wanted >> capacity.index[worker.node] & 1 for worker in loser.allocation):
            plan.stop(loser, StopIntent.REQUEUE, reason)
