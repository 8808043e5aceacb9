"""Whether the server lives, whether it decides, figures for Prometheus, and alerts."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel

from presage.control.metrics import exposition
from presage.control.people.accounts import UserRole
from presage.control.views.diagnosis import alert_texts
from presage.model.errors import PresageError
from presage.server.problems import problem
from presage.server.routes.common import Me, Parts

__all__ = ["router"]

router = APIRouter(tags=["health"])


class Health(BaseModel):
    """How the server is."""

    status: str
    leading: bool
    leader: str | None


class Alerts(BaseModel):
    """A sentence each."""

    alerts: list[str]


@router.get("/healthz", response_model=Health)
async def healthz(service: Parts) -> JSONResponse:
    """The process lives and answers."""
    leading = service.live.leading.is_set()
    return JSONResponse(
        {"status": "ok", "leading": leading, "leader": service.settings.url if leading else None}
    )


@router.get("/readyz", response_model=Health)
async def readyz(service: Parts) -> JSONResponse:
    """Somebody decides: this server, or the one that is named."""
    if service.live.leading.is_set():
        url = service.settings.url
        return JSONResponse({"status": "ok", "leading": True, "leader": url})
    try:
        leader = await asyncio.to_thread(service.store.lease.leader)
    except PresageError as error:
        return problem(503, error.code, str(error))
    if leader is None or leader.holder == service.live.seat.name:
        return problem(503, "not_leading", "no server decides at the moment")
    return JSONResponse({"status": "ok", "leading": False, "leader": leader.url})


@router.get("/api/v1/alerts", response_model=Alerts)
async def alerts(service: Parts, me: Me) -> JSONResponse:
    """What somebody should look at: estimates that are off by far more than they promised, and
    whether there is trouble."""
    return JSONResponse({"alerts": await asyncio.to_thread(alert_texts, service, me)})


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses={200: {"content": {"text/plain": {}}, "description": "Prometheus exposition"}},
)
async def metrics(service: Parts, me: Me) -> PlainTextResponse:
    """Figures for Prometheus; with users, any token will do, but what jobs use is told to those
    who may see all of them."""
    text: Any = await exposition(service, workers=me.role != UserRole.USER)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")
