"""Arrays: jobs that were submitted as one, their best so far, and how parameters bear on it."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response
from nicegui import ui

from presage.model.errors import ApiError
from presage.web.backend import HOME, part
from presage.web.charts import Parallels
from presage.web.elements import DataTable
from presage.web.frame import Tag, Tiles, Visit, begin, confirm, notice, tell
from presage.web.words import clock, why

__all__: list[str] = []

_SHOWN = 200
_BEST = 10
_LIST = {
    "id_": ("Array", ""),
    "owner": ("Owner", ""),
    "queue": ("Queue", ""),
    "at": ("Submitted", ""),
    "done": ("Over", "bar"),
    "running": ("Run", "number"),
    "waiting": ("Wait", "number"),
    "failed": ("Failed", "number"),
    "best": ("Best so far", "number"),
}
_RUNS = ("DOWNLOADING", "PROCESSING", "STORING")


@ui.page("/arrays")
async def arrays(request: Request) -> Response | None:
    """All arrays, newest first."""
    visit = await begin(request)
    if isinstance(visit, Response):
        return visit

    async def update() -> None:
        body = await visit.get("/arrays", max_age_s=2.0, limit=_SHOWN)
        table.show([_listed(array) for array in body["arrays"]])

    with visit.page("Arrays", "/queue"):
        with ui.element("section").classes("card"):
            table = DataTable(
                "Arrays",
                _LIST,
                sortable=True,
                empty="No array yet: a manifest with a sweep is submitted as one.",
            )
        await update()
    visit.every(3.0, update)
    return None


def _listed(array: dict[str, Any]) -> dict[str, Any]:
    counts = array["counts"]
    return {
        "id": array["id"],
        "id_": {"text": array["id"], "href": f"{HOME}/arrays/{part(array['id'])}"},
        "owner": array["owner"],
        "queue": array["queue"],
        "at": clock(array["submitted_at"])[:16],
        "done": {"text": f"{array['done']:.0%} of {array['size']}", "share": array["done"]},
        "running": sum(counts.get(status, 0) for status in _RUNS),
        "waiting": counts.get("QUEUED", 0),
        "failed": counts.get("FAILED", 0),
        "best": _best_text(array),
    }


def _best_text(array: dict[str, Any]) -> str:
    if array["best"] is None:
        return "–"
    return f"{array['metric']} {array['best']:.4g}"


@ui.page("/arrays/{array_id}")
async def array(request: Request, array_id: str) -> Response | None:
    """One array."""
    visit = await begin(request)
    if isinstance(visit, Response):
        return visit
    try:
        body = await visit.get(f"/arrays/{part(array_id)}")
    except ApiError as error:
        with visit.page("Array", "/queue"):
            notice(str(error), "error")
            Tag("a", "All arrays that you may see", href=f"{HOME}/arrays")
        return None
    with visit.page(body["id"], "/queue"):
        view = _ArrayView(visit, body)
        view.build()
        await view.update()
    visit.every(3.0, view.update)
    return None


class _ArrayView:
    """Counts, the best, all members."""

    def __init__(self, visit: Visit, body: dict[str, Any]) -> None:
        self._visit, self._body = visit, body
        self._path = f"/arrays/{part(body['id'])}"
        self._tables: tuple[DataTable, DataTable] | None = None

    def build(self) -> None:
        """Draw what stays."""
        self._tiles = Tiles("Jobs", "Run", "Wait", "Completed", "Failed", "Best so far")
        if self._visit.may_change(self._body) and self._body["ended_at"] is None:
            with ui.element("div").classes("row-of-buttons").style("margin-bottom: 16px"):
                for what in ("Halt", "Resume", "Stop"):
                    kind = "danger" if what == "Stop" else ""
                    button = Tag("button", f"{what} all", kind, type="button")
                    button.on("click", lambda what=what: self._tell(what))
        self._best_card = ui.element("section").classes("card")
        self._chart = Parallels("Parameters and what came of them")
        self._members_card = ui.element("section").classes("card")

    async def update(self) -> None:
        """Ask again and show it."""
        body = self._body = await self._visit.get(self._path, max_age_s=1.5)
        counts = body["counts"]
        self._tiles.show(
            {
                "Jobs": f"{body['size']:,}",
                "Run": f"{sum(counts.get(status, 0) for status in _RUNS):,}",
                "Wait": f"{counts.get('QUEUED', 0):,}",
                "Completed": f"{counts.get('COMPLETED', 0):,}",
                "Failed": f"{counts.get('FAILED', 0):,}",
                "Best so far": "–" if body["best"] is None else f"{body['best']:.4g}",
            },
            {
                "Jobs": f"{body['done']:.0%} over",
                "Best so far": f"{body['mode']} of {body['metric']}" if body["metric"] else "",
            },
        )
        page = await self._visit.get("/jobs", max_age_s=2.0, array=body["id"], limit=_SHOWN)
        members = page["jobs"]
        best: list[dict[str, Any]] = []
        if body["metric"]:
            ranking = await self._visit.get(f"{self._path}/best", max_age_s=2.0, limit=_SHOWN)
            best = ranking["best"]
        self._show(members, best)

    def _show(self, members: list[dict[str, Any]], best: list[dict[str, Any]]) -> None:
        names = list(dict.fromkeys(name for job in members for name in job["params"] or ()))
        if self._tables is None:
            self._tables = self._make_tables(names)
        ranked, listed = self._tables
        ranked.show([self._row(job, names, job["value"]) for job in best[:_BEST]])
        values = {job["id"]: job["value"] for job in best}
        listed.show([self._row(job, names, values.get(job["id"])) for job in members])
        metric = self._body["metric"] or ""
        points = [[job["params"].get(name) for name in names] + [job["value"]] for job in best]
        self._chart.show([*names, metric], points)

    def _make_tables(self, names: list[str]) -> tuple[DataTable, DataTable]:
        metric = self._body["metric"]
        params = {f"p.{name}": (name, "number") for name in names}
        value = {"value": (metric, "number")} if metric else {}
        head = {"job": ("Job", ""), "status": ("Status", "state"), **value, **params}
        self._best_card.set_visibility(bool(metric))
        with self._best_card:
            Tag("h2", f"The best by {metric}")
            ranked = DataTable("The best", head, empty=f"None has reported {metric} yet.")
        with self._members_card:
            with ui.element("div").classes("titled"):
                Tag("h2", "Jobs of it")
                if self._body["size"] > _SHOWN:
                    Tag("span", f"the newest {_SHOWN}", "soft")
            listed = DataTable("Members", {**head, "why": ("Why, or where", "why")}, sortable=True)
        return ranked, listed

    def _row(self, job: dict[str, Any], names: list[str], value: float | None) -> dict[str, Any]:
        params = job["params"] or {}
        return {
            "id": job["id"],
            "job": {"text": job["id"], "href": f"{HOME}/jobs/{part(job['id'])}"},
            "status": job["status"],
            "value": {"text": "–" if value is None else f"{value:.5g}", "sort": value or 0.0},
            "why": why(job) if "reason" in job else "",
            **{f"p.{name}": {"text": str(params.get(name, "–"))} for name in names},
        }

    async def _tell(self, what: str) -> None:
        danger = what == "Stop"
        if await confirm(f"{what} all jobs of this array?", (), f"{what} all", danger=danger):
            told = await tell(self._visit.post(f"{self._path}/{what.lower()}"))
            if told is not None:
                await self.update()
