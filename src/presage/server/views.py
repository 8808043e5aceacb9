"""What the HTTP API answers with: rows of the store in the shape of `presage.model.answers`, and
the lists and problems around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from presage.control.board import ENDED
from presage.model.answers import ArraySummary, JobSummary, NodeStatus, QueueStatus, UserInfo
from presage.store.arrays import ArrayCounts
from presage.store.records import ArrayRow, AuditEntry, JobRow, Transition, User

__all__ = [
    "ApiView",
    "ArrayList",
    "AuditList",
    "JobList",
    "NodeList",
    "Problem",
    "QueueList",
    "UserList",
    "array_view",
    "estimates_view",
    "status_view",
    "summary_view",
    "user_view",
]


class ApiView(BaseModel):
    """What answers have in common: no key that is not in the schema."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ProblemBody(ApiView):
    """What went wrong, for a machine and for a person."""

    code: str
    text: str


class Problem(ApiView):
    """Every answer that is not what was asked for."""

    error: ProblemBody


class JobList(ApiView):
    """A page of jobs, newest first."""

    jobs: list[JobSummary]
    next: int | None
    """Give it as `after` for the next page; null on the last one."""


class ArrayList(ApiView):
    """A page of arrays, newest first."""

    arrays: list[ArraySummary]
    next: int | None
    """Give it as `after` for the next page; null on the last one."""


class NodeList(ApiView):
    """The nodes of the cluster."""

    nodes: list[NodeStatus]


class QueueList(ApiView):
    """The queues."""

    queues: list[QueueStatus]


class UserList(ApiView):
    """The users."""

    users: list[UserInfo]


class AuditView(ApiView):
    """Who did what."""

    number: int
    at: float
    who: str
    what: str
    job: str
    detail: dict[str, Any]


class AuditList(ApiView):
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
        "array": row.array,
        "params": dict(row.params) if row.params is not None else None,
    }


def array_view(row: ArrayRow, counts: ArrayCounts) -> dict[str, Any]:
    """An array in a list."""
    over = sum(counts.statuses.get(status, 0) for status in ENDED)
    best = counts.highest if row.mode == "max" else counts.lowest
    return {
        "id": row.id,
        "name": row.name,
        "owner": row.owner,
        "queue": row.queue,
        "submitted_at": row.submitted_at,
        "ended_at": counts.ended_at if over >= row.size else None,
        "size": row.size,
        "at_once": row.at_once or None,
        "counts": counts.statuses,
        "workers": counts.workers,
        "done": round(over / row.size, 4) if row.size else 1.0,
        "metric": row.metric or None,
        "mode": row.mode,
        "best": best if row.metric else None,
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
