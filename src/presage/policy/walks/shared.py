"""The walk of a pipeline in which jobs share GPUs: everybody who finds a place starts, and who
shares moves to idle GPUs when nobody waits for them (`policy.colocate` says what a place costs).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass

from presage.core.capacity import Capacity, bits
from presage.core.plan import Plan
from presage.core.ports import Predictor, SortKey
from presage.core.workers import least_milli
from presage.model.cluster import Worker
from presage.model.job import Job, Reason, ReasonCode, StopIntent
from presage.policy.backlog import Group, waits
from presage.policy.colocate import SharingRules, Tenancy, movable, shares
from presage.policy.explain import why_no_room
from presage.policy.rules import Rules

__all__ = ["Shared"]


class Shared:
    """Who waits, in order, and for each the walk in which it last found no place: places appear
    only where somebody left since."""

    def __init__(self, rules: Rules, sharing: SharingRules) -> None:
        self.rules = rules
        self.sharing = sharing
        self.reset()

    def reset(self) -> None:
        """Nobody waits."""
        self._line: list[_Queued] = []
        self._view = Tenancy(self.sharing)
        self._freed = _Freed()
        self._spread_at = -1

    def push(self, key: SortKey, job: Job, group: Group, plan: Plan) -> None:
        """Add a job."""
        ready = not shares(job) or self.sharing.profiled(job, plan.now)
        insort(self._line, _Queued((ready, key), job))

    def waiting(self, plan: Plan) -> Iterator[tuple[Job, SortKey]]:
        """All that are there."""
        return ((one.job, one.key[1]) for one in self._line if waits(one.job, plan.state))

    def find(self, job: Job, plan: Plan, predict: Predictor) -> tuple[Worker, ...] | None:
        """Where it costs the least."""
        return self._fresh(plan, predict).find(job, self.rules.placer_of(job))

    def why(self, job: Job, plan: Plan, predict: Predictor, ahead: int) -> Reason:
        """What keeps it off each GPU."""
        if shares(job):
            return self._fresh(plan, predict).explain(job)
        return why_no_room(job, plan, ahead, self.rules.placer)

    def walk(self, plan: Plan, predict: Predictor) -> None:
        """Start every waiting job that finds a place; a strict walk ends at the first that does
        not."""
        state, rules, queues = plan.state, self.sharing, self.rules.queues
        self._line = [entry for entry in self._line if waits(entry.job, state)]
        if not self._line:
            if rules.move_gain_s and not state.reservations:
                self._spread(plan, predict)
            return
        walk = self._freed.look(state.capacity, any(entry.tried >= 0 for entry in self._line))
        view = self._view.look(plan, predict)
        if not self._line[0].key[0]:
            view.set_aside(rules.profile_gpus)
        for entry in self._turns(view):
            job = entry.job
            if not waits(job, state):
                continue  # it was halted and resumed while it waited, and is there twice
            if queues.bounded and queues.admit(job, plan, least_milli(job)):
                continue
            nodes = ~0 if rules.profile_s else self._freed.since(entry.tried)
            found = view.find(job, self.rules.placer_of(job), nodes) if nodes else None
            if found is not None:
                plan.place(job, found)
                view.add(job)
                continue
            entry.tried = walk
            if not self.rules.greedy:
                break
        if rules.profile_s:
            self._move_profiled(plan, view)
        if any(entry.tried >= 0 for entry in self._line):
            self._freed.keep(state.capacity)

    def _fresh(self, plan: Plan, predict: Predictor) -> Tenancy:
        return Tenancy(self.sharing).look(plan, predict)

    def _turns(self, view: Tenancy) -> list[_Queued]:
        """Those that would end last if they waited for their turn, longest first; then the
        others."""
        line = self._line
        if not self.sharing.puts_long_first or len(line) == 1:
            return line
        enough = view.busy_s([entry.job for entry in line]) / self.sharing.long_first
        lefts = {entry.job: view.left_of(entry.job) for entry in line}
        late = [entry for entry in line if lefts[entry.job] >= enough]
        late.sort(key=lambda entry: -lefts[entry.job])
        return late + [entry for entry in line if lefts[entry.job] < enough]

    def _spread(self, plan: Plan, predict: Predictor) -> None:
        """Move jobs that slow each other down to GPUs that are idle."""
        capacity = plan.state.capacity
        if self._spread_at == capacity.released:
            return  # nothing became idle since
        self._spread_at = capacity.released
        idle = {i: capacity.whole[i] for i in bits(capacity.open) if capacity.whole[i]}
        if not idle:
            return
        view = self._view.look(plan, predict)
        if view.unsettled:
            return
        for _, _, job in sorted(view.gains(), reverse=True):
            count = len(job.allocation)
            home = next((i for i, free in idle.items() if free >= count), None)
            if home is not None and view.gain(job) >= self.sharing.move_gain_s:
                idle[home] -= count
                view.leaves(job)
                reason = Reason(ReasonCode.PREEMPTED, "it moves to idle GPUs, where it is faster")
                plan.stop(job, StopIntent.REQUEUE, reason)

    def _move_profiled(self, plan: Plan, view: Tenancy) -> None:
        """Let jobs that were profiled share, so that the next can be profiled on their GPUs."""
        rules = self.sharing
        waiting = sum(waits(entry.job, plan.state) and not entry.key[0] for entry in self._line)
        stay: set[Job] = set()
        for job in list(plan.state.active.values()) if waiting else ():
            if not rules.profiled(job, plan.now):
                plan.wake_at(plan.now + rules.profile_s - job.ran(plan.now))
                continue
            if not (waiting and shares(job) and movable(job)) or job in stay:
                continue
            hosts = () if rules.profile_gpus else view.hosts(job)
            if hosts or view.profiling(job):
                stay.update(hosts)
                view.leaves(job)
                reason = Reason(ReasonCode.PREEMPTED, "it was profiled and can share now")
                plan.stop(job, StopIntent.REQUEUE, reason)
                waiting -= 1


@dataclass(slots=True, eq=False)
class _Queued:
    """A job in the queue."""

    key: tuple[bool, SortKey]
    """Whether it has not to be profiled first, and its place in the order."""
    job: Job
    tried: int = -1
    """The walk in which it last found no place."""

    def __lt__(self, other: _Queued) -> bool:
        return self.key < other.key


class _Freed:
    """On which nodes something was freed, by the walk that noticed it."""

    def __init__(self) -> None:
        self._walk = 0
        self._open = 0
        self._free: list[tuple[int, int, list[int]]] = []
        self._at: list[int] = []
        """For each node, the walk before which something was freed there last."""
        self._known: dict[int, int] = {}

    def look(self, capacity: Capacity, compare: bool) -> int:
        """Compare with what was kept, if somebody was tried before; returns the number of this
        walk."""
        self._walk = walk = self._walk + 1
        self._known = {-1: ~0}
        opened = capacity.open & ~self._open
        self._at += [walk] * (len(capacity.nodes) - len(self._at))
        for i, (cpu, memory, before) in enumerate(self._free if compare else ()):
            more = capacity.free_cpu[i] > cpu or capacity.free_memory[i] > memory
            if more or opened >> i & 1 or any(map(int.__gt__, capacity.free_gpu[i], before)):
                self._at[i] = walk
        return walk

    def since(self, walk: int) -> int:
        """Mask of the nodes on which something was freed after a walk; all of them for -1."""
        if walk not in self._known:
            self._known[walk] = sum(1 << i for i, at in enumerate(self._at) if at > walk)
        return self._known[walk]

    def keep(self, capacity: Capacity) -> None:
        """Remember what is free now."""
        self._open = capacity.open
        free = zip(capacity.free_cpu, capacity.free_memory, capacity.free_gpu, strict=True)
        self._free = [(cpu, memory, gpu.copy()) for cpu, memory, gpu in free]
