"""EASY backfill: jobs behind a blocked head may start if the head still starts when it would have.

The head's start is foreseen from the running jobs' estimated ends. A job behind it may start now
if it ends before that, or if the head still fits then with the job in place.
"""

from __future__ import annotations

from collections.abc import Callable

from presage.core.plan import Plan
from presage.core.ports import Predictor
from presage.core.workers import ask_of, least_milli
from presage.model.cluster import Worker
from presage.model.job import Job, JobState
from presage.policy.elastic import least_workers
from presage.policy.placer import Placer

__all__ = ["Backfill"]


class Backfill:
    """One backfill pass behind one blocked job."""

    def __init__(
        self, head: Job, placer: Callable[[Job], Placer], plan: Plan, predict: Predictor
    ) -> None:
        self.head = head
        self.placer = placer
        self.plan = plan
        self.predict = predict
        self._ends = _ends(plan, predict)
        self._shadow = self._find_shadow()
        self._found: tuple[Worker, ...] | None = None

    def fits(self, job: Job) -> bool:
        """Whether a job fits into what is free now."""
        self._found = self.placer(job).find(job, self.plan, least_workers(job))
        return self._found is not None

    def start(self, job: Job) -> bool:
        """Start a job that was just found to fit, unless it would delay the head."""
        plan, shadow = self.plan, self._shadow
        assert self._found is not None
        left = max(0.0, self.predict.runtime(job, self._found).p50 - job.ran(plan.now))
        with plan.attempt() as keep:
            plan.place(job, self._found)
            if shadow is None or plan.now + left <= shadow or self._head_fits_at(shadow):
                keep()
        return job.state is not JobState.PENDING

    def _find_shadow(self) -> float | None:
        """When the head will fit as running jobs end; None when that cannot be foreseen."""
        plan, need = self.plan, least_milli(self.head)
        given: list[Job] = []
        shadow = None
        for end, job in self._ends:
            _lend(plan, job, 1)
            given.append(job)
            if plan.state.capacity.free_milli >= need and self._head_fits():
                shadow = end
                break
        for job in reversed(given):
            _lend(plan, job, -1)
        return shadow

    def _head_fits_at(self, shadow: float) -> bool:
        gone = [job for end, job in self._ends if end <= shadow]
        for job in gone:
            _lend(self.plan, job, 1)
        good = self._head_fits()
        for job in reversed(gone):
            _lend(self.plan, job, -1)
        return good

    def _head_fits(self) -> bool:
        head = self.head
        return self.placer(head).find(head, self.plan, least_workers(head)) is not None


def _ends(plan: Plan, predict: Predictor) -> list[tuple[float, Job]]:
    """Jobs that hold devices with their estimated ends, soonest first; overdue ones end now."""
    now = plan.now
    ends = []
    for job in plan.state.active.values():
        left = predict.runtime(job, job.allocation).p50 - job.ran(now)
        ends.append((now + max(0.0, left), job))
    ends.sort(key=lambda item: (item[0], item[1].seq))
    return ends


def _lend(plan: Plan, job: Job, sign: int) -> None:
    capacity = plan.state.capacity
    move = capacity.lend if sign > 0 else capacity.take
    for worker in job.allocation:
        move(capacity.index[worker.node], ask_of(job, worker.role), worker.devices)
