"""The walk of a pipeline in which jobs share GPUs: everybody who finds a place starts, and who
shares moves to idle GPUs when nobody waits for them (`policy.colocate` says what a place costs).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from itertools import chain
from typing import Any

from presage.core.capacity import Capacity, bits
from presage.core.changes import Reader
from presage.core.plan import Plan
from presage.core.ports import Predictor, SortKey
from presage.core.state import State
from presage.core.workers import least_milli
from presage.model.cluster import WHOLE_GPU, Worker
from presage.model.job import Job, Reason, ReasonCode, StopIntent
from presage.policy.backlog import Group, waits
from presage.policy.colocate import Tenancy
from presage.policy.explain import why_no_room
from presage.policy.rules import Rules
from presage.policy.sharing import SharingRules, movable, shares

__all__ = ["Shared", "SharingTurn"]

_MOST_KNOWN = 10_000
_ROUNDING = 1e-9
"""A sum that was added to and taken from is right to this part of the most it ever was."""


class Shared:
    """Who waits, in order. Those who ask for the same whole GPUs are one lane, of which the first
    is asked for all. For each of the others it is known in which walk it last found no place:
    places appear only where somebody left since."""

    def __init__(self, rules: Rules, sharing: SharingRules) -> None:
        self.rules = rules
        self.sharing = sharing
        self._by_room = rules.greedy and not rules.queues.bounded and not sharing.profile_s
        """Whether room alone decides if a job that does not share can start."""
        self.reset()

    def reset(self) -> None:
        """Nobody waits."""
        self._line: list[SharingTurn] = []
        self._there: dict[Job, SharingTurn] = {}
        """The jobs in line."""
        self._one_by_one = _Lane()
        """All whose lane does not tell whether they fit."""
        self._known: dict[Any, _Lane] = {}
        self._lane_of: dict[Group, _Lane] = {}
        self._lanes: dict[_Lane, None] = {}
        """Those in which somebody waits."""
        self._is_new = False
        """Whether somebody came since the last walk."""
        self._unasked: list[SharingTurn] = []
        """Those of whom it was not asked yet how long they need."""
        self._version: object = None
        """What the predictor was when it was asked of the others."""
        self._work_s, self._most_work_s = 0.0, 0.0
        """The work of the others, and the most that it ever was."""
        self._reader = Reader()
        self._walked_at = -1
        """`Capacity.released` after the last walk."""
        self._view = Tenancy(self.sharing)
        self._freed = _Freed()
        self._number = 0
        """Of the walk."""
        self._spread_at = -1

    def push(self, key: SortKey, job: Job, group: Group, plan: Plan) -> None:
        """Add a job."""
        ready = not shares(job) or self.sharing.profiled(job, plan.now)
        entry = SharingTurn((ready, key), job, self._lane(job, group))
        insort(self._line, entry)
        insort(entry.lane.line, entry)
        self._lanes[entry.lane] = None
        self._unasked.append(entry)
        self._is_new = True
        self._there[job] = entry

    def _lane(self, job: Job, group: Group) -> _Lane:
        """Where a job waits: with all that ask for the same whole GPUs, unless it may share or
        more than room decides."""
        if not self._by_room or not group.one_role or shares(job):
            return self._one_by_one
        lane = self._lane_of.get(group)
        if lane is None:
            if len(self._lane_of) > _MOST_KNOWN:
                self._known = {kind: one for kind, one in self._known.items() if one.line}
                self._lane_of = {}
            kind = group.key[1:]  # all but the queue
            lane = self._known.setdefault(kind, _Lane(True, group.milli, group.whole))
            self._lane_of[group] = lane
        return lane

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
        if not self.opens(plan, predict):
            return
        state, rules, queues, view = plan.state, self.sharing, self.rules.queues, self._view
        capacity = state.capacity
        for entry in self._turns(view):
            job, lane = entry.job, entry.lane
            if lane.stuck(capacity):
                continue
            if not waits(job, state):
                continue  # it was halted and resumed while it waited, and is there twice
            if queues.bounded and queues.admit(job, plan, least_milli(job)):
                continue
            asks_all = lane.alike or rules.profile_s
            nodes = ~0 if asks_all else self._freed.since(entry.tried)
            workers = view.find(job, self.rules.placer_of(job), nodes) if nodes else None
            if workers is not None:
                plan.place(job, workers)
                view.add(job)
                continue
            if not self.fails(entry, capacity.released):
                break
        if rules.profile_s:
            self._move_profiled(plan, view)
        self.closes(plan)

    def opens(self, plan: Plan, predict: Predictor) -> bool:
        """Begin a pass, if somebody waits who may start; move jobs if nobody waits."""
        state, rules = plan.state, self.sharing
        self._drop_gone(state)
        if self._line and self._nothing_new(state.capacity):
            return False
        self._is_new = False
        if not self._line:
            if rules.move_gain_s and not state.reservations:
                self._spread(plan, predict)
            return False
        self._number = self._freed.look(state.capacity, self._some_tried())
        view = self._view.look(plan, predict)
        if not self._line[0].key[0]:
            view.set_aside(rules.profile_gpus)
        return True

    def fails(self, entry: SharingTurn, released: int) -> bool:
        """There is no place for a job; whether those behind it have their turns."""
        if entry.lane.alike:
            entry.lane.failed_at = released
            return True
        entry.tried = self._number
        return self.rules.greedy

    def closes(self, plan: Plan) -> None:
        """A pass is over."""
        capacity = plan.state.capacity
        if self._some_tried():
            self._freed.keep(capacity)
        self._walked_at = capacity.released

    def _some_tried(self) -> bool:
        return any(entry.tried >= 0 for entry in self._one_by_one.line)

    def _drop_gone(self, state: State) -> None:
        """Forget those who no longer wait."""
        changed, there = self._reader.read(state.changes), self._there
        if changed is not None and len(there) == len(self._line):
            for job in changed:
                if job in there and not waits(job, state):
                    self._drop(there.pop(job))
        else:
            self._sort_anew([entry for entry in self._line if waits(entry.job, state)])

    def _drop(self, entry: SharingTurn) -> None:
        """One of those in line goes; nobody is there twice."""
        lane = entry.lane
        del self._line[bisect_left(self._line, entry)]
        del lane.line[bisect_left(lane.line, entry)]
        if not lane.line:
            del self._lanes[lane]
        entry.gone = True
        if entry.left:
            del lane.lefts[bisect_left(lane.lefts, (-entry.left, entry))]
            self._work_s = self._work_s - entry.work if self._line else 0.0

    def _sort_anew(self, line: list[SharingTurn]) -> None:
        """These are in line, in order, and nobody else."""
        for entry in self._line:
            entry.gone = True
        for lane in self._lanes:
            lane.line, lane.lefts = [], []
        self._line, self._there, self._lanes = line, {}, {}
        self._work_s = self._most_work_s = 0.0
        for entry in line:
            entry.gone = False
            self._there[entry.job] = entry
            self._lanes[entry.lane] = None
            entry.lane.line.append(entry)
            if entry.left:
                self._note(entry)

    def _nothing_new(self, capacity: Capacity) -> bool:
        """Whether it is known that nobody who waits can start."""
        if self._is_new or not self._by_room:
            return False
        if self._one_by_one.line and self._walked_at != capacity.released:
            return False
        return all([lane.stuck(capacity) for lane in self._lanes if lane.alike])

    def _fresh(self, plan: Plan, predict: Predictor) -> Tenancy:
        return Tenancy(self.sharing).look(plan, predict)

    def _turns(self, view: Tenancy) -> Iterable[SharingTurn]:
        """Those that would end last if they waited for their turn, longest first; then the
        others."""
        capacity = view.plan.state.capacity
        able = [lane for lane in self._lanes if not lane.stuck(capacity)]
        if self.sharing.puts_long_first and len(self._line) > 1 and able:
            self._ask(view)
            late = self._late(able, view)
            if late:
                first = set(late)
                rest = (entry for entry in _in_turn(able, capacity) if entry not in first)
                return chain(late, rest)
        return _in_turn(able, capacity)

    def _ask(self, view: Tenancy) -> None:
        """Ask how long those need of whom it was not asked yet."""
        asked = self._unasked
        if self._version is not view.version:
            self._version, asked = view.version, self._line
            self._work_s = self._most_work_s = 0.0
            for lane in self._lanes:
                lane.lefts = []
        for entry in asked:
            if not entry.gone:
                entry.left, entry.work = view.left_of(entry.job), view.work_of(entry.job)
                self._note(entry)
        self._unasked = []

    def _note(self, entry: SharingTurn) -> None:
        insort(entry.lane.lefts, (-entry.left, entry))
        self._work_s += entry.work
        self._most_work_s = max(self._most_work_s, self._work_s)

    def _late(self, able: list[_Lane], view: Tenancy) -> list[SharingTurn]:
        """Jobs that need more time than all work there is would keep the GPUs busy."""
        longest = max(-lane.lefts[0][0] for lane in able)
        gpus = max(1, view.plan.state.capacity.open_milli // WHOLE_GPU)
        scale, slack_s = gpus * self.sharing.long_first, _ROUNDING * self._most_work_s
        if longest * scale < self._work_s - slack_s:
            return []  # whatever those need who run
        running = view.running_work()
        work_s = sum(running)
        slack_s += _ROUNDING * work_s
        enough, slack_s = (work_s + self._work_s) / scale, slack_s / scale
        if any([lane.has_left(enough - slack_s, enough + slack_s) for lane in able]):
            waiting = [entry.work for entry in self._line]
            enough = sum(chain(running, waiting)) / gpus / self.sharing.long_first
        late: list[tuple[float, SharingTurn]] = []
        for lane in able:
            late += lane.lefts[: bisect_right(lane.lefts, -enough, key=_first)]
        return [entry for _, entry in sorted(late)]

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
class SharingTurn:
    """A job in the queue."""

    key: tuple[bool, SortKey]
    """Whether it has not to be profiled first, and its place in the order."""
    job: Job
    lane: _Lane
    tried: int = -1
    """The walk in which it last found no place."""
    left: float = 0.0
    """Seconds it still needs; 0: it was not asked yet."""
    work: float = 0.0
    """Seconds for which it would keep a GPU busy."""
    gone: bool = False
    """Whether it is no longer in line."""

    def __lt__(self, other: SharingTurn) -> bool:
        return self.key < other.key


@dataclass(slots=True, eq=False)
class _Lane:
    """Waiting jobs that ask for the same whole GPUs; or all others, to be asked one by one."""

    alike: bool = False
    """Where one of them does not fit, none does."""
    milli: int = 0
    whole: int = 0
    failed_at: int = -1
    """`Capacity.released` when one of them last did not fit."""
    line: list[SharingTurn] = field(default_factory=list)
    """In order."""
    lefts: list[tuple[float, SharingTurn]] = field(default_factory=list)
    """Those of whom it was asked how long they need, by that, longest first."""

    def stuck(self, capacity: Capacity) -> bool:
        """Whether it is known that none of them fits."""
        return self.alike and (
            self.failed_at == capacity.released
            or self.milli > capacity.free_milli
            or not capacity.has_whole(self.whole)
        )

    def has_left(self, low: float, high: float) -> bool:
        """Whether one of them needs so long."""
        at = bisect_left(self.lefts, -high, key=_first)
        return at < len(self.lefts) and -self.lefts[at][0] >= low


def _first(pair: tuple[float, SharingTurn]) -> float:
    return pair[0]


def _in_turn(lanes: list[_Lane], capacity: Capacity) -> Iterator[SharingTurn]:
    """Who waits in some lanes, in order; a lane that gets stuck is left."""
    heads = [(lane.line[0].key, n, 0, lane) for n, lane in enumerate(lanes)]
    heapify(heads)
    while heads:
        _, n, k, lane = heads[0]
        if lane.stuck(capacity):
            heappop(heads)
            continue
        yield lane.line[k]
        if k + 1 < len(lane.line):
            heapreplace(heads, (lane.line[k + 1].key, n, k + 1, lane))
        else:
            heappop(heads)


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
