"""What workers write: stored while they run, streamed live and after the end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from presage.control.board import ENDED
from presage.model.errors import UserError
from presage.server.routes.common import Me, Parts
from presage.store.records import JobRow

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["logs"])

_WORKER = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}-[0-9]{1,5}|[0-9]{1,5}")
_CHUNK = 1 << 16


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
    if not _WORKER.fullmatch(worker):
        raise UserError("a worker is a number, or a role and a number such as worker-0")
    if "\0" in job_id:
        raise UserError("a name has no NUL characters")
    row = await asyncio.to_thread(service.seen, job_id, me)
    return StreamingResponse(
        _lines(service, row, worker, attempt, follow, offset),
        media_type="text/plain; charset=utf-8",
        headers={"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"},
    )


async def _lines(
    service: Any, row: JobRow, worker: str, attempt: int | None, follow: bool, offset: int
) -> AsyncIterator[bytes]:
    shown = attempt or max(1, row.attempt)
    secrets = await asyncio.to_thread(service.secrets, row)
    while True:
        latest = await asyncio.to_thread(service.store.jobs.get, row.id)
        if latest is None:
            return
        path = _file(service, latest, shown, worker)
        # Asked before reading, so that what was written up to the end is read.
        over = latest.status in ENDED or latest.attempt > shown or latest.status == "HALTED"
        whole = over or not follow
        while path is not None and (
            chunk := await asyncio.to_thread(_read, path, offset, secrets, whole)
        ):
            offset += len(chunk)
            yield chunk
        if not follow:
            return
        if over:
            if attempt is not None or latest.attempt <= shown:
                if latest.status in ENDED or latest.status == "HALTED" or attempt is not None:
                    return
            else:
                shown, offset = shown + 1, 0
                continue
        await asyncio.sleep(0.25)


def _read(path: Path, offset: int, secrets: Sequence[bytes], whole: bool) -> bytes:
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


def _file(service: Any, row: JobRow, attempt: int, worker: str) -> Path | None:
    """The file of a worker by rank or by name."""
    if not worker.isdigit():
        path: Path = service.layout.log(row.id, attempt, worker)
        return path
    home: Path = service.layout.logs(row.id, attempt)
    names = _by_rank(row, home)
    if int(worker) < len(names):
        return home / f"{names[int(worker)]}.log"
    return None


def _by_rank(row: JobRow, home: Path) -> list[str]:
    """Names of workers in the order of their ranks: by role as the manifest has them, then by
    number."""
    manifest = row.manifest or {}
    roles = list(manifest.get("roles") or {"worker": None})
    place = {role: k for k, role in enumerate(roles)}
    ranked = []
    for path in home.glob("*.log") if home.is_dir() else ():
        role, _, number = path.stem.rpartition("-")
        if number.isdigit():
            ranked.append((place.get(role, len(roles)), int(number), path.stem))
    return [name for _, _, name in sorted(ranked)]
