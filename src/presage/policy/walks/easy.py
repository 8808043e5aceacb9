"""EASY backfill: jobs behind a blocked head may start if the head still starts when it would have.

The head's start is foreseen from the running jobs' estimated ends. A job behind it may start now
if it ends before that, or if the head still fits then with the job in place.

Most of a pass would go into what the cluster looks like then. So `Shadow` keeps that between
passes, and only what changed is put right.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from copy import deepcopy
from heapq import heappop
from itertools import chain
from math import inf

from presage.core.capacity import Capacity
from presage.core.changes import Reader
from presage.core.plan import Plan
from presage.core.ports import Predictor, SortKey
from presage.core.state import State
from presage.core.workers import ask_of, least_milli
from presage.model.cluster import Resources, Worker
from presage.model.job import Job, JobState
from presage.policy.backlog import Group, waits
from presage.policy.elastic import least_workers
from presage.policy.rules import Rules
from presage.policy.runs import Run, Runs
from presage.policy.start import Starter
from presage.policy.walks.turns import Head, Turns

__all__ = ["Easy", "Shadow", "end", "soonest"]

_PENDING, _RUNNING = JobState.PENDING, JobState.RUNNING


class Easy(Turns):
    """In order, and around the first that does not fit."""

    def __init__(self, starter: Starter) -> None:
        super().__init__(starter)
        self._shadow = Shadow(starter.rules)

    def walk(self, plan: Plan, predict: Predictor) -> None:
        """Start jobs, then those behind a blocked one that do not delay it."""
        heads = self.start_some(plan, predict)
        state = plan.state
        if heads and not state.incomplete and state.capacity.free_milli > 0:
            self._fill(heads, plan, predict)

    def _fill(self, heads: list[Head], plan: Plan, predict: Predictor) -> None:
        """Try jobs behind the blocked head, in order; those that stay go back to their groups."""
        rules, state, queues = self.rules, plan.state, self.rules.queues
        group = heads[0][3]
        aside: list[tuple[SortKey, Job, Group]] = [(*group.heap[0], group)]
        fill = _Fill(aside[0][1], self._shadow, plan, predict)
        self.advance(heads)
        for _ in range(rules.backfill):
            capacity = state.capacity
            if not heads or capacity.free_milli <= 0:
                break
            group = heads[0][3]
            key, job = group.heap[0]
            if waits(job, state):
                found = None
                stuck = group.one_role and group.failed_at == capacity.released
                stuck = stuck or not capacity.has_whole(group.whole)
                if not stuck and not queues.admit(job, plan, group.milli):
                    found = rules.placer_of(job).find(job, plan, group.least)
                    if found is None and group.one_role:
                        group.failed_at = capacity.released
                if found is None:
                    heappop(heads)
                    continue
                if not fill.start(job, found):
                    aside.append((key, job, group))
            self.advance(heads)
        for key, job, group in aside:
            self.backlog.push(key, job, group)


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

    def start(self, job: Job, found: tuple[Worker, ...]) -> bool:
        """Start a job that was just found to fit, unless it would delay the head."""
        plan, shadow = self.plan, self.shadow
        if not self._looked:  # in many passes nothing fits, and nobody needs to know
            self._looked = True
            self._at, self._spot = shadow.find(self.head, plan, self.predict)
            self._room_milli = shadow.capacity.free_milli
        left = max(0.0, self.predict.runtime(job, found).p50 - job.ran(plan.now))
        if self._at is not None and self._is_near_spot(found):
            spot, self._spot = self._spot, ()
            if plan.now + left > self._at and not self._still_fits(job, found):
                self._spot = spot
                return False
        plan.place(job, found)
        shadow.show(job, plan.state)
        self._room_milli -= least_milli(job)
        return True

    def _is_near_spot(self, workers: tuple[Worker, ...]) -> bool:
        """Whether workers may take room that the head will need. A single worker that fits on a
        node does so whatever happens on others."""
        spot = self._spot
        return len(spot) != 1 or any(worker.node == spot[0].node for worker in workers)

    def _still_fits(self, job: Job, workers: tuple[Worker, ...]) -> bool:
        """Whether the head will start when it would have with this job in place."""
        if self._room_milli - least_milli(job) < self._need_milli:
            return False
        self._spot = self.shadow.beside(job, workers, self.head, self.plan)
        return bool(self._spot)


_Hold = tuple[int, Resources, tuple[int, ...]]
"""What one worker holds: the index of its node, what it asked for, its devices."""


class Shadow:
    """The cluster when a blocked job can start: as it is now, without the runs that end before.

    It is only a cache: a fresh one says the same.
    """

    def __init__(self, rules: Rules) -> None:
        self.capacity = Capacity()
        self._rules = deepcopy((rules.placer, rules.placers))
        """Placements remember the capacity that they looked at last: these look at no other."""
        self._runs = Runs(end)
        self._reader = Reader()
        self._nodes: tuple[int, int] = (0, 0)
        self._holds: dict[Job, list[_Hold]] = {}
        """What jobs hold in it."""
        self._gone: dict[Job, None] = {}
        """Runs that end before, of which it shows nothing."""

    def find(
        self, head: Job, plan: Plan, predict: Predictor
    ) -> tuple[float | None, tuple[Worker, ...]]:
        """When the head will fit as running jobs end, and where; None when that cannot be
        foreseen. From then on this is the cluster of that moment."""
        self._look(plan)
        line = soonest(self._runs.look(plan, predict), plan.now)
        count = self._first_fit(head, plan, line)
        if count > len(line):
            return None, ()
        spot = self._place(head, plan)
        at = line[count - 1][0]
        while count < len(line) and line[count][0] <= at:
            self._let_go(line[count][2])
            count += 1
        return at, spot

    def beside(
        self, job: Job, workers: tuple[Worker, ...], head: Job, plan: Plan
    ) -> tuple[Worker, ...]:
        """Where the head would be then with a job in place; empty when there is no room."""
        index, capacity = self.capacity.index, self.capacity
        for w in workers:
            capacity.take(index[w.node], ask_of(job, w.role), w.devices)
        spot = self._place(head, plan)
        for w in workers:
            capacity.lend(index[w.node], ask_of(job, w.role), w.devices)
        return spot

    def show(self, job: Job, state: State) -> None:
        """Show what a job holds now."""
        for i, ask, devices in self._holds.pop(job, ()):
            self.capacity.lend(i, ask, devices)
        self._gone.pop(job, None)
        workers = _held(job, state)
        if workers:
            index = self.capacity.index
            holds = [(index[w.node], ask_of(job, w.role), w.devices) for w in workers]
            self._holds[job] = holds
            for i, ask, devices in holds:
                self.capacity.take(i, ask, devices)

    def _look(self, plan: Plan) -> None:
        """Bring it up to date with the present."""
        state, capacity = plan.state, plan.state.capacity
        changed: Iterable[Job] | None = self._reader.read(state.changes)
        nodes = len(capacity.nodes), capacity.open
        if changed is None or nodes != self._nodes:
            self._nodes, self._gone = nodes, {}
            self.capacity = capacity.copy()
            held = chain(state.active.values(), (state.jobs[name] for name in state.reservations))
            index = capacity.index
            self._holds = {
                job: [(index[w.node], ask_of(job, w.role), w.devices) for w in _held(job, state)]
                for job in held
            }
            return
        for job in dict.fromkeys(changed):
            self.show(job, state)

    def _first_fit(self, head: Job, plan: Plan, line: list[Run]) -> int:
        """Let go of the first runs until the head fits; how many that takes, and one more than
        there are when it does not fit even then."""
        alike = len(head.spec.roles) == 1
        # With workers that are all alike, more room never does harm: it fits from one run on.
        count = min(len(self._gone), len(line)) if alike else 0
        first = {job: None for _, _, job in line[:count]}
        for job in [job for job in self._gone if job not in first]:
            self.show(job, plan.state)
        for job in first:
            self._let_go(job)
        while count and self._place(head, plan):
            count -= 1
            self.show(line[count][2], plan.state)
        fits = False
        while not fits and count < len(line):
            self._let_go(line[count][2])
            count += 1
            fits = bool(self._place(head, plan))
        return count if fits else len(line) + 1

    def _let_go(self, job: Job) -> None:
        """A run ends; what it grows into stays."""
        if job in self._gone:
            return
        self._gone[job] = None
        holds, count = self._holds[job], len(job.allocation)
        self._holds[job] = holds[count:]
        for i, ask, devices in holds[:count]:
            self.capacity.lend(i, ask, devices)

    def _place(self, head: Job, plan: Plan) -> tuple[Worker, ...]:
        if self.capacity.free_milli < least_milli(head):
            return ()
        asked, (placer, placers) = head.spec.placement, self._rules
        if asked is not None:
            placer = placers[asked]
        return placer.find(head, plan, least_workers(head), capacity=self.capacity) or ()


def end(job: Job, now: float, predict: Predictor) -> tuple[float, float]:
    """When a run ends, and until when that holds: it moves on while a job starts or stops."""
    left = predict.runtime(job, job.allocation).p50 - job.ran_s
    return (job.mark + left, inf) if job.state is _RUNNING else (now + left, now)


def soonest(line: list[Run], now: float) -> list[Run]:
    """Runs by their ends, soonest first; those that are overdue end now."""
    late = bisect_right(line, now, key=lambda run: run[0])
    if not late:
        return line
    return sorted((now, seq, job) for _, seq, job in line[:late]) + line[late:]


def _held(job: Job, state: State) -> tuple[Worker, ...]:
    """What a job holds, the workers of its present run first, or what is held for it."""
    if job.state is _PENDING:
        return state.reservations.get(job.spec.id, ())
    if job.resizing is None:
        return job.allocation
    had = set(job.allocation)
    return job.allocation + tuple(worker for worker in job.resizing if worker not in had)
