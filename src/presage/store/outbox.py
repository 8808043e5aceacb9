"""Notifications that a turn wants sent: a transactional outbox, written with the turn, so none is
forgotten and none is sent for something that did not happen. Delivery is at least once."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, select, update

from presage.store.database import Database
from presage.store.records import Delivery, Notification
from presage.store.tables import outbox

__all__ = ["Outbox"]


class Outbox:
    """Messages on their way; from any thread."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def due(self, now: float, limit: int = 100) -> Sequence[Delivery]:
        """Messages to send now, the longest due first."""
        query = select(outbox).where(outbox.c.next_at <= now).order_by("next_at", "id")
        with self._database.read() as connection:
            return [
                Delivery(row.id, Notification(row.job, row.url, row.body), row.attempts)
                for row in connection.execute(query.limit(limit))
            ]

    def delivered(self, number: int, at: float) -> None:
        """A message arrived."""
        self._set(number, next_at=None, delivered_at=at)

    def postpone(self, number: int, until: float | None) -> None:
        """A message did not arrive: try again then, or never more."""
        self._set(number, next_at=until, attempts=outbox.c.attempts + 1)

    def forget(self, before: float) -> int:
        """Remove what was delivered before a time; how many."""
        with self._database.write() as connection:
            return connection.execute(
                delete(outbox).where(outbox.c.delivered_at < before)
            ).rowcount

    def _set(self, number: int, **values: object) -> None:
        with self._database.write() as connection:
            connection.execute(update(outbox).where(outbox.c.id == number).values(**values))
