"""What every request passes before a route sees it: its size, and whom it was meant for.

Plain ASGI, since it must not read a body that nobody wants.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from presage.control.site.settings import is_loopback
from presage.server.problems import problem

__all__ = ["Guard"]


class _Flood(Exception):
    """More bytes came than are taken."""


class Guard:
    """Refuses bodies that are too large, and, while no token is needed, requests that a web page
    of somebody else's could have sent through a browser on this machine."""

    def __init__(
        self, app: ASGIApp, *, most: Callable[[str], int], open_to_all: Callable[[], bool]
    ) -> None:
        self._app, self._most, self._open_to_all = app, most, open_to_all

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        if scope["type"] == "websocket":
            stranger = headers.get(b"origin") and not _own_origin(headers)
            if stranger or (not _names_us(headers) and self._open_to_all()):
                await send({"type": "websocket.close", "code": 1008})  # answered with 403
                return
            await self._app(scope, receive, send)
            return
        most = self._most(scope["path"])
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > most:
            answer = problem(413, "too_large", f"at most {most} bytes are taken here")
            await answer(scope, receive, send)
            return
        if headers.get(b"origin") and not _own_origin(headers):
            answer = problem(403, "forbidden", "requests from other web pages are refused")
            await answer(scope, receive, send)
            return
        if not _names_us(headers) and self._open_to_all():
            answer = problem(403, "forbidden", "without users, only loopback names are answered")
            await answer(scope, receive, send)
            return
        got = 0

        async def counted() -> Message:
            nonlocal got
            message = await receive()
            got += len(message.get("body", b""))
            if got > most:
                raise _Flood
            return message

        try:
            await self._app(scope, counted, send)
        except _Flood:
            answer = problem(413, "too_large", f"at most {most} bytes are taken here")
            await answer(scope, receive, send)


def _names_us(headers: dict[bytes, bytes]) -> bool:
    host = headers.get(b"host", b"").decode("latin-1")
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return is_loopback(name or host)


def _own_origin(headers: dict[bytes, bytes]) -> bool:
    origin = headers[b"origin"].decode("latin-1")
    return origin.partition("://")[2] == headers.get(b"host", b"").decode("latin-1")
