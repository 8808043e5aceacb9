"""When jobs share a GPU: the rules of a pipeline, and what a job or a predictor says to them. Who
joins whom is `policy.colocate`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from presage.core.plan import Plan
from presage.core.ports import Predictor, SortKey
from presage.core.workers import ask_of
from presage.model.job import Job, JobState, Role

__all__ = ["HasKinds", "SharingRules", "is_share", "movable", "shares", "utilization"]

_ROUNDING_S = 1e-3
"""A clock that was asked for 60 s may say 59.999999."""


@runtime_checkable
class HasKinds(Protocol):
    """A predictor that can tell which jobs are alike to it beside others on a GPU: what it said
    of some then holds for all of their kinds, and need not be asked again."""

    def kind(self, job: Job) -> Hashable | None:
        """Jobs of one kind slow each other and others down alike; None: no two are alike."""
        ...


def utilization(job: Job, plan: Plan, predict: Predictor) -> SortKey:
    """First fit decreasing: those that keep a GPU busiest go first."""
    return (-predict.utilization(job).p50, job.seq)


@dataclass(frozen=True, slots=True)
class SharingRules:
    """When jobs share a GPU."""

    most: int = 3
    """Jobs on one GPU."""
    max_slowdown: float = 1.5
    """How many times longer a job may be foreseen to take because it shares."""
    bounds: Mapping[str, float] = field(default_factory=dict)
    """The same, for some queues."""
    idle_worth: float = 0.03
    """What an idle GPU is worth: a job shares instead of taking it when all slowdowns that this
    adds, summed up, are below."""
    profile_s: float = 0.0
    """Seconds that a job runs alone before it shares with anyone; 0: what is foreseen at
    submission is enough."""
    profile_gpus: int = 0
    """GPUs set aside for that while somebody waits for it; 0: any idle GPU will do, and it always
    does for jobs of several GPUs."""

    move_gain_s: float = 0.0
    """A job that shares is stopped and started on idle GPUs when nobody waits for them and this
    saves all jobs together so many seconds; 0: never."""
    long_first: float = 2.0
    """A waiting job goes before all others when so many times what it still needs is more than
    all work there is would keep the GPUs busy: it would end last. 0: never, as where jobs do not
    share by what is foreseen of them at submission."""

    def bound(self, job: Job) -> float:
        """The slowdown that a job may be foreseen to have."""
        return self.bounds.get(job.spec.queue, self.max_slowdown)

    @property
    def puts_long_first(self) -> bool:
        """Whether jobs may go before their turn."""
        return self.long_first > 0 and self.most > 1 and not self.profile_s

    def profiled(self, job: Job, now: float) -> bool:
        """Whether a job ran alone for long enough."""
        return not self.profile_s or job.ran(now) >= self.profile_s - _ROUNDING_S


def shares(job: Job) -> bool:
    """Whether all workers of a job ask for shares of a GPU."""
    return len(job.spec.roles) == 1 and ask_of(job, 0).shared


def is_share(roles: tuple[Role, ...]) -> bool:
    """Whether jobs of these roles may share a GPU, if nothing else is against it."""
    return len(roles) == 1 and roles[0].resources.shared


def movable(job: Job) -> bool:
    """Whether a job can be moved to other GPUs now."""
    return job.state is JobState.RUNNING and job.spec.preemptible
