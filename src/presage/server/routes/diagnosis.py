"""Alerts: trouble of jobs, workers, nodes and GPUs, open and over, and news as they come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse, StreamingResponse

from presage.control.health.alerts import Alert
from presage.control.views.changes import alert_changes
from presage.control.views.diagnosis import AlertSight, alert_view, diagnose
from presage.model.page_answers import OpenAlerts
from presage.model.server_answers import Diagnosis
from presage.server.routes.common import Me, Parts, clean, server_sent

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["health"])


@router.get("/health/alerts", response_model=OpenAlerts)
async def health_alerts(
    service: Parts, me: Me, over: Annotated[int, Query(ge=0, le=2000)] = 50
) -> JSONResponse:
    """All alerts that you may see."""

    def read() -> dict[str, Any]:
        book = service.health.book
        sees = AlertSight(service, me)
        return {
            "open": [alert_view(one) for one in sees.those(book.open())],
            "over": [alert_view(one) for one in sees.those(book.over(over))],
        }

    return JSONResponse(await asyncio.to_thread(read))


@router.get("/diagnosis/{subject}", response_model=Diagnosis)
async def diagnosis(subject: str, service: Parts, me: Me) -> JSONResponse:
    """What is wrong with a job, a node, or with everything: `cluster`."""
    return JSONResponse(await asyncio.to_thread(diagnose, service, me, clean(subject)))


@router.get(
    "/health/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}, "description": "News of alerts"}},
)
async def health_events(
    service: Parts, me: Me, job: Annotated[str | None, Query(max_length=200)] = None
) -> StreamingResponse:
    """Alerts as they appear and end, as server-sent events: first those that are open."""
    wanted = None
    if job is not None:
        wanted = (await asyncio.to_thread(service.seen, clean(job), me)).id
    return server_sent(_said(alert_changes(service, me, wanted)))


async def _said(alerts: AsyncIterator[Alert | None]) -> AsyncIterator[str | None]:
    async for alert in alerts:
        if alert is None:
            yield None
        else:
            kind = "alert" if alert.cleared_at is None else "alert_over"
            yield f"event: {kind}\ndata: {json.dumps(alert_view(alert))}"
