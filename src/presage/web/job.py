"""One job: where it stands and how it got there, its output, what it uses, and what to do."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from nicegui import app as pages
from nicegui import ui

from presage.model.errors import ApiError
from presage.web.alerts import TroublePanel
from presage.web.backend import HOME, part
from presage.web.charts import Line, LineChart
from presage.web.frame import Tag, Visit, begin, confirm, notice, tell
from presage.web.job_panels import ForeseenPanel, ManifestPanel, ResultsPanel
from presage.web.logs import Output
from presage.web.missing import say_missing
from presage.web.words import (
    asked_text,
    clock,
    duration,
    eta_age,
    eta_text,
    outlook_lines,
    risk_text,
    where,
    worker_bounds,
)

__all__: list[str] = []

ENDED = ("COMPLETED", "FAILED", "CANCELLED")
_ACTIONS = {
    "halt": ("Halt", "Halt this job?", "It is asked to save and to end, and can go on later."),
    "resume": (
        "Resume",
        "Resume this job?",
        "It starts when there is room, from its newest checkpoint if it took one.",
    ),
    "stop": ("Stop", "Stop this job for good?", "It is asked to save and to end."),
}
_MOST_METRICS = 6
_GPU_CHARTS = (
    ("GPUs busy", "%", "gpu_util_pct"),
    ("GPU memory in use (the fullest GPU)", "MiB", "gpu_memory_mib"),
)
_SHARE_CHARTS = (
    ("Share of the GPU it got", "gpu_got", ("asked", "gpu_request"), ("limit", "gpu_limit")),
    ("Waited for turns on the GPU (seconds in a second)", "gpu_waited"),
)
_MOST_LINES = 16
_COUNTERS = ("done", "step", "steps", "epoch", "epochs")


@ui.page("/jobs/{job_id}")
async def job(request: Request, job_id: str) -> Response | None:
    """Everything about one job."""
    visit = await begin(request)
    if isinstance(visit, Response):
        return visit
    try:
        body = await visit.get(f"/jobs/{part(job_id)}")
    except ApiError as error:
        with visit.page("Job", "/queue"):
            if error.status in (404, 409):
                say_missing(str(error))
            else:
                notice(str(error), "error")
        return None
    with visit.page(body["id"], "/queue"):
        page = _JobPage(visit, body)
        await page.build()
    visit.every(1.0, page.update)
    return None


@pages.get("/jobs/{job_id}/results.zip")
async def results(request: Request, job_id: str) -> Response:
    """All that a job made, for the browser to keep."""
    visit = await begin(request)
    if isinstance(visit, Response):
        return visit
    return await _sent(visit, f"/jobs/{part(job_id)}/results.zip")


@pages.get("/jobs/{job_id}/results/{path:path}")
async def one_result(request: Request, job_id: str, path: str) -> Response:
    """One file that a job made, for the browser to keep."""
    visit = await begin(request)
    if isinstance(visit, Response):
        return visit
    where = "/".join(part(piece) for piece in path.split("/"))
    return await _sent(visit, f"/jobs/{part(job_id)}/results/{where}")


async def _sent(visit: Visit, path: str) -> Response:
    status, headers, chunks = await visit.stream(path)
    kept = ("content-type", "content-disposition", "cache-control", "x-content-type-options")
    wanted = {name: headers[name] for name in kept if name in headers}
    return StreamingResponse(chunks, status, headers=wanted)


class _JobPage:
    """The parts of the page, and what keeps them up to date."""

    def __init__(self, visit: Visit, body: dict[str, Any]) -> None:
        self._visit, self._body = visit, body
        self._path = f"/jobs/{part(body['id'])}"
        self._turn = 0

    async def build(self) -> None:
        """Draw everything."""
        with ui.element("section").classes("card"):
            manifest = await self._visit.get(f"{self._path}/manifest", max_age_s=60.0)
            self._facts = _FactsPanel(asked_text(manifest))
            bounds = worker_bounds(manifest)
            self._buttons = _Buttons(self._visit, self._path, bounds, self.update)
        diagnosis = f"/diagnosis/{part(self._body['id'])}"
        self._trouble = TroublePanel(self._visit, diagnosis)
        self._outlook = _AheadPanel(self._visit, self._path)
        with ui.element("section").classes("card"):
            Tag("h2", "What happened")
            self._timeline = ui.element("ol").classes("timeline")
        self._foreseen = ForeseenPanel(self._visit, self._path)
        self._results = ResultsPanel(self._visit, self._path)
        self._output = Output(self._visit, self._path)
        ManifestPanel(self._visit, self._body, manifest)
        self._measured = ui.element("div")
        with self._measured:
            await self._output.build()
        with self._measured, ui.element("div").classes("grid"):
            self._cpu = LineChart("Cores in use", "cores")
            self._memory = LineChart("Memory in use", "MiB")
            self._workers = LineChart("Workers", "workers", steps=True)
            self._others: dict[str, LineChart] = {}
        self._grid = self._workers.card.parent_slot
        self._history: Any = None
        await self._show(self._body)
        await self._trouble.update()
        await self._charts()

    async def update(self) -> None:
        """Ask again and show what is different."""
        over = self._body["status"] in ENDED
        self._turn += 1
        if not over or self._turn % 10 == 0:
            body = await self._visit.get(self._path, max_age_s=0.8)
            if body is not self._body:
                self._body = body
                await self._show(body)
        if not over or self._turn % 10 == 1:
            await self._output.update()
        if self._turn % (60 if over else 5) == 0:
            await self._trouble.update()
            await self._charts()

    async def _show(self, body: dict[str, Any]) -> None:
        self._facts.show(body)
        self._outlook.show(body)
        self._measured.set_visibility(bool(body["attempt"]))  # else there is nothing to measure
        await self._results.show(body)
        self._buttons.show(body)
        if body["history"] != self._history:
            self._history = body["history"]
            self._timeline.clear()
            with self._timeline:
                for item in self._history:
                    with ui.element("li"):
                        Tag("span", clock(item["at"]), "soft")
                        Tag("span", item["status"], f"status {item['status']}")
                        Tag("span", item["reason"]["text"], "why")

    async def _charts(self) -> None:
        await self._foreseen.update()
        if not self._body["attempt"]:
            return
        usage = await self._visit.get(f"{self._path}/telemetry", max_age_s=4.0, points=200)
        several = len({item["attempt"] for item in usage["series"]}) > 1

        def lines(key: str) -> list[Line]:
            return [
                (
                    f"{item['worker']}, attempt {item['attempt']}" if several else item["worker"],
                    item["at"],
                    item[key],
                )
                for item in usage["series"][:_MOST_LINES]
            ]

        limits = usage["limits"]

        def held_to(key: str) -> list[Line]:
            if not any(limits[key]):
                return []
            until = max((item["at"][-1] for item in usage["series"] if item["at"]), default=0.0)
            return [("limit", *_steps(limits["at"], limits[key], until))]

        self._cpu.show(lines("cpu_cores") + held_to("cpu_cores"))
        self._memory.show(lines("rss_mib") + held_to("memory_mib"))
        for title, unit, key in _GPU_CHARTS:
            if any(any(item[key]) for item in usage["series"]):
                self._more(title, unit).show(lines(key))
        if any(any(item["gpu_request"]) for item in usage["series"]):
            for title, key, *bounds in _SHARE_CHARTS:
                asked = [(name, *lines(of)[-1][1:]) for name, of in bounds]
                self._more(title, "").show(lines(key) + asked)
        reports = await self._visit.get(f"{self._path}/progress", max_age_s=4.0)
        at, workers = reports["at"], reports["workers"]
        if at and self._body["status"] not in ENDED:  # as many as at the last change
            at, workers = [*at, time.time()], [*workers, workers[-1]]
        self._workers.show([("workers", at, workers)])
        shown = [name for name in reports["metrics"] if name not in _COUNTERS]
        shown += [name for name in ("done",) if name in reports["metrics"]]
        for name in shown[:_MOST_METRICS]:
            chart = self._more("Progress (share done)" if name == "done" else name)
            chart.show([(name, reports["at"], reports["metrics"][name])])

    def _more(self, title: str, unit: str = "") -> LineChart:
        """A chart that not every job has, drawn when there is something to see."""
        if title not in self._others:
            assert self._grid is not None
            with self._grid:
                self._others[title] = LineChart(title, unit)
        return self._others[title]


def _steps(at: list[float], values: list[float], until: float) -> tuple[list[float], list[float]]:
    """A line that stays at a value until the next, and at the last until the end."""
    ends = [*at[1:], max(until, at[-1])]
    times = [moment for pair in zip(at, ends, strict=True) for moment in pair]
    return times, [value for here in values for value in (here, here)]


class _AheadPanel:
    """Of a job that waits: who is ahead, and what would help. It costs the server a forecast for
    each change that is tried, so it is asked for when somebody wants to know."""

    def __init__(self, visit: Visit, path: str) -> None:
        self._visit, self._path = visit, path
        self._card = ui.element("section").classes("card")
        with self._card:
            Tag("h2", "Could it start earlier?")
            Tag("button", "Find out", type="button").on("click", self._ask)
            self._answer = ui.element("div").props("role=status")
        self._card.set_visibility(False)

    def show(self, body: dict[str, Any]) -> None:
        """Offer it while the job waits."""
        self._card.set_visibility(body["status"] == "QUEUED")

    async def _ask(self) -> None:
        self._answer.clear()
        with self._answer:
            Tag("p", "Trying changes …", "soft")
        try:
            about = await self._visit.get(f"{self._path}/explain", max_age_s=5.0)
            lines = outlook_lines(about)
        except ApiError as error:
            lines = [str(error)]
        self._answer.clear()
        with self._answer:
            for line in lines:
                Tag("p", line)


class _FactsPanel:
    """What a job is, in a few words."""

    _NAMES = (
        *("Owner", "Queue", "Asked for", "Workers", "Nodes"),
        *("Attempt", "Waited", "Ran", "Progress"),
    )

    def __init__(self, asked: str) -> None:
        self._asked = asked
        with ui.element("p"):
            self._status = Tag("span", "", "status", role="status", data_testid="status")
            self._reason = Tag("span", "", "soft")
        self._foreseen = Tag("p", "", "soft")
        self._array = Tag("a")
        with ui.element("dl").classes("facts"):
            self._values: dict[str, Tag] = {}
            for name in self._NAMES:
                with ui.element("div"):
                    Tag("dt", name)
                    self._values[name] = Tag("dd", "–")

    def show(self, body: dict[str, Any]) -> None:
        """Show a job as it is now."""
        status = body["status"]
        self._status.say(status)
        self._status.classes(replace=f"status {status}")
        eta = eta_text(body)
        starts = f"starts in {eta}, {eta_age(body)}" if eta else ""
        words = [body["stage"], body["reason"]["text"], starts]
        self._reason.say(" " + " · ".join(word for word in words if word))
        array = body.get("array")
        self._array.say(f"One of the jobs of {array}" if array else "")
        self._array.props["href"] = f"{HOME}/arrays/{part(array)}" if array else ""
        known = body["estimates"]
        self._foreseen.say(f"Foreseen: {known['text']}." if known else "")
        last = body["history"][-1]["at"]
        started, ended = body["started_at"], body["ended_at"]
        waited = (started or ended or last) - body["submitted_at"]
        ran = f"since {clock(started)[11:]}" if started else "–"
        if started and ended:
            ran = duration(ended - started)
        report = body["progress"] or {}
        figures = {
            "Owner": body["owner"],
            "Queue": body["queue"],
            "Asked for": self._asked,
            "Attempt": str(body["attempt"]) if body["attempt"] else "none: it never ran",
            "Workers": str(body["workers"]) if body["workers"] else "–",
            "Nodes": where(body) or "–",
            "Waited": duration(waited) if status != "QUEUED" else "still waits",
            "Ran": ran,
            "Progress": f"{report['done']:.0%}" if "done" in report else "–",
        }
        for name, text in figures.items():
            self._values[name].say(text)


class _Buttons:
    """What somebody may do with a job; each asks before it does it."""

    def __init__(
        self,
        visit: Visit,
        path: str,
        bounds: tuple[int, int] | None,
        after: Callable[[], Awaitable[None]],
    ) -> None:
        self._visit, self._path, self._bounds, self._after = visit, path, bounds, after
        self._place = ui.element("div").classes("row-of-buttons").style("margin-top: 14px")
        self._shown: tuple[str, ...] = ("?",)

    def show(self, body: dict[str, Any]) -> None:
        """Offer what is possible now."""
        offered = self._offered(body)
        if offered == self._shown:
            return
        self._shown = offered
        self._place.clear()
        with self._place:
            if body["status"] not in ENDED and not self._visit.may_change(body):
                Tag("p", f"This job is {body['owner']}'s; you may look at it only.", "soft")
            for what in offered:
                if what == "scale":
                    self._scale(body)
                else:
                    self._button(what)

    def _offered(self, body: dict[str, Any]) -> tuple[str, ...]:
        if body["status"] in ENDED or not self._visit.may_change(body):
            return ()
        if body["status"] == "HALTED":
            return ("resume", "stop")
        can_scale = self._bounds and self._visit.offers("POST", "/jobs/{job_id}/scale")
        return ("halt", *(("scale",) if can_scale else ()), "stop")

    def _button(self, what: str) -> None:
        name, question, words = _ACTIONS[what]
        kind = "danger" if what == "stop" else ""
        button = Tag("button", name, kind, type="button")
        button.on("click", lambda: self._ask(what, name, question, words, {}))

    def _scale(self, body: dict[str, Any]) -> None:
        with Tag("label", "Workers ", "soft"):
            least, most = self._bounds or (1, 1)
            field = Tag("input", type="number", min=str(least), max=str(most))
            field.style("width: 90px").props["value"] = str(body["workers"] or least)
        wanted = {"workers": body["workers"] or 1}

        def typed(event: Any) -> None:
            text = str(event.args)
            wanted["workers"] = int(text) if text.isdigit() else 0

        field.on("input", typed, js_handler="(event) => emit(event.target.value)")
        Tag("button", "Scale", type="button").on(
            "click",
            lambda: self._ask(
                "scale",
                "Scale",
                f"Have {wanted['workers']} workers?",
                "The job is asked to save, and goes on with the new size.",
                {"json": {"workers": wanted["workers"]}},
            ),
        )

    async def _ask(self, what: str, name: str, question: str, words: str, rest: Any) -> None:
        risk = (
            "" if what == "resume" else risk_text(await self._visit.get(self._path, max_age_s=0.0))
        )
        lines: list[str | tuple[str, str]] = [words]
        if risk:
            lines.append((risk, "at-risk"))
        if await confirm(question, lines, f"{name} it", danger=what == "stop"):
            await tell(self._visit.post(f"{self._path}/{what}", **rest))
            await self._after()
