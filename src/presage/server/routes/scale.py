"""How many workers an elastic job is to have, as its owner asks."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from presage.control.orders import scale_job
from presage.model.answers import ScaleAccepted
from presage.server.routes.common import Me, Parts, clean

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["jobs"])


class ScaleBody(BaseModel):
    """What to ask for."""

    model_config = ConfigDict(extra="forbid", strict=True)

    workers: Annotated[int, Field(ge=1, le=1_000_000)]


@router.post("/jobs/{job_id}/scale", status_code=202, response_model=ScaleAccepted)
async def scale(job_id: str, body: ScaleBody, service: Parts, me: Me) -> JSONResponse:
    """Give an elastic job so many workers of its first role, after a checkpoint."""
    return JSONResponse(await scale_job(service, me, clean(job_id), body.workers), 202)
