"""The page *Foresee* as an application of its own: no store, no executor, no users, this machine
alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from presage import __version__, web
from presage.server.guard import Guard

__all__ = ["create_foresee_app"]

_MOST_BODY = 1 << 20


def create_foresee_app() -> FastAPI:
    """The application. It answers requests that name this machine."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await pages.load()
        yield
        await pages.close()

    app = FastAPI(
        title="Presage", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.add_api_route("/api/v1/me", _me, methods=["GET"], include_in_schema=False)
    app.add_middleware(Guard, most=lambda path: _MOST_BODY, open_to_all=lambda: True)
    pages = web.Dashboard(app, "presage.web.alone")
    return app


async def _me() -> dict[str, str | None]:
    return {"name": "local", "role": "viewer", "created_at": None}
