"""Facts in, decisions out: the scheduler as one synchronous function.

The engine applies facts, answers the requests that leave no choice (cancel, halt, a lost node),
launches jobs whose reserved room is free, and asks the policy for the rest. It never calls the
world.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from presage.core.plan import Plan
from presage.core.ports import Foreknows, LearnsSpeeds, Policy, Predictor
from presage.core.remedies import stops
from presage.core.state import State
from presage.core.workers import ask_of
from presage.model import event as ev
from presage.model.cluster import WHOLE_GPU, Resources
from presage.model.job import Job, JobState, Reason, ReasonCode, StopIntent

__all__ = ["Engine"]

_QUIET: frozenset[type[Any]] = frozenset(
    {
        *(ev.JobStarted, ev.Progress, ev.StageChanged, ev.PhaseChanged),
        *(ev.AlertRaised, ev.AlertCleared),
    }
)
"""Facts that free nothing and ask for nothing: on their own they give a policy no reason to
run."""


class Engine:
    """One cluster's scheduler. `check_every` proves the state's invariants every so many calls."""

    def __init__(
        self,
        policy: Policy,
        predict: Predictor,
        state: State | None = None,
        *,
        check_every: int = 0,
    ) -> None:
        self.state = state if state is not None else State()
        self.decide_by(policy, predict)
        self._check_every = check_every
        self._calls = 0

    def decide_by(self, policy: Policy, predict: Predictor) -> None:
        """From now on by these; `RulesChanged` among the next facts says so to the journal."""
        self.policy = policy
        if isinstance(predict, LearnsSpeeds):
            predict = predict.with_speeds(self.state.speeds)
        self.predict = predict

    def handle(self, now: float, facts: Sequence[ev.Fact]) -> list[ev.Decision]:
        """Take facts into account and decide what follows."""
        state = self.state
        state.apply_all(now, facts)
        kinds = set(map(type, facts))
        if kinds <= _QUIET and not any(map(self._can_resize, facts)):
            decisions = []
        else:
            # After all facts, never between them: a journal has them first, and must fold to the
            # same.
            plan = Plan(state)
            if not kinds.isdisjoint(_FOLLOW_UPS):
                _follow_up(plan, facts)
            if state.reservations:
                _launch_ready(plan)
            opened = -1
            while opened != state.gates.opened:  # a rejection may let others through
                opened = state.gates.opened
                self.policy.schedule(plan, self.predict)
            decisions = plan.decisions
        if self._check_every:
            self._calls += 1
            if self._calls % self._check_every == 0:
                state.check()
        return decisions

    def _can_resize(self, fact: Any) -> bool:
        """An elastic job that started can be resized from now on."""
        job = self.state.jobs.get(fact.job) if isinstance(fact, ev.JobStarted) else None
        return job is not None and job.spec.elastic

    def refusal(self, fact: ev.JobSubmitted) -> Reason | None:
        """Why a job that is not submitted yet could never run here; None when it could, or when
        the policy does not say."""
        if not isinstance(self.policy, Foreknows):
            return None
        state = self.state
        job = Job(fact.spec, state.submitted, state.now, state.now)
        job.estimates = fact.estimates
        return self.policy.never(job, Plan(state), self.predict)

    def explain(self, job_id: str) -> Reason | None:
        """Why a job is where it is; None for a job that is not known (any more)."""
        job = self.state.jobs.get(job_id)
        if job is None:
            return None
        if job.state is JobState.BLOCKED:
            return self.state.gates.why(job, self.state.jobs)
        if job.state is not JobState.PENDING:
            return job.reason or Reason(ReasonCode.OK, str(job.state))
        hold = self.state.reservations.get(job_id)
        if hold is not None:
            nodes = ", ".join(sorted({worker.node for worker in hold}))
            return Reason(ReasonCode.RESERVED, f"room is being made for it on {nodes}")
        return self.policy.explain(job, Plan(self.state), self.predict)


def _follow_up(plan: Plan, facts: Sequence[ev.Fact]) -> None:
    """Answer the requests that leave no choice."""
    for fact in facts:
        answer = _FOLLOW_UPS.get(type(fact))
        if answer is not None:
            answer(plan, fact)


def _launch_ready(plan: Plan) -> None:
    """Launch the jobs whose reserved room is free."""
    state = plan.state
    for job_id, hold in list(state.reservations.items()):
        if state.ready(job_id):
            plan.place(state.jobs[job_id], hold)


def _on_cancel(plan: Plan, fact: ev.CancelRequested) -> None:
    _stop_active(plan, fact.job, StopIntent.CANCEL, "cancelled by request", fact.reason)


def _on_halt(plan: Plan, fact: ev.HaltRequested) -> None:
    _stop_active(plan, fact.job, StopIntent.HALT, "halted by request")


def _stop_active(
    plan: Plan, job_id: str, intent: StopIntent, text: str, reason: Reason | None = None
) -> None:
    job = plan.state.active.get(job_id)
    # A cancel outranks whatever stop is under way; a halt outranks only a requeue.
    if job is not None and job.intent not in (intent, StopIntent.CANCEL):
        plan.stop(job, intent, reason or Reason(ReasonCode.REQUESTED, text))


def _on_node_down(plan: Plan, fact: ev.NodeDown) -> None:
    for job in list(plan.state.active.values()):
        if job.state is not JobState.STOPPING and _is_on(job, fact.node):
            reason = Reason(ReasonCode.NODE_LOST, f"node {fact.node} went away")
            plan.stop(job, StopIntent.REQUEUE, reason)


def _on_limits_advised(plan: Plan, fact: ev.LimitsAdvised) -> None:
    job = plan.state.active.get(fact.job)
    if job is None or job.attempt != fact.attempt or job.state is not JobState.RUNNING:
        return
    if not plan.state.can(ev.Limit):
        return
    ask = ask_of(job, 0)
    limits = Resources(
        cpu_milli=min(fact.limits.cpu_milli, ask.cpu_milli or fact.limits.cpu_milli),
        memory_mib=min(fact.limits.memory_mib, ask.memory_mib or fact.limits.memory_mib),
        **_share_limits(job, fact),
    )
    if limits != job.limits:
        plan.limit(job, limits, fact.reason)


def _share_limits(job: Job, fact: ev.LimitsAdvised) -> dict[str, int]:
    """What a job's shares of GPUs are held to: never below its request, and never more memory than
    it asked for, which others have been promised. Nothing said, or somebody asked for the limit
    it has and nobody for this one: as before."""
    ask, had, wanted = ask_of(job, 0), job.limits or Resources(), fact.limits
    milli = min(max(wanted.gpu_milli, ask.gpu_milli), WHOLE_GPU) if wanted.gpu_milli else 0
    if job.limit_asked == job.attempt and fact.reason.code is not ReasonCode.REQUESTED:
        milli = 0
    memory = min(wanted.gpu_memory_mib, ask.gpu_memory_mib or wanted.gpu_memory_mib)
    return {
        "gpu_milli": milli or had.gpu_milli,
        "gpu_memory_mib": memory or had.gpu_memory_mib,
    }


def _on_remedy_advised(plan: Plan, fact: ev.RemedyAdvised) -> None:
    job = plan.state.active.get(fact.job)
    if job is not None and stops(job, fact):
        plan.stop(job, StopIntent.REQUEUE, fact.reason)


def _on_rules_changed(plan: Plan, fact: ev.RulesChanged) -> None:
    """What an earlier executor was to resize, and this one cannot, starts again."""
    if ev.Resize.__name__ in fact.lacks:
        for job in list(plan.state.active.values()):
            if job.resizing is not None and job.state is not JobState.STOPPING:
                plan.resize(job, job.resizing)


def _is_on(job: Job, node: str) -> bool:
    workers = job.allocation + (job.resizing or ())
    return any(worker.node == node for worker in workers)


_FOLLOW_UPS: dict[type[Any], Any] = {
    ev.CancelRequested: _on_cancel,
    ev.HaltRequested: _on_halt,
    ev.NodeDown: _on_node_down,
    ev.LimitsAdvised: _on_limits_advised,
    ev.RemedyAdvised: _on_remedy_advised,
    ev.RulesChanged: _on_rules_changed,
}
