"""How many workers an elastic job is to have, and the limits of its shares of GPUs, as its owner
asks."""

from __future__ import annotations

from typing import Annotated, Self

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from presage.control.orders import limit_shares, scale_job
from presage.manifest.quantities import memory, memory_mib
from presage.model.answers import ScaleAccepted
from presage.server.routes.common import Me, Parts, clean

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["jobs"])


class ScaleBody(BaseModel):
    """What to ask for: another number of workers, or other limits of its shares of GPUs."""

    model_config = ConfigDict(extra="forbid", strict=True)

    workers: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    role: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """Workers of which role; the first unless given."""
    gpu_limit: Annotated[float, Field(gt=0, le=1)] | None = None
    """The part of a GPU that none of its workers passes."""
    gpu_memory: Annotated[str, AfterValidator(memory)] | None = None
    """What each may hold, such as 4Gi."""

    @model_validator(mode="after")
    def _something(self) -> Self:
        limits = self.gpu_limit is not None or self.gpu_memory is not None
        if limits == (self.workers is not None):
            raise ValueError("give either workers, or gpu_limit and gpu_memory")
        if limits and self.role is not None:
            raise ValueError("role goes with workers: the shares are those of the first role")
        return self


@router.post("/jobs/{job_id}/scale", status_code=202, response_model=ScaleAccepted)
async def scale(job_id: str, body: ScaleBody, service: Parts, me: Me) -> JSONResponse:
    """Give an elastic job so many workers of a role, after a checkpoint; or hold the shares of
    GPUs of its workers to other limits while it runs."""
    job = clean(job_id)
    if body.workers is not None:
        return JSONResponse(await scale_job(service, me, job, body.workers, body.role), 202)
    held = memory_mib(body.gpu_memory)
    return JSONResponse(await limit_shares(service, me, job, body.gpu_limit, held), 202)
