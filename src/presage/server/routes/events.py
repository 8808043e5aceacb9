"""News as server-sent events: every status change, in order, none left out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from presage.control.board import ENDED
from presage.control.people.accounts import UserRole, may_see
from presage.model.errors import UserError
from presage.server.routes.common import Me, Parts, clean

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["events"])

_BEAT_S = 15.0
_LOOK_S = 1.0
"""A server that does not decide hears of changes by looking."""


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}, "description": "Status changes"}},
)
async def events(
    service: Parts,
    me: Me,
    job: Annotated[str | None, Query(max_length=200)] = None,
    since: Annotated[int | None, Query(ge=0, le=2**53)] = None,
    last_event_id: Annotated[str | None, Header(max_length=20)] = None,
) -> StreamingResponse:
    """Status changes as they happen: of one job until it is over, or of all you may see.

    Events are numbered; with `Last-Event-ID` (or `since`) the ones after that come first. Without
    either, a job's events start with its first, and all jobs' with the next.
    """
    if job is not None:
        job = (await asyncio.to_thread(service.seen, clean(job), me)).id
    if last_event_id is not None:
        if not last_event_id.isdigit():
            raise UserError("Last-Event-ID is a number that an earlier event had")
        since = int(last_event_id)
    if since is None:
        since = 0 if job else await asyncio.to_thread(service.store.jobs.last_transition)
    return StreamingResponse(
        _stream(service, me, job, since),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _stream(service: Any, me: Any, job: str | None, since: int) -> AsyncIterator[str]:
    yield "retry: 1000\n\n"
    quiet = 0.0
    visible: dict[str, bool] = {}
    while True:
        if job is not None:
            changes = await asyncio.to_thread(service.store.jobs.transitions, job)
            changes = [item for item in changes if item.number > since]
        else:
            changes = await asyncio.to_thread(service.store.jobs.transitions_since, since)
        for item in changes:
            since = item.number
            if job is None and me.role == UserRole.USER:
                if item.job not in visible:
                    row = await asyncio.to_thread(service.store.jobs.get, item.job)
                    visible[item.job] = row is not None and may_see(me, row)
                if not visible[item.job]:
                    continue
            body = {
                "job": item.job,
                "at": item.at,
                "status": item.status,
                "reason": {"code": item.reason_code, "text": item.reason_text},
            }
            yield f"id: {item.number}\nevent: status\ndata: {json.dumps(body)}\n\n"
            quiet = 0.0
            if job is not None and item.status in ENDED:
                return
        if not changes:
            quiet += _LOOK_S
            if quiet >= _BEAT_S:
                quiet = 0.0
                yield ": still here\n\n"
            await service.news.wait(_LOOK_S)
