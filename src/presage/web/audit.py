"""For admins: who did what, newest first."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import Response
from nicegui import ui
from nicegui.events import GenericEventArguments

from presage.web.backend import HOME, part
from presage.web.elements import DataTable
from presage.web.frame import VALUE, Tag, Visit, begin, notice
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
        self._wanted = {"who": who, "job": job}
        self._before: list[int | None] = [None]
        self._last: int | None = None

    async def build(self) -> None:
        """Draw everything."""
        with ui.element("div").classes("tools").props('role=search aria-label="Filter entries"'):
            for key, label in (("who", "Who"), ("job", "Job (its id)")):
                with Tag("label", label):
                    field = Tag("input", type="search", maxlength="200", value=self._wanted[key])
                field.on("change", self._choose(key), js_handler=VALUE)
        with ui.element("section").classes("card"):
            self._table = DataTable("Audit log, newest first", _COLUMNS, empty="No entry fits.")
            with ui.element("nav").classes("row-of-buttons").props('aria-label="Pages"'):
                self._newer = Tag("button", "Newer", type="button").on("click", self._go_newer)
                self._older = Tag("button", "Older", type="button").on("click", self._go_older)
        await self.update()

    def _choose(self, key: str) -> Any:
        async def chosen(event: GenericEventArguments) -> None:
            self._wanted[key] = str(event.args).strip()[:200]
            self._before = [None]
            query = urlencode({name: text for name, text in self._wanted.items() if text})
            ui.run_javascript(f"history.replaceState(null, '', {json.dumps('?' + query)})")
            await self.update()

        return chosen

    async def _go_newer(self) -> None:
        if len(self._before) > 1:
            self._before.pop()
            await self.update()

    async def _go_older(self) -> None:
        if self._last is not None:
            self._before.append(self._last)
            await self.update()

    async def update(self) -> None:
        """Ask again and show it."""
        body = await self._visit.get(
            "/audit", max_age_s=1.0, **self._wanted, limit=PAGE, before=self._before[-1]
        )
        entries = body["entries"]
        self._last = entries[-1]["number"] if len(entries) == PAGE else None
        self._table.show([_row(entry) for entry in entries])
        self._newer.enable(len(self._before) > 1)
        self._older.enable(self._last is not None)


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
