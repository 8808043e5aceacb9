"""What a simulated cluster foresees of its jobs: the truth, or the estimates of the trace."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol, runtime_checkable

from presage.model.cluster import Worker
from presage.model.estimate import Estimate
from presage.model.job import Job, JobSpec
from presage.model.parts import enforced_limit
from presage.sim.world import World

__all__ = ["LearnsMemory", "Oracle"]


@runtime_checkable
class LearnsMemory(Protocol):
    """A predictor that remembers which workloads ran out of memory."""

    def out_of_memory(self, spec: JobSpec) -> None:
        """A run of this job did."""
        ...


class Oracle:
    """A `Predictor` that looks into the world. With `use_estimates` it trusts the trace's
    instead."""

    def __init__(self, world: World, use_estimates: bool) -> None:
        self.version = "trace estimates" if use_estimates else "true durations"
        self._world = world
        self._use_estimates = use_estimates
        self._known: dict[str, Estimate] = {}

    def runtime(self, job: Job, workers: Sequence[Worker] = ()) -> Estimate:
        """Seconds of running it needs in all, scaled to the workers it has."""
        known = self._known.get(job.spec.id)
        if known is None:
            task = self._world.tasks[job.spec.id]
            estimated = self._use_estimates and task.estimate_s is not None
            value = task.estimate_s if estimated else task.duration_s
            value = (value or 0.0) + task.stops * self._world.rules.restart_cost_s
            known = Estimate.exact(value, "s", self.version)
            self._known[job.spec.id] = known
        if workers and job.spec.elastic:
            task = self._world.tasks[job.spec.id]
            speed = self._world.rules.speed.of(job.id, workers, task.measured_workers)
            return Estimate.exact(known.p50 / speed, "s", self.version)
        return known

    def utilization(self, job: Job) -> Estimate:
        """As in the trace's profile."""
        return Estimate.exact(self._world.tasks[job.id].utilization, "share", self.version)

    def memory(self, job: Job) -> Estimate:
        """As in the trace's profile."""
        return Estimate.exact(self._world.tasks[job.id].peak_memory_mib, "MiB", self.version)

    def slowdown(self, job: Job, neighbours: Sequence[Job]) -> Estimate:
        """As the world itself has it."""
        tasks = self._world.tasks
        others = [tasks[other.id] for other in neighbours]
        value = self._world.slowdown(tasks[job.id], others) if others else 1.0
        return Estimate.exact(value, "times", self.version)

    def kind(self, job: Job) -> Hashable:
        """What the world looks at when jobs share a device."""
        task = self._world.tasks[job.id]
        kind = task.utilization if self._world.rules.beside is None else task.spec.model or ""
        limit = enforced_limit(job.spec)
        if limit is None:
            return kind
        return kind, task.utilization, limit, job.spec.roles[0].resources.gpu_milli

    def stopped(self, job_id: str) -> None:
        """A job was stopped: what it costs to start it again comes on top."""
        if self._world.rules.restart_cost_s:
            self._known.pop(job_id, None)

    def forget(self, job_id: str) -> None:
        """A job ended."""
        self._known.pop(job_id, None)
