"""The cluster as it will be when the job at the head of the queue starts, kept between passes.

`Easy` asks it what may run beside that start; it decides nothing itself.
"""

from __future__ import annotations

from bisect import bisect_right
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from math import inf

from presage.core.capacity import Capacity
from presage.core.changes import Reader
from presage.core.plan import Plan
from presage.core.ports import Predictor
from presage.core.state import State
from presage.core.workers import ask_of, least_milli
from presage.model.cluster import Resources, Worker
from presage.model.job import Job, JobState
from presage.policy.elastic import least_workers
from presage.policy.placer import Placer
from presage.policy.rules import Rules
from presage.policy.runs import Run, Runs

__all__ = ["Shadow", "end", "soonest"]

_PENDING, _RUNNING, _SUCCEEDED = JobState.PENDING, JobState.RUNNING, JobState.SUCCEEDED
_Hold = tuple[int, Resources, tuple[int, ...]]
"""What one worker holds: the index of its node, what it asked for, its devices."""
_OVERDUE = 1.5
"""A run that is over its p90 is taken to need so many times as long as was thought, again and
again."""


@dataclass(frozen=True, slots=True, eq=False)
class _HeadStart:
    """When and where a blocked job will start."""

    head: Job
    at: float
    spot: tuple[Worker, ...]
    last: Job
    """The run whose end it waits for."""


class Shadow:
    """The cluster when a blocked job can start: as it is now, without the runs that end before.

    It is only a cache: a fresh one says the same.
    """

    def __init__(self, rules: Rules) -> None:
        self.capacity = Capacity()
        self._rules = deepcopy((rules.placer, rules.placers))
        """Placements remember the capacity that they looked at last: these look at no other."""
        self._runs = Runs(self._expect)
        self._ends: dict[Job, float] = {}
        self._moved: list[Job] = []
        """Runs whose ends were worked out anew."""
        self._reader = Reader()
        self._nodes: tuple[int, int] = (0, 0)
        self._holds: dict[Job, list[_Hold]] = {}
        """What jobs hold in it."""
        self._until = -inf
        """Runs that end until then are gone."""
        self._gone: dict[Job, None] = {}
        """Runs of which it shows nothing."""
        self._added: set[Job] = set()
        """Jobs that were not there when it was last said when the head starts."""
        self._said: _HeadStart | None = None
        """What was said then, while it holds."""

    def find(
        self, head: Job, plan: Plan, predict: Predictor
    ) -> tuple[float | None, tuple[Worker, ...]]:
        """When the head will fit as running jobs end, and where; None when that cannot be
        foreseen. From then on this is the cluster of that moment."""
        line = self._look(plan, predict)
        said, self._said = self._said, None
        if said is not None and said.head is head and said.at > plan.now:
            self._said = said
            return said.at, said.spot
        line = soonest(line, plan.now)
        count = self._first_fit(head, plan, line)
        if count > len(line):
            self._until = inf
            return None, ()
        spot = self._place(head, plan)
        at, _, last = line[count - 1]
        alone = count
        while count < len(line) and line[count][0] <= at:
            self._let_go(line[count][2])
            count += 1
        self._until = at
        holds = 1 < count == alone and len(head.spec.roles) == 1  # it was tried without the last
        if holds and self._placer(head).by_room:
            self._said = _HeadStart(head, at, spot, last)
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
        """Show a job that starts now."""
        self._added.add(job)
        self._show(job, state)

    def _show(self, job: Job, state: State) -> None:
        """Show what a job holds now."""
        workers = _held(job, state)
        index = self.capacity.index
        holds = [(index[w.node], ask_of(job, w.role), w.devices) for w in workers]
        shown = self._holds.pop(job, [])
        self._gone.pop(job, None)
        if holds != shown:
            for i, ask, devices in shown:
                self.capacity.lend(i, ask, devices)
            for i, ask, devices in holds:
                self.capacity.take(i, ask, devices)
        if holds:
            self._holds[job] = holds

    def _expect(self, job: Job, now: float, predict: Predictor) -> tuple[float, float]:
        """When a run ends; it is noted that this was asked."""
        expected = end(job, now, predict)
        self._ends[job] = expected[0]
        self._moved.append(job)
        return expected

    def _look(self, plan: Plan, predict: Predictor) -> list[Run]:
        """Bring it up to date with the present; the runs by their ends."""
        state, capacity = plan.state, plan.state.capacity
        changed: list[Job] | None = self._reader.read(state.changes)
        nodes = len(capacity.nodes), capacity.open
        line, moved = self._runs.look(plan, predict), self._moved
        self._moved = []
        if changed is None or nodes != self._nodes:
            self._nodes, self._gone, self._until, self._said = nodes, {}, -inf, None
            self.capacity = capacity.copy()
            held = chain(state.active.values(), (state.jobs[name] for name in state.reservations))
            index = capacity.index
            self._holds = {
                job: [(index[w.node], ask_of(job, w.role), w.devices) for w in _held(job, state)]
                for job in held
            }
            self._ends = {job: at for at, _, job in line}
        else:
            for job in dict.fromkeys(chain(changed, moved)):
                self._renew(job, state)
        self._added.clear()
        return line

    def _renew(self, job: Job, state: State) -> None:
        """Show a job as it is now. What was said of the head holds while others than the run it
        waits for end before, and the same others are there then."""
        if job.state is _SUCCEEDED and job in self._gone and not self._holds[job]:
            del self._gone[job], self._holds[job], self._ends[job]  # the usual case
            if self._said is not None and job is self._said.last:
                self._said = None
            return
        before = [] if job in self._added else self._holds.get(job, [])
        self._show(job, state)
        at = inf
        if state.active.get(job.spec.id) is job:
            at = self._ends[job]
            if at <= self._until:
                self._let_go(job)
        else:
            self._ends.pop(job, None)
        said = self._said
        if said is not None and (
            job is said.head
            or job is said.last
            or at == said.at
            or self._holds.get(job, []) != before
        ):
            self._said = None

    def _first_fit(self, head: Job, plan: Plan, line: list[Run]) -> int:
        """Let go of the first runs until the head fits; how many that takes, and one more than
        there are when it does not fit even then."""
        # With workers that are all alike, more room never does harm: it fits from one run on.
        alike = len(head.spec.roles) == 1
        count = self._let_go_late(line, plan.now) if alike else 0
        for job in () if alike else list(self._gone):
            self._show(job, plan.state)
        while count and self._place(head, plan):
            count -= 1
            self._show(line[count][2], plan.state)
        fits = False
        while not fits and count < len(line):
            self._let_go(line[count][2])
            count += 1
            fits = bool(self._place(head, plan))
        return count if fits else len(line) + 1

    def _let_go_late(self, line: list[Run], now: float) -> int:
        """Let go of all runs that are overdue, or of none; how many of the line are gone."""
        late = bisect_right(line, now, key=_end_of) if self._until < now else 0
        for _, _, job in line[:late]:
            self._let_go(job)
        return late or bisect_right(line, self._until, key=_end_of)

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
        wanted = least_workers(head)
        return self._placer(head).find(head, plan, wanted, capacity=self.capacity) or ()

    def _placer(self, head: Job) -> Placer:
        asked, (placer, placers) = head.spec.placement, self._rules
        return placer if asked is None else placers[asked]


def end(job: Job, now: float, predict: Predictor) -> tuple[float, float]:
    """When a run ends, and until when that holds: it moves on while a job starts or stops, and
    where it is overdue by an estimate that told how unsure it was."""
    foreseen = predict.runtime(job, job.allocation)
    left = foreseen.p50 - job.ran_s
    if job.state is not _RUNNING:
        return now + left, now
    if foreseen.p90 <= foreseen.p50:
        return job.mark + left, inf
    total, limit = foreseen.p50, job.spec.time_limit_s or inf
    while job.mark + total - job.ran_s < now and total < limit:
        total = foreseen.p90 if total < foreseen.p90 else _OVERDUE * total
    at = job.mark + min(total, limit) - job.ran_s
    return at, at if at >= now else inf


def soonest(line: list[Run], now: float) -> list[Run]:
    """Runs by their ends, soonest first; those that are overdue end now."""
    late = bisect_right(line, now, key=_end_of)
    if not late:
        return line
    return sorted((now, seq, job) for _, seq, job in line[:late]) + line[late:]


def _end_of(run: Run) -> float:
    return run[0]


def _held(job: Job, state: State) -> tuple[Worker, ...]:
    """What a job holds, the workers of its present run first, or what is held for it."""
    if job.state is _PENDING:
        return state.reservations.get(job.spec.id, ())
    if job.resizing is None:
        return job.allocation
    had = set(job.allocation)
    return job.allocation + tuple(worker for worker in job.resizing if worker not in had)
