"""The dashboard: pages that read what the HTTP API offers, with the reader's own token.

No page imports the server, the core or a store; every request goes through the API's routes in
the same process, so whoever may not do something there may not do it here. Needs the extra
`presage[dashboard]`; importing this raises ModuleNotFoundError without it.
"""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.middleware.gzip import GZipMiddleware
from nicegui import app as pages
from nicegui import ui

from presage.web import cluster, job, policies, queue, sign_in, submit, utilization
from presage.web.backend import HOME, Backend
from presage.web.frame import FAVICON

__all__ = ["mount"]

PAGES = (cluster, queue, job, submit, utilization, policies, sign_in)
"""Modules that register pages when they are imported."""


def mount(app: FastAPI) -> None:
    """Put the dashboard below `/ui` of an application that has the API, and lead `/` there."""
    pages.state.backend = Backend(app)
    sign_in.install(app)
    ui.run_with(
        app,
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
