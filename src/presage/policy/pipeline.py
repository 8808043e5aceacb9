"""The default policy: order the queue, walk it, place what fits, make room where that is allowed.

    admit (queues) → order → place (scores) → make room (reclaim) → backfill → grow

Every part is a small function or object chosen by configuration; the pipeline knows none of their
names, but for the walk through the queue, which it chooses once.
What it keeps between calls (the sorted queue, which groups failed) is only a cache of the state: a
fresh pipeline on the same state decides the same.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from math import floor, inf
from typing import Any

from presage.core.changes import Changes, Reader
from presage.core.plan import Plan
from presage.core.ports import Predictor, SortKey
from presage.core.state import State
from presage.core.workers import least_milli
from presage.model.cluster import Taken
from presage.model.event import NodeUp
from presage.model.job import Job, JobState, Reason, ReasonCode
from presage.policy.backlog import Groups, waits
from presage.policy.elastic import grow, obey_scale_requests
from presage.policy.explain import describe, why_no_room
from presage.policy.order import HasBand, HasRounds, HasStanding
from presage.policy.reclaim import evacuate
from presage.policy.rules import Rules
from presage.policy.runs import Runs
from presage.policy.sharing import is_share, shares
from presage.policy.start import Starter
from presage.policy.walks import Walk
from presage.policy.walks.easy import Easy
from presage.policy.walks.line import Line
from presage.policy.walks.ranked import Ranked
from presage.policy.walks.shared import Shared
from presage.policy.walks.turns import Turns

__all__ = ["Pipeline", "Rules"]


class Pipeline:
    """A policy composed of rules."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.prefers_estimates = rules.prefers_estimates
        self.needs_history = rules.needs_history
        order = rules.order
        self._band = order.band if isinstance(order, HasBand) else None
        self._rounds = order if isinstance(order, HasRounds) else None
        self._runs = Runs(order.standing if isinstance(order, HasStanding) else _anywhere)
        self._starter = Starter(rules)
        made = rules.shared_walk or Shared
        self._shared = made(rules, rules.sharing) if rules.sharing is not None else None
        """The walk once somebody can share; until then jobs have GPUs of their own."""
        self._shapes = 0
        """How many shapes of jobs were looked at for that."""
        self._walk = self._choose_walk()
        self._resizes = rules.elastic or rules.gain is not None
        self._budgets = bool(rules.queues.budgets)
        self._reader = Reader()
        self._seen: Changes | None = None
        self._groups = self._no_groups()
        self._empty: tuple[tuple[int, int], Plan] | None = None
        self._keys: tuple[Any, dict[Any, list[SortKey]]] = (None, {})
        """The keys of all waiting jobs by band, in order, and the moment they belong to."""

    def _choose_walk(self) -> Walk:
        rules, starter = self.rules, self._starter
        if rules.walk is not None:
            return rules.walk(starter)
        if rules.ranked:
            return Ranked(starter, self._runs)
        if rules.backfill and not rules.greedy:
            return Easy(starter)
        if rules.greedy or rules.queues.bounded or self._band is not None:
            return Turns(starter)
        return Line(starter)

    def schedule(self, plan: Plan, predict: Predictor) -> None:
        """One pass over the queue."""
        state = plan.state
        changed = self._reader.read(state.changes)
        if changed is None or (self._shared is not None and self._can_share(state)):
            changed = self._start_over(state)
        waiting = [job for job in changed if job.state is _PENDING]
        if waiting:
            self._take_in(waiting, plan, predict)
        if state.draining:
            evacuate(plan)
        if self._rounds is not None and not self._on_round(plan):
            return
        if state.incomplete and not self._starter.complete(plan):
            return
        self._walk.walk(plan, predict)
        if state.scaling or self._resizes:
            self._resize(plan, predict)
        if self._rounds is not None and state.pending:
            self._wake_for_round(plan, predict)
        if self._budgets and state.pending:
            later = self.rules.queues.next_period(plan.now)
            if later is not None:
                plan.wake_at(later)  # a budget begins anew

    def explain(self, job: Job, plan: Plan, predict: Predictor) -> Reason:
        """Why a pending job waits."""
        reason = self._explain(job, plan, predict)
        if self._shared is None or shares(job) or reason.code is not ReasonCode.NO_ROOM:
            return reason
        return replace(reason, text=f"{reason.text}; it asks for whole GPUs and can share none")

    def remarks(self, state: State) -> list[str]:
        """What is odd about these rules and these jobs."""
        if self._shared is None or not state.shapes or any(map(is_share, state.shapes)):
            return []
        order = getattr(self.rules.order, "__name__", type(self.rules.order).__name__)
        mode = "greedy" if self.rules.greedy else "strict"
        return [
            "no job asks for a part of a GPU (such as 0.5), so none can share one: "
            f"decided as by order {order}, mode {mode}"
        ]

    def _explain(self, job: Job, plan: Plan, predict: Predictor) -> Reason:
        held_back = self.rules.queues.admit(job, plan, least_milli(job))
        if held_back is not None:
            return held_back
        ahead = self._count_ahead(job, plan, predict)
        if self._walk.find(job, plan, predict) is not None:
            behind = f"{ahead} job{'s' if ahead != 1 else ''} ahead of it"
            text = f"{describe(job)} would fit, but {behind} must start first"
            return Reason(
                ReasonCode.QUEUED_BEHIND, text if ahead else "it starts in the next pass"
            )
        return self._walk.why(job, plan, predict, ahead)

    @property
    def counts_hours(self) -> bool:
        """Whether it goes by GPU time that was spent (`CountsHours`)."""
        return bool(self.rules.queues.budgets)

    # -- taking jobs in -------------------------------------------------------------------------

    def _start_over(self, state: State) -> list[Job]:
        """It is not known who began to wait: look at all."""
        if self._shared is not None:
            self._shapes = len(state.shapes)
            sharing = any(map(is_share, state.shapes))
            self._walk = self._shared if sharing else self._choose_walk()
        self._walk.reset()
        self._groups, self._seen = self._no_groups(), state.changes
        return list(state.pending.values())

    def _no_groups(self) -> Groups:
        queues = self.rules.queues
        return Groups(queues.apart if queues.budgets else None)

    def _can_share(self, state: State) -> bool:
        """Whether the first job came that can share a GPU: all that wait are looked at anew."""
        if self._walk is self._shared or self._shapes == len(state.shapes):
            return False
        self._shapes = len(state.shapes)
        return any(map(is_share, state.shapes))

    def _take_in(self, waiting: list[Job], plan: Plan, predict: Predictor) -> None:
        """Sort in jobs that began to wait."""
        state, walk, order = plan.state, self._walk, self.rules.order
        reservations, nodes = state.reservations, len(state.capacity.nodes)
        for job in dict.fromkeys(waiting) if len(waiting) > 1 else waiting:
            if reservations and not waits(job, state):
                continue
            group = self._groups.of(job)
            if group.checked != nodes:
                group.checked, group.never = nodes, self._find_never(job, plan, predict)
            if group.never is not None:
                plan.reject(job, group.never)
            else:
                walk.push(order(job, plan, predict), job, group, plan)

    def never(self, job: Job, plan: Plan, predict: Predictor) -> Reason | None:
        """Why no state of this cluster could hold a job, submitted or not; None when one could."""
        group, nodes = self._groups.of(job), plan.state.capacity.described
        if group.checked != nodes:
            group.checked, group.never = nodes, self._find_never(job, plan, predict)
        return group.never

    def _find_never(self, job: Job, plan: Plan, predict: Predictor) -> Reason | None:
        capacity = plan.state.capacity
        key = capacity.described, len(capacity.index)
        if self._empty is None or self._empty[0] != key:
            self._empty = key, _empty_cluster(plan.state)
        empty = self._empty[1]
        reason = self.rules.queues.never(job)
        if reason is None and self._walk.find(job, empty, predict) is None:
            room = why_no_room(job, empty, 0, self.rules.placer)
            reason = Reason(ReasonCode.NEVER_FITS, f"larger than the cluster: {room.text}")
        return reason

    def _resize(self, plan: Plan, predict: Predictor) -> None:
        """Give elastic jobs the size that their owners asked for, or that room allows."""
        rules, state = self.rules, plan.state
        if state.scaling:
            waiting = rules.ranked and bool(state.pending)
            obey_scale_requests(plan, rules.placer_of, rules.queues, may_grow=not waiting)
        if rules.gain is not None:
            rules.gain.share(plan, predict, rules.placer_of, rules.queues)
        elif rules.elastic:
            grow(plan, rules.placer_of, rules.queues, rules.grow_after_s)

    # -- rounds ---------------------------------------------------------------------------------

    def _on_round(self, plan: Plan) -> bool:
        assert self._rounds is not None
        if round(plan.now / self._rounds.round_s) * self._rounds.round_s == plan.now:
            return True
        if plan.state.pending or plan.state.incomplete:  # the backlog may hold who no longer waits
            plan.wake_at(_next_round(plan.now, self._rounds.round_s))
        return False

    def _wake_for_round(self, plan: Plan, predict: Predictor) -> None:
        """While jobs wait, come back at the first round after a running job's key changes."""
        rounds, incomplete = self._rounds, plan.state.incomplete
        assert rounds is not None

        def change(job: Job, now: float) -> float | None:
            # A job that lacks workers gets no service until it is whole.
            return None if job.id in incomplete else rounds.next_change(job, now)

        due = self._runs.next_change(plan, predict, change)
        if due < inf:
            plan.wake_at(_next_round(due, rounds.round_s))

    # -- how many are ahead ---------------------------------------------------------------------

    def _count_ahead(self, job: Job, plan: Plan, predict: Predictor) -> int:
        """How many waiting jobs go before this one."""
        state, capacity = plan.state, plan.state.capacity
        waiting, room = len(state.pending), (capacity.released, capacity.free_milli)
        moment: tuple[Any, ...] = (id(state), plan.now, state.submitted, waiting, room)
        if waiting > _MANY:
            old_s = 1 << (waiting // _MANY).bit_length() - 1
            moment = (id(state), old_s, plan.now // old_s)
        if self._keys[0] != moment:
            by_band = self._waiting_keys(plan, predict)
            self._keys = moment, {band: sorted(keys) for band, keys in by_band.items()}
        band, mine = self._full_key(job, plan, predict)
        ahead = 0
        for theirs, keys in self._keys[1].items():
            if theirs <= band:
                ahead += len(keys) if theirs < band else bisect_left(keys, mine)
        return ahead

    def _waiting_keys(self, plan: Plan, predict: Predictor) -> dict[Any, list[SortKey]]:
        """The keys of all waiting jobs by band: those they were taken in with, where they were."""
        state, by_band = plan.state, dict[Any, list[SortKey]]()
        known = dict(self._walk.waiting(plan)) if self._seen is state.changes else {}
        for job in state.pending.values():
            band = self._band(job.spec.queue, plan) if self._band is not None else 0
            key = known[job] if job in known else self.rules.order(job, plan, predict)
            by_band.setdefault(band, []).append(key)
        return by_band

    def _full_key(self, job: Job, plan: Plan, predict: Predictor) -> tuple[Any, SortKey]:
        band = self._band(job.spec.queue, plan) if self._band is not None else 0
        return band, self.rules.order(job, plan, predict)


def _anywhere(job: Job, now: float, predict: Predictor) -> tuple[float, float]:
    """Where a run stands in an order that does not say."""
    return 0.0, inf


def _next_round(after: float, round_s: float) -> float:
    """The first round after a time: a whole multiple, so that the round is recognised."""
    count = floor(after / round_s) + 1
    return (count if count * round_s > after else count + 1) * round_s


_PENDING = JobState.PENDING
_MANY = 1000
"""Waiting jobs from which on the number of those ahead may be a second old, and of twice as many
twice as old: sorting them must not keep the loop busy."""


def _empty_cluster(state: State) -> Plan:
    """The same nodes with nothing on them, all open: taints go and others leave."""
    empty = State(state.seed)
    for name, i in state.capacity.index.items():
        assert state.capacity.nodes[i].name == name
        node = replace(state.capacity.nodes[i], taints=(), taken=Taken())
        empty.apply(0.0, NodeUp(node))
    return Plan(empty)
