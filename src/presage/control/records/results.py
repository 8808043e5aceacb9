"""The results of jobs as the server hands them out: what there is, one file, all as an archive.

Reads below the directory of a job's results and nowhere else; knows nothing of HTTP or of who may
ask. What is there may change meanwhile: a job may still write to PRESAGE_RESULT_DIR.
"""

from __future__ import annotations

import io
import os
import tarfile
import time
import zipfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from presage import beneath
from presage.executors.node.messages import ResultsNote
from presage.executors.node.wire import MessageError, loads
from presage.layout import Layout
from presage.model.errors import NotFound

__all__ = ["JobResults", "OpenResult", "ResultEntry"]

_CHUNK = 1 << 20
_BLOCK = 512
_FIRST_ZIP_DAY = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class ResultEntry:
    """One file."""

    path: str
    bytes: int
    changed_at: float


@dataclass(frozen=True, slots=True)
class OpenResult:
    """A file that was found, open; it is closed when it was read, or nobody has it any more."""

    file: io.FileIO
    size: int
    changed_ns: int

    def read(self, start: int, end: int) -> Generator[bytes, None, None]:
        """Its bytes from one place up to another, and then it is closed."""
        try:
            fd = self.file.fileno()
            while start < end and (chunk := os.pread(fd, min(_CHUNK, end - start), start)):
                start += len(chunk)
                yield chunk
        finally:
            self.file.close()


class JobResults:
    """The results in a data directory."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def note(self, job: str) -> ResultsNote | None:
        """What the end of the latest run left word of; None if nothing was kept."""
        try:
            return loads(ResultsNote, self._layout.results_note(job).read_bytes())
        except (OSError, MessageError):
            return None

    def summary(self, job: str) -> dict[str, Any] | None:
        """The same in numbers, for who asks about a job."""
        note = self.note(job)
        if note is None or note.removed_at is not None:
            return None
        out = len(note.left_out) + note.more_left_out
        return {"files": note.files, "bytes": note.bytes, "left_out": out, "url": note.url}

    def files(self, job: str, wanted: Sequence[str] = ()) -> list[ResultEntry]:
        """Every file, or those that are named: by path, by directory, by pattern."""
        return [
            ResultEntry(path, known.st_size, known.st_mtime)
            for path, known in beneath.walk(self._layout.results(job))
            if not wanted or any(_named(path, name) for name in wanted)
        ]

    def open(self, job: str, path: str) -> OpenResult:
        """One file; raises NotFound."""
        try:
            fd = beneath.open_file(self._layout.results(job), path)
        except (OSError, ValueError):
            raise NotFound(f"job {job} has no result {path[:200]}") from None
        known = os.fstat(fd)
        return OpenResult(io.FileIO(fd), known.st_size, known.st_mtime_ns)

    def tar(self, job: str, wanted: Sequence[str] = ()) -> Iterator[bytes]:
        """All of it as a tar, piece by piece."""
        for entry, file in self._each(job, wanted):
            info = tarfile.TarInfo(entry.path)
            info.size, info.mtime, info.mode = file.size, int(entry.changed_at), 0o644
            yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
            left = file.size
            for chunk in file.read(0, file.size):
                left -= len(chunk)
                yield chunk
            yield from _zeros(left)  # it was cut while it was read; the archive stays one
            yield bytes(-file.size % _BLOCK)
        yield bytes(2 * _BLOCK)

    def zip(self, job: str, wanted: Sequence[str] = ()) -> Iterator[bytes]:
        """All of it as a zip, piece by piece."""
        sink = _ArchiveBuffer()
        with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
            for entry, file in self._each(job, wanted):
                day = time.localtime(entry.changed_at)[:6]
                name = entry.path.encode("utf-8", "replace").decode()
                info = zipfile.ZipInfo(name, max(day, _FIRST_ZIP_DAY))
                with archive.open(info, "w", force_zip64=True) as target:
                    for chunk in file.read(0, file.size):
                        target.write(chunk)
                        yield sink.take()
                yield sink.take()
        yield sink.take()

    def _each(self, job: str, wanted: Sequence[str]) -> Iterator[tuple[ResultEntry, OpenResult]]:
        for entry in self.files(job, wanted):
            with suppress(NotFound):  # it is gone this moment
                yield entry, self.open(job, entry.path)


class _ArchiveBuffer(io.RawIOBase):
    """Keeps what is written until it is taken."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._kept.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        """What was written since the last time."""
        kept, self._kept = b"".join(self._kept), []
        return kept


def _zeros(count: int) -> Iterator[bytes]:
    while count > 0:
        yield bytes(min(count, _CHUNK))
        count -= _CHUNK


def _named(path: str, name: str) -> bool:
    name = name.removeprefix("./").rstrip("/")
    return path == name or path.startswith(f"{name}/") or fnmatchcase(path, name)
