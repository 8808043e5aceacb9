"""Arrays as users see them: the rows that `SqlStore.append` writes, and what their members add up
to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Row, func, select

from presage.store.database import Database
from presage.store.records import ArrayRow
from presage.store.tables import arrays, jobs

__all__ = ["ArrayCounts", "ArrayRows"]

_LISTED = [column for column in arrays.c if column.name != "manifest"]
_MOST_AT_A_TIME = 500


@dataclass(slots=True)
class ArrayCounts:
    """What the members of an array add up to."""

    statuses: dict[str, int] = field(default_factory=dict)
    lowest: float | None = None
    highest: float | None = None
    """Of the metric."""
    workers: int = 0
    ended_at: float | None = None
    """When the last one that is over ended."""


class ArrayRows:
    """Rows of arrays, read from any thread."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, array_id: str) -> ArrayRow | None:
        """One array with its manifest; None when there is none of that id."""
        with self._database.read() as connection:
            row = connection.execute(select(arrays).where(arrays.c.id == array_id)).first()
        return None if row is None else _array(row)

    def list(
        self,
        *,
        owner: str | None = None,
        team: str | None = None,
        queue: str | None = None,
        limit: int = 100,
        after: int | None = None,
    ) -> Sequence[ArrayRow]:
        """A page of arrays, newest first, without manifests; `after` is the `seq` of the last one
        on the page before."""
        query = select(*_LISTED).order_by(arrays.c.seq.desc()).limit(limit)
        asked = ((arrays.c.owner, owner), (arrays.c.team, team), (arrays.c.queue, queue))
        for column, wanted in asked:
            if wanted is not None:
                query = query.where(column == wanted)
        if after is not None:
            query = query.where(arrays.c.seq < after)
        with self._database.read() as connection:
            return [_array(row) for row in connection.execute(query)]

    def like(self, reference: str, limit: int = 20) -> Sequence[ArrayRow]:
        """Arrays of a name, or whose id begins with this, newest first, without manifests."""
        begins = arrays.c.id.startswith(reference, autoescape=True)
        query = select(*_LISTED).where((arrays.c.name == reference) | begins)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(arrays.c.seq.desc()).limit(limit))
            return [_array(row) for row in rows]

    def alive(self, statuses: Sequence[str]) -> Sequence[str]:
        """The ids of arrays that have members of these statuses."""
        query = select(jobs.c.array).where(jobs.c.array.is_not(None)).distinct()
        with self._database.read() as connection:
            return list(connection.scalars(query.where(jobs.c.status.in_(statuses))))

    def counts(self, ids: Sequence[str]) -> dict[str, ArrayCounts]:
        """What the members of each array add up to, but for those that were removed. A member that
        failed is no candidate for the best."""
        counts: dict[str, ArrayCounts] = {array_id: ArrayCounts() for array_id in ids}
        query = select(
            jobs.c.array,
            jobs.c.status,
            func.count(),
            func.min(jobs.c.metric),
            func.max(jobs.c.metric),
            func.sum(jobs.c.workers),
            func.max(jobs.c.ended_at),
        ).where(jobs.c.removed_at.is_(None))
        query = query.group_by(jobs.c.array, jobs.c.status)
        for first in range(0, len(ids), _MOST_AT_A_TIME):
            some = ids[first : first + _MOST_AT_A_TIME]
            with self._database.read() as connection:
                rows = connection.execute(query.where(jobs.c.array.in_(some))).all()
            for array_id, status, count, low, high, workers, ended_at in rows:
                one = counts[array_id]
                one.statuses[status] = count
                one.workers += int(workers or 0)
                one.ended_at = max(filter(None, (one.ended_at, ended_at)), default=None)
                if low is not None and status != "FAILED":
                    one.lowest = low if one.lowest is None else min(one.lowest, low)
                    one.highest = high if one.highest is None else max(one.highest, high)
        return counts


def _array(row: Row[Any]) -> ArrayRow:
    return ArrayRow(**{"manifest": {}, **row._mapping})
