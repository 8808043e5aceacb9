"""Policies compared on what this cluster has seen; the place for it, until the API answers."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response
from nicegui import ui

from presage.web.frame import Tag, begin, notice

__all__: list[str] = []


@ui.page("/policies")
async def policies(request: Request) -> Response | None:
    """How the cluster would have done under another policy."""
    visit = await begin(request)
    if isinstance(visit, Response):
        return visit
    with visit.page("Policies", "/policies"), ui.element("section").classes("card"):
        Tag("h2", "What if another policy had decided?")
        notice("This server does not replay its journal under other policies yet.")
        with ui.element("p"):
            Tag("span", "A trace of your own can be replayed under several of them with ")
            Tag("code", "presage simulate TRACE --policy fifo,sjf,backfill")
            Tag("span", ".")
    return None
