"""Charts in colours that fit light and dark, with a description for those who cannot see them:
lines over time, curves over steps, bars by day."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nicegui import ui

from presage.web.frame import Tag

__all__ = ["COLOURS", "Curves", "DayBars", "Line", "LineChart", "Parallels"]

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


class Curves:
    """A card with curves of several jobs over a number, such as steps or seconds."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._shown: Any = None
        with ui.element("section").classes("card"):
            Tag("h2", title)
            self._chart = ui.echart({}, renderer="svg").classes("chart tall")
            self._chart.props["role"] = "img"

    def show(self, over: str, lines: Sequence[tuple[str, list[float], list[float]]]) -> None:
        """Draw these curves: a name, where, and what."""
        if (over, lines) == self._shown:
            return
        self._shown = over, lines
        words = (
            f"{name}: last {values[-1]:.4g}, least {min(values):.4g}, most {max(values):.4g}"
            for name, _, values in lines
            if values
        )
        self._chart.props["aria-label"] = f"{self._title} over {over}. " + "; ".join(words)
        options = _base([name for name, _, _ in lines])
        options["xAxis"] = {
            "type": "value",
            "name": over,
            "nameLocation": "middle",
            "nameGap": 26,
            "nameTextStyle": {"color": "currentColor"},
            "axisLabel": {"color": "currentColor", "hideOverlap": True},
            "splitLine": {"show": False},
            "min": "dataMin",
        }
        options["grid"]["bottom"] = 24
        options["yAxis"]["scale"] = True
        options["series"] = [
            {
                "type": "line",
                "name": name,
                "showSymbol": len(at) < 3,
                "lineStyle": {"width": 2},
                "data": [[x, y] for x, y in zip(at, values, strict=True)],
            }
            for name, at, values in lines
        ]
        _draw(self._chart, options)


class DayBars:
    """A card with stacked bars, one a day."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._shown: Any = None
        with ui.element("section").classes("card"):
            Tag("h2", title)
            self._chart = ui.echart({}, renderer="svg").classes("chart")
            self._chart.props["role"] = "img"

    def show(self, days: list[str], stacks: dict[str, list[float]], unit: str) -> None:
        """Draw these."""
        if (days, stacks, unit) == self._shown:
            return
        self._shown = days, stacks, unit
        sums = "; ".join(f"{name}: {sum(values):.4g}" for name, values in stacks.items())
        self._chart.props["aria-label"] = f"{unit} by day. {sums}"
        options = _base(list(stacks))
        options["yAxis"]["name"] = unit
        options["xAxis"] = {
            "type": "category",
            "data": [day[5:] for day in days],
            "axisLabel": {"color": "currentColor", "hideOverlap": True},
        }
        options["series"] = [
            {
                "type": "bar",
                "stack": "all",
                "name": name,
                "barMaxWidth": 36,
                "data": [round(value, 3) for value in values],
            }
            for name, values in stacks.items()
        ]
        _draw(self._chart, options)


class Parallels:
    """A card with parallel coordinates: each line is a job, each axis a parameter, the last one
    what came of it."""

    def __init__(self, title: str) -> None:
        self._shown: Any = None
        self._card = ui.element("section").classes("card")
        with self._card:
            Tag("h2", title)
            self._chart = ui.echart({}, renderer="svg").classes("chart tall")
            self._chart.props["role"] = "img"
        self._card.set_visibility(False)

    def show(self, names: list[str], points: list[list[Any]]) -> None:
        """Draw these, where there are at least two."""
        if (names, points) == self._shown:
            return
        self._shown = names, points
        self._card.set_visibility(len(points) > 1 and len(names) > 1)
        values = [point[-1] for point in points] or [0.0]
        self._chart.props["aria-label"] = (
            f"{len(points)} jobs by {', '.join(names[:-1])}; {names[-1]} from {min(values):.4g} "
            f"to {max(values):.4g}"
        )
        axes = []
        for k, name in enumerate(names):
            column = [point[k] for point in points]
            numbers = all(isinstance(value, int | float) for value in column)
            axis: dict[str, Any] = {"dim": k, "name": name, "axisLabel": {"color": "currentColor"}}
            if numbers:
                axis |= {"type": "value", "scale": True}
            else:
                axis |= {"type": "category", "data": list(dict.fromkeys(map(str, column)))}
            axes.append(axis)
        data = [[v if isinstance(v, int | float) else str(v) for v in point] for point in points]
        options: dict[str, Any] = {
            "animation": False,
            "textStyle": {"color": "currentColor"},
            "parallelAxis": axes,
            "parallel": {
                "left": 60,
                "right": 80,
                "top": 40,
                "bottom": 24,
                "parallelAxisDefault": {"nameTextStyle": {"color": "currentColor"}},
            },
            "visualMap": {
                "show": False,
                "dimension": len(names) - 1,
                "min": min(values),
                "max": max(values),
                "inRange": {"color": ["#3b82f6", "#8b5cf6", "#d97706"]},
            },
            "series": [
                {"type": "parallel", "lineStyle": {"width": 2, "opacity": 0.7}, "data": data}
            ],
        }
        _draw(self._chart, options)


def _base(names: list[str]) -> dict[str, Any]:
    label = {"color": "currentColor"}
    return {
        "animation": False,
        "color": list(COLOURS),
        "textStyle": label,
        "grid": {"left": 8, "right": 30, "top": 40, "bottom": 8, "containLabel": True},
        "legend": {
            "show": bool(names),
            "type": "scroll",
            "top": 0,
            "right": 0,
            "left": 110,
            "textStyle": label,
        },
        "tooltip": {"trigger": "axis"},
        "yAxis": {
            "type": "value",
            "nameTextStyle": {"color": "currentColor", "align": "left"},
            "axisLabel": label,
            "splitLine": {"lineStyle": {"color": "currentColor", "opacity": 0.15}},
        },
    }


def _draw(chart: Any, options: dict[str, Any]) -> None:
    chart.options.clear()
    chart.options.update(options)
    chart.update()
