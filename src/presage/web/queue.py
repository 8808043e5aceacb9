"""Jobs, a page at a time: what waits and why, what runs and where, what is over."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response
from nicegui import ui

from presage.web.backend import HOME
from presage.web.elements import JobTable
from presage.web.frame import Tag, Visit, begin
from presage.web.paging import Paged
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
        self._pages = Paged({"show": show, "owner": owner, "queue": queue}, self.update)

    async def build(self, queues: list[str]) -> None:
        """Draw everything."""
        with ui.element("div").classes("tools").props('role=search aria-label="Filter jobs"'):
            self._pages.select("Show", "show", {key: name for key, (name, _) in SHOWN.items()})
            named = {"": "every queue", **{name: name for name in queues}}
            self._pages.select("Queue", "queue", named)
            self._pages.field("Owner", "owner")
            self._range = Tag("span", "", "soft", role="status")
            Tag("a", "Arrays", "button", href=f"{HOME}/arrays")
        with ui.element("section").classes("card"):
            self._table = JobTable("Jobs, newest first")
            self._pages.buttons("Pages of jobs")
        await self.update()

    async def update(self) -> None:
        """Ask again and show what is different."""
        visit, pages = self._visit, self._pages
        body = await visit.get(
            "/jobs",
            max_age_s=1.5,
            status=SHOWN[pages.wanted["show"]][1],
            owner=pages.wanted["owner"],
            queue=pages.wanted["queue"],
            limit=PAGE,
            after=pages.start,
        )
        jobs = body["jobs"]
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
        first = pages.number * PAGE
        self._range.say(f"{first + 1:,} to {first + len(jobs):,}" if jobs else "none")
        pages.shown(body["next"])

    async def _waits(self, jobs: list[str]) -> dict[str, dict[str, Any]]:
        """What jobs wait for; it changes slowly and costs the scheduler time, so it is asked for
        less often."""
        if not jobs:
            return {}
        answer = await self._visit.get("/waiting", max_age_s=10.0, job=jobs)
        return {item["id"]: item for item in answer["waiting"]}
