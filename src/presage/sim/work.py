"""How much work recorded runs did: their time × the speed that a simulated world gives such a run.

A job that ran 20 s on a GPU twice as fast, beside a neighbour or with more workers did another
amount of work than one that ran 20 s alone on a GPU of speed 1. A world that is given the work has
the recorded times again when it runs the jobs where they ran. Knows jobs and nodes, no journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from presage.model.cluster import WHOLE_GPU, Node, Worker
from presage.model.job import Job
from presage.sim.speed import SpeedModel, slowest_device

__all__ = ["WorkMeter"]


@dataclass(slots=True, eq=False)
class _Metered:
    """What one job has done, and how fast it is now."""

    since: float
    workers: tuple[Worker, ...] = ()
    speed: float = 0.0
    """Of its devices and beside its neighbours; 0 while it makes no progress."""
    busy: float = 1.0
    """How busy it keeps a device."""
    shares: bool = False
    done_s: dict[int, float] = field(default_factory=dict)
    """Seconds at speed 1, by the number of workers: how they scale depends on what is measured
    against, which is known at the end."""


class WorkMeter:
    """Adds up the work of jobs while their allocations change."""

    def __init__(self, model: SpeedModel, nodes: Mapping[str, Node]) -> None:
        """`nodes` may grow meanwhile."""
        self._model, self._nodes = model, nodes
        self._runs: dict[str, _Metered] = {}
        self._devices: dict[tuple[str, int], list[_Metered]] = {}

    def look(self, now: float, job: Job) -> None:
        """From now on a job holds the workers it has; call it whenever they may be others."""
        run = self._runs.get(job.id)
        if run is None:
            ask = job.spec.roles[0].resources
            busy = ask.gpu_milli / WHOLE_GPU if ask.shared else 1.0
            run = self._runs[job.id] = _Metered(now, busy=busy, shares=ask.shared)
        complete = len(job.allocation) >= sum(role.min for role in job.spec.roles)
        workers = job.allocation if complete else ()
        if workers == run.workers:
            return
        touched = self._leave(run) if run.shares else []
        self._count(now, run)
        run.workers = workers
        touched += self._join(run) if run.shares else []
        run.speed = self._speed(run)
        for other in touched:
            if other is not run:
                self._count(now, other)
                other.speed = self._speed(other)

    def forget(self, now: float, job_id: str) -> None:
        """What a job has done is lost, or does not count."""
        if (run := self._runs.get(job_id)) is not None:
            run.since = now
            run.done_s.clear()

    def work_s(self, now: float, job_id: str, measured: int) -> float:
        """Seconds that a job's work so far takes alone, at speed 1, on so many workers."""
        run = self._runs[job_id]
        self._count(now, run)
        return sum(s * self._model.scale(count, measured) for count, s in run.done_s.items())

    def _count(self, now: float, run: _Metered) -> None:
        if run.speed and now > run.since:
            count = len(run.workers)
            run.done_s[count] = run.done_s.get(count, 0.0) + (now - run.since) * run.speed
        run.since = now

    def _speed(self, run: _Metered) -> float:
        if not run.workers:
            return 0.0
        speed = slowest_device(self._nodes, run.workers)
        if not run.shares:
            return speed
        return speed * min(self._share(run, worker) for worker in run.workers)

    def _share(self, run: _Metered, worker: Worker) -> float:
        beside = [self._devices[worker.node, d] for d in worker.devices]
        others = [other.busy for runs in beside for other in runs if other is not run]
        return self._model.share(run.busy, others)

    def _join(self, run: _Metered) -> list[_Metered]:
        """Add a run to its devices; those who are there already."""
        there: list[_Metered] = []
        for worker in run.workers:
            for d in worker.devices:
                runs = self._devices.setdefault((worker.node, d), [])
                there += runs
                runs.append(run)
        return there

    def _leave(self, run: _Metered) -> list[_Metered]:
        there: list[_Metered] = []
        for worker in run.workers:
            for d in worker.devices:
                runs = self._devices[worker.node, d]
                runs.remove(run)
                there += runs
        return there
