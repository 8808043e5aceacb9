"""What pages draw: the cluster device by device, and how it and its jobs were over time."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from presage.control.cluster_map import hide_others, map_of
from presage.control.people.accounts import UserRole
from presage.control.views.ahead import what_jobs_wait_for
from presage.control.views.charts import known_runs, log_files_of, reported, used_by_workers
from presage.model.page_answers import (
    ClusterMap,
    JobTelemetry,
    LogFiles,
    ProgressSeries,
    Utilization,
    WaitingList,
)
from presage.server.routes.common import Me, Parts, clean

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["charts"])


@router.get("/cluster-map", response_model=ClusterMap)
async def cluster_map(service: Parts, me: Me) -> JSONResponse:
    """Every device of every node and who is on it; whose jobs you may not see stay unnamed."""
    picture = await service.ask(map_of)
    if me.role == UserRole.USER:
        known = await asyncio.to_thread(known_runs, service, me)
        hide_others(picture, known)
    return JSONResponse(picture)


@router.get("/utilization", response_model=Utilization)
async def utilization(
    service: Parts,
    me: Me,
    hours: Annotated[float, Query(gt=0, le=24 * 60)] = 24.0,
    points: Annotated[int, Query(ge=2, le=2000)] = 300,
) -> JSONResponse:
    """The cluster over the last hours: what there is, what is held, what is used of it."""
    since = time.time() - hours * 3600
    return JSONResponse(await asyncio.to_thread(service.history.since, since, points))


@router.get("/jobs/{job_id}/telemetry", response_model=JobTelemetry)
def telemetry(
    job_id: str,
    service: Parts,
    me: Me,
    attempt: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
    points: Annotated[int, Query(ge=2, le=2000)] = 300,
) -> JSONResponse:
    """What the workers of a job used over time; without an attempt, of all of them."""
    row = service.seen(clean(job_id), me)
    return JSONResponse(used_by_workers(service, row, attempt, points))


@router.get("/jobs/{job_id}/progress", response_model=ProgressSeries)
def progress(job_id: str, service: Parts, me: Me) -> JSONResponse:
    """What a job reported and how many workers it had, over time."""
    return JSONResponse(reported(service, service.seen(clean(job_id), me)))


@router.get("/jobs/{job_id}/log-files", response_model=LogFiles)
def log_files(job_id: str, service: Parts, me: Me) -> JSONResponse:
    """Whose output is there, and how long it is."""
    return JSONResponse({"files": log_files_of(service, service.seen(clean(job_id), me))})


@router.get("/waiting", response_model=WaitingList)
async def waiting(
    service: Parts, me: Me, job: Annotated[list[str], Query(min_length=1, max_length=100)]
) -> JSONResponse:
    """What each of these jobs waits for at this moment; jobs that do not wait are left out, and
    all of them while this server does not decide."""
    wanted = [item for item in job if "\0" not in item]
    return JSONResponse({"waiting": await what_jobs_wait_for(service, wanted, me)})
