"""What the server's side of a run on a cluster writes down: events, progress, wishes and samples.

All of it is in files, in the form that guardians of the executor `local` use, so that the same
reader understands it. What was written by a process that died is not written twice:
writing is idempotent.
"""

from __future__ import annotations

from contextlib import suppress

from presage.executors.node.messages import Event
from presage.executors.node.report import RunLog
from presage.executors.node.samples import SampleLog
from presage.executors.node.wire import MessageError, loads
from presage.layout import Layout
from presage.telemetry.rows import rows

__all__ = ["RelayedRunLog"]

Kind = tuple[str, str | None, int | None]
"""What tells an event of a run from the others: its type, stage and resize."""


class RelayedRunLog(RunLog):
    """The event log of one run, relayed from its nodes and deduplicated."""

    def __init__(self, layout: Layout, job: str, attempt: int) -> None:
        super().__init__(layout.run(job, attempt), layout.wake, job, attempt)
        self._samples = SampleLog(layout.telemetry(job, attempt))
        self._told = self._what_was_told()

    @property
    def over(self) -> bool:
        """Whether the last event is written."""
        return any(kind in ("JobExited", "LaunchFailed") for kind, *_ in self._told)

    def tell(self, event: Event) -> None:
        """Add an event unless there is one of its kind."""
        if _kind(event) not in self._told:
            self._told.add(_kind(event))
            super().tell(event)

    def samples(self, chunk: bytes) -> None:
        """Add samples to the telemetry of the job, but those that were added before."""
        self._samples.add(rows(chunk.splitlines()))

    # -- helpers --------------------------------------------------------------------------------

    def _what_was_told(self) -> set[Kind]:
        told = set()
        with suppress(OSError):
            for line in (self._run / Event.FILE).read_bytes().splitlines():
                with suppress(MessageError):
                    told.add(_kind(loads(Event, line)))
        return told


def _kind(event: Event) -> Kind:
    return event.type, event.stage, event.number
