"""When a log was how long: lines `SIZE TIME` in a file beside it, so that the log itself stays
byte for byte what the worker wrote.

Noted about once a second while a log grows; of a run that lasts days less often, so that the file
stays small. Standard library only.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from contextlib import suppress
from pathlib import Path

__all__ = ["LogTimes", "read_times", "time_of", "times_beside"]

_GAP_S = 0.9
_PRECISION = 3600
"""A time is right to a second, or to this part of how long the run lasts."""


def times_beside(log: Path) -> Path:
    """The file with the times of a log."""
    return log.with_suffix(".times")


class LogTimes:
    """Writes the times of one log, and continues what is there."""

    def __init__(self, log: Path) -> None:
        self._path = times_beside(log)
        self._began = self._last = 0.0
        self._size = -1

    def note(self, size: int, now: float) -> None:
        """The log has this size now."""
        if self._size < 0:
            self._continue(now)
        if size == self._size or now - self._last < self._gap(now):
            return
        if size < self._size:  # it begins again
            self._path.unlink(missing_ok=True)
            self._began = now
            self._append(f"0 {now:.3f}\n")
        self._append(f"{size} {now:.3f}\n")
        self._size, self._last = size, now

    def cut(self, dropped: int, added: int) -> None:
        """The first bytes of the log were dropped, and others put in their place."""
        sizes, times = read_times(self._path)
        kept = [(size - dropped + added, at) for size, at in zip(sizes, times, strict=True)]
        kept = [(0, times[0]), *((size, at) for size, at in kept if size > added)] if times else []
        draft = self._path.with_suffix(".times-new")
        draft.write_text("".join(f"{size} {at:.3f}\n" for size, at in kept))
        draft.replace(self._path)
        self._size = kept[-1][0] if kept else -1

    def _gap(self, now: float) -> float:
        return max(_GAP_S, (now - self._began) / _PRECISION)

    def _continue(self, now: float) -> None:
        sizes, times = read_times(self._path)
        if not sizes:
            self._append(f"0 {now:.3f}\n")
            sizes, times = [0], [now]
        self._began, self._size, self._last = times[0], sizes[-1], times[-1]
        if self._size == 0:
            self._last = 0.0

    def _append(self, text: str) -> None:
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


def read_times(path: Path) -> tuple[list[int], list[float]]:
    """Sizes and times of a file, both rising; a line that was cut short ends it."""
    sizes: list[int] = []
    times: list[float] = []
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            size, _, at = line.partition(" ")
            known = int(size), float(at)
            sizes.append(known[0])
            times.append(known[1])
    return sizes, times


def time_of(offset: int, sizes: list[int], times: list[float]) -> float | None:
    """When the byte at an offset was there; None when nobody looked since."""
    place = bisect_right(sizes, offset)
    return times[place] if place < len(times) else None
