"""Telemetry of runs, from the files that their guardians write. Reads are bounded, however long a
run lasts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from presage.layout import Layout
from presage.telemetry.rows import Row, follow, latest, rows, spread

__all__ = ["StoredTelemetry"]

_MOST_OF_A_RUN = 64 << 20


class StoredTelemetry:
    """What the runs of one data directory used; it has what advisors ask of `Telemetry`."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def new(self, job: str, attempt: int, mark: int = 0) -> tuple[Sequence[Row], int]:
        """Rows after a mark, which is the number of bytes before them."""
        return follow(self._layout.telemetry(job, attempt), mark)

    def of(self, job: str) -> Iterator[Row]:
        """The rows of a job, thinned where an attempt has very many."""
        folder = self._layout.telemetry(job, 1).parent
        for file in sorted(folder.glob("*.jsonl"), key=lambda one: (len(one.name), one.name)):
            yield from rows(spread(file, _MOST_OF_A_RUN))

    def latest(self, job: str, attempt: int, workers: int, since: float) -> Sequence[Row]:
        """The latest row of each worker of a run, of those that were measured since then."""
        return latest(self._layout.telemetry(job, attempt), workers, since)
