"""Removing what is kept of jobs that are over."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from presage.control.people.accounts import UserRole, may_change, require
from presage.control.views.removal import named, removal_view
from presage.model.answers import Removal
from presage.model.errors import UserError
from presage.server.routes.common import Me, Parts, clean

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

    def work() -> dict[str, Any]:
        now = time.time()
        if body.older_than_s is not None:
            rows = service.retention.older(body.older_than_s, now, lambda row: may_change(me, row))
        else:
            rows = named(service, [clean(name) for name in body.jobs], me)
        if body.dry_run:
            removed = service.retention.measure(rows)
        else:
            removed = service.retention.remove(rows, me.name, now)
        return {**removal_view(removed), "dry_run": body.dry_run}

    return JSONResponse(await asyncio.to_thread(work))
