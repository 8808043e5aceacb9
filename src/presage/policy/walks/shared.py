"""The walk of a pipeline in which jobs share GPUs: everybody who finds a place starts, and who
shares moves to idle GPUs when nobody waits for them (`policy.colocate` says what a place costs).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from presage.core.capacity import Capacity, bits
from presage.core.changes import Reader
from presage.core.plan import Plan
from presage.core.ports import Predictor, SortKey
from presage.core.state import State
from presage.core.workers import least_milli
from presage.model.cluster import Worker
from presage.model.job import Job, Reason, ReasonCode, StopIntent
from presage.policy.backlog import Group, waits
from presage.policy.colocate import Tenancy
from presage.policy.explain import why_no_room
from presage.policy.rules import Rules
from presage.policy.sharing import SharingRules, movable, shares

__all__ = ["Shared"]

_MOST_KNOWN = 10_000


class Shared:
    """Who waits, in order, and for each the walk in which it last found no place: places appear
    only where somebody left since."""

    def __init__(self, rules: Rules, sharing: SharingRules) -> None:
        self.rules = rules
        self.sharing = sharing
        self._by_room = rules.greedy and not rules.queues.bounded and not sharing.profile_s
        """Whether room alone decides if a job that does not share can start."""
        self.reset()

    def reset(self) -> None:
        """Nobody waits."""
        self._line: list[_Queued] = []
        self._shapes: dict[Any, _SharedShape] = {}
        self._shape_of: dict[Group, _SharedShape | None] = {}
        self._is_new = False
        """Whether somebody came since the last walk."""
        self._there: dict[Job, None] = {}
        """The jobs in line."""
        self._unasked: list[_Queued] = []
        """Those of whom it was not asked yet how long they need."""
        self._version: object = None
        """What the predictor was when it was asked of the others."""
        self._waiting: set[_SharedShape | None] = set()
        """Of those who waited then; None stands for those who may share."""
        self._reader = Reader()
        self._walked_at = -1
        """`Capacity.released` after the last walk."""
        self._view = Tenancy(self.sharing)
        self._freed = _Freed()
        self._spread_at = -1

    def push(self, key: SortKey, job: Job, group: Group, plan: Plan) -> None:
        """Add a job."""
        ready = not shares(job) or self.sharing.profiled(job, plan.now)
        entry = _Queued((ready, key), job, self._shape(job, group))
        insort(self._line, entry)
        self._unasked.append(entry)
        self._is_new = True
        self._there[job] = None

    def _shape(self, job: Job, group: Group) -> _SharedShape | None:
        """What a job shares with all that ask for the same whole GPUs; None when it may share, or
        when more than room decides."""
        if not self._by_room or not group.one_role or shares(job):
            return None
        shape = self._shape_of.get(group)
        if shape is None:
            if len(self._shape_of) > _MOST_KNOWN:
                self._shapes, self._shape_of = {}, {}
            kind = group.key[1:]  # all but the queue
            shape = self._shapes.setdefault(kind, _SharedShape(group.milli, group.whole))
            self._shape_of[group] = shape
        return shape

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
        self._drop_gone(state)
        if self._line and self._nothing_new(state.capacity):
            return
        self._waiting, self._is_new = {entry.shape for entry in self._line}, False
        if not self._line:
            if rules.move_gain_s and not state.reservations:
                self._spread(plan, predict)
            return
        some_share = None in self._waiting or not self._by_room
        walk = self._freed.look(state.capacity, some_share and self._some_tried())
        view = self._view.look(plan, predict)
        if not self._line[0].key[0]:
            view.set_aside(rules.profile_gpus)
        capacity = state.capacity
        for entry in self._turns(view):
            job, shape = entry.job, entry.shape
            if shape is not None and shape.stuck(capacity):
                continue
            if not waits(job, state):
                continue  # it was halted and resumed while it waited, and is there twice
            if queues.bounded and queues.admit(job, plan, least_milli(job)):
                continue
            asks_all = shape is not None or rules.profile_s
            nodes = ~0 if asks_all else self._freed.since(entry.tried)
            found = view.find(job, self.rules.placer_of(job), nodes) if nodes else None
            if found is not None:
                plan.place(job, found)
                view.add(job)
                continue
            if shape is not None:
                shape.failed_at = capacity.released
                continue
            entry.tried = walk
            if not self.rules.greedy:
                break
        if rules.profile_s:
            self._move_profiled(plan, view)
        if some_share and self._some_tried():
            self._freed.keep(state.capacity)
        self._walked_at = capacity.released

    def _some_tried(self) -> bool:
        return any(entry.tried >= 0 for entry in self._line)

    def _drop_gone(self, state: State) -> None:
        """Forget those who no longer wait."""
        changed, there = self._reader.read(state.changes), self._there
        if changed is not None and len(there) == len(self._line):
            gone = [job for job in changed if job in there and not waits(job, state)]
            if not gone:
                return
        self._line = [entry for entry in self._line if waits(entry.job, state)]
        self._there = {entry.job: None for entry in self._line}

    def _nothing_new(self, capacity: Capacity) -> bool:
        """Whether it is known that nobody who waits can start."""
        if self._is_new or not self._by_room:
            return False
        for shape in self._waiting:
            if shape is None:
                if self._walked_at != capacity.released:
                    return False
            elif not shape.stuck(capacity):
                return False
        return True

    def _fresh(self, plan: Plan, predict: Predictor) -> Tenancy:
        return Tenancy(self.sharing).look(plan, predict)

    def _turns(self, view: Tenancy) -> list[_Queued]:
        """Those that would end last if they waited for their turn, longest first; then the
        others."""
        line, capacity = self._line, view.plan.state.capacity
        open_ = {one for one in self._waiting if one is None or not one.stuck(capacity)}
        able = [entry for entry in line if entry.shape in open_] if self._by_room else line
        if not self.sharing.puts_long_first or len(line) == 1 or not able:
            return able
        state, same = view.plan.state, self._version is view.version
        for entry in self._unasked if same else line:
            if not waits(entry.job, state):
                continue
            entry.left, entry.work = view.left_of(entry.job), view.work_of(entry.job)
        self._unasked, self._version = [], view.version
        enough = view.busy_s([entry.work for entry in line]) / self.sharing.long_first
        late = [entry for entry in able if entry.left >= enough]
        if not late:
            return able
        late.sort(key=lambda entry: -entry.left)
        return late + [entry for entry in able if entry.left < enough]

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
    shape: _SharedShape | None
    tried: int = -1
    """The walk in which it last found no place."""
    left: float = 0.0
    """Seconds it still needs."""
    work: float = 0.0
    """Seconds for which it would keep a GPU busy."""

    def __lt__(self, other: _Queued) -> bool:
        return self.key < other.key


@dataclass(slots=True, eq=False)
class _SharedShape:
    """Waiting jobs that ask for the same whole GPUs: where one does not fit, none does."""

    milli: int
    whole: int
    failed_at: int = -1
    """`Capacity.released` when one of them last did not fit."""

    def stuck(self, capacity: Capacity) -> bool:
        """Whether it is known that none of them fits."""
        return (
            self.failed_at == capacity.released
            or self.milli > capacity.free_milli
            or not capacity.has_whole(self.whole)
        )


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
