"""The page *Foresee* without a cluster, as an ASGI application; importing this imports NiceGUI."""

from __future__ import annotations

from fastapi.responses import RedirectResponse, Response

from presage.web import HOME, foresee
from presage.web.frame import show_links
from presage.web.opening import opened, pages

__all__ = ["opened"]

PAGES = (foresee,)
"""Modules that register pages when they are imported."""


async def _first() -> Response:
    return RedirectResponse(f"{HOME}/foresee", 307)


pages.add_api_route("/", _first, methods=["GET"], include_in_schema=False)
show_links("/foresee")
