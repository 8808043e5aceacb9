"""What a stop by hand would lose of a run: the work since its last checkpoint.

Looks at when the checkpoints of a job were written, never into them. Whether a program saves when
it is asked to stop, nobody but the program knows: so what is said here is the most it can be.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from presage.layout import Layout
from presage.model.words import duration
from presage.store.jobs import Jobs
from presage.store.records import JobRow

__all__ = ["Risks"]

_RUNS = ("PROCESSING", "STORING")
_MOST_ENTRIES = 10_000
_MOST_KNOWN = 10_000


class Risks:
    """What the runs of a server stand to lose. Any thread may ask."""

    def __init__(self, layout: Layout, jobs: Jobs, shared: Path | None = None) -> None:
        self._layout, self._jobs, self._shared = layout, jobs, shared
        self._declared: dict[str, tuple[bool, Path]] = {}
        """Of jobs that run: whether they declare checkpoints, and where those are."""

    def of(self, row: JobRow, now: float | None = None) -> dict[str, Any] | None:
        """What stopping a job now would lose; None when it does not run."""
        if row.status not in _RUNS or row.started_at is None:
            return None
        now = time.time() if now is None else now
        declared, home = self._where(row)
        saved = max(_times(home), default=None)
        since_start = saved is not None and saved >= row.started_at
        lose_s = max(0.0, now - (saved if since_start and saved else row.started_at))
        return {
            "declared": declared,
            "checkpoint_at": saved,
            "lose_s": lose_s,
            "ask": not since_start,
            "text": _text(declared, saved, since_start, lose_s, now),
        }

    def _where(self, row: JobRow) -> tuple[bool, Path]:
        known = self._declared.get(row.id)
        if known is None:
            stored = row if row.manifest is not None else self._jobs.get(row.id)
            asked = ((stored.manifest if stored else None) or {}).get("checkpoint")
            place = Path(str((asked or {}).get("dir", ""))).expanduser()
            home = self._layout.checkpoints(row.id)
            if place.is_absolute():
                home = place
            elif self._shared is not None:
                home = self._shared / row.id
            known = asked is not None, home
            if len(self._declared) >= _MOST_KNOWN:
                self._declared.clear()
            self._declared[row.id] = known
        return known


def _times(home: Path) -> Iterator[float]:
    """When each checkpoint was written; what is being written is hidden by a dot."""
    with suppress(OSError), os.scandir(home) as entries:
        for entry in islice(entries, _MOST_ENTRIES):
            if not entry.name.startswith("."):
                with suppress(OSError):  # an old one that is removed this moment
                    yield entry.stat().st_mtime


def _text(
    declared: bool, saved: float | None, since_start: bool, lose_s: float, now: float
) -> str:
    lost = duration(lose_s)
    if saved is not None and since_start:
        return f"its last checkpoint was {duration(now - saved)} ago"
    if declared or saved is not None:
        return (
            f"it took no checkpoint since it started {lost} ago: that work is lost unless it "
            "saves when it is asked to stop"
        )
    return f"it declares no checkpoint and took none: {lost} of work would be lost"
