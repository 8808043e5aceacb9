"""Which jobs somebody may have removed, and what was removed of them. Removes nothing itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from presage.control.board import ENDED
from presage.control.people.accounts import may_change
from presage.control.records.retention import Removed
from presage.control.site.service import Service
from presage.model.errors import Conflict, Denied
from presage.store.records import JobRow, User

__all__ = ["named", "removal_view"]


def named(service: Service, names: Sequence[str], me: User) -> list[JobRow]:
    """These jobs, once each; raises for one that is not over or that somebody may not remove."""
    rows: dict[str, JobRow] = {}
    for name in names:
        row = service.seen(name, me)
        if not may_change(me, row):
            raise Denied(f"job {row.id} is {row.owner}'s; {me.name} may look at it only")
        if row.status not in ENDED:
            raise Conflict(f"job {row.id} is not over ({row.status}); stop it first")
        if row.removed_at is None:
            rows[row.id] = row
    return list(rows.values())


def removal_view(removed: Sequence[Removed]) -> dict[str, Any]:
    """What was removed, or would be."""
    return {
        "removed": [
            {"id": one.id, "status": one.status, "ended_at": one.ended_at, "bytes": one.bytes}
            for one in removed
        ],
        "bytes": sum(one.bytes for one in removed),
    }
