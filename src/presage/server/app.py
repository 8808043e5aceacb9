"""The control plane as an ASGI application: routes, errors, guards and background work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI

from presage import __version__
from presage.server import problems
from presage.server.guard import Guard
from presage.server.history import History, record
from presage.server.routes import (
    charts,
    cluster,
    events,
    folders,
    foresight,
    health,
    jobs,
    logs,
    scale,
    users,
)
from presage.server.service import Service
from presage.server.settings import Settings
from presage.server.webhooks import deliver

try:
    from presage import web
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] != "nicegui":
        raise
    web = None  # type: ignore[assignment]  # presage[dashboard] is not installed

__all__ = ["create_app"]

_ABOUT = """
Submit jobs, watch them, stop them. Errors are `{"error": {"code", "text"}}`. With users, every
request carries `Authorization: Bearer TOKEN`; on loopback without users, none is needed.
"""


def create_app(settings: Settings) -> FastAPI:
    """The application of one server. It opens the database now, and decides while it runs."""
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.loop = asyncio.get_running_loop()
        service.live.start()
        for part in service.beside:
            part.start()
        tasks = [
            asyncio.create_task(deliver(service)),
            asyncio.create_task(record(service, app.state.history)),
        ]
        yield
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await asyncio.to_thread(service.close)

    app = FastAPI(
        title="Presage",
        version=__version__,
        description=_ABOUT.strip(),
        lifespan=lifespan,
        docs_url="/docs",
        redoc_url=None,
        responses=problems.RESPONSES,
    )
    app.state.service = service
    app.state.history = History(settings.data / "history.jsonl")
    problems.install(app)
    app.include_router(jobs.submissions)
    for routes in (
        jobs,
        foresight,
        scale,
        logs,
        events,
        cluster,
        charts,
        users,
        folders,
        health,
    ):
        app.include_router(routes.router)

    def most(path: str) -> int:
        upload = path.startswith("/api/v1/folders/")
        return settings.most_folder if upload else settings.most_body

    app.add_middleware(Guard, most=most, open_to_all=service.accounts.open)
    if web is not None:
        web.mount(app)
    return app
