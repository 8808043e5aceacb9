"""Every page of the dashboard, as one ASGI application; importing this imports NiceGUI."""

from __future__ import annotations

from presage.web import (
    alerts,
    arrays,
    audit,
    cluster,
    compare,
    foresee,
    job,
    missing,
    policies,
    queue,
    queues,
    sign_in,
    submit,
    usage,
    users,
    utilization,
)
from presage.web.opening import opened, pages

__all__ = ["opened"]

PAGES = (
    *(
        alerts,
        cluster,
        queue,
        job,
        arrays,
        compare,
        submit,
        queues,
        utilization,
        usage,
        policies,
        foresee,
    ),
    *(users, audit, sign_in),
)
"""Modules that register pages when they are imported."""

sign_in.install(pages)
pages.add_exception_handler(404, missing.answer)
