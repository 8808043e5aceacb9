"""What routes share: the service, who asks, and news as they come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends, Request
from fastapi.responses import StreamingResponse
from fastapi.security import HTTPBearer
from starlette.requests import HTTPConnection

from presage.control.site.service import Service
from presage.model.errors import UserError
from presage.store.records import User

__all__ = ["Me", "Parts", "clean", "server_sent", "user_of"]

_BEAT_S = 15.0

# For OpenAPI alone: the header is read by Accounts, which also knows when none is needed.
_bearer = HTTPBearer(auto_error=False, description="Not needed on loopback without users")


# Both are coroutines: plain functions would each be handed to a thread, for every request.
async def _parts(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def user_of(request: HTTPConnection) -> User:
    """Who asks; raises Unauthorized."""
    accounts = request.app.state.service.accounts
    header = request.headers.get("authorization")
    if accounts.remembers(header):
        user: User = accounts.whose(header)
        return user
    return await asyncio.to_thread(accounts.whose, header)


async def _me(request: Request, _: Annotated[object, Depends(_bearer)]) -> User:
    return await user_of(request)


Parts = Annotated[Service, Depends(_parts)]
Me = Annotated[User, Depends(_me)]


def clean(name: str, *more: str | None) -> str:
    """A name as it may be asked for. PostgreSQL cannot hold NUL characters, and no name has
    them."""
    if any(text and "\0" in text for text in (name, *more)):
        raise UserError("a name has no NUL characters")
    return name


def server_sent(events: AsyncIterator[str | None]) -> StreamingResponse:
    """Server-sent events as they come, and a sign of life while there are none (None)."""

    async def text() -> AsyncIterator[str]:
        yield "retry: 1000\n\n"
        said_at = time.monotonic()
        async for event in events:
            if event is None and time.monotonic() - said_at < _BEAT_S:
                continue
            yield f"{event or ': still here'}\n\n"
            said_at = time.monotonic()

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(text(), media_type="text/event-stream", headers=headers)
