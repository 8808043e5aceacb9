"""Line charts over time, in colours that fit light and dark, with a description for those who
cannot see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nicegui import ui

from presage.web.frame import Tag

__all__ = ["LineChart"]

COLOURS = (
    *("#3b82f6", "#d97706", "#10b981", "#ef4444", "#8b5cf6"),
    *("#0891b2", "#db2777", "#65a30d", "#ea580c", "#64748b"),
)
Line = tuple[str, Sequence[float], Sequence[float | None]]
"""A name, times in seconds, and values."""


class LineChart:
    """A card with a title and lines over time."""

    def __init__(self, title: str, unit: str = "", *, steps: bool = False) -> None:
        self._title, self._unit, self._steps = title, unit, steps
        self._lines: list[Line] = []
        with ui.element("section").classes("card") as self.card:
            Tag("h2", title)
            self._chart = ui.echart(self._options([]), renderer="svg").classes("chart")
            self._chart.props["role"] = "img"
            self._empty = Tag("p", "Nothing was measured yet.", "soft")

    def show(self, lines: Sequence[Line]) -> None:
        """Draw these lines."""
        drawn = [line for line in lines if len(line[1])]
        if drawn == self._lines:
            return
        self._lines = drawn
        self._empty.say("" if drawn else "Nothing was measured yet.")
        self._chart.props["aria-label"] = self._words(drawn)
        self._chart.options.clear()
        self._chart.options.update(self._options(drawn))
        self._chart.update()

    def _words(self, lines: Sequence[Line]) -> str:
        said = []
        for name, _, values in lines[:10]:
            known = [value for value in values if value is not None]
            if known:
                said.append(
                    f"{name}: now {known[-1]:.3g}, least {min(known):.3g}, most {max(known):.3g}"
                )
        return f"{self._title} {self._unit}. " + "; ".join(said)

    def _options(self, lines: Sequence[Line]) -> dict[str, Any]:
        soft = {"lineStyle": {"color": "currentColor", "opacity": 0.15}}
        label = {"color": "currentColor", "hideOverlap": True}
        return {
            "animation": False,
            "color": list(COLOURS),
            "textStyle": {"color": "currentColor"},
            "grid": {"left": 8, "right": 30, "top": 34, "bottom": 8, "containLabel": True},
            "legend": {
                "show": len(lines) > 1,
                "type": "scroll",
                "top": 0,
                "textStyle": {"color": "currentColor"},
            },
            "tooltip": {"trigger": "axis"},
            "xAxis": {"type": "time", "axisLabel": label, "splitNumber": 4},
            "yAxis": {
                "type": "value",
                "name": self._unit,
                "nameTextStyle": {"color": "currentColor", "align": "left"},
                "axisLabel": label,
                "splitLine": soft,
                "minInterval": 1 if self._steps else 0,
            },
            "series": [
                {
                    "type": "line",
                    "name": name,
                    "showSymbol": len(at) < 3,
                    "step": "end" if self._steps else False,
                    "lineStyle": {"width": 2},
                    "data": [[round(t * 1000), value] for t, value in zip(at, y, strict=True)],
                }
                for name, at, y in lines
            ],
        }
