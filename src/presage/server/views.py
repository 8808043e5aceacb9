"""What the HTTP API answers with, as models: the shapes that OpenAPI and `--json` promise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from presage.store.records import AuditEntry, JobRow, Transition, User

__all__ = [
    "Accepted",
    "AuditList",
    "DryRun",
    "Eta",
    "Explanation",
    "JobList",
    "JobStatus",
    "JobSummary",
    "NewUser",
    "NodeList",
    "NodeView",
    "Problem",
    "QueueList",
    "QueueView",
    "Submitted",
    "UserList",
    "UserView",
    "estimates_view",
    "status_view",
    "summary_view",
    "user_view",
]


class _View(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProblemBody(_View):
    """What went wrong, for a machine and for a person."""

    code: str
    text: str


class Problem(_View):
    """Every answer that is not what was asked for."""

    error: ProblemBody


class ReasonView(_View):
    """Why something is as it is."""

    code: str
    text: str


class HistoryView(_View):
    """A job entered a status."""

    at: float
    status: str
    reason: ReasonView


class Eta(_View):
    """In how many seconds from now a job starts: the most likely middle, and an interval that
    holds in four of five cases. Null lies beyond what can be foreseen."""

    p10: float | None
    p50: float | None
    p90: float | None
    age_s: float
    """How long ago this was estimated."""


class Accepted(_View):
    """A job is on disk, or a request about one."""

    id: str
    status: str


class Submitted(Accepted):
    """A new job is on disk."""

    eta_s: Eta | None
    """When it starts; null when that is not known yet, which is usual in this moment: ask for the
    job."""


class EstimateView(_View):
    """A number that was foreseen."""

    p10: float
    p50: float
    p90: float
    unit: str
    source: str


class EstimatesView(_View):
    """What was foreseen of a job."""

    version: str
    """Of the models that were asked."""
    runtime_s: EstimateView | None = None
    memory_mib: EstimateView | None = None
    """GPU memory on each device; of a job without GPUs, its memory."""
    utilization: EstimateView | None = None
    step_s: EstimateView | None = None
    text: str
    """All of it for people."""


class JobSummary(_View):
    """A job in a list."""

    id: str
    name: str
    owner: str
    queue: str
    status: str
    stage: str
    reason: ReasonView
    attempt: int
    workers: int
    nodes: list[str]
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    exit_code: int | None
    progress: dict[str, Any] | None
    eta_s: Eta | None
    """When it starts; null when it does not wait or nothing is known."""


class JobStatus(JobSummary):
    """Everything about one job."""

    estimates: EstimatesView | None
    """What was foreseen when it was submitted; null when nothing was."""
    history: list[HistoryView]


class JobList(_View):
    """A page of jobs, newest first."""

    jobs: list[JobSummary]
    next: int | None
    """Give it as `after` for the next page; null on the last one."""


class Explanation(_View):
    """Why a job is where it is."""

    id: str
    status: str
    reason: ReasonView
    ahead: int | None
    """Jobs of its queue that were submitted before it and still wait."""
    ahead_jobs: list[str]
    """The first of them that you may know of."""
    eta_s: Eta | None
    helps: list[Help] | None
    """Changes with which it would start notably earlier, the best first; null when that was not
    worked out in time."""
    estimates: EstimatesView | None
    """What was foreseen when it was submitted; null when nothing was."""


class Help(_View):
    """A change, and when the job would start with it."""

    change: str
    eta_s: Eta | None


class DryRun(_View):
    """What would become of a job if it was submitted now. Nothing is kept."""

    name: str
    queue: str
    starts_now: bool
    nodes: list[str]
    """Where it would start, in the most likely case; empty when that cannot be foreseen."""
    eta_s: Eta | None


class NodeView(_View):
    """A node and what is free on it."""

    name: str
    state: str
    gpus: int
    gpu_types: list[str]
    free_gpus: float
    cpus: float | None
    free_cpus: float | None
    memory_mib: int | None
    free_memory_mib: int | None
    jobs: list[str]
    labels: dict[str, str]


class NodeList(_View):
    """The nodes of the cluster."""

    nodes: list[NodeView]


class QueueView(_View):
    """A queue: what it may have and what it has."""

    name: str
    quota_gpus: float | None
    limit_gpus: float | None
    weight: float
    used_gpus: float
    pending: int
    running: int


class QueueList(_View):
    """The queues."""

    queues: list[QueueView]


class UserView(_View):
    """Somebody who may use this server."""

    name: str
    role: str
    team: str
    created_at: float


class UserList(_View):
    """The users."""

    users: list[UserView]


class NewUser(_View):
    """A user who was just made, or got a new token: it is shown this once."""

    name: str
    role: str
    team: str
    token: str


class AuditView(_View):
    """Who did what."""

    number: int
    at: float
    who: str
    what: str
    job: str
    detail: dict[str, Any]


class AuditList(_View):
    """Entries of the audit log, newest first."""

    entries: list[AuditView]


def summary_view(
    row: JobRow,
    reason: Mapping[str, str] | None = None,
    eta_s: Mapping[str, float | None] | None = None,
) -> dict[str, Any]:
    """A job in a list; `reason` replaces the stored one."""
    return {
        "id": row.id,
        "name": row.name,
        "owner": row.owner,
        "queue": row.queue,
        "status": row.status,
        "stage": row.stage,
        "reason": dict(reason or {"code": row.reason_code, "text": row.reason_text}),
        "attempt": row.attempt,
        "workers": row.workers,
        "nodes": list(row.nodes),
        "submitted_at": row.submitted_at,
        "started_at": row.started_at,
        "ended_at": row.ended_at,
        "exit_code": row.exit_code,
        "progress": dict(row.progress) if row.progress is not None else None,
        "eta_s": eta_s if row.status == "QUEUED" else None,
    }


def status_view(
    row: JobRow,
    history: Sequence[Transition],
    reason: Mapping[str, str] | None = None,
    eta_s: Mapping[str, float | None] | None = None,
) -> dict[str, Any]:
    """Everything about one job."""
    return {
        **summary_view(row, reason, eta_s),
        "estimates": estimates_view(row),
        "history": [
            {
                "at": item.at,
                "status": item.status,
                "reason": {"code": item.reason_code, "text": item.reason_text},
            }
            for item in history
        ],
    }


def estimates_view(row: JobRow) -> dict[str, Any] | None:
    """What was foreseen of a job, with words for people."""
    known = row.estimates
    if not known:
        return None
    parts = []
    if run := known.get("runtime_s"):
        parts.append(f"runs {_range(run, _time_scale(run['p90']))} in all")
    if memory := known.get("memory_mib"):
        scale = (1024, "GiB") if memory["p90"] >= 1024 else (1, "MiB")
        parts.append(f"{_range(memory, scale)} of memory")
    if busy := known.get("utilization"):
        parts.append(f"{_range(busy, (0.01, '%'))} of a GPU")
    if step := known.get("step_s"):
        parts.append(f"{_range(step, _time_scale(step['p90']))} a step")
    return {**known, "text": ", ".join(parts)}


def _time_scale(seconds: float) -> tuple[float, str]:
    steps = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
    return next((step for step in steps if seconds >= 2 * step[0]), (0.001, "ms"))


def _range(estimate: Mapping[str, Any], scale: tuple[float, str]) -> str:
    """`1.2 to 1.9 GiB`; one number where both ends look the same."""
    low, high = (f"{estimate[end] / scale[0]:.3g}" for end in ("p10", "p90"))
    return f"{low} {scale[1]}" if low == high else f"{low} to {high} {scale[1]}"


def user_view(user: User) -> dict[str, Any]:
    """A user without anything secret."""
    return {
        "name": user.name,
        "role": user.role,
        "team": user.team,
        "created_at": user.created_at,
    }


def audit_view(entry: AuditEntry) -> dict[str, Any]:
    """An entry of the audit log."""
    return {
        "number": entry.number,
        "at": entry.at,
        "who": entry.who,
        "what": entry.what,
        "job": entry.job,
        "detail": dict(entry.detail),
    }
