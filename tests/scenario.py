"""A cluster in a few lines: submit jobs, let them start and end, look at who runs where.

Facts are given by hand, so that a test can also withhold them (a stop that takes its time).
"""

from __future__ import annotations

from collections.abc import Sequence

from presage.core.engine import Engine
from presage.model import event as ev
from presage.model.cluster import Device, Node, Resources, Worker
from presage.model.estimate import Estimate
from presage.model.job import Job, JobSpec, JobState, Role
from presage.policy.config import PolicyConfig
from presage.policy.registry import build


class Known:
    """Foresees what the test says."""

    version = "test"

    def __init__(self, runtimes: dict[str, float] | None = None) -> None:
        self.runtimes = runtimes or {}

    def runtime(self, job: Job, workers: Sequence[Worker] = ()) -> Estimate:
        return Estimate.exact(self.runtimes.get(job.id, 100.0), "s", self.version)

    def utilization(self, job: Job) -> Estimate:
        return Estimate.exact(0.5, "share", self.version)

    def memory(self, job: Job) -> Estimate:
        return Estimate.exact(0, "MiB", self.version)

    def slowdown(self, job: Job, neighbours: Sequence[Job]) -> Estimate:
        return Estimate.exact(1.0, "times", self.version)


def nodes(*gpus: int, **labels: Sequence[str]) -> list[Node]:
    """Nodes n0, n1 … with these numbers of GPUs; a label takes one value per node."""
    return [
        Node(
            f"n{i}",
            (Device(),) * count,
            labels={name: values[i] for name, values in labels.items()},
        )
        for i, count in enumerate(gpus)
    ]


def job(
    name: str, gpus: float = 1, workers: int = 1, most: int | None = None, **spec: object
) -> JobSpec:
    """A job of some workers with some GPUs each; `most` makes it elastic."""
    ask = Resources(gpu_milli=round(gpus * 1000))
    role = Role("worker", ask, workers, most or workers)
    return JobSpec(name, (role,), **spec)  # type: ignore[arg-type]


class Scenario:
    """A cluster under one policy. Time moves only when told to."""

    def __init__(
        self,
        cluster: Sequence[Node],
        policy: PolicyConfig | str = "fifo",
        runtimes: dict[str, float] | None = None,
    ) -> None:
        self.now = 0.0
        config = policy if isinstance(policy, PolicyConfig) else None
        self.engine = Engine(build(config or str(policy)), Known(runtimes), check_every=1)
        self.decisions: list[ev.Decision] = []
        counts = getattr(self.engine.policy, "counts_hours", False)
        rules = [ev.RulesChanged("", "", counts=True)] if counts else []
        self.go(*rules, *(ev.NodeUp(node) for node in cluster))

    def go(self, *facts: ev.Fact, at: float | None = None) -> list[ev.Decision]:
        """Give facts to the engine; whatever it launches is started at once."""
        self.now = self.now if at is None else at
        self.decisions = self.engine.handle(self.now, facts)
        launched = [
            d
            for d in self.decisions
            if isinstance(d, ev.Launch) and d.job not in self.engine.state.incomplete
        ]
        if launched:
            self.engine.handle(self.now, [ev.JobStarted(d.job, d.attempt) for d in launched])
        return self.decisions

    def submit(self, *specs: JobSpec, at: float | None = None) -> list[ev.Decision]:
        """Submit jobs together."""
        return self.go(*(ev.JobSubmitted(spec) for spec in specs), at=at)

    def end(self, *names: str, at: float | None = None) -> list[ev.Decision]:
        """Running jobs end well."""
        return self.go(*(self._exit(name, ev.Outcome.SUCCEEDED) for name in names), at=at)

    def stopped(self, *names: str, at: float | None = None) -> list[ev.Decision]:
        """Jobs that were told to stop have done so."""
        return self.go(*(self._exit(name, ev.Outcome.STOPPED) for name in names), at=at)

    def resized(self, name: str) -> list[ev.Decision]:
        """A resize is complete."""
        return self.go(ev.JobResized(name, self.engine.state.jobs[name].attempt))

    def settle(self) -> None:
        """Let every stop and resize that is under way finish."""
        for _ in range(20):
            jobs = list(self.engine.state.active.values())
            stopping = [j.id for j in jobs if j.state is JobState.STOPPING]
            resizing = [j for j in jobs if j.resizing is not None and j.id not in stopping]
            if not stopping and not resizing:
                return
            facts: list[ev.Fact] = [self._exit(name, ev.Outcome.STOPPED) for name in stopping]
            self.go(*facts, *(ev.JobResized(j.id, j.attempt) for j in resizing))
        raise AssertionError("stops and resizes never come to an end")

    def _exit(self, name: str, outcome: ev.Outcome) -> ev.JobExited:
        return ev.JobExited(name, self.engine.state.jobs[name].attempt, outcome)

    def names(self, state: JobState) -> list[str]:
        """Jobs in a state, in the order of their submission."""
        jobs = sorted(self.engine.state.jobs.values(), key=lambda j: j.seq)
        return [j.id for j in jobs if j.state is state]

    @property
    def running(self) -> list[str]:
        return self.names(JobState.RUNNING)

    @property
    def waiting(self) -> list[str]:
        return self.names(JobState.PENDING)

    def where(self, name: str) -> list[str]:
        """Nodes of a job's workers, in order."""
        return [worker.node for worker in self.engine.state.jobs[name].allocation]

    def devices(self, name: str) -> list[tuple[str, tuple[int, ...]]]:
        """Nodes and devices of a job's workers."""
        return [(w.node, w.devices) for w in self.engine.state.jobs[name].allocation]

    def why(self, name: str) -> str:
        """What its owner is told."""
        reason = self.engine.explain(name)
        assert reason is not None
        return reason.text
