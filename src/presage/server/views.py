"""What the HTTP API answers with, as models: the shapes that OpenAPI and `--json` promise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from presage.store.records import AuditEntry, JobRow, Transition, User

__all__ = [
    "Accepted",
    "AuditList",
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
    "UserList",
    "UserView",
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


class Accepted(_View):
    """A job is on disk, or a request about one."""

    id: str
    status: str


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


class JobStatus(JobSummary):
    """Everything about one job."""

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


def summary_view(row: JobRow, reason: Mapping[str, str] | None = None) -> dict[str, Any]:
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
    }


def status_view(
    row: JobRow, history: Sequence[Transition], reason: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Everything about one job."""
    return {
        **summary_view(row, reason),
        "history": [
            {
                "at": item.at,
                "status": item.status,
                "reason": {"code": item.reason_code, "text": item.reason_text},
            }
            for item in history
        ],
    }


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
