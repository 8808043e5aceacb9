"""The queues: what each may have, has, waits for and has spent."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response
from nicegui import ui

from presage.web.backend import HOME, part
from presage.web.elements import DataTable
from presage.web.frame import Tag, begin
from presage.web.words import amount

__all__: list[str] = []

_COLUMNS = {
    "name": ("Queue", ""),
    "used": ("GPUs held", "bar"),
    "quota": ("Quota", "number"),
    "limit": ("Limit", "number"),
    "cpus": ("Limit of cores", "number"),
    "weight": ("Weight", "number"),
    "running": ("Run", "number"),
    "pending": ("Wait", "number"),
    "hours": ("GPU hours", "bar"),
    "each": ("Hours of a user, a team", "number"),
}


@ui.page("/queues")
async def queues(request: Request) -> Response | None:
    """All queues in one table."""
    visit = await begin(request)
    if isinstance(visit, Response):
        return visit

    async def update() -> None:
        body = await visit.get("/queues", max_age_s=1.5)
        table.show([_row(queue) for queue in body["queues"]])

    with visit.page("Queues", "/queues"):
        with ui.element("section").classes("card"):
            table = DataTable("Queues", _COLUMNS, sortable=True)
        Tag(
            "p",
            "A queue is sure of its quota; what others leave free it may borrow up to its limit, "
            "in proportion to its weight. GPU hours are what it spent of its budget in the "
            "present period. Queues are set in the server's configuration.",
            "soft",
        )
        await update()
    visit.every(2.0, update)
    return None


def _row(queue: dict[str, Any]) -> dict[str, Any]:
    used, quota, limit = queue["used_gpus"], queue["quota_gpus"], queue["limit_gpus"]
    most = quota or limit
    spent, budget = queue["spent_gpu_hours"], queue["gpu_hours"]
    over = quota is not None and used > quota
    each = [queue["user_gpu_hours"], queue["team_gpu_hours"]]
    return {
        "id": queue["name"],
        "name": {
            "text": queue["name"],
            "href": f"{HOME}/queue?queue={part(queue['name'])}",
        },
        "used": _bar(used, most, f"{amount(used)} of {amount(most)}" if most else amount(used))
        | ({"kind": "warn"} if over else {}),
        "quota": _figure(quota),
        "limit": _figure(limit),
        "cpus": _figure(queue["limit_cpus"]),
        "weight": amount(queue["weight"]),
        "running": _count(queue["running"]),
        "pending": _count(queue["pending"]),
        "hours": (
            _bar(spent or 0.0, budget, f"{amount(spent or 0.0)} of {amount(budget)}")
            | {"title": f"in this {queue['period']}"}
            if budget is not None
            else {"text": "–" if spent is None else amount(spent), "sort": spent or 0.0}
        ),
        "each": ", ".join(map(_figure, each)) if any(e is not None for e in each) else "–",
    }


def _bar(value: float, most: float | None, text: str) -> dict[str, Any]:
    bar: dict[str, Any] = {"text": text, "sort": value}
    return bar | ({"share": min(1.0, value / most)} if most else {})


def _figure(value: float | None) -> str:
    return "–" if value is None else amount(value)


def _count(value: int) -> dict[str, Any]:
    return {"text": f"{value:,}", "sort": value}
