"""Queues: who may hold how much. Quotas are guarantees, limits are ceilings, weights share the
rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from presage.core.plan import Plan
from presage.core.state import State
from presage.core.workers import ask_of, least_milli, missing
from presage.model.cluster import WHOLE_GPU, gpu_count
from presage.model.job import Job, Reason, ReasonCode

__all__ = ["QueueRule", "Queues", "promised"]


@dataclass(frozen=True, slots=True)
class QueueRule:
    """What one queue may hold."""

    quota_gpus: float | None = None
    """GPUs it can always have; None: it has no guarantee and no bound."""
    borrow: bool = True
    """Whether it may go beyond its quota while others leave room."""
    limit_gpus: float | None = None
    """GPUs it may never exceed, borrowed ones included."""
    weight: float = 1.0

    @property
    def quota_milli(self) -> int | None:
        """The quota in milli-GPU."""
        return None if self.quota_gpus is None else round(self.quota_gpus * WHOLE_GPU)

    @property
    def ceiling_milli(self) -> int | None:
        """What the queue may hold at the very most."""
        bounds = [] if self.limit_gpus is None else [round(self.limit_gpus * WHOLE_GPU)]
        if not self.borrow and self.quota_milli is not None:
            bounds.append(self.quota_milli)
        return min(bounds, default=None)


class Queues:
    """Rules by queue name; a queue that nobody declared has no bounds and weight 1."""

    def __init__(self, rules: Mapping[str, QueueRule] | None = None) -> None:
        self.rules = dict(rules or {})
        self._free = QueueRule()
        self.bounded = any(rule.ceiling_milli is not None for rule in self.rules.values())

    def __getitem__(self, queue: str) -> QueueRule:
        return self.rules.get(queue, self._free)

    def admit(self, job: Job, plan: Plan, milli: int) -> Reason | None:
        """Why a job may not take this much more now, or None when it may."""
        queue = job.spec.queue
        ceiling = self[queue].ceiling_milli
        if ceiling is None:
            return None
        used = plan.state.usage.get(queue, 0) + promised(queue, plan.state)
        if used + milli <= ceiling:
            return None
        text = (
            f"queue {queue} holds {gpu_count(used)} of the {gpu_count(ceiling)} GPUs it may hold; "
            f"this job needs {gpu_count(milli)}"
        )
        return Reason(ReasonCode.OVER_QUOTA, text)

    def never(self, job: Job) -> Reason | None:
        """Why a job can never run in its queue, or None."""
        ceiling = self[job.spec.queue].ceiling_milli
        if ceiling is None or least_milli(job) <= ceiling:
            return None
        text = (
            f"it needs {gpu_count(least_milli(job))} GPUs; queue {job.spec.queue} may hold "
            f"at most {gpu_count(ceiling)}"
        )
        return Reason(ReasonCode.NEVER_FITS, text)


def promised(queue: str, state: State) -> int:
    """Milli-GPUs that jobs of a queue will hold besides, once what was begun for them is done."""
    milli = 0
    for job_id, hold in state.reservations.items():
        job = state.jobs[job_id]
        if job.spec.queue == queue:
            milli += sum(ask_of(job, worker.role).gpu_milli for worker in hold)
    for job in state.incomplete.values():
        if job.spec.queue == queue:
            milli += sum(ask_of(job, r).gpu_milli for r, _ in missing(job))
    return milli
