"""Jobs: submit, list, look at, stop, halt, resume."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from presage.control.orders import order_job
from presage.control.people.accounts import UserRole, require
from presage.control.site.service import Service
from presage.control.views.jobs import accepted_view
from presage.control.views.listing import job_page, one_job
from presage.manifest import SCHEMA, parse_submission
from presage.model.answers import Accepted, JobStatus, Submitted
from presage.model.errors import BadRequest
from presage.model.page_answers import JobList
from presage.server.routes.common import Me, Parts, clean, user_of
from presage.store.records import ArrayRow, JobRow

__all__ = [
    "MANIFEST_BODY",
    "router",
    "submissions",
]

router = APIRouter(prefix="/api/v1", tags=["jobs"])

_FOLDER = re.compile(r"[0-9a-f]{64}")
MANIFEST_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": SCHEMA},
            "application/yaml": {"schema": {"type": "string"}},
        },
    }
}


class _SubmitRoute(APIRoute):
    """Submissions come by the hundreds a second: they are answered without the framework's work
    of finding out what a function wants, which costs more than the rest."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Accept a job; anything but a POST is answered as usual."""
        if scope["method"] != "POST":
            await super().handle(scope, receive, send)
            return
        request = Request(scope, receive)
        service: Service = request.app.state.service
        me = await user_of(request)
        require(me, UserRole.USER)
        folder = request.query_params.get("folder")
        if folder is not None and not _FOLDER.fullmatch(folder):
            raise BadRequest("folder is the SHA-256 of a folder that was uploaded")
        key = request.headers.get("idempotency-key")
        if key is not None and not 0 < len(key) <= 200:
            raise BadRequest("an Idempotency-Key has 1 to 200 characters")
        kind = request.headers.get("content-type", "application/yaml")
        body = await request.body()
        async with service.requests.turnstile:
            await asyncio.sleep(0)
            asked = parse_submission(body, kind)
        if asked.sweep is not None:
            made: JobRow | ArrayRow = await service.sweeps.submit(asked, me, folder, key)
        else:
            made = await service.requests.submit(asked.first, me, folder, key)
        answer = JSONResponse(accepted_view(made), 201)
        await answer(scope, receive, send)


submissions = APIRouter(prefix="/api/v1", tags=["jobs"], route_class=_SubmitRoute)


@submissions.post("/jobs", status_code=201, response_model=Submitted, openapi_extra=MANIFEST_BODY)
async def submit(
    me: Me,
    folder: Annotated[str | None, Query(pattern=r"^[0-9a-f]{64}$")] = None,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=200)] = None,
) -> None:
    """Submit a manifest, as JSON or YAML. When this answers, the job is on disk. A manifest with a
    `sweep` is an array of jobs, all of them on disk or none; the id is the array's.

    With an `Idempotency-Key`, sending the same again gives the same job.
    """  # says what OpenAPI says; the work is done by _SubmitRoute


@router.get("/jobs", response_model=JobList)
async def list_jobs(
    service: Parts,
    me: Me,
    status: Annotated[list[str] | None, Query()] = None,
    owner: Annotated[str | None, Query(max_length=200)] = None,
    queue: Annotated[str | None, Query(max_length=200)] = None,
    array: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    after: Annotated[int | None, Query(ge=0, le=2**53)] = None,
) -> JSONResponse:
    """Jobs that you may see, newest first. `array` is the id of one, for its members alone; empty,
    it leaves out all members of arrays."""
    clean(owner or "", queue, array)
    page = await job_page(
        service, me, status or (), owner=owner, queue=queue, array=array, limit=limit, after=after
    )
    return JSONResponse(page)


@router.get("/jobs/{job_id}", response_model=JobStatus)
async def get_job(
    job_id: str,
    service: Parts,
    me: Me,
    wait_eta_s: Annotated[float, Query(ge=0, le=10)] = 0.0,
) -> JSONResponse:
    """Everything about one job; of one that waits, what it waits for and when it starts.

    With `wait_eta_s`, a job that was submitted this moment is answered for once it is part of a
    forecast, or after so many seconds.
    """
    return JSONResponse(await one_job(service, me, clean(job_id), wait_eta_s))


@router.get("/jobs/{job_id}/manifest", response_model=dict[str, Any])
def get_manifest(job_id: str, service: Parts, me: Me) -> JSONResponse:
    """What was submitted; secrets are references."""
    return JSONResponse(dict(service.seen(clean(job_id), me).manifest or {}))


@router.post("/jobs/{job_id}/stop", status_code=202, response_model=Accepted)
async def stop(job_id: str, service: Parts, me: Me) -> JSONResponse:
    """End a job, after a checkpoint where it can take one."""
    return JSONResponse(await order_job(service, me, clean(job_id), "stop"), 202)


@router.post("/jobs/{job_id}/halt", status_code=202, response_model=Accepted)
async def halt(job_id: str, service: Parts, me: Me) -> JSONResponse:
    """Stop a job with a checkpoint, to go on later."""
    return JSONResponse(await order_job(service, me, clean(job_id), "halt"), 202)


@router.post("/jobs/{job_id}/resume", status_code=202, response_model=Accepted)
async def resume(job_id: str, service: Parts, me: Me) -> JSONResponse:
    """Have a halted job go on from its checkpoint."""
    return JSONResponse(await order_job(service, me, clean(job_id), "resume"), 202)
