"""Runs beside each other: the curves of their metrics, and what differs in their manifests."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response
from nicegui import ui
from nicegui.events import GenericEventArguments

from presage.model.errors import ApiError
from presage.web.backend import HOME, part
from presage.web.charts import Curves
from presage.web.elements import DataTable
from presage.web.frame import VALUE, Tag, Visit, begin, choice, notice
from presage.web.words import duration

__all__: list[str] = []

OVER = {"step": "steps", "seconds": "time since the start"}
_MOST_METRICS = 12


@ui.page("/compare")
async def compare(request: Request, jobs: str = "") -> Response | None:
    """`?jobs=a,b,c`."""
    visit = await begin(request)
    if isinstance(visit, Response):
        return visit
    wanted = [name.strip()[:200] for name in jobs.split(",") if name.strip()][:12]
    with visit.page("Compare runs", "/queue"):
        if not wanted:
            with notice("Tick jobs in the list, then press Compare: "):
                Tag("a", "Jobs", href=f"{HOME}/queue")
            return None
        try:
            body = await visit.get("/compare", max_age_s=2.0, job=wanted)
        except ApiError as error:
            notice(str(error), "error")
            return None
        view = _ComparisonView(visit, wanted, body)
        view.build()
    visit.every(5.0, view.update)
    return None


class _ComparisonView:
    """The runs, what differs, and a chart for each metric."""

    def __init__(self, visit: Visit, wanted: list[str], body: dict[str, Any]) -> None:
        self._visit, self._wanted, self._body = visit, wanted, body
        steps = [
            step for lines in body["metrics"].values() for one in lines for step in one["step"]
        ]
        self._over = "step" if steps and all(step is not None for step in steps) else "seconds"
        self._charts: dict[str, Curves] = {}

    def build(self) -> None:
        """Draw everything."""
        ids = [job["id"] for job in self._body["jobs"]]
        with ui.element("section").classes("card"):
            Tag("h2", "Runs, and what differs between them")
            columns = {"job": ("Job", ""), "status": ("Status", "state"), "ran": ("Ran", "number")}
            differs = {row["key"]: (row["key"], "") for row in self._body["parameters"]}
            self._table = DataTable("Runs", {**columns, **differs}, sortable=True)
            if len(ids) > 1 and not differs:
                Tag("p", "Their manifests are the same.", "soft")
        with ui.element("div").classes("tools"):
            field = choice("Curves over", OVER, self._over)
            field.on("change", self._choose, js_handler=VALUE)
        self._none = Tag("p", "", "soft")
        self._place = ui.element("div").classes("grid")
        self._show()

    async def update(self) -> None:
        """Ask again and show what is different."""
        body = await self._visit.get("/compare", max_age_s=4.0, job=self._wanted)
        if body is not self._body:
            self._body = body
            self._show()

    def _choose(self, event: GenericEventArguments) -> None:
        if str(event.args) in OVER:
            self._over = str(event.args)
            self._show()

    def _show(self) -> None:
        body = self._body
        self._table.show([self._row(k, job) for k, job in enumerate(body["jobs"])])
        metrics = dict(list(body["metrics"].items())[:_MOST_METRICS])
        self._none.say("" if metrics else "None of them has reported a metric.")
        for name, lines in metrics.items():
            if name not in self._charts:
                with self._place:
                    self._charts[name] = Curves(name)
            self._charts[name].show(OVER[self._over], [self._line(line) for line in lines])

    def _line(self, line: dict[str, Any]) -> tuple[str, list[float], list[float]]:
        """A curve; a report without a step is left out of a chart over steps."""
        pairs = [
            (at, value)
            for at, value in zip(line[self._over], line["values"], strict=True)
            if at is not None
        ]
        return line["job"], [round(at, 2) for at, _ in pairs], [value for _, value in pairs]

    def _row(self, k: int, job: dict[str, Any]) -> dict[str, Any]:
        started, ended = job["started_at"], job["ended_at"]
        ran = (ended or 0.0) - started if started and ended else None
        return {
            "id": job["id"],
            "job": {"text": job["id"], "href": f"{HOME}/jobs/{part(job['id'])}"},
            "status": job["status"],
            "ran": {"text": "–" if ran is None else duration(ran), "sort": ran or 0.0},
            **{
                row["key"]: {"text": "–" if row["values"][k] is None else row["values"][k][:120]}
                for row in self._body["parameters"]
            },
        }
