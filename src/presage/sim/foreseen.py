"""What a simulated cluster can know of run times without looking into the trace: the runs that
ended.

`FromHistory` looks on while a trace is run (`Observer`), foresees each job at its submission from
the runs that are over by then, and makes a predictor that goes by nothing else. It never tells how
long a job of the trace will run.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import inf

from presage.core.ports import Predictor
from presage.core.state import State
from presage.model.cluster import Worker
from presage.model.estimate import Estimate, Estimates
from presage.model.event import Fact
from presage.model.job import Job, JobSpec
from presage.model.workload import same_work
from presage.sim.history import RuntimeHistory
from presage.sim.result import AdviceScore
from presage.sim.world import Task, World

__all__ = ["FromHistory"]

_MORE = 1.25
"""An estimate is made anew when there are so many times as many runs to go by."""


class FromHistory:
    """The history of one simulated cluster."""

    version = "history of runs"

    def __init__(self) -> None:
        self._history = RuntimeHistory()
        self._ended = 0
        self._known: dict[Hashable, tuple[float, Estimates]] = {}
        """Estimates of jobs that ask alike, and from how many runs on they are made anew."""

    def due_at(self) -> float:
        """It never asks for a look of its own."""
        return inf

    def look(self, now: float, state: State, world: World) -> Sequence[Fact]:
        """It has nothing to say to the deciding loop."""
        return ()

    def foresee(self, spec: JobSpec, now: float) -> Estimates:
        """From runs that ended until now."""
        work = same_work(spec) if spec.entrypoint or spec.model else None
        key = spec.owner, spec.queue, spec.min_gpu_milli, work
        known = self._known.get(key)
        if known is None or self._ended >= known[0]:
            estimate = self._history.estimate(spec, 0.0, now)
            known = self._ended * _MORE + 1, Estimates(self.version, runtime_s=estimate)
            self._known[key] = known
        return known[1]

    def ended(self, task: Task, now: float) -> None:
        """One more run to go by."""
        self._ended += 1
        self._history.add(task.spec, task.duration_s, now)

    def score(self) -> AdviceScore:
        """It gives no advice about limits."""
        return AdviceScore(0, 0, {}, {}, {})

    def predictor(self, world: Predictor) -> Predictor:
        """One that knows run times from the history, and the rest as `world` does."""
        return _HistoryPredictor(world, self)


class _HistoryPredictor:
    """Run times as foreseen at submission; the true ones stay hidden."""

    def __init__(self, world: Predictor, history: FromHistory) -> None:
        self.version = history.version
        self._world, self._history = world, history

    def runtime(self, job: Job, workers: Sequence[Worker] = ()) -> Estimate:
        """As foreseen at its submission; on other workers in proportion to what they change."""
        known = job.estimates.runtime_s if job.estimates is not None else None
        estimate = known or self._guess(job)
        if not workers or not job.spec.elastic:
            return estimate
        factor = self._world.runtime(job, workers).p50 / self._world.runtime(job).p50
        p10, p50, p90 = (q * factor for q in (estimate.p10, estimate.p50, estimate.p90))
        return Estimate(p10, p50, p90, estimate.unit, estimate.source)

    def _guess(self, job: Job) -> Estimate:
        estimate = self._history.foresee(job.spec, job.submitted_at).runtime_s
        assert estimate is not None
        return estimate

    def utilization(self, job: Job) -> Estimate:
        """As the world knows it."""
        return self._world.utilization(job)

    def memory(self, job: Job) -> Estimate:
        """As the world knows it."""
        return self._world.memory(job)

    def slowdown(self, job: Job, neighbours: Sequence[Job]) -> Estimate:
        """As the world knows it."""
        return self._world.slowdown(job, neighbours)
