"""Every page of the dashboard, as one ASGI application; importing this imports NiceGUI."""

from __future__ import annotations

from presage.web import (
    cluster,
    foresee,
    job,
    policies,
    queue,
    sign_in,
    submit,
    utilization,
)
from presage.web.opening import opened, pages

__all__ = ["opened"]

PAGES = (cluster, queue, job, submit, utilization, policies, foresee, sign_in)
"""Modules that register pages when they are imported."""

sign_in.install(pages)
