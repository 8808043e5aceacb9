"""Logs as they are read: of one worker as bytes, of all as JSON lines, until the job is
over. Whoever reads may do so; that was settled before.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from itertools import islice
from pathlib import Path

from presage.control.board import ENDED
from presage.control.log_reader import (
    WorkerLog,
    merged,
    read_log,
    tail_offset,
    worker_names,
)
from presage.control.site.service import Service
from presage.store.records import JobRow

__all__ = ["LogStream", "log_bytes"]


_LOOK_S = 0.25


_BEAT_S = 15.0


_AT_ONCE = 64


class LogStream:
    """One reader of a job's logs, and how far it is."""

    def __init__(
        self,
        service: Service,
        row: JobRow,
        worker: str | None,
        attempt: int | None,
        follow: bool,
        tail: int | None,
        shown: int,
        starts: dict[str, int],
    ) -> None:
        self._service, self._row = service, row
        self._worker, self._attempt, self._follow = worker, attempt, follow
        self._tail, self._shown, self._starts = tail, shown, starts
        self._logs: dict[str, WorkerLog] = {}
        self._secrets: Sequence[bytes] = ()

    async def lines(self) -> AsyncIterator[str]:
        """JSON lines until all is read, or the job is over."""
        self._secrets = await asyncio.to_thread(self._service.secrets, self._row)
        quiet = 0.0
        while True:
            latest = await asyncio.to_thread(self._service.store.jobs.get, self._row.id)
            if latest is None:
                return
            # Asked before reading, so that what was written up to the end is read.
            over = _attempt_over(latest, self._shown)
            await asyncio.to_thread(self._open)
            pieces = merged(list(self._logs.values()), over or not self._follow)
            while batch := await asyncio.to_thread(list, islice(pieces, _AT_ONCE)):
                quiet = 0.0
                for piece in batch:
                    yield json.dumps({**piece, "workers": len(self._logs)}) + "\n"
            if not self._follow or (over and not _goes_on(latest, self._shown, self._attempt)):
                yield json.dumps({"end": latest.status}) + "\n"
                return
            if over:
                self._shown, self._logs, self._starts = self._shown + 1, {}, {}
                self._tail = None
                continue
            quiet += _LOOK_S
            if quiet >= _BEAT_S:
                quiet = 0.0
                yield "\n"
            await asyncio.sleep(_LOOK_S)

    def _open(self) -> None:
        """Begin to read the logs that are there and were not before."""
        home: Path = self._service.layout.logs(self._row.id, self._shown)
        names = worker_names(self._row, home)
        if self._worker is not None and self._worker.isdigit():
            names = names[int(self._worker) : int(self._worker) + 1]
        elif self._worker is not None:
            names = [name for name in names if name == self._worker]
        for name in names:
            if name not in self._logs:
                path = home / f"{name}.log"
                start = self._starts.get(name, 0)
                if self._tail is not None:
                    start = tail_offset(path, self._tail)
                log = WorkerLog(path, self._shown, name, self._secrets, start)
                self._logs[name] = log


def _attempt_over(row: JobRow, shown: int) -> bool:
    return row.status in ENDED or row.attempt > shown or row.status == "HALTED"


def _goes_on(row: JobRow, shown: int, attempt: int | None) -> bool:
    """Whether there is more to follow after an attempt that is over."""
    return attempt is None and row.attempt > shown


async def log_bytes(
    service: Service, row: JobRow, worker: str, attempt: int | None, follow: bool, offset: int
) -> AsyncIterator[bytes]:
    """The output of one worker, by rank or by name, from a byte on."""
    shown = attempt or max(1, row.attempt)
    secrets = await asyncio.to_thread(service.secrets, row)
    while True:
        latest = await asyncio.to_thread(service.store.jobs.get, row.id)
        if latest is None:
            return
        path = _file(service, latest, shown, worker)
        over = _attempt_over(latest, shown)
        whole = over or not follow
        while path is not None and (
            chunk := await asyncio.to_thread(read_log, path, offset, secrets, whole)
        ):
            offset += len(chunk)
            yield chunk
        if not follow or (over and not _goes_on(latest, shown, attempt)):
            return
        if over:
            shown, offset = shown + 1, 0
            continue
        await asyncio.sleep(_LOOK_S)


def _file(service: Service, row: JobRow, attempt: int, worker: str) -> Path | None:
    """The file of a worker by rank or by name."""
    if not worker.isdigit():
        path: Path = service.layout.log(row.id, attempt, worker)
        return path
    home: Path = service.layout.logs(row.id, attempt)
    names = worker_names(row, home)
    if int(worker) < len(names):
        return home / f"{names[int(worker)]}.log"
    return None
