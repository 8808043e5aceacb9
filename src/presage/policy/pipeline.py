"""The default policy: order the queue, walk it, place what fits, make room where that is allowed.

    admit (queues) → order → place (scores) → make room (reclaim) → backfill → grow

Every part is a small function or object chosen by configuration; the pipeline knows none of their
names.
What it keeps between calls (the sorted backlog, which groups failed) is only a cache of the
state: a fresh
pipeline on the same state decides the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush, heapreplace
from math import floor
from typing import Any

from presage.core.plan import Plan
from presage.core.ports import Predictor, SortKey
from presage.core.state import State
from presage.core.workers import least_milli, missing
from presage.model.cluster import Worker
from presage.model.event import NodeUp
from presage.model.job import Job, JobState, Placement, Reason, ReasonCode
from presage.policy.backfill import Backfill, Ends
from presage.policy.backlog import Backlog, Group, waits
from presage.policy.colocate import Sharing
from presage.policy.elastic import (
    ByGain,
    fits_queue,
    grow,
    least_workers,
    obey_scale_requests,
    resizable,
    sizes,
)
from presage.policy.explain import describe, why_no_room
from presage.policy.order import HasBand, HasRounds, Order
from presage.policy.placer import Placer, Wanted
from presage.policy.queues import Queues
from presage.policy.ranked import walk_ranked
from presage.policy.reclaim import Reclaim, evacuate, make_room

__all__ = ["Pipeline", "Rules"]


@dataclass(frozen=True, slots=True)
class Rules:
    """The parts of a pipeline."""

    order: Order
    placer: Placer
    """For jobs that do not ask for a placement of their own."""
    placers: Mapping[Placement, Placer]
    """For jobs that do."""
    queues: Queues
    reclaim: Reclaim | None = None
    greedy: bool = False
    """Go on behind a job that does not fit; else it blocks those behind it."""
    backfill: int = 0
    """How many jobs behind a blocked head may be tried (EASY backfill); 0 is off."""
    ranked: bool = False
    """Preempt by rank (`policy.ranked`) instead of walking the queue."""
    gang: bool = True
    elastic: bool = False
    """Shrink elastic jobs for waiting ones and grow them into idle room."""
    shrink_after_s: float = 0.0
    """How long a job waits before others of its priority are shrunk for it."""
    grow_after_s: float = 0.0
    """How long an elastic job keeps its size before it grows."""
    gain: ByGain | None = None
    """Elastic jobs get and give workers by what each brings, instead of by their number."""
    sharing: Sharing | None = None
    """Jobs share GPUs as far as predictions allow (`policy.colocate`)."""
    prefers_estimates: bool = False
    """The order is made for estimated durations, even where true ones are known."""


class Pipeline:
    """A policy composed of rules."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.prefers_estimates = rules.prefers_estimates
        self._band = rules.order.band if isinstance(rules.order, HasBand) else None
        self._rounds = rules.order if isinstance(rules.order, HasRounds) else None
        self._movable = rules.reclaim is not None or rules.elastic
        """Whether room can be made where there is none."""
        self._resizes = rules.elastic or rules.gain is not None
        self._bounded = rules.queues.bounded
        by_turns = rules.greedy or rules.backfill or rules.ranked or self._bounded
        by_turns = by_turns or rules.sharing is not None
        self._in_line = not by_turns and self._band is None
        """Whether nobody ever passes the first job: then groups need not be kept apart."""
        self._line: list[tuple[SortKey, Job, Group]] = []
        self._state: State | None = None
        self._backlog = Backlog()
        self._ends = Ends()
        self._empty: Plan | None = None
        self._keys: tuple[Any, dict[Any, list[SortKey]]] = (None, {})
        """The keys of all waiting jobs by band, in order, and the moment they belong to."""

    def schedule(self, plan: Plan, predict: Predictor) -> None:
        """One pass over the queue."""
        state = plan.state
        if state.queued or self._state is not state:
            self._take_in(plan, predict)
        if state.draining:
            evacuate(plan)
        if self._rounds is not None and not self._on_round(plan):
            return
        if state.incomplete and not self._complete(plan):
            return
        if not self._in_line:
            self._walk_by_turns(plan, predict)
        elif self._line:
            self._walk_line(plan, predict)
        if state.scaling or self._resizes:
            self._resize(plan, predict)
        if self._rounds is not None:
            self._wake_for_round(plan)

    def explain(self, job: Job, plan: Plan, predict: Predictor) -> Reason:
        """Why a pending job waits."""
        rules = self.rules
        held_back = rules.queues.admit(job, plan, least_milli(job))
        if held_back is not None:
            return held_back
        ahead = self._count_ahead(job, plan, predict)
        if self._find(job, plan, predict) is not None:
            behind = f"{ahead} job{'s' if ahead != 1 else ''} ahead of it"
            text = f"{describe(job)} would fit, but {behind} must start first"
            return Reason(
                ReasonCode.QUEUED_BEHIND, text if ahead else "it starts in the next pass"
            )
        if rules.sharing is not None and rules.sharing.shares(job):
            return rules.sharing.explain(job, plan, predict)
        return why_no_room(job, plan, ahead, rules.placer)

    # -- taking jobs in -------------------------------------------------------------------------

    def _take_in(self, plan: Plan, predict: Predictor) -> None:
        state = plan.state
        new = state.queued
        if self._state is not state:
            self._state, self._backlog, self._line = state, Backlog(), []
            if self.rules.sharing is not None:
                self.rules.sharing.reset()
            new = list(state.pending.values())
        order, sharing, backlog = self.rules.order, self.rules.sharing, self._backlog
        reservations, nodes = state.reservations, len(state.capacity.nodes)
        for job in new:
            if job.state is not _PENDING or (reservations and not waits(job, state)):
                continue
            group = backlog.group(job)
            if group.checked != nodes:
                group.checked, group.never = nodes, self._never(job, plan, predict)
            if group.never is not None:
                plan.reject(job, group.never)
                continue
            key = order(job, plan, predict)
            if self._in_line:
                heappush(self._line, (key, job, group))
            elif sharing is not None:
                sharing.push(key, job, plan.now)
            else:
                backlog.push(key, job, group)
        state.queued.clear()

    def _never(self, job: Job, plan: Plan, predict: Predictor) -> Reason | None:
        """Why no state of this cluster could hold a job, or None."""
        names = plan.state.capacity.index
        if self._empty is None or self._empty.state.capacity.index.keys() != names.keys():
            self._empty = _empty_cluster(plan.state)
        reason = self.rules.queues.never(job)
        if reason is None and self._find(job, self._empty, predict) is None:
            room = why_no_room(job, self._empty, 0, self.rules.placer)
            reason = Reason(ReasonCode.NEVER_FITS, f"larger than the cluster: {room.text}")
        return reason

    def _find(self, job: Job, plan: Plan, predict: Predictor) -> tuple[Worker, ...] | None:
        """Where the fewest workers of a job would go."""
        if self.rules.sharing is not None:
            return self.rules.sharing.find(job, plan, predict, self._placer(job))
        return self._placer(job).find(job, plan, least_workers(job))

    # -- the walk -------------------------------------------------------------------------------

    def _walk_by_turns(self, plan: Plan, predict: Predictor) -> None:
        rules, backlog = self.rules, self._backlog
        if rules.sharing is not None:
            rules.sharing.walk(plan, predict, rules.queues, self._placer)
        elif backlog.groups and rules.ranked:
            walk_ranked(plan, predict, rules.order, backlog, rules.queues, self._placer)
        elif backlog.groups:
            self._walk(plan, predict)

    def _walk(self, plan: Plan, predict: Predictor) -> None:
        state, rules = plan.state, self.rules
        heads = self._heads(plan)
        failed: list[Group] = []
        while heads:
            band, _, _, group = heads[0]
            if self._band is not None and (now := self._band(group.queue, plan)) != band:
                heapreplace(heads, (now, *heads[0][1:]))
                continue
            if not group.heap or not waits(group.heap[0][1], state):
                self._advance(heads, group, band)
                continue
            job = group.heap[0][1]
            if not self._movable and any(small.at_most(group) for small in failed):
                heappop(heads)
                continue
            outcome = self._serve(job, group, plan, predict)
            if outcome is None:
                self._advance(heads, group, band)
            elif outcome is _HELD_BACK or rules.greedy:
                heappop(heads)
                if outcome is _NO_ROOM:
                    failed = [small for small in failed if not group.at_most(small)] + [group]
            else:
                if not waits(job, state):  # some of its workers were launched
                    self._advance(heads, group, band)
                break
        if heads and rules.backfill and not state.incomplete and state.capacity.free_milli > 0:
            self._backfill(heads, plan, predict)

    def _walk_line(self, plan: Plan, predict: Predictor) -> None:
        """The walk where the first job blocks all others: one look at a time is enough."""
        line, state = self._line, plan.state
        capacity, reservations, stuck = state.capacity, state.reservations, not self._movable
        while line:
            _, job, group = line[0]
            if job.state is _PENDING and (not reservations or waits(job, state)):
                released = capacity.released
                if stuck and (group.failed_at == released or not capacity.has_whole(group.whole)):
                    group.failed_at = released
                    return
                if self._serve(job, group, plan, predict) is not None:
                    if job.state is not _PENDING:  # some of its workers were launched
                        heappop(line)
                    return
            heappop(line)

    def _backfill(self, heads: list[Any], plan: Plan, predict: Predictor) -> None:
        """Try jobs behind the blocked head, in order; those that stay go back to their groups."""
        rules, state = self.rules, plan.state
        head = heads[0][3].heap[0][1]
        backfill = Backfill(head, self._placer, plan, predict, self._ends)
        aside = [heads[0][3].heap[0]]
        self._advance(heads, heads[0][3], heads[0][0])
        for _ in range(rules.backfill):
            if not heads or state.capacity.free_milli <= 0:
                break
            group = heads[0][3]
            entry = group.heap[0]
            job = entry[1]
            if waits(job, state):
                held_back = rules.queues.admit(job, plan, group.milli)
                if held_back or not backfill.fits(job):
                    heappop(heads)
                    continue
                if not backfill.start(job):
                    aside.append(entry)
            self._advance(heads, group, heads[0][0])
        for key, job in aside:
            self._backlog.push(key, job)

    def _heads(self, plan: Plan) -> list[tuple[Any, Any, int, Group]]:
        """The first job of every group as a heap. A lone head is enough when it blocks the
        rest."""
        groups = self._backlog.groups.values()
        band = self._band or _same_band
        heads: list[tuple[Any, Any, int, Group]] = [
            (band(g.queue, plan), g.heap[0][0], k, g) for k, g in enumerate(groups)
        ]
        heapify(heads)
        return heads

    def _advance(self, heads: list[tuple[Any, Any, int, Group]], group: Group, band: Any) -> None:
        """The first job of the leading group is done with: go on to its next."""
        if group.heap:
            self._backlog.pop(group)
        if group.heap:
            heapreplace(heads, (band, group.heap[0][0], heads[0][2], group))
        else:
            heappop(heads)

    def _serve(self, job: Job, group: Group, plan: Plan, predict: Predictor) -> str | None:
        """Launch a job or make room for it; else say what keeps it."""
        rules, capacity, bounded = self.rules, plan.state.capacity, self._bounded
        if bounded and rules.queues.admit(job, plan, group.milli):
            return _HELD_BACK
        if group.failed_at == capacity.released and not self._movable:
            return _NO_ROOM
        placer = rules.placer if job.spec.placement is None else self._placer(job)
        if not rules.gang:
            part = self._place_part(job, plan, placer)
            if part and (rules.greedy or job.id not in plan.state.incomplete):
                return None
            group.failed_at = capacity.released
            return _NO_ROOM
        for wanted in self._sizes(job, plan, predict) if group.elastic else group.wishes:
            if bounded and not fits_queue(job, plan, wanted, rules.queues):
                continue
            found = placer.find(job, plan, wanted)
            if found is not None:
                plan.place(job, found)
                return None
        group.failed_at = capacity.released
        if self._movable:
            victims = rules.reclaim(job, plan, predict) if rules.reclaim is not None else []
            donors = self._donors(job, plan)
            loss = partial(rules.gain.loss, predict=predict) if rules.gain else None
            if make_room(job, plan, placer, group.least, victims, donors, loss):
                return None
        return _NO_ROOM

    def _sizes(self, job: Job, plan: Plan, predict: Predictor) -> Sequence[Wanted]:
        """The numbers of workers to try for an elastic job, the best first."""
        rules = self.rules
        if rules.gain is not None and len(plan.state.pending) == 1:
            return rules.gain.sizes(job, plan, predict)
        if not rules.elastic or self._alone(plan):
            return sizes(job)
        return (least_workers(job),)

    def _resize(self, plan: Plan, predict: Predictor) -> None:
        """Give elastic jobs the size that their owners asked for, or that room allows."""
        rules, state = self.rules, plan.state
        if state.scaling:
            waiting = rules.ranked and bool(state.pending)
            obey_scale_requests(plan, self._placer, rules.queues, may_grow=not waiting)
        if rules.gain is not None:
            rules.gain.share(plan, predict, self._placer, rules.queues)
        elif rules.elastic:
            grow(plan, self._placer, rules.queues, rules.grow_after_s)

    def _donors(self, job: Job, plan: Plan) -> list[Job]:
        """Elastic jobs that would give workers to a waiting one: those of lower priority at once,
        the others when it has waited long enough."""
        if not self.rules.elastic:
            return []
        donors = [other for other in resizable(plan) if other.spec.checkpointable]
        patient_until = job.since + self.rules.shrink_after_s
        if plan.now >= patient_until:
            return donors
        plan.wake_at(patient_until)
        return [other for other in donors if other.spec.priority < job.spec.priority]

    def _alone(self, plan: Plan) -> bool:
        """Whether no other job waits for room or would like to grow into it."""
        state = plan.state
        return len(state.pending) == 1 and not any(j.spec.elastic for j in state.active.values())

    # -- without gang ---------------------------------------------------------------------------

    def _place_part(self, job: Job, plan: Plan, placer: Placer) -> bool:
        """Launch as many of the missing workers as fit, one by one; False when none does."""
        before = len(job.allocation)
        full: set[int] = set()
        for lacking in missing(job):
            if lacking[0] in full:
                continue
            found = placer.find(job, plan, [lacking])
            if found is not None:
                plan.place(job, found)
            elif self.rules.greedy:
                full.add(lacking[0])
            else:
                break
        return len(job.allocation) > before

    def _complete(self, plan: Plan) -> bool:
        """Give started jobs their missing workers; False when one still blocks those behind it."""
        for job in sorted(plan.state.incomplete.values(), key=lambda job: job.seq):
            if job.state is JobState.STARTING:
                self._place_part(job, plan, self._placer(job))
                if job.id in plan.state.incomplete and not self.rules.greedy:
                    return False
        return True

    # -- rounds ---------------------------------------------------------------------------------

    def _on_round(self, plan: Plan) -> bool:
        assert self._rounds is not None
        if round(plan.now / self._rounds.round_s) * self._rounds.round_s == plan.now:
            return True
        if plan.state.pending or plan.state.incomplete:  # the backlog may hold who no longer waits
            plan.wake_at(_next_round(plan.now, self._rounds.round_s))
        return False

    def _wake_for_round(self, plan: Plan) -> None:
        """While jobs wait, come back at the first round after a running job's key changes."""
        assert self._rounds is not None
        if not plan.state.pending:
            return
        changes = [
            self._rounds.next_change(job, plan.now)
            for job in plan.state.active.values()
            if job.id not in plan.state.incomplete  # it gets no service until it is whole
        ]
        due = min((at for at in changes if at is not None), default=None)
        if due is not None:
            plan.wake_at(_next_round(due, self._rounds.round_s))

    # -- helpers --------------------------------------------------------------------------------

    def _placer(self, job: Job) -> Placer:
        asked = job.spec.placement
        return self.rules.placer if asked is None else self.rules.placers[asked]

    def _count_ahead(self, job: Job, plan: Plan, predict: Predictor) -> int:
        """How many waiting jobs go before this one."""
        state, capacity = plan.state, plan.state.capacity
        waiting, room = len(state.pending), (capacity.released, capacity.free_milli)
        moment: tuple[Any, ...] = (id(state), plan.now, state.submitted, waiting, room)
        if waiting > _MANY:
            old_s = 1 << (waiting // _MANY).bit_length() - 1
            moment = (id(state), old_s, plan.now // old_s)
        if self._keys[0] != moment:
            found = self._waiting_keys(plan, predict)
            self._keys = moment, {band: sorted(keys) for band, keys in found.items()}
        band, mine = self._full_key(job, plan, predict)
        ahead = 0
        for theirs, keys in self._keys[1].items():
            if theirs <= band:
                ahead += len(keys) if theirs < band else bisect_left(keys, mine)
        return ahead

    def _waiting_keys(self, plan: Plan, predict: Predictor) -> dict[Any, list[SortKey]]:
        """The keys of all waiting jobs by band: those they were taken in with, where they were."""
        state, found = plan.state, dict[Any, list[SortKey]]()
        known = self._state is state and not state.queued and self.rules.sharing is None
        for name in state.reservations if known else state.pending:
            band, key = self._full_key(state.jobs[name], plan, predict)
            found.setdefault(band, []).append(key)
        if known and self._in_line:
            found.setdefault(0, []).extend(k for k, job, _ in self._line if waits(job, state))
        elif known:
            for group in self._backlog.groups.values():
                band = self._band(group.queue, plan) if self._band is not None else 0
                keys = found.setdefault(band, [])
                keys.extend(key for key, job in group.heap if waits(job, state))
        return found

    def _full_key(self, job: Job, plan: Plan, predict: Predictor) -> tuple[Any, SortKey]:
        band = self._band(job.spec.queue, plan) if self._band is not None else 0
        return band, self.rules.order(job, plan, predict)


def _next_round(after: float, round_s: float) -> float:
    """The first round after a time: a whole multiple, so that the round is recognised."""
    count = floor(after / round_s) + 1
    return (count if count * round_s > after else count + 1) * round_s


def _same_band(queue: str, plan: Plan) -> SortKey:
    return ()


_PENDING = JobState.PENDING
_MANY = 1000
"""Waiting jobs from which on the number of those ahead may be a second old, and of twice as many
twice as old: sorting them must not keep the loop busy."""
_HELD_BACK = "held back"
_NO_ROOM = "no room"


def _empty_cluster(state: State) -> Plan:
    """The same nodes with nothing on them, all open."""
    empty = State(state.seed)
    for name, i in state.capacity.index.items():
        assert state.capacity.nodes[i].name == name
        empty.apply(0.0, NodeUp(state.capacity.nodes[i]))
    return Plan(empty)
