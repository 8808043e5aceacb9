"""How pages are opened as one ASGI application, whichever they are; importing this imports
NiceGUI."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.middleware.gzip import GZipMiddleware
from nicegui import app as pages
from nicegui import ui
from starlette.types import ASGIApp

from presage.web.asking import Desks
from presage.web.backend import HOME, Backend
from presage.web.frame import FAVICON

__all__ = ["opened", "pages"]


@asynccontextmanager
async def opened(api: FastAPI) -> AsyncIterator[ASGIApp]:
    """The pages that were imported, which ask the API of an application, for as long as the
    block."""
    pages.state.backend = Backend(api)
    pages.state.desks = Desks()
    host = FastAPI()  # only its lifespan is of use: `presage.web.Dashboard` mounts the pages
    ui.run_with(
        host,
        mount_path=HOME,
        title="Presage",
        favicon=FAVICON,
        language="en-US",
        dark=None,
        tailwind=False,
        binding_refresh_interval=None,
        message_history_length=100,
        show_welcome_message=False,
        gzip_middleware_factory=lambda inner: GZipMiddleware(inner, compresslevel=4),
    )
    try:
        async with host.router.lifespan_context(host):
            yield pages
    finally:
        await pages.state.desks.close()
