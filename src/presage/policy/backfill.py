"""EASY backfill: jobs behind a blocked head may start if the head still starts when it would have.

The head's start is foreseen from the running jobs' estimated ends. A job behind it may start now
if it ends before that, or if the head still fits then with the job in place.

Most of a pass would go into when each running job ends. So `Ends` keeps them in order between
passes.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from heapq import merge
from math import inf
from operator import attrgetter

from presage.core.plan import Plan
from presage.core.ports import Predictor
from presage.core.state import State
from presage.core.workers import least_milli
from presage.model.cluster import Worker
from presage.model.job import Job, JobState
from presage.policy.elastic import least_workers
from presage.policy.placer import Placer
from presage.policy.reclaim import lend

__all__ = ["Backfill", "Ends"]

_RUNNING = JobState.RUNNING
_End = tuple[float, int, int, Job]
"""When a run ends, the submission sequence of its job, its attempt, and the job."""
_reports = attrgetter("progress")
"""Whether a job reports progress: then the estimate of its run time changes."""


class Ends:
    """When the jobs that hold devices will end. It is only a cache: a fresh one says the same.

    The end of a run never comes nearer, it moves on while the job starts or stops; so ends are
    kept in order as they were when first seen, and looked at again when they are reached. Not so
    for jobs that report progress or change their size: those are looked at in every pass.
    """

    def __init__(self) -> None:
        self._source: tuple[State, Predictor, str] | None = None
        self._attempts: dict[Job, int] = {}
        """Runs that were taken in; some of them are over."""
        self._elastic: list[Job] = []
        self._steady: list[_End] = []

    def soonest(self, plan: Plan, predict: Predictor) -> Iterator[_End]:
        """Estimated ends, soonest first; overdue jobs end now."""
        now, active = plan.now, plan.state.active
        self._take_in(plan, predict)
        self._elastic = [job for job in self._elastic if active.get(job.id) is job]
        restless = {*self._elastic, *filter(_reports, active.values())}
        ends = [(max(now, _end(job, now, predict)), job.seq, job.attempt, job) for job in restless]
        return merge(self._walk(plan, predict), sorted(ends))

    def _take_in(self, plan: Plan, predict: Predictor) -> None:
        """Runs that are new; jobs that began to hold devices last are the last of the active."""
        state, source = plan.state, (plan.state, predict, predict.version)
        if source != self._source or len(self._attempts) > 2 * len(state.active) + _SPARE:
            self._source = source
            self._attempts, self._elastic, self._steady = {}, [], []
        new: list[_End] = []
        for job in reversed(state.active.values()):
            if self._attempts.get(job) == job.attempt:
                break
            self._attempts[job] = job.attempt
            if job.spec.elastic:
                self._elastic.append(job)
            else:
                end = -inf if job.progress else _end(job, plan.now, predict)
                new.append((end, job.seq, job.attempt, job))
        if not self._steady:
            self._steady = sorted(new)
            return
        for run in new:
            insort(self._steady, run)

    def _walk(self, plan: Plan, predict: Predictor) -> Iterator[_End]:
        """Ends of the other jobs, soonest first."""
        now, steady, at = plan.now, self._steady, 0
        while at < len(steady) and steady[at][0] <= now:
            at += self._is_still_so(at, plan, predict)
        late = [(now, seq, attempt, job) for _, seq, attempt, job in steady[:at]]
        yield from sorted(end for end in late if not end[-1].progress)
        while at < len(steady):
            if self._is_still_so(at, plan, predict):
                if not steady[at][-1].progress:
                    yield steady[at]
                at += 1

    def _is_still_so(self, at: int, plan: Plan, predict: Predictor) -> bool:
        """Whether an end is as it was; else it is moved on, or out."""
        end, seq, attempt, job = self._steady[at]
        if plan.state.active.get(job.id) is not job or job.attempt != attempt:
            del self._steady[at]
            return False
        later = _end(job, plan.now, predict) if not job.progress else end
        if later > end:
            del self._steady[at]
            insort(self._steady, (later, seq, attempt, job))
        return later <= end


_SPARE = 100
"""Runs that are over may wait to be forgotten."""


def _end(job: Job, now: float, predict: Predictor) -> float:
    begin = job.mark if job.state is _RUNNING else now
    return begin + (predict.runtime(job, job.allocation).p50 - job.ran_s)


class Backfill:
    """One backfill pass behind one blocked job. `ends` is kept by who makes many passes."""

    def __init__(
        self,
        head: Job,
        placer: Callable[[Job], Placer],
        plan: Plan,
        predict: Predictor,
        ends: Ends | None = None,
    ) -> None:
        self.head = head
        self._head_milli = least_milli(head)
        self.placer = placer
        self.plan = plan
        self.predict = predict
        self._ends = ends or Ends()
        self._looked = False
        self._shadow: float | None = None
        """When the head will fit as running jobs end; None when that cannot be foreseen."""
        self._gone: list[Job] = []
        """Who will have ended by then."""
        self._room_milli = 0
        """What will be free then."""
        self._spot: tuple[Worker, ...] = ()
        """Where the head would start then; empty when it must be looked for again."""
        self._found: tuple[Worker, ...] | None = None

    def fits(self, job: Job) -> bool:
        """Whether a job fits into what is free now."""
        self._found = self.placer(job).find(job, self.plan, least_workers(job))
        return self._found is not None

    def start(self, job: Job) -> bool:
        """Start a job that was just found to fit, unless it would delay the head."""
        plan, found = self.plan, self._found
        assert found is not None
        if not self._looked:  # in many passes nothing fits, and nobody needs to know
            self._looked = True
            self._find_shadow()
        left = max(0.0, self.predict.runtime(job, found).p50 - job.ran(plan.now))
        if self._shadow is not None and self._is_near_spot(found):
            spot, self._spot = self._spot, ()
            if plan.now + left > self._shadow and not self._still_fits(job, found):
                self._spot = spot
                return False
        plan.place(job, found)
        self._room_milli -= least_milli(job)
        return True

    def _find_shadow(self) -> None:
        plan, gone = self.plan, self._gone
        for end, _, _, job in self._ends.soonest(plan, self.predict):
            if self._shadow is not None and end > self._shadow:
                break
            lend(plan, (job, job.allocation), 1)
            gone.append(job)
            if self._shadow is None and plan.state.capacity.free_milli >= self._head_milli:
                self._spot = self._place_of_head()
                self._shadow = end if self._spot else None
        self._room_milli = plan.state.capacity.free_milli
        for job in reversed(gone):
            lend(plan, (job, job.allocation), -1)

    def _is_near_spot(self, workers: tuple[Worker, ...]) -> bool:
        """Whether workers may take room that the head will need. A single worker that fits on a
        node does so whatever happens on others."""
        spot = self._spot
        return len(spot) != 1 or any(worker.node == spot[0].node for worker in workers)

    def _still_fits(self, job: Job, workers: tuple[Worker, ...]) -> bool:
        """Whether the head will start when it would have with this job in place."""
        plan = self.plan
        if self._room_milli - least_milli(job) < self._head_milli:
            return False
        lend(plan, (job, workers), -1)
        for other in self._gone:
            lend(plan, (other, other.allocation), 1)
        self._spot = self._place_of_head()
        for other in reversed(self._gone):
            lend(plan, (other, other.allocation), -1)
        lend(plan, (job, workers), 1)
        return bool(self._spot)

    def _place_of_head(self) -> tuple[Worker, ...]:
        head = self.head
        return self.placer(head).find(head, self.plan, least_workers(head)) or ()
