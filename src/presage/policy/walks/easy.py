"""EASY backfill: jobs behind a blocked head may start if the head still starts when it would have.

The head's start is foreseen from the running jobs' estimated ends. A job behind it may start now
if it ends before that, or if the head still fits then with the job in place.

Most of a pass would go into asking the same again: where jobs that ask for the same would go, and
what the cluster looks like when the head starts. So jobs that ask for the same are one `_Shape`,
and `Shadow` keeps the cluster of then between passes; only what changed is put right.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from heapq import heapify, heappop, heapreplace
from typing import Any

from presage.core.capacity import Capacity
from presage.core.plan import Plan
from presage.core.ports import Predictor, SortKey
from presage.core.state import State
from presage.core.workers import least_milli
from presage.model.cluster import Worker
from presage.model.job import Job, JobState
from presage.policy.backlog import Group, waits
from presage.policy.placer import Placer
from presage.policy.start import Starter
from presage.policy.walks.shadow import Shadow
from presage.policy.walks.turns import Turns

__all__ = ["Easy"]

_PENDING = JobState.PENDING
_SPARE = 1000
_Turn = tuple[SortKey, SortKey, int, int, Group]
"""Who is next of a group: the band of its queue, its key, the number of the group, and the place
in it."""


class Easy(Turns):
    """In order, and around the first that does not fit."""

    def __init__(self, starter: Starter) -> None:
        super().__init__(starter)
        rules = starter.rules
        self._shadow = Shadow(rules)
        self._by_room = rules.gang and not starter.makes_room
        self._by_room = self._by_room and self._band is None and not rules.queues.bounded
        """Whether room alone decides if the first of all can start."""
        self._forget()

    def _forget(self) -> None:
        self._shapes: dict[Any, _Shape] = {}
        self._shape_of: dict[Group, _Shape] = {}
        self._first: tuple[SortKey, Group] | None = None
        """The first who waits and its group, as far as known."""

    def reset(self) -> None:
        """Nobody waits."""
        super().reset()
        self._forget()

    def push(self, key: SortKey, job: Job, group: Group, plan: Plan) -> None:
        """Add a job."""
        shape = self._shape_of.get(group)
        if shape is None:
            if len(self._shape_of) > _SPARE + 2 * len(self.backlog.groups):
                self._drop_empty()
            kind = group.key[1:]  # all but the queue
            if kind not in self._shapes:
                self._shapes[kind] = _Shape(group, self.rules.placer_of(job).by_room)
            shape = self._shape_of[group] = self._shapes[kind]
        if not group.front:
            shape.groups[group] = None
        super().push(key, job, group, plan)
        if self._first is not None and key < self._first[0]:
            self._first = None

    def _drop_empty(self) -> None:
        """Forget groups in which nobody waits."""
        self._shape_of = {group: one for group, one in self._shape_of.items() if group.front}
        self._shapes = {kind: one for kind, one in self._shapes.items() if one.waiting()}

    def walk(self, plan: Plan, predict: Predictor) -> None:
        """Start jobs, then those behind a blocked one that do not delay it."""
        state, capacity = plan.state, plan.state.capacity
        shapes: list[_Shape] = []
        if self._by_room:
            shapes = [shape for shape in self._shapes.values() if not shape.stuck(capacity)]
            if not shapes:
                return  # nothing became free that anybody could use
        if shapes and self._all_wait(state):
            decided = len(plan.decisions)
            first = self._start_first(plan, predict)
            if first is None or state.incomplete or self._is_full(capacity):
                return
            if len(plan.decisions) == decided or self._all_wait(state):
                self._fill_open(first, shapes, plan, predict)
                return
            heads = self._heads(plan)
        else:
            heads = self.start_some(plan, predict)
            if not heads or state.incomplete or self._is_full(capacity):
                return
        blocked = heads[0][3]
        turns: list[_Turn] = []
        for band, key, number, group in heads:
            if group is not blocked:
                turns.append((band, key, number, 0, group))
            elif group.has(1):
                turns.append((band, group.front[1][0], number, 1, group))
        heapify(turns)
        self._fill(blocked.front[0][1], turns, None, plan, predict)

    def _is_full(self, capacity: Capacity) -> bool:
        """Whether nobody who waits could start: no GPU is free, and all want one."""
        groups = self.backlog.groups.values()
        return capacity.free_milli <= 0 and all(group.milli for group in groups)

    def _all_wait(self, state: State) -> bool:
        """Whether the first of every group still waits, as nearly always."""
        if state.reservations:
            return False
        groups = self.backlog.groups.values()
        return not [1 for group in groups if group.front[0][1].state is not _PENDING]

    def _start_first(self, plan: Plan, predict: Predictor) -> Group | None:
        """Start jobs in order; the group of the first that does not fit."""
        capacity = plan.state.capacity
        while (group := self._find_first(plan.state)) is not None:
            shape = self._shape_of[group]
            if group.failed_at == capacity.released or shape.stuck(capacity):
                return group
            if self.starter.start(group.front[0][1], group, plan, predict) is not None:
                shape.failed_at = capacity.released
                return group
            self.backlog.pop(group)
        return None

    def _find_first(self, state: State) -> Group | None:
        """The group of the first who waits."""
        groups = self.backlog.groups
        while groups:
            if self._first is None:
                group = min(groups.values(), key=_first_key)
                self._first = group.front[0][0], group
            key, group = self._first
            if not group.front or group.front[0][0] != key:
                self._first = None
            elif waits(group.front[0][1], state):
                return group
            else:
                self.backlog.pop(group)
        return None

    def _fill_open(
        self, first: Group, shapes: list[_Shape], plan: Plan, predict: Predictor
    ) -> None:
        """Fill behind the first job of a group; groups that are stuck are not even looked at."""
        capacity = plan.state.capacity
        shapes = [shape for shape in shapes if not shape.stuck(capacity)]
        groups = [group for shape in shapes for group in shape.waiting()]
        is_stuck = first not in groups
        if not is_stuck and not first.has(1):
            groups.remove(first)
        turns: list[_Turn] = []
        for number, group in enumerate(groups):
            place = 1 if group is first else 0
            turns.append(((), group.front[place][0], number, place, group))
        if turns:
            heapify(turns)
            stuck = _Stuck(self.backlog.groups, groups, first, is_stuck)
            self._fill(first.front[0][1], turns, stuck, plan, predict)

    def _fill(
        self, head: Job, turns: list[_Turn], stuck: _Stuck | None, plan: Plan, predict: Predictor
    ) -> None:
        """Try jobs behind the blocked head, in order."""
        rules, state, capacity = self.rules, plan.state, plan.state.capacity
        queues = rules.queues if rules.queues.bounded else None
        fill, tries, most = _Fill(head, self._shadow, plan, predict), 0, rules.backfill
        unseen = stuck.count if stuck is not None else 0
        without_gpus = any(not turn[4].milli for turn in turns)
        while turns and (capacity.free_milli > 0 or without_gpus):
            band, key, number, place, group = turns[0]
            if group.milli and capacity.free_milli <= 0:
                heappop(turns)
                continue
            job = group.front[place][1]
            if tries + unseen >= most and tries + (stuck.before(key) if stuck else 0) >= most:
                break
            tries += 1
            stays = False
            if waits(job, state):
                if queues is not None and queues.admit(job, plan, group.milli):
                    heappop(turns)
                    continue
                started = fill.start(job, self._shape_of[group], rules.placer_of(job))
                if started is None:
                    heappop(turns)
                    continue
                stays = not started
            if stays:
                place += 1
            else:
                self.backlog.pop(group, place)
            if group.has(place):
                heapreplace(turns, (band, group.front[place][0], number, place, group))
            else:
                heappop(turns)


class _Shape:
    """Waiting jobs that ask for the same, whatever their queues."""

    __slots__ = (
        "by_room",
        "failed_at",
        "found",
        "groups",
        "least",
        "milli",
        "moment",
        "one_role",
        "refused",
        "whole",
    )

    def __init__(self, group: Group, by_room: bool) -> None:
        self.least, self.milli, self.whole = group.least, group.milli, group.whole
        self.one_role = group.one_role
        self.by_room = by_room
        """Whether they all would go to the same place."""
        self.groups: dict[Group, None] = {}
        """Groups that had waiting jobs."""
        self.failed_at = -1
        """`Capacity.released` when one of them last did not fit."""
        self.moment: object = None
        """When it was last found out where they would go."""
        self.found: tuple[Worker, ...] | None = None
        self.refused = False
        """Whether they would delay the head there, unless they end before it starts."""

    def stuck(self, capacity: Capacity) -> bool:
        """Whether it is known that none of them fits."""
        if self.milli > capacity.free_milli or not capacity.has_whole(self.whole):
            return True
        return self.one_role and self.failed_at == capacity.released

    def waiting(self) -> list[Group]:
        """Groups that have waiting jobs."""
        waiting = [group for group in self.groups if group.front]
        if len(waiting) < len(self.groups):
            self.groups = dict.fromkeys(waiting)
        return waiting


class _Stuck:
    """Groups that are not looked at since none of their jobs fits. Each counts as a job that was
    tried, as if it had been."""

    def __init__(
        self, all_groups: Mapping[Any, Group], looked: list[Group], first: Group, is_first: bool
    ) -> None:
        """`is_first`: whether the group of the first, who is blocked, is one of them."""
        self._all, self._looked, self._first = all_groups, looked, first
        self._is_first = is_first
        self.count = len(all_groups) - len(looked)
        """How many there are at most."""
        self._keys: list[SortKey] | None = None

    def before(self, key: SortKey) -> int:
        """How many come before a key."""
        if self._keys is None:
            looked, first = {*self._looked, self._first}, self._first
            rest = [group for group in self._all.values() if group not in looked]
            keys = [group.front[0][0] for group in rest]
            if self._is_first and first.has(1):  # the blocked job itself does not count
                keys.append(first.front[1][0])
            self._keys = sorted(keys)
        return bisect_left(self._keys, key)


class _Fill:
    """One pass behind one blocked job."""

    def __init__(self, head: Job, shadow: Shadow, plan: Plan, predict: Predictor) -> None:
        self.head, self.shadow, self.plan, self.predict = head, shadow, plan, predict
        self._need_milli = least_milli(head)
        self._looked = False
        self._at: float | None = None
        """When the head will fit as running jobs end; None when that cannot be foreseen."""
        self._room_milli = 0
        """What will be free then."""
        self._spot: tuple[Worker, ...] = ()
        """Where the head would start then; empty when it must be looked for again."""
        self._moment = object()
        """Another one whenever a job started."""

    def start(self, job: Job, shape: _Shape, placer: Placer) -> bool | None:
        """Start a job, unless it would delay the head; None when it does not fit."""
        plan = self.plan
        if shape.moment is not self._moment:
            self._find(job, shape, placer)
        workers = shape.found
        if workers is None:
            return None
        if not self._looked:  # in many passes nothing fits, and nobody needs to know
            self._looked = True
            self._at, self._spot = self.shadow.find(self.head, plan, self.predict)
            self._room_milli = self.shadow.capacity.free_milli
        if self._at is not None and (shape.refused or self._is_near_spot(workers)):
            left = max(0.0, self.predict.runtime(job, workers).p50 - job.ran(plan.now))
            spot: tuple[Worker, ...] = ()
            if plan.now + left > self._at:
                if not shape.refused:
                    spot = self._spot_beside(job, shape, workers)
                if not spot:
                    shape.refused = shape.by_room
                    return False
            self._spot = spot
        plan.place(job, workers)
        self.shadow.show(job, plan.state)
        self._room_milli -= shape.milli
        self._moment = object()
        return True

    def _find(self, job: Job, shape: _Shape, placer: Placer) -> None:
        """Find out where a job fits now, and with it all that ask for the same."""
        capacity = self.plan.state.capacity
        shape.found, shape.refused = None, False
        shape.moment = self._moment if shape.by_room else None
        if not shape.stuck(capacity):
            shape.found = placer.find(job, self.plan, shape.least)
            if shape.found is None:
                shape.failed_at = capacity.released

    def _is_near_spot(self, workers: tuple[Worker, ...]) -> bool:
        """Whether workers may take room that the head will need. A single worker that fits on a
        node does so whatever happens on others."""
        spot = self._spot
        return len(spot) != 1 or any([worker.node == spot[0].node for worker in workers])

    def _spot_beside(
        self, job: Job, shape: _Shape, workers: tuple[Worker, ...]
    ) -> tuple[Worker, ...]:
        """Where the head will start when it would have with this job in place, if it can."""
        if self._room_milli - shape.milli < self._need_milli:
            return ()
        return self.shadow.beside(job, workers, self.head, self.plan)


def _first_key(group: Group) -> SortKey:
    return group.front[0][0]
