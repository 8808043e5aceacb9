"""Results of jobs: what there is, one file (with Range), all as an archive."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Header, Query
from fastapi.responses import JSONResponse, Response, StreamingResponse

from presage.control.records.results import OpenResult
from presage.control.site.service import Service
from presage.control.views.results import results_page
from presage.model.answers import ResultsPage
from presage.server.routes.common import Me, Parts, clean
from presage.store.records import User

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["results"])

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_BYTES: dict[str, Any] = {"content": {"application/octet-stream": {}}}
Wanted = Annotated[list[str] | None, Query(max_length=1000)]


@router.get("/jobs/{job_id}/results", response_model=ResultsPage)
async def list_results(
    job_id: str,
    service: Parts,
    me: Me,
    path: Wanted = None,
    limit: Annotated[int, Query(ge=1, le=100_000)] = 10_000,
    after: Annotated[str | None, Query(max_length=4096)] = None,
) -> JSONResponse:
    """The files that a job made, by path; `path` names files, directories or patterns. What was
    left out of what it wrote, and why, is said by name."""
    row = await asyncio.to_thread(service.seen, clean(job_id), me)

    page = partial(results_page, service.results, row.id, path or (), limit, after)
    return JSONResponse(await asyncio.to_thread(page))


@router.get("/jobs/{job_id}/results.tar", response_class=Response, responses={200: _BYTES})
async def results_tar(job_id: str, service: Parts, me: Me, path: Wanted = None) -> Response:
    """All results, or those that are named, as a tar that is made while it is sent."""
    return await _archive(service, me, job_id, service.results.tar, path or (), "tar")


@router.get("/jobs/{job_id}/results.zip", response_class=Response, responses={200: _BYTES})
async def results_zip(job_id: str, service: Parts, me: Me, path: Wanted = None) -> Response:
    """The same as a zip."""
    return await _archive(service, me, job_id, service.results.zip, path or (), "zip")


@router.get(
    "/jobs/{job_id}/results/{path:path}",
    response_class=Response,
    responses={200: _BYTES},
)
async def one_result(
    job_id: str,
    path: str,
    service: Parts,
    me: Me,
    range: Annotated[str | None, Header(max_length=200)] = None,
    if_range: Annotated[str | None, Header(max_length=200)] = None,
) -> Response:
    """One file, or with `Range: bytes=FROM-` a part of it (206). `ETag` names its content; with
    `If-Range`, a part is sent only of that."""
    row = await asyncio.to_thread(service.seen, clean(job_id), me)
    file = await asyncio.to_thread(service.results.open, row.id, path)
    tag = f'"{file.size:x}-{file.changed_ns:x}"'
    headers = {
        **_DOWNLOAD,
        "Accept-Ranges": "bytes",
        "ETag": tag,
        "Content-Disposition": _named(PurePosixPath(path).name),
    }
    part = _part(range, file.size) if if_range in (None, tag) else None
    if part == ():
        file.file.close()
        headers["Content-Range"] = f"bytes */{file.size}"
        return Response(status_code=416, headers=headers)
    start, end = part or (0, file.size)
    headers["Content-Length"] = str(end - start)
    if part:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{file.size}"
    return _sent(file, start, end, 206 if part else 200, headers)


_DOWNLOAD = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


def _sent(
    file: OpenResult, start: int, end: int, status: int, headers: dict[str, str]
) -> Response:
    kind = "application/octet-stream"
    return StreamingResponse(file.read(start, end), status, headers=headers, media_type=kind)


async def _archive(
    service: Service,
    me: User,
    job_id: str,
    make: Callable[[str, Sequence[str]], Iterator[bytes]],
    wanted: Sequence[str],
    kind: str,
) -> Response:
    row = await asyncio.to_thread(service.seen, clean(job_id), me)
    headers = {**_DOWNLOAD, "Content-Disposition": _named(f"{row.id}.{kind}")}
    return StreamingResponse(
        make(row.id, wanted), headers=headers, media_type=f"application/{_TYPES[kind]}"
    )


_TYPES = {"tar": "x-tar", "zip": "zip"}


def _part(header: str | None, size: int) -> tuple[int, int] | tuple[()] | None:
    """The one range that a header asks for; () if it is not there, None if the whole is meant."""
    match = _RANGE.fullmatch(header.strip()) if header else None
    if match is None or match[0] == "bytes=-":
        return None
    first, last = match[1], match[2]
    if not first:  # so many at the end
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
    if first and last and int(last) < int(first):
        return None
    return (start, end) if start < end else ()


def _named(name: str) -> str:
    return f"attachment; filename*=UTF-8''{quote(name, safe='', errors='replace')}"
