"""What was used, by user, team or queue and by day; each is told what concerns them. It is
counted by `control.records.usage`; nothing is counted here.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import asdict, fields
from datetime import UTC, date, datetime, timedelta

from presage.control.people.accounts import UserRole
from presage.foresee.prices import price_source
from presage.model.errors import BadRequest
from presage.model.server_answers import UsageReport, UsageSums
from presage.store.records import User
from presage.store.sql import SqlStore
from presage.store.usage import DayUsage, UsageKey

__all__ = ["usage_csv", "usage_days", "usage_report"]


_EPOCH = date(1970, 1, 1)
_MOST_DAYS = 3660


def _concerns(user: User, key: UsageKey) -> bool:
    if user.role != UserRole.USER:
        return True
    return key.owner == user.name or (bool(user.team) and key.team == user.team)


def usage_days(since: str | None, until: str | None) -> tuple[date, date]:
    """The first and the last day that are asked for; without `since`, 30 days."""
    last = _day(until) if until else datetime.now(UTC).date()
    first = _day(since) if since else last - timedelta(days=29)
    if not first <= last <= first + timedelta(days=_MOST_DAYS):
        raise BadRequest(f"since: at most {_MOST_DAYS} days, and not after until")
    return first, last


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise BadRequest(f"{text} is no day; write one such as 2026-11-18") from None


def usage_report(store: SqlStore, me: User, by: str, first: date, last: date) -> UsageReport:
    """What users, teams or queues asked for, held, used and lost, as far as it concerns a user."""
    read = store.usage.read((first - _EPOCH).days, (last - _EPOCH).days)
    rows = [(key, row) for key, row in read if _concerns(me, key)]
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


def usage_csv(rows: Iterable[UsageSums]) -> str:
    """The same by day, as a table."""
    out = io.StringIO()
    names = ["day", *(field.name for field in fields(UsageSums) if field.name != "day")]
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return out.getvalue()
