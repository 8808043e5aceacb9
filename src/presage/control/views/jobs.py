"""Rows of the store in the shape of `presage.model.answers`: jobs, arrays, users, what they did.
Reads nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from presage.control.board import ENDED
from presage.model.words import interval, memory, share
from presage.store.arrays import ArrayCounts
from presage.store.records import ArrayRow, AuditEntry, JobRow, Transition, User

__all__ = [
    "accepted_view",
    "array_view",
    "audit_view",
    "estimates_view",
    "status_view",
    "summary_view",
    "user_view",
]


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
        **({"array": row.array} if row.array is not None else {}),
        **({"params": dict(row.params)} if row.params is not None else {}),
    }


def accepted_view(made: JobRow | ArrayRow) -> dict[str, Any]:
    """A job or an array that was accepted this moment."""
    if isinstance(made, ArrayRow):
        return {"id": made.id, "status": "QUEUED", "eta_s": None, "jobs": made.size}
    return {"id": made.id, "status": made.status, "eta_s": None}


def array_view(row: ArrayRow, counts: ArrayCounts) -> dict[str, Any]:
    """An array in a list."""
    over = sum(counts.statuses.get(status, 0) for status in ENDED)
    left = sum(counts.statuses.values())
    best = counts.highest if row.mode == "max" else counts.lowest
    return {
        "id": row.id,
        "name": row.name,
        "owner": row.owner,
        "queue": row.queue,
        "submitted_at": row.submitted_at,
        "ended_at": counts.ended_at if over == left else None,
        "size": row.size,
        "at_once": row.at_once or None,
        "counts": counts.statuses,
        "workers": counts.workers,
        "done": round(over / left, 4) if left else 1.0,
        "metric": row.metric or None,
        "mode": row.mode,
        "best": best if row.metric else None,
    }


def status_view(
    row: JobRow,
    history: Sequence[Transition],
    reason: Mapping[str, str] | None = None,
    eta_s: Mapping[str, float | None] | None = None,
    at_risk: Mapping[str, Any] | None = None,
    results: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Everything about one job."""
    return {
        **summary_view(row, reason, eta_s),
        "estimates": estimates_view(row),
        **({"at_risk": at_risk} if at_risk is not None else {}),
        "history": [
            {
                "at": item.at,
                "status": item.status,
                "reason": {"code": item.reason_code, "text": item.reason_text},
            }
            for item in history
        ],
        **({"results": results} if results is not None else {}),
        **({"folder": row.folder} if row.folder is not None else {}),
        **({"removed_at": row.removed_at} if row.removed_at is not None else {}),
    }


def estimates_view(row: JobRow) -> dict[str, Any] | None:
    """What was foreseen of a job, with words for people."""
    known = row.estimates
    if not known:
        return None
    parts = []
    if run := known.get("runtime_s"):
        parts.append(f"runs {interval(run['p10'], run['p90'])} in all")
    if needs := known.get("memory_mib"):
        parts.append(f"{_ends(needs, memory)} of memory")
    if busy := known.get("utilization"):
        parts.append(f"{_ends(busy, share)} of a GPU")
    if step := known.get("step_s"):
        parts.append(f"{interval(step['p10'], step['p90'])} a step")
    if talk := known.get("link_share"):
        parts.append(f"talks {_ends(talk, share)} of a step if on several nodes")
    return {**known, "text": ", ".join(parts)}


def _ends(estimate: Mapping[str, Any], words: Callable[[float], str]) -> str:
    """`1.2 to 1.9 GiB`; one number where both ends look the same."""
    low, high = words(estimate["p10"]), words(estimate["p90"])
    if low == high:
        return high
    number, _, unit = low.partition(" ")
    return f"{number if high.endswith(f' {unit}') else low} to {high}"


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
