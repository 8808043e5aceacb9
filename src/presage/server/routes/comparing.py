"""Jobs beside each other, and what was foreseen of a job beside what was measured."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from presage.control.comparing import differences, measured_of, metric_curves
from presage.model.answers import JobSummary
from presage.model.errors import BadRequest
from presage.server.routes.common import Me, Parts
from presage.server.routes.jobs import clean
from presage.server.views import ApiView, summary_view

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["charts"])

_MOST_JOBS = 12


class Parameter(ApiView):
    """A key of manifests that is not the same in all; null where a manifest lacks it."""

    key: str
    values: list[str | None]


class MetricCurve(ApiView):
    """A metric of one job; `step` is null where it reported none."""

    job: str
    seconds: list[float]
    """Since the job started."""
    step: list[float | None]
    values: list[float]


class JobComparison(ApiView):
    """Jobs beside each other."""

    jobs: list[JobSummary]
    parameters: list[Parameter]
    """In the order of the jobs."""
    metrics: dict[str, list[MetricCurve]]


class ForeseenQuantity(ApiView):
    """What was foreseen, and what it turned out to be; null when it is not known (yet)."""

    name: str
    unit: str
    p10: float
    p50: float
    p90: float
    origin: str
    measured: float | None


class ForeseenList(ApiView):
    """Of one job."""

    quantities: list[ForeseenQuantity]


@router.get("/compare", response_model=JobComparison)
async def compare(
    service: Parts, me: Me, job: Annotated[list[str], Query(min_length=1, max_length=_MOST_JOBS)]
) -> JSONResponse:
    """Up to 12 jobs: what differs in their manifests, and their metrics over time and steps."""

    def read() -> dict[str, Any]:
        found = [service.seen(clean(name), me) for name in job]
        rows = list({row.id: row for row in found}.values())
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
        row = service.seen(clean(job_id), me)
        said = row.estimates or {}
        known = {name: said[name] for name in _NAMES if said.get(name)}
        measured = measured_of(service.layout, row) if known else {}
        return [
            {
                "name": _NAMES[name],
                "unit": about["unit"],
                **{end: about[end] for end in ("p10", "p50", "p90")},
                "origin": about.get("origin", ""),
                "measured": measured.get(name),
            }
            for name, about in known.items()
        ]

    return JSONResponse({"quantities": await asyncio.to_thread(read)})


_NAMES = {
    "runtime_s": "run time",
    "memory_mib": "GPU memory",
    "utilization": "GPU utilization",
    "step_s": "time of a step",
}
