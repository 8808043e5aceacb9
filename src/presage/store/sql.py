"""The journal in SQLite or PostgreSQL, and beside it what users ask for: jobs, webhooks, accounts.

One turn of the deciding loop is one transaction: facts, decisions and every row that follows from
them, on disk together or not at all (docs/adr/0014). Everything else reads, or writes tables that
no decision depends on. Nothing is kept in memory, however many jobs there were.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)

from presage.model.errors import InternalError, StaleLease, StoreUnavailable
from presage.model.event import Decision, Event, Fact, event_from_json, event_to_json
from presage.store.access import AuditLog, Users, audit_row
from presage.store.arrays import ArrayRows
from presage.store.database import Database
from presage.store.jobs import Jobs
from presage.store.knowledge import SqlKnowledge
from presage.store.lease import Lease
from presage.store.memory import Step
from presage.store.outbox import Outbox
from presage.store.records import ArrayRow, AuditEntry, JobChange, JobRow, Notification
from presage.store.tables import (
    arrays,
    audit,
    head,
    jobs,
    journal,
    outbox,
    snapshots,
    to_json,
    transitions,
)
from presage.store.usage import UsageTable

__all__ = ["SqlStore"]

_CHUNK = 500
"""Steps that are read at a time; a long read would keep SQLite's log from being cut."""


class SqlStore:
    """A `Store` in a database. Positions count events from 0.

    `append` and `save_snapshot` are for the deciding loop alone; the rest is for any thread.
    """

    def __init__(self, url: str) -> None:
        self._database = Database(url)
        self._in_doubt: tuple[int, object] | None = None
        """The append whose commit was not confirmed: its number, and what was to be written."""
        self.submitted = 0
        """How many jobs there were ever, after the latest append: the `seq` of the newest."""
        self.lease = Lease(self._database)
        self.jobs = Jobs(self._database)
        self.arrays = ArrayRows(self._database)
        self.outbox = Outbox(self._database)
        self.users = Users(self._database)
        self.audit = AuditLog(self._database)
        self.knowledge = SqlKnowledge(self._database)
        self.usage = UsageTable(self._database)

    def append(
        self,
        now: float,
        facts: Sequence[Fact],
        decisions: Sequence[Decision],
        *,
        lease: int = 0,
        jobs: Sequence[JobRow] = (),
        changes: Sequence[JobChange] = (),
        outbox: Sequence[Notification] = (),
        audit: Sequence[AuditEntry] = (),
        arrays: Sequence[ArrayRow] = (),
    ) -> None:
        """Add facts, the decisions that followed, new arrays and jobs, then changes: one commit.

        After `StoreUnavailable`, append the same again until it succeeds: what was committed
        although nobody could say so is recognised and not written twice.
        """
        step = {
            "now": now,
            "lease": lease,
            "facts": to_json([event_to_json(fact) for fact in facts]),
            "decisions": to_json([event_to_json(decision) for decision in decisions]),
        }
        everything = (step, *map(tuple, (jobs, changes, outbox, audit, arrays)))
        events = len(facts) + len(decisions)
        try:
            with self._database.write() as connection:
                end = self._there(connection, lease, everything)
                if end is None:
                    end = _advance(connection, lease, 1, events, len(jobs))
                    self._in_doubt = (end.appends, everything)
                    if events:
                        connection.execute(_ADD_STEP, {"position": end.position - events, **step})
                    _project(connection, end.jobs - len(jobs), jobs, changes)
                    if arrays:
                        first = end.jobs - len(jobs) + 1
                        connection.execute(_ADD_ARRAY, _array_rows(first, jobs, arrays))
                    if outbox:
                        connection.execute(_ADD_MESSAGE, [_message(now, item) for item in outbox])
                    if audit:
                        connection.execute(_ADD_AUDIT, [audit_row(entry) for entry in audit])
        except StoreUnavailable:
            raise
        except BaseException:
            self._in_doubt = None
            raise
        self._in_doubt = None
        self.submitted = end.jobs

    def read(self, since: int = 0) -> Iterable[tuple[float, Event]]:
        """Events from position `since` on, oldest first."""
        for position, (now, facts, decisions) in self._steps_around(since):
            for event in islice((*facts, *decisions), max(0, since - position), None):
                yield now, event

    def read_steps(self, since: int = 0) -> Iterator[Step]:
        """The appends that begin at position `since` or later: what a replay needs."""
        return (step for position, step in self._steps_around(since) if position >= since)

    def position(self) -> int:
        """Where the next event will be: how many there are."""
        with self._database.read() as connection:
            return int(connection.scalar(select(head.c.position)) or 0)

    def save_snapshot(
        self, position: int, now: float, body: Mapping[str, Any], *, lease: int = 0
    ) -> None:
        """Keep the state that the first `position` events lead to, instead of an older one."""
        row = {"position": position, "now": now, "body": to_json(body)}
        with self._database.write() as connection:
            end = _advance(connection, lease).position
            if position > end:
                raise InternalError(f"a snapshot of {position} events, but there are {end}")
            connection.execute(delete(snapshots).where(snapshots.c.position <= position))
            connection.execute(insert(snapshots), row)

    def load_snapshot(self) -> tuple[int, dict[str, Any]] | None:
        """The newest snapshot, and the position to fold the journal from."""
        query = select(snapshots.c.position, snapshots.c.body)
        with self._database.read() as connection:
            row = connection.execute(query.order_by(snapshots.c.position.desc())).first()
        return None if row is None else (row.position, json.loads(row.body))

    def close(self) -> None:
        """Give back the connections; the store is of no more use."""
        self._database.close()

    def _there(self, connection: Connection, lease: int, everything: object) -> _JournalEnd | None:
        """The end of the journal, if this is the append in doubt and was committed after all."""
        if self._in_doubt is None:
            return None
        end = _advance(connection, lease)
        return end if self._in_doubt == (end.appends, everything) else None

    def _steps_around(self, since: int) -> Iterator[tuple[int, Step]]:
        """Steps with their position, from the one that holds `since` on."""
        first = select(func.max(journal.c.position)).where(journal.c.position <= since)
        with self._database.read() as connection:
            at = connection.scalar(first)
        query = select(journal).order_by(journal.c.position).limit(_CHUNK)
        at = 0 if at is None else at
        while True:
            with self._database.read() as connection:
                rows = connection.execute(query.where(journal.c.position >= at)).all()
            for row in rows:
                yield row.position, (row.now, _events(row.facts), _events(row.decisions))
            if len(rows) < _CHUNK:
                return
            at = rows[-1].position + 1


def _events(text: str) -> tuple[Any, ...]:
    return tuple(event_from_json(item) for item in json.loads(text))


# -- one append -----------------------------------------------------------------------------------

_ADVANCE = (
    update(head)
    .where(head.c.lease <= bindparam("mine"))
    .values(
        lease=bindparam("mine"),
        appends=head.c.appends + bindparam("more_appends"),
        position=head.c.position + bindparam("more_events"),
        jobs=head.c.jobs + bindparam("more_jobs"),
    )
    .returning(head.c.appends, head.c.position, head.c.jobs)
)
_ADD_STEP = insert(journal)
_ADD_JOB = insert(jobs)
_ADD_ARRAY = insert(arrays)
_ADD_TRANSITION = insert(transitions)
_ADD_MESSAGE = insert(outbox)
_ADD_AUDIT = insert(audit)
_GIVEN = tuple(field.name for field in fields(JobRow) if field.name != "seq")
_CHANGING = tuple(field.name for field in fields(JobChange) if field.name not in ("job", "at"))
_CHANGE_JOB = (
    update(jobs)
    .where(jobs.c.id == bindparam("job"))
    .values(
        {
            name: func.coalesce(bindparam(f"new_{name}", type_=jobs.c[name].type), jobs.c[name])
            for name in _CHANGING
        }
    )
)


class _JournalEnd(NamedTuple):
    """How many there are of everything that is counted."""

    appends: int
    position: int
    jobs: int


def _advance(
    connection: Connection, lease: int, appends: int = 0, events: int = 0, jobs: int = 0
) -> _JournalEnd:
    """Move the end of the journal on, unless the lease is over; where it is then.

    The row of the head stays locked until the transaction ends, so appends come one by one.
    """
    more = {"more_appends": appends, "more_events": events, "more_jobs": jobs}
    row = connection.execute(_ADVANCE, {"mine": lease, **more}).first()
    if row is None:
        current = connection.scalar(select(head.c.lease))
        raise StaleLease(f"lease {lease} is over: lease {current} writes the journal now")
    return _JournalEnd(*row)


def _project(
    connection: Connection, submitted: int, rows: Sequence[JobRow], changes: Sequence[JobChange]
) -> None:
    """Write what users see of this step."""
    moves = [_move(row.id, row.submitted_at, row) for row in rows]
    moves += [_move(change.job, change.at, change) for change in changes if change.status]
    if rows:
        connection.execute(
            _ADD_JOB,
            [
                {"seq": seq, **{name: getattr(row, name) for name in _GIVEN}}
                for seq, row in enumerate(rows, submitted + 1)
            ],
        )
    if changes:
        connection.execute(
            _CHANGE_JOB,
            [
                {"job": change.job, **{f"new_{name}": getattr(change, name) for name in _CHANGING}}
                for change in changes
            ],
        )
    if moves:
        connection.execute(_ADD_TRANSITION, moves)


def _array_rows(
    first: int, rows: Sequence[JobRow], new: Sequence[ArrayRow]
) -> list[dict[str, Any]]:
    """New arrays, each with the `seq` of its first job."""
    seqs: dict[str | None, int] = {}
    for seq, row in enumerate(rows, first):
        seqs.setdefault(row.array, seq)
    names = [item.name for item in fields(ArrayRow) if item.name != "seq"]
    return [{"seq": seqs[one.id], **{name: getattr(one, name) for name in names}} for one in new]


def _move(job: str, at: float, row: JobRow | JobChange) -> dict[str, Any]:
    return {
        "job": job,
        "at": at,
        "status": row.status,
        "reason_code": row.reason_code or "ok",
        "reason_text": row.reason_text or "",
    }


def _message(now: float, item: Notification) -> dict[str, Any]:
    return {"job": item.job, "url": item.url, "body": item.body, "attempts": 0, "next_at": now}
