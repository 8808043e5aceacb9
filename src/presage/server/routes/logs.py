"""What workers write: stored while they run, streamed live and after the end."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from presage.control.board import ENDED
from presage.control.log_reader import (
    WorkerLog,
    check_there,
    merged,
    read_log,
    tail_offset,
    worker_names,
)
from presage.model.errors import UserError
from presage.server.routes.common import Me, Parts
from presage.store.records import JobRow

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["logs"])

_WORKER = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}-[0-9]{1,5}|[0-9]{1,5}")
_READ = re.compile(r"([a-z0-9][a-z0-9._-]{0,62}-[0-9]{1,5})=([0-9]{1,15})")
_LOOK_S = 0.25
_BEAT_S = 15.0
_AT_ONCE = 64
_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


@router.get(
    "/jobs/{job_id}/logs",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/plain": {}}, "description": "The output of a worker"}},
)
async def logs(
    job_id: str,
    service: Parts,
    me: Me,
    worker: Annotated[str, Query(max_length=80)] = "0",
    attempt: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
    follow: bool = False,
    offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
) -> StreamingResponse:
    """The output of one worker, from a byte on. `worker` is a rank, or a role with an index such
    as `ps-0`; `follow` streams new lines, over attempts, until the job is over."""
    row = await _find(service, me, job_id, worker)
    return StreamingResponse(
        _bytes(service, row, worker, attempt, follow, offset),
        media_type="text/plain; charset=utf-8",
        headers=_HEADERS,
    )


@router.get(
    "/jobs/{job_id}/log-stream",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/x-ndjson": {}}, "description": "Pieces of logs"}},
)
async def log_stream(
    job_id: str,
    service: Parts,
    me: Me,
    worker: Annotated[str | None, Query(max_length=80)] = None,
    attempt: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
    follow: bool = False,
    tail: Annotated[int | None, Query(ge=0, le=1_000_000)] = None,
    after: Annotated[str | None, Query(max_length=100_000)] = None,
) -> StreamingResponse:
    """The output of all workers or of one, in JSON lines: `attempt`, `worker`, `offset`, `at` (the
    time it was written, null when nobody looked), `text` (bytes that are no UTF-8 as lone
    surrogates), `workers` (how many there are). The last line is `{"end": STATUS}`; a stream
    without it was cut off, and goes on with `after=ATTEMPT:WORKER=BYTES,…`.
    """
    row = await _find(service, me, job_id, worker)
    await asyncio.to_thread(check_there, service.layout, row, worker, attempt, follow)
    starts: dict[str, int] = {}
    shown = attempt or max(1, row.attempt)
    if after is not None:
        shown, starts = _cursor(after)
        tail = None
    stream = _Stream(service, row, worker, attempt, follow, tail, shown, starts)
    return StreamingResponse(stream.lines(), media_type="application/x-ndjson", headers=_HEADERS)


def _cursor(after: str) -> tuple[int, dict[str, int]]:
    """Which attempt was read, and how many bytes of each worker."""
    attempt, _, rest = after.partition(":")
    parts = [_READ.fullmatch(part) for part in rest.split(",") if part]
    if not re.fullmatch(r"[1-9][0-9]{0,6}", attempt) or not all(parts):
        raise UserError("after is ATTEMPT:WORKER=BYTES,WORKER=BYTES")
    return int(attempt), {part[1]: int(part[2]) for part in parts if part}


async def _find(service: Any, me: Any, job_id: str, worker: str | None) -> JobRow:
    if worker is not None and not _WORKER.fullmatch(worker):
        raise UserError("a worker is a number, or a role and a number such as worker-0")
    if "\0" in job_id:
        raise UserError("a name has no NUL characters")
    row: JobRow = await asyncio.to_thread(service.seen, job_id, me)
    return row


class _Stream:
    """One reader of a job's logs, and how far it is."""

    def __init__(
        self,
        service: Any,
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


async def _bytes(
    service: Any, row: JobRow, worker: str, attempt: int | None, follow: bool, offset: int
) -> AsyncIterator[bytes]:
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


def _file(service: Any, row: JobRow, attempt: int, worker: str) -> Path | None:
    """The file of a worker by rank or by name."""
    if not worker.isdigit():
        path: Path = service.layout.log(row.id, attempt, worker)
        return path
    home: Path = service.layout.logs(row.id, attempt)
    names = worker_names(row, home)
    if int(worker) < len(names):
        return home / f"{names[int(worker)]}.log"
    return None
