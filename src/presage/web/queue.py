"""Jobs, a page at a time: what waits and why, what runs and where, what is over."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import Response
from nicegui import ui
from nicegui.events import GenericEventArguments

from presage.web.backend import HOME
from presage.web.elements import JobTable
from presage.web.frame import Tag, Visit, begin
from presage.web.words import eta_text, why

__all__: list[str] = []

PAGE = 50
SHOWN: dict[str, tuple[str, list[str]]] = {
    "all": ("All jobs", []),
    "waiting": ("Waiting", ["QUEUED"]),
    "running": ("Running", ["DOWNLOADING", "PROCESSING", "STORING"]),
    "halted": ("Halted", ["HALTED"]),
    "over": ("Over", ["COMPLETED", "FAILED", "CANCELLED"]),
    "failed": ("Failed", ["FAILED"]),
}


@ui.page("/queue")
async def queue(
    request: Request, show: str = "all", owner: str = "", queue: str = ""
) -> Response | None:
    """The list of jobs."""
    visit = await begin(request)
    if isinstance(visit, Response):
        return visit
    names = [item["name"] for item in (await visit.get("/queues", max_age_s=10.0))["queues"]]
    with visit.page("Jobs", "/queue"):
        listing = _Listing(visit, show if show in SHOWN else "all", owner[:200], queue[:200])
        await listing.build(names)
    visit.every(2.0, listing.update)
    return None


class _Listing:
    """The filters, the page that is shown, and the way to the next."""

    def __init__(self, visit: Visit, show: str, owner: str, queue: str) -> None:
        self._visit = visit
        self._wanted = {"show": show, "owner": owner, "queue": queue}
        self._before: list[int | None] = [None]
        """Where each page up to this one begins."""
        self._next: int | None = None

    async def build(self, queues: list[str]) -> None:
        """Draw everything."""
        with ui.element("div").classes("tools").props('role=search aria-label="Filter jobs"'):
            shown = {key: name for key, (name, _) in SHOWN.items()}
            self._select("Show", "show", shown)
            self._select("Queue", "queue", {"": "every queue", **{name: name for name in queues}})
            with Tag("label", "Owner"):
                field = Tag("input", type="search", maxlength="200", value=self._wanted["owner"])
                field.on("change", self._choose("owner"), js_handler=_VALUE)
            self._range = Tag("span", "", "soft", role="status")
            Tag("a", "Arrays", "button", href=f"{HOME}/arrays")
        with ui.element("section").classes("card"):
            self._table = JobTable("Jobs, newest first")
            with ui.element("nav").classes("row-of-buttons").props('aria-label="Pages of jobs"'):
                self._newer = Tag("button", "Newer", type="button").on("click", self._go_newer)
                self._older = Tag("button", "Older", type="button").on("click", self._go_older)
        await self.update()

    def _select(self, label: str, key: str, options: dict[str, str]) -> None:
        with Tag("label", label), ui.element("select") as select:
            for value, name in options.items():
                option = Tag("option", name, value=value)
                if value == self._wanted[key]:
                    option.props["selected"] = True
        select.on("change", self._choose(key), js_handler=_VALUE)

    def _choose(self, key: str) -> Any:
        async def chosen(event: GenericEventArguments) -> None:
            value = str(event.args)[:200]
            if key == "show" and value not in SHOWN:
                return
            self._wanted[key] = value
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
        if self._next is not None:
            self._before.append(self._next)
            await self.update()

    async def update(self) -> None:
        """Ask again and show what is different."""
        visit = self._visit
        body = await visit.get(
            "/jobs",
            max_age_s=1.5,
            status=SHOWN[self._wanted["show"]][1],
            owner=self._wanted["owner"],
            queue=self._wanted["queue"],
            limit=PAGE,
            after=self._before[-1],
        )
        jobs = body["jobs"]
        self._next = body["next"]
        waits = await self._waits([job["id"] for job in jobs if job["status"] == "QUEUED"])
        rows = [
            {
                "id": job["id"],
                "status": job["status"],
                "owner": job["owner"],
                "queue": job["queue"],
                "submitted_at": job["submitted_at"],
                "workers": job["workers"],
                "eta": eta_text(job),
                "why": why(job, waits.get(job["id"])),
            }
            for job in jobs
        ]
        self._table.show(rows, eta=any("eta_s" in job for job in jobs))
        first = (len(self._before) - 1) * PAGE
        self._range.say(f"{first + 1:,} to {first + len(jobs):,}" if jobs else "none")
        self._newer.enable(len(self._before) > 1)
        self._older.enable(self._next is not None)

    async def _waits(self, jobs: list[str]) -> dict[str, dict[str, Any]]:
        """What jobs wait for; it changes slowly and costs the scheduler time, so it is asked for
        less often."""
        if not jobs:
            return {}
        answer = await self._visit.get("/waiting", max_age_s=10.0, job=jobs)
        return {item["id"]: item for item in answer["waiting"]}


_VALUE = "(event) => emit(event.target.value)"
