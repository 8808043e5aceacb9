"""Arrays: jobs that were submitted as one, looked at and told as one; and jobs submitted again."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from presage.control.accounts import UserRole, require
from presage.control.sweeps import members
from presage.core.engine import Engine
from presage.model.answers import ArrayBest, ArrayExplanation, ArraySummary, ArrayTold, Submitted
from presage.model.errors import Conflict, PresageError
from presage.server.routes.common import Me, Parts
from presage.server.routes.jobs import clean
from presage.server.service import Service
from presage.server.views import ArrayList, array_view
from presage.store.records import ArrayRow, JobRow, User

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["arrays"])

_REASONS = 10
_LOOKED_AT = 500
"""Waiting members whose reason of this moment is looked up."""


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
    clean(owner or "")
    clean(queue or "")
    team = None
    if me.role == UserRole.USER and owner != me.name:
        if me.team:
            team = me.team
        elif owner is None:
            owner = me.name
        else:
            return JSONResponse({"arrays": [], "next": None})

    def read() -> list[dict[str, Any]]:
        asked = {"owner": owner, "team": team, "queue": queue}
        rows = service.store.arrays.list(**asked, limit=limit, after=after)
        counts = service.store.arrays.counts([row.id for row in rows])
        last.extend(rows[-1:] if len(rows) == limit else ())
        there = [row for row in rows if counts[row.id].statuses]  # else all were removed
        return [array_view(row, counts[row.id]) for row in there]

    last: list[ArrayRow] = []
    shown = await asyncio.to_thread(read)
    return JSONResponse({"arrays": shown, "next": last[0].seq if last else None})


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
        row = service.array(clean(array_id), me)
        if not row.metric:
            raise Conflict(
                f"array {row.id} has no objective; submit it with objective: {{metric: val_loss}}"
            )
        rows = service.store.jobs.best(row.id, row.mode, limit)
        others = members(service.store, row.id) if not rows else []
        known = {name for job in others for name in job.progress or () if name != "done"}
        return {
            "id": row.id,
            "metric": row.metric,
            "mode": row.mode,
            "best": [_best_view(job) for job in rows],
            "reported": sorted(known),
        }

    return JSONResponse(await asyncio.to_thread(read))


def _best_view(row: JobRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "status": row.status,
        "value": row.metric,
        "params": dict(row.params or {}),
        "progress": dict(row.progress) if row.progress is not None else None,
    }


@router.get("/arrays/{array_id}/explain", response_model=ArrayExplanation)
async def explain_array(array_id: str, service: Parts, me: Me) -> JSONResponse:
    """Why the jobs of an array are where they are, and when the next of them start."""

    def read() -> dict[str, Any]:
        row = service.array(clean(array_id), me)
        found: Counter[tuple[str, str]] = Counter()
        examples: dict[tuple[str, str], str] = {}
        shown = ("QUEUED", "FAILED", "HALTED", "CANCELLED")
        rows = members(service.store, row.id, shown)
        waiting = [job.id for job in rows if job.status == "QUEUED"]
        now = _reasons(service, waiting[:_LOOKED_AT])
        for job in rows:
            reason = now.get(job.id) or (job.reason_code, job.reason_text)
            found[reason] += 1
            examples.setdefault(reason, job.id)
        etas = [eta for eta in map(service.starts.eta, waiting) if eta is not None]
        etas.sort(key=lambda eta: eta["p50"] if eta["p50"] is not None else float("inf"))
        return {
            "id": row.id,
            "counts": service.store.arrays.counts([row.id])[row.id].statuses,
            "reasons": [
                {"reason": {"code": code, "text": text}, "jobs": jobs, "example": examples[key]}
                for key, jobs in found.most_common(_REASONS)
                for code, text in (key,)
            ],
            "next_eta_s": etas[0] if etas else None,
            "last_eta_s": etas[-1] if len(etas) == len(waiting) and etas else None,
        }

    return JSONResponse(await asyncio.to_thread(read))


def _reasons(service: Service, jobs: list[str]) -> dict[str, tuple[str, str]]:
    """What waiting jobs wait for at this moment; nothing when nobody decides."""

    def question(engine: Engine) -> dict[str, tuple[str, str]]:
        found = {}
        for job in jobs:
            if (reason := engine.explain(job)) is not None:
                found[job] = (str(reason.code), reason.text)
        return found

    try:
        known: dict[str, tuple[str, str]] = service.live.ask(question)
        return known
    except PresageError:
        return {}


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
    answer: dict[str, Any] = {"id": made.id, "status": "QUEUED", "eta_s": None}
    if isinstance(made, ArrayRow):
        answer["jobs"] = made.size
    return JSONResponse(answer, 201)
