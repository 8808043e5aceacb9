"""What was used, by user, team or queue and by day; each sees what concerns them."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from presage.control.views.usage import usage_csv, usage_days, usage_report
from presage.model.server_answers import UsageReport
from presage.server.routes.common import Me, Parts

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["usage"])

Day = Annotated[
    str | None, Query(pattern=r"^\d{4}-\d{2}-\d{2}$", description="UTC, as 2026-11-18")
]


@router.get(
    "/usage",
    response_model=UsageReport,
    responses={200: {"content": {"text/csv": {}}, "description": "Sums, and the same by day"}},
)
async def usage(
    service: Parts,
    me: Me,
    by: Literal["user", "team", "queue"] = "user",
    since: Day = None,
    until: Day = None,
    format: Literal["json", "csv"] = "json",
) -> Response:
    """What users, teams or queues asked for, held, used and lost; without `since`, of the latest
    30 days. A user sees the own use and that of the team, everybody else all of it."""
    first, last = usage_days(since, until)
    report = await asyncio.to_thread(usage_report, service.store, me, by, first, last)
    if format == "csv":
        return PlainTextResponse(usage_csv(report.days), media_type="text/csv; charset=utf-8")
    return JSONResponse(asdict(report))
