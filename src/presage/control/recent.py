"""A cache of jobs that were written or asked for lately, so that most questions need no database.

Only the server that decides writes rows, so while it does, it knows what is in them. A row that
changes is forgotten and read again when it is next asked for: what is here is what the database
says, never something that was put together beside it. Every method is told the lease under which
this server decides, None when it does not; what was kept under another one is of no use.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from presage.store.records import JobRow, Transition

__all__ = ["Recent", "RecentJob"]

_MOST = 4096
"""Jobs that are kept: a few MiB."""
_NEWEST = 1024
"""Of these, the newest, for lists."""


@dataclass(frozen=True, slots=True)
class RecentJob:
    """A job without its manifest, and every status it had."""

    row: JobRow
    history: Sequence[Transition]


class Recent:
    """What the database says of the latest jobs. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lease: int | None = None
        self._known: OrderedDict[str, RecentJob | object] = OrderedDict()
        """By job; an object that is no `RecentJob` stands for one that somebody is reading."""
        self._newest: deque[str] = deque(maxlen=_NEWEST)
        """The last jobs that were submitted, without a gap."""

    def wrote(self, lease: int, rows: Sequence[JobRow], last: int, changed: Iterable[str]) -> None:
        """A commit added these jobs, the last of which has this number, and changed others."""
        with self._lock:
            if lease != self._lease:
                self._lease = lease
                self._known.clear()
                self._newest.clear()
            for seq, row in enumerate(rows, last - len(rows) + 1):
                bare = replace(row, manifest=None, seq=seq)
                self._known[row.id] = RecentJob(bare, (_first(bare),))
                self._newest.append(row.id)
            for job in changed:
                self._known.pop(job, None)
            while len(self._known) > _MOST:
                self._known.popitem(last=False)

    def forget(self, job_id: str) -> None:
        """A job is no longer listed."""
        with self._lock:
            self._known.pop(job_id, None)
            with suppress(ValueError):
                self._newest.remove(job_id)

    def job(self, lease: int | None, job_id: str) -> RecentJob | None:
        """A job, if it is here."""
        with self._lock:
            entry = self._known.get(job_id) if self._serves(lease) else None
            if not isinstance(entry, RecentJob):
                return None
            self._known.move_to_end(job_id)
            return entry

    def read(
        self, lease: int | None, job_id: str, look: Callable[[], RecentJob | None]
    ) -> RecentJob | None:
        """A job from the database, by `look`; kept unless it changes while it is read."""
        mark = object()
        with self._lock:
            if self._serves(lease):
                self._known[job_id] = mark
        entry = look()
        with self._lock:
            if self._known.get(job_id) is mark:
                if entry is None:
                    del self._known[job_id]
                else:
                    self._known[job_id] = entry
        return entry

    def page(
        self, lease: int | None, wanted: Callable[[JobRow], bool], limit: int, after: int | None
    ) -> Sequence[JobRow] | None:
        """The newest jobs of those that are wanted; None if some of them may not be here."""
        rows: list[JobRow] = []
        with self._lock:
            if not self._serves(lease):
                return None
            for job_id in reversed(self._newest):
                known = self._known.get(job_id)
                if not isinstance(known, RecentJob):
                    return None
                if (after is None or known.row.seq < after) and wanted(known.row):
                    rows.append(known.row)
                    if len(rows) == limit:
                        return rows
        return None

    def _serves(self, lease: int | None) -> bool:
        return lease is not None and lease == self._lease


def _first(row: JobRow) -> Transition:
    return Transition(0, row.id, row.submitted_at, row.status, row.reason_code, row.reason_text)
