"""What was used, by day, user, team and queue: rows that are added to, and how far the journal is
in them.

A write moves that position on and adds to the rows in one transaction, on condition that nobody
else did meanwhile: whatever is read twice is counted once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from sqlalchemy import insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from presage.model.errors import StaleLease
from presage.store.database import Database
from presage.store.tables import head, usage, usage_head

__all__ = ["DayUsage", "UsageKey", "UsageTable"]


@dataclass(frozen=True, slots=True, order=True)
class UsageKey:
    """Whose use, of which day; days are counted from 1970-01-01, in UTC."""

    day: int
    owner: str
    team: str
    queue: str


@dataclass(slots=True)
class DayUsage:
    """What was used of one day by one user in one queue. Seconds of GPUs and of cores."""

    asked_gpu_s: float = 0.0
    """What jobs asked for, while they ran."""
    held_gpu_s: float = 0.0
    """What they were given."""
    measured_gpu_s: float = 0.0
    """That part of what was held of which telemetry says how busy it was."""
    used_gpu_s: float = 0.0
    """How much of that part was busy."""
    lost_gpu_s: float = 0.0
    """Held by attempts that came to nothing, since they last reported progress."""
    held_cpu_s: float = 0.0
    used_cpu_s: float = 0.0
    """As far as it was measured."""
    cost_usd: float = 0.0
    """Of what was held, by the price list of that time."""
    unpriced_gpu_s: float = 0.0
    """Held of GPUs that have no price."""
    runs: int = 0
    """Attempts that were started."""

    def add(self, other: DayUsage) -> None:
        """Add another to this one."""
        for name in AMOUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


AMOUNTS = tuple(field.name for field in fields(DayUsage))


class UsageTable:
    """The rows of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        dialect = sqlite if database.is_sqlite else postgresql
        row = dialect.insert(usage)
        self._add = row.on_conflict_do_update(
            index_elements=["day", "owner", "team", "queue"],
            set_={name: usage.c[name] + row.excluded[name] for name in AMOUNTS},
        )

    def known(self) -> tuple[int, Mapping[str, Any]]:
        """How many events of the journal are in the rows, and what was kept for those to come."""
        with self._database.read() as connection:
            row = connection.execute(select(usage_head.c.position, usage_head.c.body)).first()
        return (0, {}) if row is None else (row.position, row.body)

    def write(
        self,
        before: int,
        position: int,
        body: Mapping[str, Any],
        rows: Mapping[UsageKey, DayUsage],
        *,
        lease: int | None = None,
    ) -> None:
        """Add to the rows what the events from one position to another mean; StaleLease if another
        server leads, or was quicker."""
        with self._database.write() as connection:
            leads = connection.scalar(select(head.c.lease).with_for_update())
            if lease is not None and leads != lease:
                raise StaleLease(f"lease {lease} is over: lease {leads} counts now")
            moved = connection.execute(
                update(usage_head)
                .where(usage_head.c.id == 1, usage_head.c.position == before)
                .values(position=position, body=body)
            ).rowcount
            if not moved:
                if before or connection.scalar(select(usage_head.c.position)) is not None:
                    raise StaleLease("somebody else counted these events")
                connection.execute(
                    insert(usage_head), {"id": 1, "position": position, "body": body}
                )
            if rows:
                connection.execute(
                    self._add, [{**asdict(key), **asdict(row)} for key, row in rows.items()]
                )

    def read(self, since: int, until: int) -> Sequence[tuple[UsageKey, DayUsage]]:
        """The rows of days, the first and the last included, in order."""
        query = select(usage).where(usage.c.day >= since, usage.c.day <= until)
        order = (usage.c.day, usage.c.owner, usage.c.team, usage.c.queue)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(*order)).all()
        return [(UsageKey(*row[:4]), DayUsage(*row[4:])) for row in rows]
