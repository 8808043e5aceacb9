"""Jobs as somebody asks for them: a page of those that may be seen, or everything about one. The
server that decides answers from memory as far as it can."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from presage.control.board import STATUSES
from presage.control.people.accounts import scope
from presage.control.site.service import Service
from presage.control.views.ahead import why
from presage.control.views.jobs import status_view, summary_view
from presage.model.errors import UserError
from presage.store.records import JobRow, User

__all__ = ["job_page", "one_job"]


async def job_page(
    service: Service,
    me: User,
    statuses: Sequence[str],
    *,
    owner: str | None,
    queue: str | None,
    array: str | None,
    limit: int,
    after: int | None,
) -> dict[str, Any]:
    """Jobs, newest first, and where the next page begins. `array` is the id of one, for its
    members alone; empty, it leaves out all members of arrays."""
    wanted = [item.upper() for item in statuses]
    if unknown := [item for item in wanted if item not in STATUSES]:
        raise UserError(
            f"status {unknown[0][:40]!r} is not known; there are {', '.join(STATUSES)}"
        )
    whose = scope(me, owner)
    if whose is None:
        return {"jobs": [], "next": None}
    asked = {**whose, "queue": queue}
    only = {name: value for name, value in asked.items() if value is not None}

    def fits(row: JobRow) -> bool:
        return all(getattr(row, name) == value for name, value in only.items()) and (
            (not wanted or row.status in wanted) and (array is None or (row.array or "") == array)
        )

    def read() -> Sequence[JobRow]:
        jobs = service.store.jobs
        return jobs.list(**asked, statuses=wanted, array=array, limit=limit, after=after)

    rows = service.recent.page(service.live.lease, fits, limit, after)
    rows = await asyncio.to_thread(read) if rows is None else rows
    eta = service.starts.eta
    return {
        "jobs": [summary_view(row, eta_s=eta(row.id)) for row in rows],
        "next": rows[-1].seq if len(rows) == limit else None,
    }


async def one_job(service: Service, me: User, job_id: str, wait_eta_s: float) -> dict[str, Any]:
    """Everything about a job. One that was submitted this moment is answered for once it is part
    of a forecast, or after so many seconds."""
    known = await service.look(job_id, me)
    until = time.monotonic() + wait_eta_s
    while known.row.status == "QUEUED" and time.monotonic() < until:
        if service.starts.expects(known.row.id):
            break
        await asyncio.sleep(0.05)
        known = await service.look(known.row.id, me)
    row = known.row
    reason = await asyncio.to_thread(why, service, row) if row.status == "QUEUED" else None
    risk = await asyncio.to_thread(service.risks.of, row) if row.started_at is not None else None
    left = await asyncio.to_thread(service.results.summary, row.id) if row.started_at else None
    return status_view(row, known.history, reason, service.starts.eta(row.id), risk, left)
