"""How much service jobs had, in levels that grow by a factor: who had less may displace who had
more. With many levels nobody is stopped often, however long jobs run.

Cheap to keep: a running job's level changes at a time that is known beforehand.
"""

from __future__ import annotations

from math import inf, log

from presage.core.plan import Plan
from presage.core.ports import Predictor, SortKey
from presage.model.cluster import WHOLE_GPU
from presage.model.job import Job, JobState
from presage.policy.order import Place

__all__ = ["Levels"]

_RUNNING = JobState.RUNNING


class Levels:
    """Levels of attained GPU seconds, as an order whose standings can be foreseen
    (`HasStanding`)."""

    def __init__(self, first_gpu_s: float, factor: float) -> None:
        self.first_gpu_s, self.factor = first_gpu_s, factor
        self._log = log(factor)

    def of(self, gpu_s: float) -> int:
        """The level of a job that had so much."""
        if gpu_s < self.first_gpu_s:
            return 0
        return 1 + int(log(gpu_s / self.first_gpu_s) / self._log + 1e-9)

    def __call__(self, job: Job, plan: Plan, predict: Predictor) -> SortKey:
        """Those who had little first."""
        return (self.of(job.attained(plan.now)), job.seq)

    def next_change(self, job: Job, now: float) -> float | None:
        """When a running job comes to its next level."""
        if job.state is not _RUNNING or not job.held_milli:
            return None
        attained = job.attained(now)
        left = self.first_gpu_s * self.factor ** self.of(attained) - attained
        return now + max(left, 0.0) * WHOLE_GPU / job.held_milli

    def standing(self, job: Job, now: float, predict: Predictor) -> tuple[float, float]:
        """Its level, looked at again a little early, since numbers are rounded."""
        change = self.next_change(job, now)
        until = inf if change is None else change - 1e-3
        return float(self.of(job.attained(now))), until

    def differ(self, lower: float, higher: float, now: float) -> bool:
        """Levels are exact."""
        return True

    def edge(self, key: SortKey, now: float) -> tuple[Place, Place]:
        """So are places."""
        place = float(key[0]), key[1]
        return place, place
