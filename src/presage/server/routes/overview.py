"""The first page in one answer: what runs, what waits and why, what is wasted."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from presage.control.overview import glance, of_today
from presage.model.server_answers import Overview
from presage.server.routes.common import Me, Parts

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["cluster"])


@router.get("/overview", response_model=Overview)
async def overview(
    service: Parts, me: Me, top: Annotated[int, Query(ge=1, le=100)] = 8
) -> JSONResponse:
    """What the cluster has and what is held, the largest jobs that run, those that wait longest
    and why, and what is held but not used. Figures are of everything, lists are of jobs that you
    may see."""
    uses = service.recorder.uses
    view = await service.ask(lambda engine: glance(engine, uses, top, me))
    for job in view["waiting"]:
        job["eta_s"] = service.starts.eta(job["id"])
    stored = await asyncio.to_thread(of_today, service.store, me, time.time())
    return JSONResponse({"at": time.time(), **view, **stored})
