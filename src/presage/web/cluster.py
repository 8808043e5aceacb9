"""The cluster: nodes, their devices, and who is on them."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response
from nicegui import ui

from presage.model.errors import ApiError
from presage.web.elements import ClusterMapElement
from presage.web.frame import Tag, Tiles, begin, notice
from presage.web.words import amount

__all__: list[str] = []


@ui.page("/")
async def cluster(request: Request) -> Response | None:
    """The map."""
    visit = await begin(request)
    if isinstance(visit, Response):
        return visit

    async def warn() -> None:
        texts = (await visit.get("/alerts", max_age_s=20.0))["alerts"]
        alerts.say(" ".join(texts))

    with visit.page("Cluster", "/"):
        alerts = Tag("p", "", "banner", role="alert")
        tiles = Tiles("GPUs held", "Nodes up", "Jobs that run", "Jobs that wait")
        try:
            data = await visit.get("/cluster-map", max_age_s=5.0)  # it is renewed at once
        except ApiError as error:
            notice(str(error), "error")
            return None
        with ui.element("section").classes("card"):
            Tag("h2", "Nodes")
            chart = ClusterMapElement(data)
        tiles.show(await _figures(visit, data))
        await warn()

    async def update() -> None:
        data = await visit.get("/cluster-map", max_age_s=1.5)
        chart.show(data)
        tiles.show(await _figures(visit, data))

    visit.every(2.0, update)
    visit.every(30.0, warn)
    return None


async def _figures(visit: Any, data: dict[str, Any]) -> dict[str, str]:
    queues = (await visit.get("/queues", max_age_s=1.5))["queues"]
    devices = [device[0] for node in data["nodes"] for device in node["devices"]]
    up = sum(node["state"] == "up" for node in data["nodes"])
    return {
        "GPUs held": f"{amount(round(sum(devices), 2))} of {len(devices):,}",
        "Nodes up": f"{up:,} of {len(data['nodes']):,}",
        "Jobs that run": f"{sum(queue['running'] for queue in queues):,}",
        "Jobs that wait": f"{sum(queue['pending'] for queue in queues):,}",
    }
