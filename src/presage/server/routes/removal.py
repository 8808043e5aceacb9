"""Removing what is kept of jobs that are over."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from presage.control.accounts import UserRole, may_change, require
from presage.control.board import ENDED
from presage.model.answers import Removal
from presage.model.errors import Conflict, Denied, UserError
from presage.server.routes.common import Me, Parts
from presage.server.routes.jobs import clean

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["jobs"])


class RemovalRequest(BaseModel):
    """Which jobs: by name, or all that have been over for so long and that you may change."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    jobs: Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=1000)] = []
    older_than_s: Annotated[float, Field(ge=0, le=10**10)] | None = None
    dry_run: bool = False


@router.post("/jobs/remove", response_model=Removal)
async def remove_jobs(body: RemovalRequest, service: Parts, me: Me) -> JSONResponse:
    """Remove logs, results, checkpoints, telemetry and the work folder (unless another job has
    it) of jobs that are over. They are no longer listed; the journal keeps what happened."""
    require(me, UserRole.USER)
    if bool(body.jobs) == (body.older_than_s is not None):
        raise UserError("name jobs, or give older_than_s; one of them")

    def work() -> JSONResponse:
        now = time.time()
        if body.older_than_s is not None:
            rows = service.retention.older(body.older_than_s, now, lambda row: may_change(me, row))
        else:
            found = {}
            for name in body.jobs:
                row = service.seen(clean(name), me)
                if not may_change(me, row):
                    raise Denied(f"job {row.id} is {row.owner}'s; {me.name} may look at it only")
                if row.status not in ENDED:
                    raise Conflict(f"job {row.id} is not over ({row.status}); stop it first")
                if row.removed_at is None:
                    found[row.id] = row
            rows = list(found.values())
        if body.dry_run:
            removed = service.retention.measure(rows)
        else:
            removed = service.retention.remove(rows, me.name, now)
        return JSONResponse(
            {
                "removed": [
                    {"id": one.id, "status": one.status, "ended_at": one.ended_at,
                     "bytes": one.bytes}
                    for one in removed
                ],
                "bytes": sum(one.bytes for one in removed),
                "dry_run": body.dry_run,
            }
        )  # fmt: skip

    return await asyncio.to_thread(work)
