"""What was used, by user, team or queue and by day; each sees what concerns them."""

from __future__ import annotations

import asyncio
import csv
import io
import time
from collections.abc import Iterable
from dataclasses import asdict, fields
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from presage.control.accounts import UserRole
from presage.foresee.prices import price_source
from presage.model.errors import BadRequest
from presage.model.server_answers import UsageReport, UsageSums
from presage.server.routes.common import Me, Parts
from presage.store.records import User
from presage.store.usage import DayUsage, UsageKey

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["usage"])

_EPOCH = date(1970, 1, 1)
_MOST_DAYS = 3660
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
    last = _day(until) if until else datetime.fromtimestamp(time.time(), UTC).date()
    first = _day(since) if since else last - timedelta(days=29)
    if not first <= last <= first + timedelta(days=_MOST_DAYS):
        raise BadRequest(f"since: at most {_MOST_DAYS} days, and not after until")
    days = (first - _EPOCH).days, (last - _EPOCH).days
    rows = await asyncio.to_thread(service.store.usage.read, *days)
    seen = [(key, row) for key, row in rows if _may_see(me, key)]
    report = _report(by, first, last, seen)
    if format == "csv":
        return PlainTextResponse(_csv(report.days), media_type="text/csv; charset=utf-8")
    return JSONResponse(asdict(report))


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise BadRequest(f"{text} is no day; write one such as 2026-11-18") from None


def _may_see(user: User, key: UsageKey) -> bool:
    if user.role != UserRole.USER:
        return True
    return key.owner == user.name or (bool(user.team) and key.team == user.team)


def _report(
    by: str, first: date, last: date, rows: Iterable[tuple[UsageKey, DayUsage]]
) -> UsageReport:
    column = "owner" if by == "user" else by
    total, sums, days = DayUsage(), dict[str, DayUsage](), dict[tuple[int, str], DayUsage]()
    for key, row in rows:
        name: str = getattr(key, column)
        for whole in (
            total,
            sums.setdefault(name, DayUsage()),
            days.setdefault((key.day, name), DayUsage()),
        ):
            whole.add(row)
    return UsageReport(
        by=by,
        since=first.isoformat(),
        until=last.isoformat(),
        prices=price_source(),
        total=_sums("", total),
        sums=tuple(_sums(name, row) for name, row in sorted(sums.items())),
        days=tuple(
            _sums(name, row, (_EPOCH + timedelta(days=day)).isoformat())
            for (day, name), row in sorted(days.items())
        ),
    )


def _sums(key: str, row: DayUsage, day: str | None = None) -> UsageSums:
    def hours(seconds: float) -> float:
        return round(seconds / 3600, 4)

    return UsageSums(
        key=key,
        asked_gpu_h=hours(row.asked_gpu_s),
        held_gpu_h=hours(row.held_gpu_s),
        measured_gpu_h=hours(row.measured_gpu_s),
        used_gpu_h=hours(row.used_gpu_s),
        idle_gpu_h=hours(max(0.0, row.measured_gpu_s - row.used_gpu_s)),
        lost_gpu_h=hours(row.lost_gpu_s),
        cpu_h=hours(row.held_cpu_s),
        used_cpu_h=hours(row.used_cpu_s),
        cost_usd=round(row.cost_usd, 4),
        unpriced_gpu_h=hours(row.unpriced_gpu_s),
        runs=row.runs,
        day=day,
    )


def _csv(rows: Iterable[UsageSums]) -> str:
    out = io.StringIO()
    names = ["day", *(field.name for field in fields(UsageSums) if field.name != "day")]
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return out.getvalue()
