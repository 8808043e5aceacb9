"""What is told of arrays: the best of their jobs, and why they are where they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from presage.control.site.service import Service
from presage.control.sweeps import members
from presage.control.views.jobs import array_view
from presage.core.engine import Engine
from presage.model.errors import Conflict, PresageError
from presage.store.records import ArrayRow, JobRow

__all__ = ["array_page", "best_jobs", "explain_members"]


_REASONS = 10


_LOOKED_AT = 500
"""Waiting members whose reason of this moment is looked up."""


def _best_view(row: JobRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "status": row.status,
        "value": row.metric,
        "params": dict(row.params or {}),
        "progress": dict(row.progress) if row.progress is not None else None,
    }


def _reasons(service: Service, jobs: list[str]) -> dict[str, tuple[str, str]]:
    """What waiting jobs wait for at this moment; nothing when nobody decides."""

    def question(engine: Engine) -> dict[str, tuple[str, str]]:
        reasons = {}
        for job in jobs:
            if (reason := engine.explain(job)) is not None:
                reasons[job] = (str(reason.code), reason.text)
        return reasons

    try:
        known: dict[str, tuple[str, str]] = service.live.ask(question)
        return known
    except PresageError:
        return {}


def array_page(
    service: Service,
    whose: Mapping[str, str | None],
    queue: str | None,
    limit: int,
    after: int | None,
) -> dict[str, Any]:
    """A page of arrays, newest first, and where the next one begins."""
    rows = service.store.arrays.list(**whose, queue=queue, limit=limit, after=after)
    counts = service.store.arrays.counts([row.id for row in rows])
    there = [row for row in rows if counts[row.id].statuses]  # else all were removed
    return {
        "arrays": [array_view(row, counts[row.id]) for row in there],
        "next": rows[-1].seq if len(rows) == limit else None,
    }


def best_jobs(service: Service, row: ArrayRow, limit: int) -> dict[str, Any]:
    """The best jobs of an array, by the metric of its objective."""
    if not row.metric:
        raise Conflict(
            f"array {row.id} has no objective; submit it with objective: {{metric: val_loss}}"
        )
    rows = service.store.jobs.best(row.id, row.mode, limit)
    others = members(service.store, row.id) if not rows else []
    known = {name for job in others for name in job.progress or () if name != "done"}
    return {
        "id": row.id,
        "metric": row.metric,
        "mode": row.mode,
        "best": [_best_view(job) for job in rows],
        "reported": sorted(known),
    }


def explain_members(service: Service, row: ArrayRow) -> dict[str, Any]:
    """Why the jobs of an array are where they are, and when the next of them start."""
    reasons: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    shown = ("QUEUED", "FAILED", "HALTED", "CANCELLED")
    rows = members(service.store, row.id, shown)
    waiting = [job.id for job in rows if job.status == "QUEUED"]
    now = _reasons(service, waiting[:_LOOKED_AT])
    for job in rows:
        reason = now.get(job.id) or (job.reason_code, job.reason_text)
        reasons[reason] += 1
        examples.setdefault(reason, job.id)
    etas = [eta for eta in map(service.starts.eta, waiting) if eta is not None]
    etas.sort(key=lambda eta: eta["p50"] if eta["p50"] is not None else float("inf"))
    return {
        "id": row.id,
        "counts": service.store.arrays.counts([row.id])[row.id].statuses,
        "reasons": [
            {"reason": {"code": code, "text": text}, "jobs": jobs, "example": examples[key]}
            for key, jobs in reasons.most_common(_REASONS)
            for code, text in (key,)
        ],
        "next_eta_s": etas[0] if etas else None,
        "last_eta_s": etas[-1] if len(etas) == len(waiting) and etas else None,
    }
