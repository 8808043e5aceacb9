"""Jobs as users see them: questions about the rows that `SqlStore.append` writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, func, select, update

from presage.store.database import Database
from presage.store.records import JobRow, Transition
from presage.store.tables import jobs, transitions

__all__ = ["Jobs"]

_OVER = ("COMPLETED", "FAILED", "CANCELLED")
_LAST = "\U0010ffff"
"""Sorts after whatever an id may have."""
_LISTED = [column for column in jobs.c if column.name != "manifest"]


class Jobs:
    """Rows of jobs and their transitions, read from any thread."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, job_id: str) -> JobRow | None:
        """One job with its manifest; None when there is none of that id."""
        with self._database.read() as connection:
            row = connection.execute(select(jobs).where(jobs.c.id == job_id)).first()
        return None if row is None else _job(row)

    def beginning(self, prefix: str, name: str | None = None, *, limit: int) -> Sequence[JobRow]:
        """Jobs whose id begins with a text, and which have this name if one is given: those that
        are not over first, then newest first, without manifests."""
        column: Any = jobs.c.id
        if not self._database.is_sqlite:
            column = column.collate("C")
        over = jobs.c.status.in_(_OVER)
        query = select(*_LISTED).where(column >= prefix, column < prefix + _LAST)
        query = query.where(jobs.c.removed_at.is_(None))
        if name is not None:
            query = query.where(jobs.c.name == name)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(over, jobs.c.seq.desc()).limit(limit))
            return [_job(row) for row in rows]

    def transitions(self, job_id: str) -> Sequence[Transition]:
        """Every status a job had, oldest first."""
        query = select(transitions).where(transitions.c.job == job_id)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(transitions.c.number)).all()
        return [Transition(*row) for row in rows]

    def transitions_since(self, number: int, limit: int = 1000) -> Sequence[Transition]:
        """Transitions of all jobs after one of them, oldest first: what a listener missed."""
        query = select(transitions).where(transitions.c.number > number)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(transitions.c.number).limit(limit)).all()
        return [Transition(*row) for row in rows]

    def last_transition(self) -> int:
        """The number of the newest transition; 0 when there is none."""
        with self._database.read() as connection:
            return int(connection.scalar(select(func.max(transitions.c.number))) or 0)

    def count_by_status(self) -> dict[str, int]:
        """How many jobs have each status."""
        query = select(jobs.c.status, func.count()).group_by(jobs.c.status)
        with self._database.read() as connection:
            return {status: count for status, count in connection.execute(query)}

    def mark_removed(self, job_id: str, at: float) -> None:
        """Nothing but the journal and this row is kept of a job."""
        gone = update(jobs).where(jobs.c.id == job_id, jobs.c.removed_at.is_(None))
        with self._database.write() as connection:
            connection.execute(gone.values(removed_at=at))

    def of_folder(self, digest: str) -> Sequence[JobRow]:
        """Jobs that were submitted with a work folder."""
        with self._database.read() as connection:
            rows = connection.execute(select(*_LISTED).where(jobs.c.folder == digest))
            return [_job(row) for row in rows]

    def folders_needed(self) -> set[str]:
        """Work folders of jobs that are not over."""
        query = select(jobs.c.folder).distinct()
        query = query.where(jobs.c.folder.is_not(None), jobs.c.status.not_in(_OVER))
        with self._database.read() as connection:
            return set(connection.scalars(query))

    def list(
        self,
        *,
        owner: str | None = None,
        team: str | None = None,
        queue: str | None = None,
        statuses: Sequence[str] = (),
        array: str | None = None,
        limit: int = 100,
        after: int | None = None,
    ) -> Sequence[JobRow]:
        """A page of jobs, newest first, without manifests; `after` is the `seq` of the last job
        on the page before. `array` is one, or "" for jobs that are in none."""
        query = select(*_LISTED).order_by(jobs.c.seq.desc()).limit(limit)
        query = query.where(jobs.c.removed_at.is_(None))
        for column, wanted in ((jobs.c.owner, owner), (jobs.c.team, team), (jobs.c.queue, queue)):
            if wanted is not None:
                query = query.where(column == wanted)
        if statuses:
            query = query.where(jobs.c.status.in_(statuses))
        if array is not None:
            query = query.where(jobs.c.array == array if array else jobs.c.array.is_(None))
        if after is not None:
            query = query.where(jobs.c.seq < after)
        with self._database.read() as connection:
            return [_job(row) for row in connection.execute(query)]

    def like(self, reference: str, limit: int = 20) -> Sequence[JobRow]:
        """Jobs of a name, or whose id begins with this, newest first, without manifests; members
        of an array only by more than the array's id."""
        begins = jobs.c.id.startswith(reference, autoescape=True)
        alone = jobs.c.array.is_(None) | ~jobs.c.array.startswith(reference, autoescape=True)
        query = select(*_LISTED).where(
            jobs.c.removed_at.is_(None),
            ((jobs.c.name == reference) & jobs.c.array.is_(None)) | (begins & alone),
        )
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(jobs.c.seq.desc()).limit(limit))
            return [_job(row) for row in rows]

    def best(self, array: str, mode: str, limit: int) -> Sequence[JobRow]:
        """Members of an array that reported its metric and did not fail, the best first."""
        by = jobs.c.metric.desc() if mode == "max" else jobs.c.metric.asc()
        query = select(*_LISTED).where(jobs.c.array == array, jobs.c.metric.is_not(None))
        query = (
            query.where(jobs.c.removed_at.is_(None), jobs.c.status != "FAILED")
            .order_by(by, jobs.c.seq)
            .limit(limit)
        )
        with self._database.read() as connection:
            return [_job(row) for row in connection.execute(query)]


def _job(row: Row[Any]) -> JobRow:
    fields = {"manifest": None, **row._mapping}
    return JobRow(**{**fields, "nodes": tuple(fields["nodes"])})
