"""Queues: who may hold how much. Quotas are guarantees, limits are ceilings, weights share the
rest, and budgets of GPU hours (`budget.py`) last for a period."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from presage.core.changes import Reader
from presage.core.plan import Plan
from presage.core.state import State
from presage.core.workers import ask_of, least_cpu, least_milli, missing
from presage.model.cluster import WHOLE_GPU, gpu_count
from presage.model.job import Job, Reason, ReasonCode
from presage.policy.budget import Budget, Period, Spending

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
    quota_cpus: float | None = None
    """Cores it may hold if it may not borrow."""
    limit_cpus: float | None = None
    """Cores it may never exceed."""
    gpu_hours: float | None = None
    """GPU hours it may spend in a period."""
    user_gpu_hours: float | None = None
    """The same for each user of it."""
    team_gpu_hours: float | None = None
    """The same for each team."""
    period: Period = Period.MONTH

    @property
    def cpu_ceiling(self) -> int | None:
        """Milli-CPUs the queue may hold at the very most."""
        bounds = [] if self.limit_cpus is None else [round(self.limit_cpus * 1000)]
        if not self.borrow and self.quota_cpus is not None:
            bounds.append(round(self.quota_cpus * 1000))
        return min(bounds, default=None)

    def budget(self, queue: str) -> Budget | None:
        """Its budget of GPU hours, if it has one."""
        hours = (self.gpu_hours, self.user_gpu_hours, self.team_gpu_hours)
        return None if hours == (None,) * 3 else Budget(queue, self.period, *hours)

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
        self._ceilings = {name: rule.cpu_ceiling for name, rule in self.rules.items()}
        budgets = {name: rule.budget(name) for name, rule in self.rules.items()}
        self.budgets = {name: budget for name, budget in budgets.items() if budget is not None}
        self.bounded = bool(self.budgets) or any(
            rule.ceiling_milli is not None or rule.cpu_ceiling is not None
            for rule in self.rules.values()
        )
        self._cpus = _CpusHeld()
        self._spending: dict[Period, tuple[object, Spending]] = {}

    def __getitem__(self, queue: str) -> QueueRule:
        return self.rules.get(queue, self._free)

    def admit(
        self, job: Job, plan: Plan, milli: int, cpu_milli: int | None = None
    ) -> Reason | None:
        """Why a job may not take this much more now, or None when it may. Without `cpu_milli` it
        is about the fewest workers the job can run with."""
        queue = job.spec.queue
        if queue not in self.rules:
            return None
        reason = self._admit_gpus(queue, plan.state, milli)
        if reason is None and self._ceilings[queue] is not None:
            cpu = least_cpu(job) if cpu_milli is None else cpu_milli
            reason = self._admit_cpus(queue, plan.state, cpu)
        if reason is None and milli and queue in self.budgets:
            budget = self.budgets[queue]
            reason = budget.admit(job, milli, self._spent(plan.state, budget.period))
        return reason

    def never(self, job: Job) -> Reason | None:
        """Why a job can never run in its queue, or None."""
        queue = job.spec.queue
        ceiling, cpus = self[queue].ceiling_milli, self[queue].cpu_ceiling
        if ceiling is not None and least_milli(job) > ceiling:
            text = f"it needs {gpu_count(least_milli(job))} GPUs"
            most = gpu_count(ceiling)
        elif cpus is not None and least_cpu(job) > cpus:
            text, most = f"it needs {_cores(least_cpu(job))}", _cores(cpus)
        else:
            budget = self.budgets.get(queue)
            return None if budget is None else budget.never(job)
        return Reason(ReasonCode.NEVER_FITS, f"{text}; queue {queue} may hold at most {most}")

    def apart(self, job: Job) -> tuple[object, ...]:
        """What tells jobs of a queue apart that are alike otherwise: whose budget they are on, and
        how much of it they may take."""
        spec = job.spec
        return (spec.owner, spec.team, spec.time_limit_s) if spec.queue in self.budgets else ()

    def next_period(self, now: float) -> float | None:
        """When the first budget begins anew; None without one."""
        ends = [budget.period.bounds(now)[1] for budget in self.budgets.values()]
        return min(ends, default=None)

    def _admit_gpus(self, queue: str, state: State, milli: int) -> Reason | None:
        ceiling = self[queue].ceiling_milli
        if ceiling is None:
            return None
        used = state.usage.get(queue, 0) + promised(queue, state)
        if used + milli <= ceiling:
            return None
        text = (
            f"queue {queue} holds {gpu_count(used)} of the {gpu_count(ceiling)} GPUs it may hold; "
            f"this job needs {gpu_count(milli)}"
        )
        return Reason(ReasonCode.OVER_QUOTA, text)

    def _admit_cpus(self, queue: str, state: State, cpu_milli: int) -> Reason | None:
        ceiling = self._ceilings[queue]
        assert ceiling is not None
        used = self._cpus.of(queue, state)
        if used + cpu_milli <= ceiling:
            return None
        text = (
            f"queue {queue} holds {_cores(used)} of the {_cores(ceiling)} it may hold; "
            f"this job needs {_cores(cpu_milli)}"
        )
        return Reason(ReasonCode.OVER_QUOTA, text)

    def _spent(self, state: State, period: Period) -> Spending:
        """What was spent, found out once for each moment of a state."""
        changes = state.changes
        moment = (changes, changes.dropped + len(changes.jobs), state.now)
        known = self._spending.get(period)
        if known is None or known[0] != moment:
            known = self._spending[period] = moment, Spending(state, period)
        return known[1]


class _CpusHeld:
    """Milli-CPUs that each queue holds or was promised, kept from one look to the next."""

    def __init__(self) -> None:
        self._reader = Reader()
        self._jobs: dict[str, tuple[str, int]] = {}
        self._sums: dict[str, int] = {}

    def of(self, queue: str, state: State) -> int:
        """Those of one queue."""
        changed = self._reader.read(state.changes)
        if changed is None:
            self._jobs, self._sums = {}, {}
            changed = list(state.jobs.values())
        for job in changed:
            self._look(job, state)
        return self._sums.get(queue, 0)

    def _look(self, job: Job, state: State) -> None:
        queue, before = self._jobs.pop(job.id, (job.spec.queue, 0))
        workers = [*job.allocation, *(job.resizing or ()), *state.reservations.get(job.id, ())]
        asks = [ask_of(job, worker.role).cpu_milli for worker in dict.fromkeys(workers)]
        if job.id in state.incomplete:
            asks += [ask_of(job, r).cpu_milli for r, _ in missing(job)]
        held = sum(asks)
        if held:
            self._jobs[job.id] = queue, held
        self._sums[queue] = self._sums.get(queue, 0) + held - before


def _cores(milli: int) -> str:
    return f"{milli / 1000:g} core{'' if milli == 1000 else 's'}"


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
