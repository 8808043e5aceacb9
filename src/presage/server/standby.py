"""A server that does not decide sends those who need the one that does to it: 307 and its address.

Reads that the database answers stay here. What needs the deciding loop is found by the route that
needs it (`NotLeading`); pages and uploads are sent on before anything of them is read.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from presage.model.errors import NotLeading, PresageError
from presage.web import HOME

if TYPE_CHECKING:
    from presage.control.site.service import Service

__all__ = ["Elsewhere", "Standby"]

_FRESH_S = 0.5
"""How long it is believed who leads."""


class Elsewhere:
    """Knows where the server is that decides, if it is another one."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._known: tuple[float, str | None] = (float("-inf"), None)

    async def url(self) -> str | None:
        """Its address; None while nobody else decides, or where its address leads nowhere."""
        if self._service.live.leading.is_set():
            return None
        at, url = self._known
        if time.monotonic() - at > _FRESH_S:
            try:
                url = await asyncio.to_thread(self._service.elsewhere)
            except PresageError:
                url = None
            self._known = time.monotonic(), url
        return url

    async def answer(self, scope: Scope) -> JSONResponse | None:
        """The answer that leads there, if there is such a place."""
        url = await self.url()
        if url is None:
            return None
        query = scope["query_string"].decode("latin-1")
        path = scope.get("raw_path") or scope["path"].encode()
        where = f"{url}{path.decode('latin-1')}{'?' if query else ''}{query}"
        text = f"this server is a standby; {url} decides"
        body = {"error": {"code": NotLeading.code, "text": text}}
        return JSONResponse(body, 307, {"Location": where, "Cache-Control": "no-store"})


class Standby:
    """Sends pages and uploads to the server that decides; everything else goes on."""

    def __init__(self, app: ASGIApp, *, elsewhere: Elsewhere) -> None:
        self._app, self._elsewhere = app, elsewhere

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] == "http" and _needs_leader(scope):
            answer = await self._elsewhere.answer(scope)
            if answer is not None:
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _needs_leader(scope: Scope) -> bool:
    path: str = scope["path"]
    if path.startswith("/api/v1/folders/"):
        return True
    if scope["method"] != "GET" or not (path == "/" or path.startswith(HOME)):
        return False
    headers = {name.lower(): value for name, value in scope["headers"]}
    return b"text/html" in headers.get(b"accept", b"")
