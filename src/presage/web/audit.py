"""For admins: who did what, newest first."""

from __future__ import annotations

import json
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from nicegui import ui

from presage.web.backend import HOME, part
from presage.web.elements import DataTable
from presage.web.frame import Visit, begin, notice
from presage.web.paging import Paged
from presage.web.words import clock

__all__: list[str] = []

PAGE = 100
_COLUMNS = {
    "at": ("When", ""),
    "who": ("Who", ""),
    "what": ("What", ""),
    "job": ("Job", ""),
    "detail": ("Detail", "why"),
}


@ui.page("/audit")
async def audit(request: Request, who: str = "", job: str = "") -> Response | None:
    """The log."""
    visit = await begin(request)
    if isinstance(visit, Response):
        return visit
    with visit.page("Audit", "/audit"):
        if not visit.is_admin():
            notice(f"{visit.me['name']} is a {visit.me['role']}; the audit log is for admins.")
            return None
        log = _AuditPage(visit, who[:200], job[:200])
        await log.build()
    visit.every(5.0, log.update)
    return None


class _AuditPage:
    """Filters, and a page of entries."""

    def __init__(self, visit: Visit, who: str, job: str) -> None:
        self._visit = visit
        self._pages = Paged({"who": who, "job": job}, self.update)

    async def build(self) -> None:
        """Draw everything."""
        with ui.element("div").classes("tools").props('role=search aria-label="Filter entries"'):
            self._pages.field("Who", "who")
            self._pages.field("Job (its id)", "job")
        with ui.element("section").classes("card"):
            self._table = DataTable("Audit log, newest first", _COLUMNS, empty="No entry fits.")
            self._pages.buttons("Pages")
        await self.update()

    async def update(self) -> None:
        """Ask again and show it."""
        pages = self._pages
        body = await self._visit.get(
            "/audit", max_age_s=1.0, **pages.wanted, limit=PAGE, before=pages.start
        )
        entries = body["entries"]
        self._table.show([_row(entry) for entry in entries])
        pages.shown(entries[-1]["number"] if len(entries) == PAGE else None)


def _row(entry: dict[str, Any]) -> dict[str, Any]:
    job = entry["job"]
    words = ", ".join(
        f"{key}: {value if isinstance(value, str) else json.dumps(value)}"
        for key, value in entry["detail"].items()
    )
    return {
        "id": entry["number"],
        "at": clock(entry["at"]),
        "who": entry["who"],
        "what": entry["what"],
        "job": {"text": job, "href": f"{HOME}/jobs/{part(job)}"} if job else "",
        "detail": words,
    }
