"""The dashboard: pages that read what the HTTP API offers, with the reader's own token.

No page imports the server, the core or a store; every request goes through the API's routes in
the same process, so whoever may not do something there may not do it here. The pages need the
extra `presage[dashboard]`. They take longer to import than the rest of the server, so they are
loaded beside it once it decides; a request that comes earlier waits for them.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from importlib import import_module
from importlib.util import find_spec

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["HOME", "Dashboard", "installed"]

log = logging.getLogger("presage.web")

HOME = "/ui"
"""Where the pages are."""


def installed() -> bool:
    """Whether `presage[dashboard]` is."""
    return find_spec("nicegui") is not None


class Dashboard:
    """The pages below `/ui` of an application that has the API, and `/` leads there; `pages` is
    the module that has them."""

    def __init__(self, api: FastAPI, pages: str = "presage.web.pages") -> None:
        self._api, self._pages = api, pages
        self._open = AsyncExitStack()
        self._loading: asyncio.Task[ASGIApp] | None = None
        api.add_api_route("/", _home, methods=["GET"], include_in_schema=False)
        api.mount(HOME, self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the pages answer."""
        pages = await self.load()
        await pages(scope, receive, send)

    async def load(self) -> ASGIApp:
        """The pages, loaded once, on a thread of their own."""
        if self._loading is None:
            self._loading = asyncio.create_task(self._load())
        return await asyncio.shield(self._loading)

    async def _load(self) -> ASGIApp:
        try:
            pages = await asyncio.to_thread(import_module, self._pages)
            opened: ASGIApp = await self._open.enter_async_context(pages.opened(self._api))
            return opened
        except Exception:  # the API serves without it
            log.exception("the dashboard could not be loaded")
            return PlainTextResponse("the dashboard could not be loaded: see the log", 500)

    async def close(self) -> None:
        """End what the pages do beside requests."""
        if self._loading is not None:
            await asyncio.wait([self._loading])
        await self._open.aclose()


async def _home() -> Response:
    return RedirectResponse(f"{HOME}/", 307)
