"""What was used, by user, team or queue: bars by day, sums, money, and all of it as CSV."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from nicegui import app as pages
from nicegui import ui
from nicegui.events import GenericEventArguments

from presage.web.backend import HOME
from presage.web.charts import DayBars
from presage.web.elements import DataTable
from presage.web.frame import VALUE, Tag, Tiles, Visit, begin, choice
from presage.web.words import amount

__all__: list[str] = []

BY = {"user": "by user", "team": "by team", "queue": "by queue"}
SPANS = {"7": "the last 7 days", "30": "the last 30 days", "90": "the last 90 days"}
_DAY_S = 86_400
_MOST_KEYS = 9
_COLUMNS = {
    "key": ("", ""),
    "asked": ("GPU h asked", "number"),
    "held": ("GPU h held", "number"),
    "idle": ("measured idle", "number"),
    "lost": ("lost", "number"),
    "cpu": ("core h held", "number"),
    "cpu_used": ("core h used", "number"),
    "cost": ("USD", "number"),
    "runs": ("runs", "number"),
}
_TILES = ("GPU hours held", "Measured idle", "Lost", "Core hours held", "Cost")


@ui.page("/usage")
async def usage(request: Request, by: str = "user", days: str = "30") -> Response | None:
    """The page."""
    visit = await begin(request)
    if isinstance(visit, Response):
        return visit
    with visit.page("Usage", "/usage"):
        view = _UsageView(visit, by if by in BY else "user", days if days in SPANS else "30")
        await view.build()
    visit.every(30.0, view.update)
    return None


@pages.get("/usage.csv")
async def usage_csv(request: Request) -> Response:
    """The days as CSV, for the browser to keep."""
    visit = await begin(request)
    if isinstance(visit, Response):
        return visit
    known = {key: value for key, value in request.query_params.items() if key in ("by", "since")}
    status, headers, chunks = await visit.stream("/usage", urlencode({**known, "format": "csv"}))
    named = {"content-disposition": 'attachment; filename="presage-usage.csv"'}
    kept = named if status == 200 else {}
    return StreamingResponse(chunks, status, headers=kept, media_type=headers.get("content-type"))


class _UsageView:
    """The choices, and what they lead to."""

    def __init__(self, visit: Visit, by: str, days: str) -> None:
        self._visit = visit
        self._wanted = {"by": by, "days": days}

    async def build(self) -> None:
        """Draw everything."""
        with ui.element("div").classes("tools"):
            for key, label, options in (("by", "Sums", BY), ("days", "Of", SPANS)):
                field = choice(label, options, self._wanted[key])
                field.on("change", self._choose(key, options), js_handler=VALUE)
            self._csv = Tag("a", "Download as CSV", "button", href="#", download="")
        self._tiles = Tiles(*_TILES)
        self._bars = DayBars("By day")
        with ui.element("section").classes("card"):
            Tag("h2", "Sums")
            self._table = DataTable(
                "Usage", _COLUMNS, sortable=True, empty="Nothing was used in these days."
            )
        self._prices = Tag("p", "", "soft")
        await self.update()

    def _choose(self, key: str, options: dict[str, str]) -> Any:
        async def chosen(event: GenericEventArguments) -> None:
            if str(event.args) in options:
                self._wanted[key] = str(event.args)
                query = json.dumps("?" + urlencode(self._wanted))
                ui.run_javascript(f"history.replaceState(null, '', {query})")
                await self.update()

        return chosen

    async def update(self) -> None:
        """Ask again and show it."""
        by = self._wanted["by"]
        since = _day(time.time() - (int(self._wanted["days"]) - 1) * _DAY_S)
        report = await self._visit.get("/usage", max_age_s=5.0, by=by, since=since)
        self._csv.props["href"] = f"{HOME}/usage.csv?{urlencode({'by': by, 'since': since})}"
        total = report["total"]
        self._tiles.show(
            {
                "GPU hours held": amount(total["held_gpu_h"]),
                "Measured idle": amount(total["idle_gpu_h"]),
                "Lost": amount(total["lost_gpu_h"]),
                "Core hours held": amount(total["cpu_h"]),
                "Cost": f"${total['cost_usd']:,.2f}",
            },
            {
                "Measured idle": f"of {amount(total['measured_gpu_h'])} measured",
                "Lost": "runs that came to nothing",
                "Core hours held": f"{amount(total['used_cpu_h'])} used",
                "Cost": (
                    f"{amount(total['unpriced_gpu_h'])} GPU h without a price"
                    if total["unpriced_gpu_h"]
                    else ""
                ),
            },
        )
        sums = sorted(report["sums"], key=lambda row: (-row["held_gpu_h"], -row["cpu_h"]))
        self._table.show([_row(row) for row in sums])
        on_gpus = total["held_gpu_h"] > 0
        key, unit = ("held_gpu_h", "GPU hours") if on_gpus else ("cpu_h", "core hours")
        self._bars.show(*_stacks(report, [row["key"] for row in sums], key), unit)
        self._prices.say(
            f"Days are UTC. Money is what the GPUs that were held would cost ({report['prices']})."
        )


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at))


def _row(row: dict[str, Any]) -> dict[str, Any]:
    def figure(key: str) -> dict[str, Any]:
        return {"text": amount(row[key]), "sort": row[key]}

    return {
        "id": row["key"],
        "key": row["key"] or "(none)",
        "asked": figure("asked_gpu_h"),
        "held": figure("held_gpu_h"),
        "idle": figure("idle_gpu_h"),
        "lost": figure("lost_gpu_h") | ({"kind": "warn"} if row["lost_gpu_h"] else {}),
        "cpu": figure("cpu_h"),
        "cpu_used": figure("used_cpu_h"),
        "cost": {"text": f"{row['cost_usd']:,.2f}", "sort": row["cost_usd"]},
        "runs": {"text": f"{row['runs']:,}", "sort": row["runs"]},
    }


def _stacks(
    report: dict[str, Any], names: list[str], key: str
) -> tuple[list[str], dict[str, list[float]]]:
    """The days, and of each name its hours on them; the smallest names are one."""
    first = time.mktime(time.strptime(report["since"], "%Y-%m-%d"))
    last = time.mktime(time.strptime(report["until"], "%Y-%m-%d"))
    count = round((last - first) / _DAY_S) + 1
    days = [
        time.strftime("%Y-%m-%d", time.localtime(first + (k + 0.5) * _DAY_S)) for k in range(count)
    ]
    shown = names[:_MOST_KEYS]
    stacks = {name or "(none)": [0.0] * count for name in shown}
    if len(names) > _MOST_KEYS:
        stacks["others"] = [0.0] * count
    places = {day: k for k, day in enumerate(days)}
    for row in report["days"]:
        name = (row["key"] or "(none)") if row["key"] in shown else "others"
        if row["day"] in places:
            stacks[name][places[row["day"]]] += row[key]
    return days, stacks
