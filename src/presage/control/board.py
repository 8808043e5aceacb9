"""What users see of a job, from what the core knows: statuses, and the rows that change in a step.

Pure: a step's facts, decisions and moves in, changes of rows out. The core has states that users
need not know; here is the one place that translates them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from presage.core.engine import Engine
from presage.core.state import State
from presage.model import event as ev
from presage.model.cluster import Node
from presage.model.job import Job, JobState, Reason, ReasonCode
from presage.store.records import JobChange

__all__ = ["ENDED", "METRIC", "STATUSES", "changes_of", "nodes_of", "status_of"]

STATUSES = (
    "QUEUED",
    "DOWNLOADING",
    "PROCESSING",
    "STORING",
    "COMPLETED",
    "FAILED",
    "HALTED",
    "CANCELLED",
)
ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED"})

_STATUS = {
    JobState.PENDING: "QUEUED",
    JobState.BLOCKED: "QUEUED",
    JobState.STARTING: "DOWNLOADING",
    JobState.RUNNING: "PROCESSING",
    JobState.HALTED: "HALTED",
    JobState.SUCCEEDED: "COMPLETED",
    JobState.FAILED: "FAILED",
    JobState.CANCELLED: "CANCELLED",
}
METRIC = "presage/metric"
"""The label of a job that says by which of its metrics it is compared."""
STORING = "storing"
"""The stage in which a run's workers have ended well and its results are being stored."""
_FINE = Reason(ReasonCode.OK, "")


def status_of(job: Job) -> str:
    """The status of a job that is alive; one that is stopping keeps the status it had."""
    if job.stage == STORING and job.state in (JobState.RUNNING, JobState.STOPPING):
        return "STORING"
    return _STATUS.get(job.state, "PROCESSING")


def changes_of(
    now: float, state: State, facts: Iterable[ev.Fact], decisions: Iterable[ev.Decision]
) -> list[JobChange]:
    """What became different in the step that the state is in, in its order."""
    said = _Said(facts)
    changes = [_moved(now, job, to, why, said) for job, to, why in state.moves]
    changes += said.stages(now, state)
    for decision in decisions:
        if isinstance(decision, ev.Launch):
            job = state.jobs[decision.job]
            changes.append(
                JobChange(
                    job=job.id,
                    at=now,
                    status="DOWNLOADING",
                    stage="",
                    reason_code=_FINE.code,
                    reason_text=_FINE.text,
                    attempt=decision.attempt,
                    workers=len(job.allocation),
                    nodes=_nodes(job),
                )
            )
        elif isinstance(decision, ev.Stop):
            changes.append(
                JobChange(
                    job=decision.job,
                    at=now,
                    stage="stopping",
                    reason_code=decision.reason.code,
                    reason_text=decision.reason.text,
                )
            )
    return changes


class _Said:
    """What the facts of a step say about runs, by job."""

    def __init__(self, facts: Iterable[ev.Fact]) -> None:
        self.codes: dict[str, int | None] = {}
        self.resized: list[str] = []
        self._stages: list[ev.StageChanged] = []
        self._phases: list[ev.PhaseChanged] = []
        self._progress: dict[str, ev.Progress] = {}
        for fact in facts:
            if isinstance(fact, ev.JobExited):
                self.codes[fact.job] = fact.exit_code
            elif isinstance(fact, ev.StageChanged):
                self._stages.append(fact)
            elif isinstance(fact, ev.PhaseChanged):
                self._phases.append(fact)
            elif isinstance(fact, ev.Progress):
                self._progress[fact.job] = fact
            elif isinstance(fact, ev.JobResized):
                self.resized.append(fact.job)

    def stages(self, now: float, state: State) -> Sequence[JobChange]:
        """Stages, progress and new sizes of runs that go on."""
        changes = []
        for stage in self._stages:
            job = state.active.get(stage.job)
            if job is not None and job.attempt == stage.attempt:
                status = "STORING" if stage.stage == STORING else None
                changes.append(JobChange(job=job.id, at=now, status=status, stage=stage.stage))
        for phase in self._phases:
            job = state.active.get(phase.job)
            works = job is not None and job.state is JobState.RUNNING and job.stage != STORING
            if job is not None and works and job.attempt == phase.attempt:
                changes.append(JobChange(job=job.id, at=now, stage=f"phase {job.phase}"))
        over = {job.id: job for job in state.ended} if self._progress else {}
        for progress in self._progress.values():
            job = state.active.get(progress.job) or over.get(progress.job)
            if job is not None and job.attempt == progress.attempt:
                body = {"done": progress.done, **progress.detail}
                metric = progress.detail.get(job.spec.labels.get(METRIC, ""))
                changes.append(JobChange(job=job.id, at=now, progress=body, metric=metric))
        for name in self.resized:
            if (job := state.active.get(name)) is not None:
                workers, nodes = len(job.allocation), _nodes(job)
                changes.append(JobChange(job=name, at=now, workers=workers, nodes=nodes))
        return changes


def _moved(now: float, job: Job, to: JobState, reason: Reason | None, said: _Said) -> JobChange:
    reason = reason or _FINE
    at_rest = to is not JobState.RUNNING
    return JobChange(
        job=job.id,
        at=now,
        status=_STATUS[to],
        stage="",
        reason_code=reason.code,
        reason_text=reason.text,
        workers=0 if at_rest else len(job.allocation),
        nodes=() if at_rest else _nodes(job),
        started_at=now if to is JobState.RUNNING else None,
        ended_at=now if to.ended else None,
        exit_code=said.codes.get(job.id) if at_rest else None,
    )


def _nodes(job: Job) -> tuple[str, ...]:
    return tuple(dict.fromkeys(worker.node for worker in job.allocation))


def nodes_of(engine: Engine) -> list[tuple[Node, str, dict[str, Any]]]:
    """Every node, its state, and what is free and who is on it."""
    state = engine.state
    capacity = state.capacity
    on: dict[str, dict[str, None]] = {}
    for job in state.active.values():
        for worker in job.allocation + (job.resizing or ()):
            on.setdefault(worker.node, {})[job.id] = None
    nodes = []
    for name, i in capacity.index.items():
        node = capacity.nodes[i]
        where = "down" if name in state.down else "draining" if name in state.draining else "up"
        free = {
            "gpu_milli": sum(max(0, milli) for milli in capacity.free_gpu[i]),
            "cpu_milli": capacity.free_cpu[i],
            "memory_mib": capacity.free_memory[i],
            "jobs": list(on.get(name, ())),
        }
        nodes.append((node, where, free))
    return nodes
