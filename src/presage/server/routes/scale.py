"""How many workers an elastic job is to have, and the limits of its shares of GPUs, as its owner
asks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated, Self

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from presage.control.site.service import Service
from presage.core.engine import Engine
from presage.executors.node.shares.methods import Guarantee
from presage.manifest import Manifest, to_spec
from presage.manifest.quantities import memory, memory_mib
from presage.model import event as ev
from presage.model.answers import ScaleAccepted
from presage.model.cluster import WHOLE_GPU, Resources
from presage.model.errors import BadRequest, Conflict
from presage.model.job import JobState, Reason, ReasonCode, Role
from presage.server.routes.common import Me, Parts, clean
from presage.store.records import JobRow, User

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["jobs"])


class ScaleBody(BaseModel):
    """What to ask for: another number of workers, or other limits of its shares of GPUs."""

    model_config = ConfigDict(extra="forbid", strict=True)

    workers: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    gpu_limit: Annotated[float, Field(gt=0, le=1)] | None = None
    """The part of a GPU that none of its workers passes."""
    gpu_memory: Annotated[str, AfterValidator(memory)] | None = None
    """What each may hold, such as 4Gi."""

    @model_validator(mode="after")
    def _something(self) -> Self:
        limits = self.gpu_limit is not None or self.gpu_memory is not None
        if limits == (self.workers is not None):
            raise ValueError("give either workers, or gpu_limit and gpu_memory")
        return self


@router.post("/jobs/{job_id}/scale", status_code=202, response_model=ScaleAccepted)
async def scale(job_id: str, body: ScaleBody, service: Parts, me: Me) -> JSONResponse:
    """Give an elastic job so many workers of its first role, after a checkpoint; or hold the
    shares of GPUs of its workers to other limits while it runs."""
    row = await asyncio.to_thread(service.changeable, clean(job_id), me)
    if body.workers is None:
        workers = await _limit_shares(row, body, service, me)
    else:
        workers = body.workers
        _check_workers(row, workers)
        fact = ev.ScaleRequested(row.id, workers)
        await service.requests.request(fact, me, "scale", row.id, workers=workers)
    after = await asyncio.to_thread(service.store.jobs.get, row.id)
    status = after.status if after is not None else row.status
    return JSONResponse({"id": row.id, "status": status, "workers": workers}, 202)


def _check_workers(row: JobRow, workers: int) -> None:
    role = _first_role(row)
    if role.min == role.max:
        raise Conflict(
            f"job {row.id} has a fixed number of workers, {role.min}; submit it with a range such "
            f"as workers: {role.min}..{max(role.min + 1, workers)}"
        )
    if not role.min <= workers <= role.max:
        raise BadRequest(f"job {row.id} has {role.min} to {role.max} workers, not {workers}")


async def _limit_shares(row: JobRow, body: ScaleBody, service: Service, me: User) -> int:
    """Have the limits of its shares changed; how many workers it has."""
    role = _first_role(row)
    share = next(iter(Manifest.from_json(row.manifest).all_roles.values())).resources.gpu
    if share is None:
        raise Conflict(
            f"job {row.id} has no enforced share of a GPU; submit it with gpu: {{request: 0.3}}"
        )
    if Guarantee.LIVE not in service.settings.shares.gives:
        by = service.settings.shares.method
        raise Conflict(f"shares by {by} cannot change while a job runs; submit it again")
    milli = round((body.gpu_limit or 0.0) * WHOLE_GPU)
    if milli and milli < role.resources.gpu_milli:
        least = role.resources.gpu_milli / WHOLE_GPU
        raise BadRequest(f"job {row.id} requests {least:g} of a GPU; its limit cannot be below")
    held = memory_mib(body.gpu_memory)
    if held > role.resources.gpu_memory_mib > 0:
        most = role.resources.gpu_memory_mib
        raise BadRequest(f"job {row.id} asked for {most} MiB of a GPU; it cannot have more")

    def question(engine: Engine) -> tuple[int, int, Resources] | None:
        job = engine.state.active.get(row.id)
        if job is None or job.state is not JobState.RUNNING:
            return None
        return job.attempt, len(job.allocation), job.limits or job.spec.roles[0].resources

    running: tuple[int, int, Resources] | None = await service.ask(question)
    if running is None:
        raise Conflict(f"job {row.id} does not run; its shares can change while it does")
    attempt, workers, now = running
    limits = replace(now, gpu_milli=milli, gpu_memory_mib=held)
    reason = Reason(ReasonCode.REQUESTED, f"its shares of GPUs changed by {me.name}")
    fact = ev.LimitsAdvised(row.id, attempt, limits, reason)
    detail = {"gpu_limit": body.gpu_limit, "gpu_memory": body.gpu_memory}
    await service.requests.request(fact, me, "scale", row.id, **detail)
    return workers


def _first_role(row: JobRow) -> Role:
    return to_spec(Manifest.from_json(row.manifest), row.id, row.owner).roles[0]
