"""The control plane as an ASGI application: routes, errors, guards and background work."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI

from presage import __version__, web
from presage.control.forwarding import PREFIX
from presage.control.site.service import Service
from presage.control.site.settings import Settings
from presage.control.webhooks import deliver
from presage.server import problems, proxy
from presage.server.guard import Guard
from presage.server.routes import (
    admission,
    ahead,
    arrays,
    attach,
    charts,
    cluster,
    comparing,
    diagnosis,
    draining,
    events,
    folders,
    health,
    jobs,
    logs,
    overview,
    policy,
    removal,
    results,
    scale,
    secrets,
    sign_in,
    usage,
    users,
)
from presage.server.standby import Elsewhere, Standby

__all__ = ["create_app"]

_ABOUT = """
Submit jobs, watch them, stop them. Errors are `{"error": {"code", "text"}}`. With users, every
request carries `Authorization: Bearer TOKEN`; on loopback without users, none is needed.
"""


class _Api(FastAPI):
    """Describes errors as well."""

    def openapi(self) -> dict[str, Any]:
        """The description of the API, made when it is first asked for."""
        if self.openapi_schema is None:
            problems.describe(super().openapi())
        assert self.openapi_schema is not None
        return self.openapi_schema


def create_app(settings: Settings, started: Service | None = None) -> FastAPI:
    """The application of one server. It opens the database now, and decides while it runs, unless
    it is given a service that somebody else starts and ends."""
    service = started or Service(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if started is None:
            service.start(asyncio.get_running_loop())
        tasks = [asyncio.create_task(work(service)) for work in (deliver, _sweep)]
        if dashboard is not None:
            tasks.append(asyncio.create_task(_show(service, dashboard)))
        yield
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        if dashboard is not None:
            await dashboard.close()
        if started is None:
            await asyncio.to_thread(service.close)

    app = _Api(
        title="Presage",
        version=__version__,
        description=_ABOUT.strip(),
        lifespan=lifespan,
        docs_url="/docs",
        redoc_url=None,
    )
    app.state.service = service
    app.state.elsewhere = Elsewhere(service)
    problems.install(app)
    # As they are: to include a router is to make each of its routes once more.
    app.router.routes += jobs.submissions.routes
    for part in (
        jobs,
        arrays,
        ahead,
        scale,
        attach,
        logs,
        overview,
        policy,
        removal,
        results,
        events,
        cluster,
        draining,
        diagnosis,
        comparing,
        charts,
        users,
        secrets,
        sign_in,
        usage,
        folders,
        health,
        admission,
    ):
        app.router.routes += part.router.routes

    def most(path: str) -> int:
        upload = path.startswith(("/api/v1/folders/", PREFIX))
        return settings.most_folder if upload else settings.most_body

    if settings.proxy_port:
        app.add_middleware(proxy.ProxyGate, service=service)
    app.add_middleware(Standby, elsewhere=app.state.elsewhere)
    app.add_middleware(Guard, most=most, open_to_all=service.accounts.open)
    dashboard = web.Dashboard(app) if web.installed() else None
    return app


async def _show(service: Service, dashboard: web.Dashboard) -> None:
    """Load the dashboard as soon as this server decides, or another has for a while."""
    until = time.monotonic() + 2 * service.settings.lease_s
    while not service.live.leading.is_set() and time.monotonic() < until:
        await asyncio.sleep(0.02)
    await dashboard.load()
    gc.freeze()  # what is imported stays: do not look through it again and again


async def _sweep(service: Service) -> None:
    await service.retention.sweep_for_ever(service.live.leading.is_set)
