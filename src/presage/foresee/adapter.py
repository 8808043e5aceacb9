"""Fitted estimators behind the `Predictor` port: what policies may know of jobs.

Run time, memory and utilization are those that were foreseen when the job was submitted and are
journaled with it; the slowdown beside others is worked out from them when it is asked for, and so
is the run time on other workers, from how the workload scales. What is not known of a job is left
to another predictor. Also remembers which workloads ran out of memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from copy import copy
from typing import Protocol

from presage.core.ports import Predictor
from presage.foresee.gpus import Gpu
from presage.foresee.interference import InterferenceEstimator, JobAlone, taking_turns
from presage.foresee.scaling import Foreseen, ScalingModel, Speeds
from presage.model.cluster import WHOLE_GPU, Worker
from presage.model.estimate import Estimate
from presage.model.job import Job, JobSpec, OomRetry
from presage.model.parts import TURN_COST, enforced_limit, held_slowdowns
from presage.model.speed import SpeedBook
from presage.model.workload import same_needs, same_work

__all__ = ["EnforcedSlowdowns", "EstimatePredictor", "FittedSlowdowns", "Slowdowns", "TimeSharing"]

_MOST_KNOWN = 100_000
_SLOWEST = 0.01
_UNKNOWN = float("nan")
_TELLING = 0.02
"""Below this progress nothing is extrapolated from it."""
_HALF_TOLD = 0.1
"""Progress that is believed as much as what was foreseen."""


class Slowdowns(Protocol):
    """What jobs do to each other on a GPU."""

    @property
    def version(self) -> str:
        """Another one whenever something else is foreseen."""
        ...

    def slowdown(self, job: Job, neighbours: Sequence[Job]) -> Estimate:
        """How many times longer a job takes beside others."""
        ...


class FittedSlowdowns:
    """Slowdowns from the interference estimator and the estimates that jobs came with."""

    def __init__(self, estimator: InterferenceEstimator, gpu: Gpu, version: str = "1") -> None:
        self.version = f"interference {version} on {gpu.name}"
        self._estimator = estimator
        self._gpu = gpu
        self._known: dict[tuple[JobAlone, ...], Estimate] = {}

    def kind(self, job: Job) -> Hashable:
        """What is foreseen of it alone."""
        return _alone(job)

    def slowdown(self, job: Job, neighbours: Sequence[Job]) -> Estimate:
        """The inverse of the speed that is foreseen; nobody gets faster by company."""
        alone = (_alone(job), *sorted((_alone(other) for other in neighbours), key=repr))
        estimate = self._known.get(alone)
        if estimate is None:
            speed = self._estimator.speed(alone[0], alone[1:], self._gpu)
            low, middle, high = (
                1.0 / min(1.0, max(value, _SLOWEST)) for value in (speed.p90, speed.p50, speed.p10)
            )
            estimate = Estimate(low, middle, high, "times", self.version)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[alone] = estimate
        return estimate


class TimeSharing:
    """Slowdowns of jobs that take turns on a device that one of them at a time can use, such as a
    core."""

    version = "time sharing"

    def kind(self, job: Job) -> Hashable:
        """How busy it keeps a device."""
        return _busy(job)

    def slowdown(self, job: Job, neighbours: Sequence[Job]) -> Estimate:
        """A job that nothing is known of is taken to be always busy."""
        low, middle, high = taking_turns(_busy(job), [_busy(other) for other in neighbours])
        return Estimate(float(low), float(middle), float(high), "times", self.version)


class EnforcedSlowdowns:
    """Slowdowns of jobs whose shares of a device are enforced: each gets its request, whatever
    the others want. Where one of them takes no turns, nothing is enforced."""

    def __init__(self, free: Slowdowns, turn_cost: float = TURN_COST) -> None:
        self._free, self._cost = free, turn_cost
        self._kind = getattr(free, "kind", None)

    @property
    def version(self) -> str:
        """That of what is foreseen without."""
        return self._free.version

    def kind(self, job: Job) -> Hashable | None:
        """What is foreseen of it without, and its share."""
        kind = self._kind(job) if self._kind is not None else None
        share = _share(job)
        return kind if share is None or kind is None else (kind, share, _busy(job))

    def slowdown(self, job: Job, neighbours: Sequence[Job]) -> Estimate:
        """By the parts that each is to get; an interval says how sure that is without."""
        crew = [job, *neighbours]
        shares = [share for one in crew if (share := _share(one)) is not None]
        told = self._free.slowdown(job, neighbours)
        if len(shares) < len(crew) or not neighbours:
            return told
        others = [[two for two in crew if two is not one] for one in crew[1:]]
        free = [told.p50]
        free += [self._free.slowdown(*one).p50 for one in zip(neighbours, others, strict=True)]
        requests, limits = zip(*shares, strict=True)
        wants = [max(_busy(one), _SLOWEST) for one in crew]
        value = held_slowdowns(wants, requests, limits, free, self._cost)[0]
        off = value / told.p50
        return Estimate(told.p10 * off, value, told.p90 * off, "times", f"{told.source}, enforced")


class EstimatePredictor:
    """A `Predictor` over what was foreseen at submission; `scaling` says how workloads scale with
    their workers where own runs do not, `foreseen` where that was not measured either."""

    def __init__(
        self,
        slowdowns: Slowdowns,
        otherwise: Predictor,
        scaling: ScalingModel | None = None,
        foreseen: Foreseen | None = None,
    ) -> None:
        self._slowdowns = slowdowns
        self._kind = getattr(slowdowns, "kind", None)
        self._otherwise = otherwise
        self._speeds = Speeds(scaling, foreseen=foreseen)
        self._out_of_memory: dict[str, int] = {}
        """What needs the same -> how often a run of it ran out of memory."""

    def with_speeds(self, speeds: SpeedBook) -> EstimatePredictor:
        """One that reads this book, and is the same else: both hear of what ran out of memory."""
        made = copy(self)
        made._speeds = self._speeds.reading(speeds)
        return made

    @property
    def ran_out(self) -> int:
        """How often a run ran out of memory."""
        return sum(self._out_of_memory.values())

    @property
    def version(self) -> str:
        """Changes with what it learned: decisions depend on it."""
        learned = f", {self.ran_out} out of memory" if self._out_of_memory else ""
        versions = (self._slowdowns.version, self._otherwise.version + learned)
        return "; ".join((*versions, self._speeds.version))

    def runtime(self, job: Job, workers: Sequence[Worker] = ()) -> Estimate:
        """As foreseen at submission, and the more as its progress tells, the further it is; on
        other workers as its workload scales."""
        known = job.estimates.runtime_s if job.estimates is not None else None
        estimate = known or self._otherwise.runtime(job, workers)
        if job.progress >= _TELLING:
            estimate = _sharpened(estimate, job)
        if workers and job.spec.elastic and self._speeds.tells:
            return self._scaled(estimate, job, workers)
        return estimate

    def _scaled(self, estimate: Estimate, job: Job, workers: Sequence[Worker]) -> Estimate:
        """What was foreseen is for the fewest workers; what progress says, for those it has."""
        spec, least = job.spec, sum(role.min for role in job.spec.roles)
        told = job.progress >= _TELLING and job.allocation
        old = _shape(job.allocation) if told else (least, 1)
        known = job.estimates.step_s if job.estimates is not None else None
        times = self._speeds.ratio(
            same_work(spec),
            spec.model,
            least,
            _shape(workers),
            old,
            known.p50 if known is not None else None,
        )
        if times == 1.0:
            return estimate
        scaled = (estimate.p10 * times, estimate.p50 * times, estimate.p90 * times)
        return Estimate(*scaled, "s", f"{estimate.source}, on {len(workers)} workers")

    def utilization(self, job: Job) -> Estimate:
        """As foreseen at submission."""
        known = job.estimates.utilization if job.estimates is not None else None
        return known or self._otherwise.utilization(job)

    def memory(self, job: Job) -> Estimate:
        """As foreseen at submission, and more for a workload that ran out of memory."""
        known = job.estimates.memory_mib if job.estimates is not None else None
        estimate = known or self._otherwise.memory(job)
        times = self._out_of_memory.get(same_needs(job.spec), 0) if self._out_of_memory else 0
        if not times:
            return estimate
        more = OomRetry().factor ** times
        raised = (estimate.p10 * more, estimate.p50 * more, estimate.p90 * more)
        return Estimate(*raised, estimate.unit, f"{estimate.source}, raised after it ran out")

    def slowdown(self, job: Job, neighbours: Sequence[Job]) -> Estimate:
        """How many times longer it takes beside others."""
        return self._slowdowns.slowdown(job, neighbours)

    def kind(self, job: Job) -> Hashable | None:
        """Jobs of one kind slow each other and others down alike; None where that is not told."""
        return self._kind(job) if self._kind is not None else None

    def out_of_memory(self, spec: JobSpec) -> None:
        """A run of this workload ran out of memory: the next ones are given more."""
        name = same_needs(spec)
        self._out_of_memory[name] = self._out_of_memory.get(name, 0) + 1


def _sharpened(foreseen: Estimate, job: Job) -> Estimate:
    """Between what was foreseen and what the progress of the run says, in logarithms."""
    total = job.progress_s / job.progress
    if total <= 0 or foreseen.p10 <= 0:
        return foreseen
    weight = job.progress / (job.progress + _HALF_TOLD)
    p10, p50, p90 = (
        max(value ** (1 - weight) * total**weight, job.progress_s)
        for value in (foreseen.p10, foreseen.p50, foreseen.p90)
    )
    return Estimate(p10, p50, p90, "s", f"{foreseen.source}, {job.progress:.0%} done")


def _shape(workers: Sequence[Worker]) -> tuple[int, int]:
    return len(workers), len({worker.node for worker in workers})


def _share(job: Job) -> tuple[float, float] | None:
    """What of a GPU is enforced for its workers, request and limit, as it was submitted."""
    limit = enforced_limit(job.spec)
    return None if limit is None else (job.spec.roles[0].resources.gpu_milli / WHOLE_GPU, limit)


def _busy(job: Job) -> float:
    known = job.estimates.utilization if job.estimates is not None else None
    return known.p50 if known is not None else 1.0


def _alone(job: Job) -> JobAlone:
    known = job.estimates
    if known is None:
        return JobAlone()
    busy = known.utilization
    return JobAlone(
        util_pct=100 * busy.p50 if busy else _UNKNOWN,
        util_low_pct=100 * busy.p10 if busy else _UNKNOWN,
        util_high_pct=100 * busy.p90 if busy else _UNKNOWN,
        memory_mib=known.memory_mib.p50 if known.memory_mib else _UNKNOWN,
        step_ms=1e3 * known.step_s.p50 if known.step_s else _UNKNOWN,
    )
