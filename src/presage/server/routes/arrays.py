"""Arrays: jobs that were submitted as one, looked at and told as one; and jobs submitted again."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from presage.control.people.accounts import UserRole, require, scope
from presage.control.site.service import Service
from presage.control.views.arrays import array_page, best_jobs, explain_members
from presage.control.views.jobs import accepted_view, array_view
from presage.model.answers import ArrayBest, ArrayExplanation, ArraySummary, ArrayTold, Submitted
from presage.model.page_answers import ArrayList
from presage.server.routes.common import Me, Parts, clean
from presage.store.records import ArrayRow, JobRow, User

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["arrays"])


class Resubmission(BaseModel):
    """What is to be different."""

    model_config = ConfigDict(extra="forbid", strict=True)

    set: Annotated[list[Annotated[str, Field(max_length=65536)]], Field(max_length=100)] = []
    """Changes to the manifest: `resources.gpus=2`."""
    failed: bool = False
    """Of an array, only the jobs that failed."""


Key = Annotated[str | None, Header(min_length=1, max_length=200)]


@router.get("/arrays", response_model=ArrayList)
async def list_arrays(
    service: Parts,
    me: Me,
    owner: Annotated[str | None, Query(max_length=200)] = None,
    queue: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    after: Annotated[int | None, Query(ge=0, le=2**53)] = None,
) -> JSONResponse:
    """Arrays that you may see, newest first."""
    clean(owner or "", queue)
    whose = scope(me, owner)
    if whose is None:
        return JSONResponse({"arrays": [], "next": None})
    return JSONResponse(await asyncio.to_thread(array_page, service, whose, queue, limit, after))


@router.get("/arrays/{array_id}", response_model=ArraySummary)
async def get_array(array_id: str, service: Parts, me: Me) -> JSONResponse:
    """One array: its jobs by status, and the best that was reported."""
    return JSONResponse(await asyncio.to_thread(_summary, service, array_id, me))


def _summary(service: Service, array_id: str, me: User) -> dict[str, Any]:
    row = service.array(clean(array_id), me)
    return array_view(row, service.store.arrays.counts([row.id])[row.id])


@router.get("/arrays/{array_id}/manifest", response_model=dict[str, Any])
def get_array_manifest(array_id: str, service: Parts, me: Me) -> JSONResponse:
    """What was submitted, with its sweep; secrets are references."""
    return JSONResponse(dict(service.array(clean(array_id), me).manifest))


@router.get("/arrays/{array_id}/best", response_model=ArrayBest)
async def best(
    array_id: str,
    service: Parts,
    me: Me,
    limit: Annotated[int, Query(ge=1, le=1000)] = 10,
) -> JSONResponse:
    """The best jobs of an array, by the metric of its `objective` as each last reported it."""

    def read() -> dict[str, Any]:
        return best_jobs(service, service.array(clean(array_id), me), limit)

    return JSONResponse(await asyncio.to_thread(read))


@router.get("/arrays/{array_id}/explain", response_model=ArrayExplanation)
async def explain_array(array_id: str, service: Parts, me: Me) -> JSONResponse:
    """Why the jobs of an array are where they are, and when the next of them start."""

    def read() -> dict[str, Any]:
        return explain_members(service, service.array(clean(array_id), me))

    return JSONResponse(await asyncio.to_thread(read))


@router.post("/arrays/{array_id}/stop", status_code=202, response_model=ArrayTold)
async def stop_array(array_id: str, service: Parts, me: Me) -> JSONResponse:
    """End every job of an array that is not over."""
    return await _tell(service, me, array_id, "stop")


@router.post("/arrays/{array_id}/halt", status_code=202, response_model=ArrayTold)
async def halt_array(array_id: str, service: Parts, me: Me) -> JSONResponse:
    """Stop every job of an array with a checkpoint, to go on later."""
    return await _tell(service, me, array_id, "halt")


@router.post("/arrays/{array_id}/resume", status_code=202, response_model=ArrayTold)
async def resume_array(array_id: str, service: Parts, me: Me) -> JSONResponse:
    """Have every halted job of an array go on from its checkpoint."""
    return await _tell(service, me, array_id, "resume")


async def _tell(service: Service, me: User, array_id: str, what: str) -> JSONResponse:
    row = await asyncio.to_thread(service.array, clean(array_id), me, change=True)
    return JSONResponse({"id": row.id, "jobs": await service.sweeps.tell(row, what, me)}, 202)


@router.post("/jobs/{job_id}/resubmit", status_code=201, response_model=Submitted)
async def resubmit(
    job_id: str, body: Resubmission, service: Parts, me: Me, idempotency_key: Key = None
) -> JSONResponse:
    """Submit a job again, as a new one, with the same folder and with changes."""
    require(me, UserRole.USER)
    row = await asyncio.to_thread(service.seen, clean(job_id), me)
    return await _again(service, me, row, body, idempotency_key)


@router.post("/arrays/{array_id}/resubmit", status_code=201, response_model=Submitted)
async def resubmit_array(
    array_id: str, body: Resubmission, service: Parts, me: Me, idempotency_key: Key = None
) -> JSONResponse:
    """Submit an array again, or those of its jobs that failed, as a new array."""
    require(me, UserRole.USER)
    row = await asyncio.to_thread(service.array, clean(array_id), me)
    return await _again(service, me, row, body, idempotency_key)


async def _again(
    service: Service, me: User, row: JobRow | ArrayRow, body: Resubmission, key: str | None
) -> JSONResponse:
    made = await service.sweeps.resubmit(row, body.set, me, failed=body.failed, key=key)
    return JSONResponse(accepted_view(made), 201)
