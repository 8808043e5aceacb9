"""What is shown where there is nothing: a page that does not exist, a job that nobody knows."""

from __future__ import annotations

import re

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from nicegui import Client, ui
from nicegui.page import page as made_page

from presage.web import Dashboard
from presage.web.backend import HOME, part
from presage.web.frame import Tag, begin, notice

__all__ = ["answer", "near_names", "say_missing"]

_NEAR = re.compile(r"did you mean (.+)\?")
_LISTED = re.compile(r": (.+); give more")


def near_names(text: str) -> list[str]:
    """The names that an answer of the API suggests."""
    if match := _NEAR.search(text):
        return match[1].split(" or ")
    if match := _LISTED.search(text):
        return re.findall(r"([^\s,]+) \(", match[1])
    return []


def say_missing(text: str) -> None:
    """That a job is not there, with the way to those that may be meant."""
    near = near_names(text)
    said = _NEAR.sub("", text).rstrip("; ")
    notice(f"{said[:1].upper()}{said[1:]}.", "error")
    with ui.element("section").classes("card"):
        if near:
            Tag("h2", "Was it one of these?")
            with ui.element("ul").classes("plain"):
                for name in near:
                    with ui.element("li"):
                        Tag("a", name, href=f"{HOME}/jobs/{part(name)}")
        Tag("p", "It may be another's, or it was removed: what is over is kept for a while only.")
        Tag("a", "All jobs that you may see", href=f"{HOME}/queue")


async def answer(request: Request, error: Exception) -> Response:
    """An address that leads nowhere; what is no page is told so in JSON."""
    inside = request.scope.get("endpoint")
    if inside is not None and not isinstance(inside, Dashboard | FastAPI):  # a route answered
        said = getattr(error, "detail", "not found")
        return JSONResponse({"error": {"code": "not_found", "text": str(said)}}, 404)
    visit = await begin(request)
    if isinstance(visit, Response):
        return visit
    ways = (("/", "the cluster"), ("/queue", "jobs"), ("/submit", "submit a job"))
    with Client(made_page(""), request=request) as client, visit.page("No such page"):
        Tag("p", "There is nothing at this address. The way on is at the top, or:")
        with ui.element("ul").classes("plain"):
            for path, name in ways:
                with ui.element("li"):
                    Tag("a", name, href=f"{HOME}{path}")
    return client.build_response(request, 404)
