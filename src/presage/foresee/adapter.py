"""Fitted estimators behind the `Predictor` port: what policies may know of jobs.

Run time, memory and utilization are those that were foreseen when the job was submitted and are
journaled with it; the slowdown beside others is worked out from them when it is asked for, and so
is the run time on other workers, from how the workload scales. What is not known of a job is left
to another predictor. Also remembers which workloads ran out of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from presage.core.ports import Predictor
from presage.foresee.gpus import Gpu
from presage.foresee.interference import InterferenceEstimator, JobAlone
from presage.foresee.scaling import Speeds
from presage.model.cluster import Worker
from presage.model.estimate import Estimate
from presage.model.job import Job, JobSpec, OomRetry

__all__ = [
    "FittedSlowdowns",
    "Foreseen",
    "Slowdowns",
    "TimeSharing",
    "scaling_signature",
    "signature",
]

_MOST_KNOWN = 100_000
_SLOWEST = 0.01
_UNKNOWN = float("nan")
_TELLING = 0.02
"""Progress from which on it says something about the whole."""
_HALF_TOLD = 0.1
"""Progress that is believed as much as what was foreseen."""


class Slowdowns(Protocol):
    """What jobs do to each other on a GPU."""

    version: str

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

    def slowdown(self, job: Job, neighbours: Sequence[Job]) -> Estimate:
        """The inverse of the speed that is foreseen; nobody gets faster by company."""
        alone = (_alone(job), *sorted((_alone(other) for other in neighbours), key=repr))
        found = self._known.get(alone)
        if found is None:
            speed = self._estimator.speed(alone[0], alone[1:], self._gpu)
            low, middle, high = (
                1.0 / min(1.0, max(value, _SLOWEST)) for value in (speed.p90, speed.p50, speed.p10)
            )
            found = Estimate(low, middle, high, "times", self.version)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[alone] = found
        return found


class TimeSharing:
    """Slowdowns of jobs that take turns on a device that one of them at a time can use, such as a
    core: while a job is busy, so are its neighbours for their part of the time."""

    version = "time sharing"

    def slowdown(self, job: Job, neighbours: Sequence[Job]) -> Estimate:
        """A busy part of u grows by those of the others; together they get no more than all of
        the device. Of a job that nothing is known of, it is taken to be always busy."""
        own, others = _busy(job), sum(map(_busy, neighbours))
        times = max(1.0 + own * others, own + others)
        return Estimate(
            1.0 + own * others / 2, times, 1.0 + len(neighbours), "times", self.version
        )


class Foreseen:
    """A `Predictor` over what was foreseen at submission."""

    def __init__(
        self, slowdowns: Slowdowns, otherwise: Predictor, speeds: Speeds | None = None
    ) -> None:
        self.speeds = speeds
        """How workloads scale with their workers; None: nobody knows."""
        self._slowdowns = slowdowns
        self._otherwise = otherwise
        self._raised: dict[str, float] = {}
        """Signature -> how much more memory it is given than was foreseen."""
        self.ran_out = 0
        """How often a run ran out of memory."""

    @property
    def version(self) -> str:
        """Changes with what it learned: decisions depend on it."""
        learned = f", {self.ran_out} out of memory" if self.ran_out else ""
        scaling = f"; {self.speeds.version}" if self.speeds is not None else ""
        return f"{self._slowdowns.version}; {self._otherwise.version}{learned}{scaling}"

    @version.setter
    def version(self, value: str) -> None:
        raise AttributeError("the version follows from what is foreseen")

    def runtime(self, job: Job, workers: Sequence[Worker] = ()) -> Estimate:
        """As foreseen at submission, and the more as its progress tells, the further it is; on
        other workers as its workload scales."""
        known = job.estimates.runtime_s if job.estimates is not None else None
        found = known or self._otherwise.runtime(job, workers)
        if job.progress >= _TELLING:
            found = _sharpened(found, job)
        if not workers or self.speeds is None or not job.spec.elastic:
            return found
        return self._scaled(found, job, workers, self.speeds)

    def _scaled(
        self, found: Estimate, job: Job, workers: Sequence[Worker], speeds: Speeds
    ) -> Estimate:
        """What was foreseen is for the fewest workers; what progress says, for those it has."""
        spec, least = job.spec, sum(role.min for role in job.spec.roles)
        told = job.progress >= _TELLING and job.allocation
        old = _shape(job.allocation) if told else (least, 1)
        times = speeds.ratio(scaling_signature(spec), spec.model, least, _shape(workers), old)
        if times == 1.0:
            return found
        scaled = (found.p10 * times, found.p50 * times, found.p90 * times)
        return Estimate(*scaled, "s", f"{found.source}, on {len(workers)} workers")

    def utilization(self, job: Job) -> Estimate:
        """As foreseen at submission."""
        known = job.estimates.utilization if job.estimates is not None else None
        return known or self._otherwise.utilization(job)

    def memory(self, job: Job) -> Estimate:
        """As foreseen at submission, and more for a workload that ran out of memory."""
        known = job.estimates.memory_mib if job.estimates is not None else None
        found = known or self._otherwise.memory(job)
        more = self._raised.get(signature(job.spec), 1.0) if self._raised else 1.0
        if more == 1.0:
            return found
        raised = (found.p10 * more, found.p50 * more, found.p90 * more)
        return Estimate(*raised, found.unit, f"{found.source}, raised after it ran out")

    def slowdown(self, job: Job, neighbours: Sequence[Job]) -> Estimate:
        """How many times longer it takes beside others."""
        return self._slowdowns.slowdown(job, neighbours)

    def out_of_memory(self, spec: JobSpec) -> None:
        """A run of this workload ran out of memory: the next ones are given more."""
        name = signature(spec)
        self._raised[name] = self._raised.get(name, 1.0) * OomRetry().factor
        self.ran_out += 1


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


def signature(spec: JobSpec) -> str:
    """What tells workloads apart: the model, else the command."""
    return spec.model or " ".join(spec.entrypoint)


def scaling_signature(spec: JobSpec) -> str:
    """What tells apart workloads that scale in different ways: the model and the command."""
    return " ".join((spec.model or "", *spec.entrypoint))


def _shape(workers: Sequence[Worker]) -> tuple[int, int]:
    return len(workers), len({worker.node for worker in workers})


def _busy(job: Job) -> float:
    known = job.estimates.utilization if job.estimates is not None else None
    return known.p50 if known is not None else 1.0


def _alone(job: Job) -> JobAlone:
    known = job.estimates
    if known is None:
        return JobAlone()
    return JobAlone(
        util_pct=100 * known.utilization.p50 if known.utilization else _UNKNOWN,
        memory_mib=known.memory_mib.p50 if known.memory_mib else _UNKNOWN,
        step_ms=1e3 * known.step_s.p50 if known.step_s else _UNKNOWN,
    )
