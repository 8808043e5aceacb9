"""News as server-sent events: every status change, in order, none left out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from presage.control.views.changes import status_changes
from presage.model.errors import UserError
from presage.server.routes.common import Me, Parts, clean, server_sent
from presage.store.records import Transition

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["events"])


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
    return server_sent(_said(status_changes(service, me, job, since)))


async def _said(changes: AsyncIterator[Transition | None]) -> AsyncIterator[str | None]:
    async for item in changes:
        if item is None:
            yield None
        else:
            reason = {"code": item.reason_code, "text": item.reason_text}
            body = {"job": item.job, "at": item.at, "status": item.status, "reason": reason}
            yield f"id: {item.number}\nevent: status\ndata: {json.dumps(body)}"
