"""How many workers an elastic job is to have, as its owner asks."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from presage.manifest import Manifest, to_spec
from presage.model import event as ev
from presage.model.answers import ScaleAccepted
from presage.model.errors import BadRequest, Conflict
from presage.model.job import Role
from presage.server.routes.common import Me, Parts, clean
from presage.store.records import JobRow

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["jobs"])


class ScaleBody(BaseModel):
    """What to ask for."""

    model_config = ConfigDict(extra="forbid", strict=True)

    workers: Annotated[int, Field(ge=1, le=1_000_000)]


@router.post("/jobs/{job_id}/scale", status_code=202, response_model=ScaleAccepted)
async def scale(job_id: str, body: ScaleBody, service: Parts, me: Me) -> JSONResponse:
    """Give an elastic job so many workers of its first role, after a checkpoint."""
    row = await asyncio.to_thread(service.changeable, clean(job_id), me)
    role = _first_role(row)
    if role.min == role.max:
        raise Conflict(
            f"job {row.id} has a fixed number of workers, {role.min}; submit it with a range such "
            f"as workers: {role.min}..{max(role.min + 1, body.workers)}"
        )
    if not role.min <= body.workers <= role.max:
        raise BadRequest(f"job {row.id} has {role.min} to {role.max} workers, not {body.workers}")
    fact = ev.ScaleRequested(row.id, body.workers)
    await service.requests.request(fact, me, "scale", row.id, workers=body.workers)
    after = await asyncio.to_thread(service.store.jobs.get, row.id)
    status = after.status if after is not None else row.status
    return JSONResponse({"id": row.id, "status": status, "workers": body.workers}, 202)


def _first_role(row: JobRow) -> Role:
    return to_spec(Manifest.from_json(row.manifest), row.id, row.owner).roles[0]
