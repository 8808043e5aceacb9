"""What answers first: a server decides before its API is imported: that is a third of a start.

Until then `/healthz` and `/readyz` are answered here, and every other request waits for the API;
none is refused. The API is imported when the server decides, when somebody asks for it, or when
another server turns out to decide. This must not import FastAPI.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AsyncExitStack
from importlib import import_module
from typing import Any

from presage.control.site.service import Service

__all__ = ["Front"]

log = logging.getLogger("presage.server")

_RECOVER_S = 0.5
"""A server that does not decide after so long is a standby, or has much to recover."""
_LOOK_S = 0.01

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_App = Callable[[_Message, _Receive, _Send], Awaitable[None]]


class Front:
    """An ASGI application: a service that is started, and its API as soon as it is there."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._open = AsyncExitStack()
        self._loading: asyncio.Task[_App] | None = None
        self._api: _App | None = None

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Answer, or have the API answer."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._api is None and scope.get("path") in ("/healthz", "/readyz"):
            await self._say_how_it_is(scope["path"], send)
        else:
            api = self._api or await self._load()
            await api(scope, receive, send)

    async def _live(self, receive: _Receive, send: _Send) -> None:
        await receive()
        self._service.start(asyncio.get_running_loop())
        await send({"type": "lifespan.startup.complete"})
        later = asyncio.create_task(self._load_when_it_decides())
        await receive()
        later.cancel()
        if self._loading is not None:
            await asyncio.wait([self._loading])
        await self._open.aclose()
        await asyncio.to_thread(self._service.close)
        await send({"type": "lifespan.shutdown.complete"})

    async def _load_when_it_decides(self) -> None:
        until = time.monotonic() + _RECOVER_S
        while not self._service.live.leading.is_set() and time.monotonic() < until:
            await asyncio.sleep(_LOOK_S)
        await self._load()

    async def _load(self) -> _App:
        """The API, loaded once, on a thread of its own."""
        if self._loading is None:
            self._loading = asyncio.create_task(self._import())
        return await asyncio.shield(self._loading)

    async def _import(self) -> _App:
        try:
            module = await asyncio.to_thread(import_module, "presage.server.app")
            app = module.create_app(self._service.settings, self._service)
            await self._open.enter_async_context(app.router.lifespan_context(app))
        except Exception:
            log.exception("the API could not be loaded")
            signal.raise_signal(signal.SIGTERM)
            raise
        self._api = app
        return self._api

    async def _say_how_it_is(self, path: str, send: _Send) -> None:
        """As `routes/health.py` does, which also knows who else decides."""
        leading = self._service.live.leading.is_set()
        url = self._service.settings.url if leading else None
        body: dict[str, Any] = {"status": "ok", "leading": leading, "leader": url}
        status, headers = 200, [(b"content-type", b"application/json")]
        if path == "/readyz" and not leading:
            body = {"error": {"code": "not_leading", "text": "no server decides at the moment"}}
            status, headers = 503, [*headers, (b"retry-after", b"1")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})
