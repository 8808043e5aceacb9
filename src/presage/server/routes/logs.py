"""What workers write: stored while they run, streamed live and after the end."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from presage.control.log_reader import (
    check_there,
)
from presage.control.views.logs import LogStream, log_bytes
from presage.model.errors import UserError
from presage.server.routes.common import Me, Parts, clean
from presage.store.records import JobRow

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["logs"])

_WORKER = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}-[0-9]{1,5}|[0-9]{1,5}")
_READ = re.compile(r"([a-z0-9][a-z0-9._-]{0,62}-[0-9]{1,5})=([0-9]{1,15})")
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
        log_bytes(service, row, worker, attempt, follow, offset),
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
    stream = LogStream(service, row, worker, attempt, follow, tail, shown, starts)
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
    row: JobRow = await asyncio.to_thread(service.seen, clean(job_id), me)
    return row
