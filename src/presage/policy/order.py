"""Who comes first. An order gives a job a sort key; smaller goes first, and keys end with the
submission sequence, so that no two are equal.

A key must stay the same while a job waits (it may change while it runs): so a job is keyed once
when it enters the queue. What does change while jobs wait, such as the usage of their queue, is a
`band`: it is asked per queue, again in every pass, and goes before the key.
"""

from __future__ import annotations

from math import inf
from typing import Protocol, runtime_checkable

from presage.core.plan import Plan
from presage.core.ports import Predictor, SortKey
from presage.model.cluster import WHOLE_GPU
from presage.model.job import Job, JobState
from presage.policy.queues import Queues, promised

__all__ = [
    "FairShare",
    "HasBand",
    "HasRounds",
    "HasStanding",
    "Order",
    "Place",
    "Srtf",
    "Tiresias",
    "fifo",
    "priority",
    "qssf",
    "sjf",
    "srtf",
]


Place = tuple[float, float]
"""Where a job stands in an order, and its sequence."""

_RUNNING = JobState.RUNNING


class Order(Protocol):
    """The sort key of a job."""

    def __call__(self, job: Job, plan: Plan, predict: Predictor) -> SortKey:
        """Smaller goes first."""
        ...


@runtime_checkable
class HasBand(Protocol):
    """An order in which whole queues move against each other while their jobs wait."""

    def band(self, queue: str, plan: Plan) -> SortKey:
        """Goes before the key of every job of that queue."""
        ...


@runtime_checkable
class HasStanding(Protocol):
    """An order in which the keys of running jobs change in a way that can be foreseen, so that
    they need not be asked for again in every pass."""

    def standing(self, job: Job, now: float, predict: Predictor) -> tuple[float, float]:
        """A number that stands for the key of a job that holds devices, and until when it does
        unless something about the job changes. Jobs of the same number are in fifo order."""
        ...

    def differ(self, lower: float, higher: float, now: float) -> bool:
        """Whether two standings are apart by more than rounding: then the keys are, too."""
        ...

    def edge(self, key: SortKey, now: float) -> tuple[Place, Place]:
        """Where a waiting job with that key would stand: runs that stand before the first place
        surely go before it, runs behind the second surely after it; in between, only keys
        tell."""
        ...


@runtime_checkable
class HasRounds(HasStanding, Protocol):
    """An order that decides only at whole multiples of `round_s`."""

    round_s: float

    def next_change(self, job: Job, now: float) -> float | None:
        """When the key of a running job will change by itself; None for never. A job's standing
        holds no longer."""
        ...


def fifo(job: Job, plan: Plan, predict: Predictor) -> SortKey:
    """First submitted, first served."""
    return (job.seq,)


def priority(job: Job, plan: Plan, predict: Predictor) -> SortKey:
    """Higher priority first, then fifo."""
    return (-job.spec.priority, job.seq)


def sjf(job: Job, plan: Plan, predict: Predictor) -> SortKey:
    """Shortest job first."""
    return (predict.runtime(job).p50, job.seq)


def qssf(job: Job, plan: Plan, predict: Predictor) -> SortKey:
    """Quasi-shortest service first: estimated duration × GPUs."""
    return (predict.runtime(job).p50 * job.spec.min_gpu_milli, job.seq)


class Srtf:
    """Shortest remaining time first. All that run come nearer to their ends at the same pace: so
    they stand by when those are."""

    def __call__(self, job: Job, plan: Plan, predict: Predictor) -> SortKey:
        """Seconds it still needs."""
        left = predict.runtime(job).p50 - job.ran(plan.now)
        return (left if left > 0.0 else 0.0, job.seq)

    def standing(self, job: Job, now: float, predict: Predictor) -> tuple[float, float]:
        """When it will end."""
        running = job.state is _RUNNING
        left = predict.runtime(job).p50 - job.ran_s
        return (job.mark + left, inf) if running else (now + left, now)

    def differ(self, lower: float, higher: float, now: float) -> bool:
        """Jobs that should have ended are alike."""
        apart = higher - (lower if lower > now else now)
        return apart > 1e-5 + 1e-12 * abs(higher)

    def edge(self, key: SortKey, now: float) -> tuple[Place, Place]:
        """When it would end if it started now, but for rounding."""
        end = now + key[0]
        error = 1e-5 + 1e-12 * abs(end)
        return (end - error if key[0] > error else -inf, -inf), (end + error, inf)


srtf = Srtf()


class Tiresias:
    """Two levels of attained GPU service, fifo inside a level, decided in rounds."""

    def __init__(self, threshold_gpu_s: float = 18_000.0, round_s: float = 60.0) -> None:
        self.threshold_gpu_s = threshold_gpu_s
        self.round_s = round_s

    def __call__(self, job: Job, plan: Plan, predict: Predictor) -> SortKey:
        """Jobs that got little so far go first."""
        return (job.attained(plan.now) > self.threshold_gpu_s, job.seq)

    def next_change(self, job: Job, now: float) -> float | None:
        """When a running job falls to the lower level."""
        left = self.threshold_gpu_s - job.attained(now)
        if left < 0 or not job.held_milli:
            return None
        return now + left * WHOLE_GPU / job.held_milli

    def standing(self, job: Job, now: float, predict: Predictor) -> tuple[float, float]:
        """Its level. It is looked at again a little early, since numbers are rounded."""
        change = self.next_change(job, now)
        until = inf if change is None else change - 1e-3
        level = float(job.attained(now) > self.threshold_gpu_s)
        return level, until if job.state is _RUNNING else min(until, now)

    def differ(self, lower: float, higher: float, now: float) -> bool:
        """Fifo inside a level is exact."""
        return True

    def edge(self, key: SortKey, now: float) -> tuple[Place, Place]:
        """Its level and sequence are exact."""
        place = float(key[0]), key[1]
        return place, place


class FairShare:
    """The queue that holds the least for its weight goes first; fifo inside a queue.

    Queues within their quota go before those that borrow.
    """

    def __init__(self, queues: Queues) -> None:
        self.queues = queues

    def __call__(self, job: Job, plan: Plan, predict: Predictor) -> SortKey:
        """Fifo inside a queue."""
        return (job.seq,)

    def band(self, queue: str, plan: Plan) -> SortKey:
        """Borrowing queues last, then by GPUs held for each unit of weight."""
        rule = self.queues[queue]
        used = plan.state.usage.get(queue, 0) + promised(queue, plan.state)
        borrows = rule.quota_milli is not None and used >= rule.quota_milli
        return (borrows, used / rule.weight)
