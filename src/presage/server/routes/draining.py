"""What a drain of a node would do, before somebody asks for it."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from presage.control.accounts import UserRole, require
from presage.core.engine import Engine
from presage.model.answers import AtRisk
from presage.server.routes.cluster import find_node
from presage.server.routes.common import Me, Parts
from presage.server.service import Service
from presage.server.views import ApiView

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["cluster"])


class MovedJob(ApiView):
    """A job that would be stopped and start elsewhere."""

    id: str
    owner: str
    workers_here: int
    workers: int
    at_risk: AtRisk | None
    """What it would lose at most; null when it does not run yet."""


class DrainOutlook(ApiView):
    """What a drain would move."""

    node: str
    state: str
    jobs: list[MovedJob]


@router.get("/nodes/{name}/drain", response_model=DrainOutlook)
async def drain_outlook(name: str, service: Parts, me: Me) -> JSONResponse:
    """The jobs that a drain of this node would move, and what each would lose at most; for
    operators."""
    require(me, UserRole.OPERATOR)
    node, where, _ = await find_node(service, name)

    def question(engine: Engine) -> list[tuple[str, int, int]]:
        found = []
        for job in engine.state.active.values():
            here = sum(worker.node == node.name for worker in job.allocation)
            if here:
                found.append((job.id, here, len(job.allocation)))
        return found

    on_it = await service.ask(question)
    jobs = await asyncio.to_thread(_moved, service, on_it)
    return JSONResponse({"node": node.name, "state": where, "jobs": jobs})


def _moved(service: Service, on_it: list[tuple[str, int, int]]) -> list[dict[str, Any]]:
    moved = []
    for job, here, workers in on_it:
        row = service.store.jobs.get(job)
        if row is not None:
            about = {"workers_here": here, "workers": workers, "at_risk": service.risks.of(row)}
            moved.append({"id": row.id, "owner": row.owner, **about})
    return moved
