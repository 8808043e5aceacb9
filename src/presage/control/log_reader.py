"""Reading the logs of a job's workers: pieces with their times, merged, secrets starred out.

Reads files and nothing else; who may read them was settled before.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from presage.executors.node.log_times import read_times, time_of, times_beside
from presage.layout import Layout
from presage.manifest import Manifest
from presage.manifest.quantities import worker_span
from presage.model.errors import NotFound
from presage.store.records import JobRow

__all__ = ["WorkerLog", "check_there", "merged", "read_log", "tail_offset", "worker_names"]

_CHUNK = 1 << 16
_LISTED = 8
_MARK = 4096
"""Bytes by which a place in a log is found again."""


class WorkerLog:
    """The log of one worker in one attempt, read from an offset on."""

    def __init__(
        self, path: Path, attempt: int, worker: str, secrets: Sequence[bytes], offset: int = 0
    ) -> None:
        self._path, self._secrets = path, secrets
        self._attempt, self._worker = attempt, worker
        self.offset = offset
        self._mark = b""
        """The bytes of the file before the offset, to find the place again once it was cut."""

    def pieces(self, whole: bool) -> Iterator[dict[str, Any]]:
        """What was written since, in pieces that each have one time. Unless the log is whole, an
        end that may be the beginning of a secret is left for later."""
        try:
            stat = self._path.stat()
        except OSError:
            return
        if _part(self._path, self.offset - len(self._mark), self.offset) != self._mark or (
            stat.st_size < self.offset
        ):
            self.offset = self._place_after_cut()
        sizes, times = read_times(times_beside(self._path))
        while chunk := read_log(self._path, self.offset, self._secrets, whole):
            start, end = self.offset, self.offset + len(chunk)
            ends = [size for size in sizes if start < size < end]
            for stop in (*ends, end):
                at = time_of(start, sizes, times)
                if at is None and sizes:
                    at = stat.st_mtime
                text = chunk[start - self.offset : stop - self.offset]
                yield {
                    "attempt": self._attempt,
                    "worker": self._worker,
                    "offset": start,
                    "at": at,
                    "text": text.decode("utf-8", "surrogateescape"),
                }
                start = stop
            self.offset = end
            self._mark = _part(self._path, max(0, end - _MARK), end)

    def _place_after_cut(self) -> int:
        """Where to go on in a log whose beginning is gone; at its first line, which says so, when
        what comes next went with it."""
        kept = _part(self._path, 0, 1 << 62)
        at = kept.rfind(self._mark) if self._mark else -1
        return at + len(self._mark) if at >= 0 else 0


def _part(path: Path, start: int, end: int) -> bytes:
    """Bytes of a file as they are, as far as it has them."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, start))
            return file.read(end - max(0, start)) if end < 1 << 62 else file.read()
    except OSError:
        return b""


def merged(logs: Sequence[WorkerLog], whole: bool) -> Iterator[dict[str, Any]]:
    """What several workers wrote, in the order of time as far as that is known."""
    return heapq.merge(*(log.pieces(whole) for log in logs), key=lambda piece: piece["at"] or 0.0)


def read_log(path: Path, offset: int, secrets: Sequence[bytes], whole: bool) -> bytes:
    """Bytes from an offset on, with stars in place of secrets. Unless the log is whole, an end
    that may be the beginning of a secret waits for the rest."""
    around = max((len(secret) for secret in secrets), default=1) - 1
    start = max(0, offset - around)
    try:
        with path.open("rb") as file:
            file.seek(start)
            text = file.read(offset - start + _CHUNK + around)
    except FileNotFoundError:
        return b""
    end = min(len(text), offset - start + _CHUNK)
    for secret in secrets:
        text = text.replace(secret, b"*" * len(secret))
        if not whole and end == len(text):
            end -= _begun(text, secret)
    return text[offset - start : end]


def _begun(text: bytes, secret: bytes) -> int:
    """How many bytes at the end of a text are the beginning of a secret."""
    for size in range(min(len(secret) - 1, len(text)), 0, -1):
        if text.endswith(secret[:size]):
            return size
    return 0


def tail_offset(path: Path, lines: int) -> int:
    """Where the last lines of a log begin."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            place, left = end, lines
            while place > 0:
                start = max(0, place - _CHUNK)
                file.seek(start)
                chunk = file.read(place - start)
                look = len(chunk) - (place == end and chunk.endswith(b"\n"))
                while left and (newline := chunk.rfind(b"\n", 0, look)) >= 0:
                    left, look = left - 1, newline
                if not left:
                    return start + look + 1
                place = start
    except OSError:
        pass
    return 0


def worker_names(row: JobRow, home: Path) -> list[str]:
    """Names of workers that wrote, in the order of their ranks: by role as the manifest has them,
    then by number."""
    manifest = row.manifest or {}
    roles = list(manifest.get("roles") or {"worker": None})
    place = {role: k for k, role in enumerate(roles)}
    ranked = []
    for path in home.glob("*.log") if home.is_dir() else ():
        role, _, number = path.stem.rpartition("-")
        if number.isdigit():
            ranked.append((place.get(role, len(roles)), int(number), path.stem))
    return [name for _, _, name in sorted(ranked)]


def check_there(
    layout: Layout, row: JobRow, worker: str | None, attempt: int | None, follow: bool
) -> None:
    """Refuse an attempt that there was not, and a worker that is not there and, where that is
    waited for, cannot come; the message lists those that are."""
    if attempt is not None and attempt > max(1, row.attempt):
        had = f"{row.attempt} attempt{'s' if row.attempt != 1 else ''}"
        raise NotFound(f"job {row.id} has no attempt {attempt}; it had {had}")
    if worker is None:
        return
    names = worker_names(row, layout.logs(row.id, attempt or max(1, row.attempt)))
    there = int(worker) < len(names) if worker.isdigit() else worker in names
    if there or ((follow or not names) and worker in _possible(row)):
        return
    listed = ", ".join(names[:_LISTED]) + (", …" if len(names) > _LISTED else "")
    has = f"it has {listed}" if names else f"it may have {_possible_words(row)}"
    raise NotFound(f"job {row.id} has no worker {worker[:80]}; {has}")


class _Numbers:
    """Worker names and ranks that a job may have, without listing a million of them."""

    def __init__(self, most: dict[str, int]) -> None:
        self.most = most

    def __contains__(self, worker: str) -> bool:
        if worker.isdigit():
            return int(worker) < sum(self.most.values())
        role, _, number = worker.rpartition("-")
        return number.isdigit() and int(number) < self.most.get(role, 0)


def _possible(row: JobRow) -> _Numbers:
    roles = Manifest.from_json(row.manifest).all_roles
    return _Numbers({name: worker_span(role.workers)[1] for name, role in roles.items()})


def _possible_words(row: JobRow) -> str:
    most = _possible(row).most
    return ", ".join(
        f"{role}-0" + (f" to {role}-{count - 1}" if count > 1 else "")
        for role, count in most.items()
    )
