"""How much service jobs had, in levels that grow by a factor: who had less may displace who had
more. With many levels nobody is stopped often, however long jobs run.

Who runs and has waited for long, measured by what it runs, is below all levels: nobody may
displace it. Without that, long jobs that are alike take turns, and all of them end late.

Cheap to keep: a running job's level changes at a time that is known beforehand.
"""

from __future__ import annotations

from math import inf, log

from presage.core.plan import Plan
from presage.core.ports import Predictor, SortKey
from presage.model.cluster import WHOLE_GPU
from presage.model.job import Job, JobState
from presage.policy.order import Place

__all__ = ["GUESS_S", "Levels"]

GUESS_S = 3600.0
"""How long a job runs of which nothing was foreseen."""
_KEPT = -1
"""The level of those whom nobody may displace."""
_RUNNING = JobState.RUNNING


class Levels:
    """Levels of attained GPU seconds, as an order whose standings can be foreseen
    (`HasStanding`)."""

    def __init__(
        self,
        first_gpu_s: float,
        factor: float,
        patience: float = 0.0,
        patience_base_s: float = 0.0,
    ) -> None:
        """Nobody is kept with a `patience` of 0."""
        self.first_gpu_s, self.factor = first_gpu_s, factor
        self.patience, self.patience_base_s = patience, patience_base_s
        self._log = log(factor)

    def of(self, gpu_s: float) -> int:
        """The level of a job that had so much."""
        if gpu_s < self.first_gpu_s:
            return 0
        return 1 + int(log(gpu_s / self.first_gpu_s) / self._log + 1e-9)

    def kept_until(self, job: Job) -> float:
        """Until when a job that runs may not be displaced: it has waited, since its submission,
        for more than `patience_base_s` and `patience` times what it runs, which is what was
        foreseen or, if that is more, what it ran already."""
        if not self.patience or job.state is not _RUNNING:
            return -inf
        waited_s = job.mark - job.submitted_at - job.ran_s
        enough_s = (waited_s - self.patience_base_s) / self.patience
        told = job.estimates.runtime_s if job.estimates is not None else None
        if enough_s <= (told.p50 if told is not None else GUESS_S):
            return -inf
        return job.mark + enough_s - job.ran_s

    def level(self, job: Job, now: float) -> int:
        """Where a job stands."""
        return _KEPT if now < self.kept_until(job) else self.of(job.attained(now))

    def __call__(self, job: Job, plan: Plan, predict: Predictor) -> SortKey:
        """Those who had little first."""
        return (self.level(job, plan.now), job.seq)

    def next_change(self, job: Job, now: float) -> float | None:
        """When a running job comes to its next level."""
        if job.state is not _RUNNING or not job.held_milli:
            return None
        if now < (until := self.kept_until(job)):
            return until
        attained = job.attained(now)
        left = self.first_gpu_s * self.factor ** self.of(attained) - attained
        return now + max(left, 0.0) * WHOLE_GPU / job.held_milli

    def standing(self, job: Job, now: float, predict: Predictor) -> tuple[float, float]:
        """Its level, looked at again a little early, since numbers are rounded."""
        change = self.next_change(job, now)
        until = inf if change is None else change - 1e-3
        return float(self.level(job, now)), until

    def differ(self, lower: float, higher: float, now: float) -> bool:
        """Levels are exact."""
        return True

    def edge(self, key: SortKey, now: float) -> tuple[Place, Place]:
        """So are places."""
        place = float(key[0]), key[1]
        return place, place
