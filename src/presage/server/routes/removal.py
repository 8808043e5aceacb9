"""Removing what is kept of jobs that are over."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from presage.control import orders
from presage.model.answers import Removal
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
    names = [clean(name) for name in body.jobs]
    work = partial(orders.remove_jobs, service, me, names, body.older_than_s, dry_run=body.dry_run)
    return JSONResponse(await asyncio.to_thread(work))
