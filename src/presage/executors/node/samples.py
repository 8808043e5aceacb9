"""Rows of telemetry that come from elsewhere, perhaps more than once: each is written down once.

Whoever measured may be asked again from the beginning, after a server or a connection died. Any
thread may call. Standard library only; nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from threading import Lock

from presage.telemetry.rows import Row, append, rows, spread

__all__ = ["SampleLog"]

_MOST = 64 << 20
"""Bytes of what is there that are looked at."""


class SampleLog:
    """The telemetry of one run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self._at = {row.worker: row.at for row in rows(spread(path, _MOST))}

    def add(self, found: Iterable[Row]) -> None:
        """Add those that are younger than what is there of their worker."""
        with self._lock:
            new = []
            for row in found:
                if row.at > self._at.get(row.worker, 0.0):
                    self._at[row.worker] = row.at
                    new.append(row)
            if new:
                append(self._path, *new)
