"""Who starts next: a walk that puts waiting jobs into slots and starts those that are chosen.

Waiting jobs that look alike (what they ask for, how much service they had, how long they are
foreseen to run) wait in one lane, and a slot holds the first of a lane. A choice starts that job:
where there is room, else, if the rules let it, on the GPUs of running jobs that had more service
by whole levels, the most first. The pass ends when nothing can be started or nothing is to be.

`walk` asks a network; without one the pass is left open, for an environment to go on with
`choose`.
True run times are never looked at: only what was foreseen of a job at its submission.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf, log, log1p, log2
from operator import itemgetter

import numpy as np

from presage.core.plan import Plan
from presage.core.ports import Predictor, SortKey
from presage.model.cluster import WHOLE_GPU
from presage.model.job import Job, JobState
from presage.policy.backlog import Group, waits
from presage.policy.learned.levels import Levels
from presage.policy.learned.net import Decides, Floats, SlotLayout
from presage.policy.reclaim import can_stop, make_room
from presage.policy.runs import Runs
from presage.policy.start import Starter
from presage.policy.walks.last import Last
from presage.policy.walks.line import Placing

__all__ = ["ORDER_RULES", "OrderWalk", "order_layout"]

SLOT_FIELDS = (
    "present",
    "startable",
    "fits",
    "gpus",
    "share",
    "level",
    "ran",
    "estimate",
    "spread",
    "waited",
    "age",
    "alike",
)
CLUSTER_FIELDS = ("free", "waiting", "demand", "lanes", "running")
ORDER_RULES = {"stops": 1.0, "first_gpu_s": 3600.0, "factor": 4.0}
"""Whether running jobs may be stopped, where the first level of service ends, and how many times
longer each level is than the one before."""

_FIRST = itemgetter(0)
_STOPPING = JobState.STOPPING
_LONG = log(1e6)
_GUESS_S, _GUESS_SPREAD = 3600.0, 4.0
"""Of a job of which nothing was foreseen."""
_ROUND_S = 60.0
"""Levels are looked at so often while jobs wait."""


def order_layout(slots: int = 16) -> SlotLayout:
    """What the walk observes."""
    return SlotLayout(slots, SLOT_FIELDS, CLUSTER_FIELDS)


@dataclass(slots=True, eq=False)
class _LikeJobs:
    """Waiting jobs that look alike, in the order of submission."""

    level: int
    milli: int
    jobs: list[tuple[int, Job, Group]] = field(default_factory=list)
    failed: bool = False
    """Whether its first job was tried in vain in this pass."""
    stops: bool = False
    """Whether its first job can only start on GPUs of running ones."""


class OrderWalk(Placing):
    """Starts who is chosen."""

    def __init__(
        self,
        starter: Starter,
        layout: SlotLayout,
        rules: Mapping[str, float],
        net: Decides | None = None,
    ) -> None:
        super().__init__(starter)
        self.layout, self._net = layout, net
        self._levels = Levels(rules["first_gpu_s"], rules["factor"])
        self._stops = bool(rules["stops"])
        self._runs = Runs(self._levels.standing)
        self._last = Last(self._runs, self._levels)
        self._bounded = self.rules.queues.bounded
        self._known: dict[Job, tuple[_LikeJobs, tuple[float, ...], float]] = {}
        """Of each waiting job its lane, fields that stay, and since when it waits."""
        self._lanes: dict[tuple[object, ...], _LikeJobs] = {}
        self._keys: dict[_LikeJobs, tuple[object, ...]] = {}
        self._slots: list[_LikeJobs] = []
        self._able: list[bool] = []
        """Of each slot, whether its first job can be started."""
        self.observation: Floats = np.zeros(layout.size)
        """What there is to choose from; the walk's own, and good until the next choice."""
        count, width = layout.slots, len(SLOT_FIELDS)
        self._rows = self.observation[: count * width].reshape(count, width)
        self._cluster = self.observation[count * width :]
        self._wanted = 0
        """Milli-GPUs that those who wait ask for."""
        self._leaving = 0
        """Milli-GPUs that stopped jobs still hold."""
        self._held: dict[int, tuple[float, float]] = {}
        """By level: how much jobs above it are known to hold, and how much they do not."""
        self._takeable: dict[int, dict[str, int]] = {}
        """By level: devices on each node that jobs above it hold."""
        self.can_choose = False
        """Whether something can be started."""

    # -- the walk -------------------------------------------------------------------------------

    def reset(self) -> None:
        """Nobody waits."""
        self._known, self._lanes, self._keys = {}, {}, {}
        self._slots, self.can_choose, self._wanted = [], False, 0

    def push(self, key: SortKey, job: Job, group: Group, plan: Plan) -> None:
        """A job began to wait, perhaps anew with more service than before."""
        if job in self._known:
            self._drop(job)
        level = self._levels.of(job.gpu_s)
        told = job.estimates.runtime_s if job.estimates is not None else None
        middle_s = told.p50 if told is not None else _GUESS_S
        spread = log(max(told.p90, 1.0) / max(told.p10, 1.0)) if told else _GUESS_SPREAD
        queue = group if self._bounded else None
        wish = job.spec.roles, job.spec.placement, level, int(log2(1 + middle_s)), queue
        lane = self._lanes.get(wish)
        if lane is None:
            lane = self._lanes[wish] = _LikeJobs(level, group.milli)
            self._keys[lane] = wish
        insort(lane.jobs, (job.seq, job, group), key=_FIRST)
        self._wanted += group.milli
        stays = (
            log2(1 + group.milli / WHOLE_GPU) / 6,
            group.milli / max(plan.state.capacity.open_milli, 1),
            level / 8,
            log1p(job.ran_s) / _LONG,
            log1p(middle_s) / _LONG,
            spread / 8,
        )
        self._known[job] = lane, stays, job.since

    def waiting(self, plan: Plan) -> Iterator[tuple[Job, SortKey]]:
        """All that are there."""
        return ((job, (job.seq,)) for job in self._known if waits(job, plan.state))

    def walk(self, plan: Plan, predict: Predictor) -> None:
        """One pass; without a network it is only begun."""
        self.begin(plan, predict)
        if self._net is not None:
            while self.can_choose:
                self.choose(self._net.choose(self.observation, self.layout))

    # -- a pass, step by step -------------------------------------------------------------------

    def begin(self, plan: Plan, predict: Predictor) -> None:
        """Put jobs into slots."""
        self._plan, self._predict, self.can_choose = plan, predict, False
        if not self._lanes:
            return
        if self._stops:
            self._last.begin(plan, predict)
        state = plan.state
        if len(self._known) != len(state.pending) - len(state.reservations):
            for job in [job for job in self._known if not waits(job, state)]:
                self._drop(job)
        self._count_leaving()
        able = []
        for lane in self._keys:
            lane.failed = False
            if self._startable(lane):
                able.append(lane)
        if able:
            self._fill(able)
        if self._stops and self._lanes:
            due = self._runs.next_change(plan, predict, self._next_change)
            if due < inf:
                plan.wake_at((due // _ROUND_S + 1) * _ROUND_S)

    def choose(self, action: int) -> bool:
        """Start the job of a slot, or end the pass; whether that was possible."""
        if action >= len(self._slots):
            self.can_choose = False
            return action == self.layout.slots
        lane = self._slots[action]
        if not self._able[action]:
            return False
        done = self._start(lane)
        self._clean(lane)
        if not lane.jobs and len(self._lanes) >= self.layout.slots:
            self._fill([lane for lane in self._keys if self._startable(lane)])
            return done
        if lane.jobs:
            self._rows[action] = self._shown(lane)  # whether it can start is looked at below
        else:
            self._rows[action] = 0.0
            self._able[action] = False
        self._look()
        return done

    def _start(self, lane: _LikeJobs) -> bool:
        _, job, group = lane.jobs[0]
        plan, capacity = self._plan, self._plan.state.capacity
        placer = self.rules.placer_of(job)
        if not lane.stops:
            workers = placer.find(job, plan, group.least)
            if workers is not None:
                plan.place(job, workers)
                return True
            group.failed_at = capacity.released
            return False
        line = self._runs.look(plan, self._predict)
        victims = []
        for level, _, other in reversed(line):
            if level <= lane.level:
                break
            if can_stop(other):
                victims.append(other)
        done = make_room(job, plan, placer, group.least, victims, ())
        self._last.begin(plan, self._predict)
        self._count_leaving()
        lane.failed = not done
        return done

    def _clean(self, lane: _LikeJobs) -> None:
        """Take off those in front who no longer wait."""
        state = self._plan.state
        while lane.jobs:
            job = lane.jobs[0][1]
            if waits(job, state):
                return
            del lane.jobs[0], self._known[job]
            self._wanted -= lane.milli
        del self._lanes[self._keys.pop(lane)]

    def _drop(self, job: Job) -> None:
        lane = self._known.pop(job)[0]
        lane.jobs = [entry for entry in lane.jobs if entry[1] is not job]
        self._wanted -= lane.milli
        if not lane.jobs:
            del self._lanes[self._keys.pop(lane)]

    def _fill(self, able: list[_LikeJobs]) -> None:
        """Those that can start first; of them and of the others those who had least service."""
        count, lanes, first = self.layout.slots, list(self._keys), set(able)
        lanes.sort(key=_by_service)
        if len(lanes) > count:
            lanes.sort(key=lambda lane: lane not in first)
            del lanes[count:]
        self._slots, self._able = lanes, [lane in first for lane in lanes]
        fields = list[float]()
        for lane, can in zip(lanes, self._able, strict=True):
            fields += self._shown(lane, can)
        self.observation[: len(fields)] = fields
        self._rows[len(lanes) :] = 0.0
        self.can_choose = True in self._able
        self._look_at_cluster()

    def _shown(self, lane: _LikeJobs, can: bool = False) -> tuple[float, ...]:
        """The first job of a lane, as a slot has it."""
        job = lane.jobs[0][1]
        _, stays, since = self._known[job]
        now = self._plan.now
        return (
            1.0,
            1.0 if can else 0.0,
            1.0 if can and not lane.stops else 0.0,
            *stays,
            log1p(now - since) / _LONG,
            log1p(now - job.submitted_at) / _LONG,
            log1p(len(lane.jobs)) / 7,
        )

    def _look(self) -> None:
        """What can be started after a choice, and how full the cluster is."""
        rows, able = self._rows, self._able
        for k, lane in enumerate(self._slots):
            if able[k]:  # what could not start before in this pass cannot now
                can = able[k] = self._startable(lane)
                rows[k, 1] = can
                rows[k, 2] = can and not lane.stops
        self.can_choose = True in able
        self._look_at_cluster()

    def _look_at_cluster(self) -> None:
        state, capacity = self._plan.state, self._plan.state.capacity
        whole = max(capacity.open_milli, 1)
        self._cluster[:] = (
            max(capacity.free_milli, 0) / whole,
            log1p(len(state.pending)) / 7,
            log1p(self._wanted / whole),
            len(self._keys) / self.layout.slots,
            log1p(len(state.active)) / 7,
        )

    def _startable(self, lane: _LikeJobs) -> bool:
        """Whether the first job of a lane may find room."""
        if lane.failed:
            return False
        _, job, group = lane.jobs[0]
        plan = self._plan
        if self._bounded and self.rules.queues.admit(job, plan, group.milli):
            return False
        capacity, milli = plan.state.capacity, group.milli
        lane.stops = not (
            milli <= capacity.free_milli
            and group.failed_at != capacity.released
            and capacity.has_whole(group.whole)
        )
        if not lane.stops:
            return True
        if not self._stops or not self._can_stop(lane.level, milli - capacity.free_milli):
            return False
        return group.whole < 2 or not group.one_role or self._has_nodes(lane.level, group)

    def _can_stop(self, level: int, milli: int) -> bool:
        """Whether jobs above a level hold so much that can be taken, beside what is released."""
        lacking = milli - self._leaving
        if lacking <= 0:
            return True
        enough, too_much = self._held.get(level, (0, inf))
        if lacking <= enough:
            return True
        if lacking >= too_much:
            return False
        if self._last.hold((level, inf), lacking):
            self._held[level] = lacking, too_much
            return True
        self._held[level] = enough, lacking
        return False

    def _has_nodes(self, level: int, group: Group) -> bool:
        """Whether nodes enough would have GPUs enough without the jobs above a level."""
        takeable = self._takeable.get(level)
        if takeable is None:
            takeable = self._takeable[level] = {}
            for theirs, _, job in reversed(self._runs.look(self._plan, self._predict)):
                leaves = job.state is _STOPPING
                if theirs > level or leaves or not self._leaving:
                    if theirs <= level and not leaves:
                        break
                    for worker in job.allocation if leaves or can_stop(job) else ():
                        node = worker.node
                        takeable[node] = takeable.get(node, 0) + len(worker.devices)
        capacity, whole = self._plan.state.capacity, group.whole
        index, free = capacity.index, capacity.whole
        places = sum(count // whole for count in free) if len(group.least) > 1 else 0
        for node, count in takeable.items():
            there = free[index[node]]
            places += (count + there) // whole - (there // whole if places else 0)
            if places >= len(group.least):
                return True
        return False

    def _count_leaving(self) -> None:
        """What is on its way to be free, though it may be held for others."""
        state = self._plan.state
        self._held.clear()
        self._takeable.clear()
        self._leaving = 0
        if state.reservations:
            active = state.active.values()
            self._leaving = sum(job.held_milli for job in active if job.state is _STOPPING)

    def _next_change(self, job: Job, now: float) -> float | None:
        return self._levels.next_change(job, now)


def _by_service(lane: _LikeJobs) -> tuple[int, int]:
    return lane.level, lane.jobs[0][0]
