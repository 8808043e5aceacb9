"""Jobs beside each other, and what was foreseen of a job beside what was measured."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from presage.control.comparing import differences, foreseen_and_measured, metric_curves
from presage.control.views.jobs import summary_view
from presage.model.errors import BadRequest
from presage.model.page_answers import ForeseenList, JobComparison
from presage.server.routes.common import Me, Parts, clean

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["charts"])

_MOST_JOBS = 12


@router.get("/compare", response_model=JobComparison)
async def compare(
    service: Parts, me: Me, job: Annotated[list[str], Query(min_length=1, max_length=_MOST_JOBS)]
) -> JSONResponse:
    """Up to 12 jobs: what differs in their manifests, and their metrics over time and steps."""

    def read() -> dict[str, Any]:
        seen = [service.seen(clean(name), me) for name in job]
        rows = list({row.id: row for row in seen}.values())
        return {
            "jobs": [summary_view(row, eta_s=service.starts.eta(row.id)) for row in rows],
            "parameters": differences([row.manifest or {} for row in rows]),
            "metrics": metric_curves(service.knowledge, rows),
        }

    if not all(job):
        raise BadRequest("job: names of jobs, one for each `job=`")
    return JSONResponse(await asyncio.to_thread(read))


@router.get("/jobs/{job_id}/foreseen", response_model=ForeseenList)
async def foreseen(job_id: str, service: Parts, me: Me) -> JSONResponse:
    """What was foreseen of a job when it was submitted, beside what was measured."""

    def read() -> list[dict[str, Any]]:
        return foreseen_and_measured(service.layout, service.seen(clean(job_id), me))

    return JSONResponse({"quantities": await asyncio.to_thread(read)})
