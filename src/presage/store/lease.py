"""Who decides: leader election by a lease that ends unless it is renewed.

Its number rises with every taking and is a fencing token: a journal that has seen a number refuses
lower ones, so a former leader that wakes up late can do no harm, whatever its clock says.
"""

from __future__ import annotations

from sqlalchemy import or_, select, update

from presage.store.database import Database
from presage.store.records import Leader
from presage.store.tables import head

__all__ = ["Lease"]


class Lease:
    """The one lease of a database. `now` is the database's own clock unless given."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def acquire(self, holder: str, url: str, ttl_s: float, now: float | None = None) -> int | None:
        """Take the lease if nobody has it: its new number, else None.

        `holder` names a server of which there can be only one: it takes its own lease again at
        once, as after a crash. `url` is where others reach it.
        """
        with self._database.write() as connection:
            now = self._database.clock(connection) if now is None else now
            taken = connection.scalar(
                update(head)
                .where(or_(head.c.expires_at <= now, head.c.holder == holder))
                .values(lease=head.c.lease + 1, holder=holder, url=url, expires_at=now + ttl_s)
                .returning(head.c.lease)
            )
        return None if taken is None else int(taken)

    def renew(self, number: int, ttl_s: float, now: float | None = None) -> bool:
        """Keep the lease for another while; False when another server has it."""
        with self._database.write() as connection:
            now = self._database.clock(connection) if now is None else now
            kept = connection.execute(
                update(head).where(head.c.lease == number).values(expires_at=now + ttl_s)
            )
            return kept.rowcount == 1

    def release(self, number: int) -> None:
        """Give the lease back, so that another server need not wait for its end."""
        with self._database.write() as connection:
            connection.execute(
                update(head).where(head.c.lease == number).values(holder="", expires_at=0.0)
            )

    def leader(self, now: float | None = None) -> Leader | None:
        """Who has the lease; None when nobody does."""
        with self._database.read() as connection:
            now = self._database.clock(connection) if now is None else now
            row = connection.execute(
                select(head.c.holder, head.c.url, head.c.lease).where(head.c.expires_at > now)
            ).first()
        return None if row is None else Leader(row.holder, row.url, row.lease)
