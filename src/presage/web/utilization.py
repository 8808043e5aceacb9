"""The cluster over time: what is held, what waits, and what was asked for but not used."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response
from nicegui import ui
from nicegui.events import GenericEventArguments

from presage.web.charts import LineChart
from presage.web.frame import Tag, Tiles, begin
from presage.web.words import amount, gpu_figures

__all__: list[str] = []

SPANS = {"1": "the last hour", "24": "the last day", "168": "the last week", "720": "30 days"}


@ui.page("/utilization")
async def utilization(request: Request) -> Response | None:
    """Charts of the cluster."""
    visit = await begin(request)
    if isinstance(visit, Response):
        return visit
    hours = "24"

    async def show() -> None:
        series = await visit.get("/utilization", max_age_s=5.0, hours=float(hours), points=300)
        _draw(series, tiles, charts)

    async def choose(event: GenericEventArguments) -> None:
        nonlocal hours
        if str(event.args) in SPANS:
            hours = str(event.args)
            await show()

    with visit.page("Utilization", "/utilization"):
        with ui.element("div").classes("tools"), Tag("label", "Of"):
            with ui.element("select") as select:
                for value, name in SPANS.items():
                    option = Tag("option", name, value=value)
                    if value == hours:
                        option.props["selected"] = True
            select.on("change", choose, js_handler="(event) => emit(event.target.value)")
        tiles = Tiles(*_TILES)
        with ui.element("div").classes("grid"):
            charts = {
                "gpus": LineChart("GPUs", "GPUs"),
                "jobs": LineChart("Jobs", "jobs"),
                "cpus": LineChart("Cores: asked for and used", "cores"),
                "memory": LineChart("Memory: asked for and used", "GiB"),
            }
        Tag(
            "p",
            "What is used is measured of jobs that asked for an amount. GPUs count as idle while "
            "at least one job waits: it may need more than is free in one place.",
            "soft",
        )
        await show()
    visit.every(10.0, show)
    return None


_TILES = ("GPUs held", "GPU-hours idle while jobs waited", "Cores not used", "Memory not used")


def _draw(series: dict[str, list[float]], tiles: Tiles, charts: dict[str, LineChart]) -> None:
    figures = gpu_figures(series)
    values = (
        f"{figures['held']:.0%}",
        amount(round(figures["idle_h"], 2)),
        f"{figures['cpus_unused']:.0%}",
        f"{figures['memory_unused']:.0%}",
    )
    tiles.show(dict(zip(_TILES, values, strict=True)))
    at = series["at"]

    def line(name: str, key: str, scale: float = 1.0) -> Any:
        return (name, at, [value / scale for value in series[key]])

    gpus = [line("there are", "gpus"), line("held", "gpus_held")]
    charts["gpus"].show(gpus + [line("busy", "gpus_busy")] * any(series["gpus_busy"]))
    charts["jobs"].show([line("wait", "pending"), line("run", "running")])
    charts["cpus"].show([line("asked for", "cpus_asked"), line("used", "cpus_used")])
    charts["memory"].show(
        [line("asked for", "memory_asked_mib", 1024), line("used", "memory_used_mib", 1024)]
    )
