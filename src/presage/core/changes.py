"""Which jobs changed, in order: a change log, so that whoever keeps something about jobs (a sorted
queue, who ends when) need not look at all of them in every pass.

`State` notes a job when its state, its run, its progress or what is reserved for it changes. A
`Reader` has a cursor in the log. Old notes are dropped: a reader that fell behind, or is shown
the log of another state, is told to look at everything. Who reads never writes.
"""

from __future__ import annotations

from presage.model.job import Job

__all__ = ["Changes", "Reader"]


class Changes:
    """The log of one state."""

    __slots__ = ("dropped", "jobs", "note")

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.dropped = 0
        """How many notes there were before these."""
        self.note = self.jobs.append

    def drop(self) -> None:
        """Forget all notes."""
        self.dropped += len(self.jobs)
        self.jobs.clear()


class Reader:
    """A cursor in the log of a state."""

    __slots__ = ("_at", "_changes")

    def __init__(self) -> None:
        self._changes: Changes | None = None
        self._at = 0

    def read(self, changes: Changes) -> list[Job] | None:
        """Jobs that changed since the last call, some of them more than once; None when all jobs
        have to be looked at."""
        start = self._at - changes.dropped
        known = changes is self._changes and start >= 0
        self._changes, self._at = changes, changes.dropped + len(changes.jobs)
        return changes.jobs[start:] if known else None

    def peek(self, changes: Changes) -> list[Job] | None:
        """What `read` would say."""
        start = self._at - changes.dropped
        return changes.jobs[start:] if changes is self._changes and start >= 0 else None
