"""What was learned, in SQLite or PostgreSQL: entries by name, fenced off from former leaders.

A write is one short transaction, which first takes the lock of the journal's head, as an append
does: so no other server can take the lease in the middle of it. Nothing here knows what the
entries say.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import Connection, bindparam, delete, func, insert, select

from presage.core.ports import Entry
from presage.model.errors import StaleLease
from presage.store.database import Database
from presage.store.tables import head, knowledge

__all__ = ["SqlKnowledge"]

_STANDBY_S = 10.0
"""How old may be what a server remembers while another one leads."""
_HEAD = select(head.c.lease).with_for_update()
_ADD = insert(knowledge)
_TRIM = delete(knowledge).where(
    knowledge.c.name == bindparam("of"), knowledge.c.number <= bindparam("until")
)


class SqlKnowledge:
    """A `Knowledge` in a database. `lease` has the number under which this server leads, or None
    while it does not; without it, writes are not fenced (an operator's commands)."""

    def __init__(self, database: Database, lease: Callable[[], int | None] | None = None) -> None:
        self._database, self._lease = database, lease

    def under(self, lease: Callable[[], int | None]) -> SqlKnowledge:
        """The same for a server, with its lease as the fencing token."""
        return SqlKnowledge(self._database, lease)

    @property
    def epoch(self) -> int:
        """The lease; while another server leads, a new number every few seconds."""
        lease = 0 if self._lease is None else self._lease()
        return -int(time.monotonic() / _STANDBY_S) if lease is None else lease

    def get(self, name: str) -> bytes | None:
        """The newest entry of a name."""
        return next(iter(self.tail(name, 1)), None)

    def tail(self, name: str, most: int) -> list[bytes]:
        """The newest entries of a name, oldest first."""
        newest = knowledge.c.number.desc()
        query = select(knowledge.c.body).where(knowledge.c.name == name).order_by(newest)
        with self._database.read() as connection:
            return list(connection.scalars(query.limit(most)))[::-1]

    def write(self, *entries: Entry) -> None:
        """Add these, all or none; durable when it returns."""
        if not entries:
            return
        with self._database.write() as connection:
            self._fence(connection)
            names = {entry.name for entry in entries}
            latest = select(knowledge.c.name, func.max(knowledge.c.number))
            query = latest.where(knowledge.c.name.in_(names)).group_by(knowledge.c.name)
            numbers = {name: number for name, number in connection.execute(query)}
            rows, gone = [], dict[str, int]()
            for entry in entries:
                number = numbers[entry.name] = numbers.get(entry.name, 0) + 1
                rows.append({"name": entry.name, "number": number, "body": entry.body})
                gone[entry.name] = max(gone.get(entry.name, 0), number - entry.keep)
            connection.execute(_ADD, rows)
            trims = [{"of": name, "until": until} for name, until in gone.items() if until > 0]
            if trims:
                connection.execute(_TRIM, trims)

    def _fence(self, connection: Connection) -> None:
        current = connection.scalar(_HEAD) or 0
        if self._lease is None:
            return
        mine = self._lease()
        if mine is None:
            raise StaleLease("this server does not lead; what it learned was not written")
        if mine < current:
            raise StaleLease(f"lease {mine} is over: lease {current} writes now")
