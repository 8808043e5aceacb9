"""The charts of the HTML report as plain Plotly dictionaries, small whatever the run.

Long series are thinned to a few hundred points: queues by their peak in each slice of time,
utilization by its mean, distributions by quantiles. Texts that come from users are escaped here.
Nothing here writes files or knows the page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from presage.sim._compare import time_unit
from presage.sim.result import SimResult

__all__ = ["GANTT_JOBS", "charts", "gantts"]

GANTT_JOBS = 200
"""Runs with more jobs have no Gantt chart: nobody could read it."""

Chart = dict[str, Any]
Floats = NDArray[np.float64]

_COLOURS = (
    *("#3b82f6", "#f59e0b", "#10b981", "#ef4444", "#8b5cf6"),
    *("#06b6d4", "#ec4899", "#84cc16", "#f97316", "#64748b"),
)
_DASHES = ("solid", "dash", "dot")
_POINTS = 12_000  # of one chart, shared by its policies
_GANTTS = 12
_TICKS = {
    **{1: "≤ 1 s", 10: "10 s", 60: "1 min", 600: "10 min", 3600: "1 h", 21_600: "6 h"},
    **{86_400: "1 d", 604_800: "1 wk", 2_592_000: "30 d", 31_536_000: "1 y"},
}
_SIZES = (0.0, 0.999, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, float("inf"))
_SIZE_NAMES = ("CPU only", "part of 1", "1", "2", "3–4", "5–8", "9–16", "17–32", "> 32")


def charts(results: Sequence[SimResult]) -> dict[str, Chart]:
    """The charts by the id of their place in the page."""
    divisor, unit = time_unit(max((result.makespan_s for result in results), default=0.0))
    points = max(50, min(800, _POINTS // max(len(results), 1)))
    clock: Chart = {"title": {"text": f"time since the first submission ({unit})"}}
    clock["range"] = [0, *_short(np.array([_busy_until(results) / divisor]))]

    def over_time(draw: Callable[[SimResult, int], list[Chart]], y: Chart) -> Chart:
        data = []
        for index, result in enumerate(results):
            for trace in draw(result, points):
                trace["x"] = _short(np.asarray(trace["x"]) / divisor)
                data.append(_styled(trace, result, index))
        return {"data": data, "layout": {"xaxis": dict(clock), "yaxis": y}}

    count = {"title": {"text": "jobs waiting"}, "rangemode": "tozero"}
    share = {"title": {"text": "GPUs in use"}, "tickformat": ".0%", "range": [0, 1.02]}
    return {
        "jct": _distribution(results, points),
        "queue": over_time(_queue, count),
        "utilization": over_time(_utilization, share),
        "wait": _wait_by_size(results),
    }


def gantts(results: Sequence[SimResult]) -> dict[str, Chart]:
    """A Gantt chart for each policy (the first dozen) of a small run; none for larger ones."""
    if not results or max(result.jobs.height for result in results) > GANTT_JOBS:
        return {}
    divisor, unit = time_unit(max(result.makespan_s for result in results))
    return {
        result.policy: _gantt(result, divisor, unit, _COLOURS[index % len(_COLOURS)])
        for index, result in enumerate(results[:_GANTTS])
    }


def _busy_until(results: Sequence[SimResult]) -> float:
    """When nearly all is over: a few long jobs may go on and on, and would squeeze the rest."""
    latest = 1.0
    for result in results:
        submit = result.jobs.get_column("submit_s").max()
        end = result.jobs.get_column("end_s").quantile(0.99)
        waiting = result.series.filter(pl.col("queued") > 0).get_column("t_s").max()
        there = [float(t) for t in (submit, end, waiting) if isinstance(t, int | float)]
        latest = max(latest, *there, 0.0)
    return latest * 1.02


def _styled(trace: Chart, result: SimResult, index: int) -> Chart:
    colour = _COLOURS[index % len(_COLOURS)]
    line = {"color": colour, "dash": _DASHES[index // len(_COLOURS) % 3], "width": 1.8}
    trace["line"] = line | trace.get("line", {})
    name = escape(result.policy[:60])
    return {"type": "scatter", "mode": "lines", "name": name, "legendgroup": name} | trace


def _distribution(results: Sequence[SimResult], points: int) -> Chart:
    data, longest = [], 10.0
    for index, result in enumerate(results):
        jct = result.jobs.get_column("jct_s").drop_nulls().to_numpy()
        if not jct.size:
            continue
        longest = max(longest, float(jct.max()))
        share = np.linspace(0, 1, min(points, max(jct.size, 2)))
        x = np.maximum(np.quantile(jct, share), 1.0)
        trace = {
            "x": _short(x),
            "y": _short(share),
            "hovertemplate": "%{y:.1%} within %{x:,.0f} s",
        }
        data.append(_styled(trace, result, index))
    yaxis = {"title": {"text": "share of finished jobs"}, "tickformat": ".0%", "range": [0, 1.02]}
    xaxis = {"title": {"text": "job completion time"}} | _log_time(longest)
    return {"data": data, "layout": {"xaxis": xaxis, "yaxis": yaxis, "hovermode": "closest"}}


def _log_time(longest: float) -> Chart:
    ticks = {value: text for value, text in _TICKS.items() if value <= longest * 1.5}
    return {"type": "log", "tickvals": list(ticks), "ticktext": list(ticks.values())}


def _queue(result: SimResult, points: int) -> list[Chart]:
    time, queued = _series(result, "queued")
    if time.size > points:
        edges = np.linspace(time[0], time[-1], points + 1)
        at = np.searchsorted(time, edges, side="right") - 1
        time, queued = edges[:-1], np.maximum(np.maximum.reduceat(queued, at[:-1]), queued[at[1:]])
    return [{"x": time, "y": _short(queued), "line": {"shape": "hv"}}]


def _utilization(result: SimResult, points: int) -> list[Chart]:
    used = _mean_share(result, "used_gpus", points)
    held = _mean_share(result, "held_gpus", points)
    if not np.any(held["y"]):
        return [used]
    line = {"shape": "hv", "dash": "dot", "width": 1.2}
    return [
        used,
        held | {"line": line, "name": f"{escape(result.policy[:60])}: held, not started"},
    ]


def _mean_share(result: SimResult, column: str, points: int) -> Chart:
    """A step function's mean over each slice of time, as a share of all GPUs."""
    time, value = _series(result, column)
    value = value / max(result.gpus, 1)
    if time.size > points:
        area = np.concatenate(([0.0], np.cumsum(np.diff(time) * value[:-1])))
        edges = np.linspace(time[0], time[-1], points + 1)
        width = max(edges[1] - edges[0], 1e-9)
        time, value = edges[:-1], np.diff(np.interp(edges, time, area)) / width
    return {"x": time, "y": _short(value), "line": {"shape": "hv"}}


def _series(result: SimResult, column: str) -> tuple[Floats, Floats]:
    frame = result.series.select("t_s", pl.col(column).cast(pl.Float64))
    return frame.get_column("t_s").to_numpy(), frame.get_column(column).to_numpy()


def _wait_by_size(results: Sequence[SimResult]) -> Chart:
    """Boxes of precomputed quantiles: the ends of the whiskers are the 5th and 95th percentile."""
    data = []
    seen: set[str] = set()
    longest = 10.0
    for index, result in enumerate(results):
        done = result.jobs.filter(pl.col("wait_s").is_not_null() & pl.col("start_s").is_not_null())
        at = np.searchsorted(np.array(_SIZES), done.get_column("gpus").to_numpy())
        wait = np.maximum(done.get_column("wait_s").to_numpy(), 1.0)
        names = [_SIZE_NAMES[size] for size in np.unique(at)]
        seen.update(names)
        boxes = [
            np.quantile(wait[at == size], (0.05, 0.25, 0.5, 0.75, 0.95)) for size in np.unique(at)
        ]
        low, first, middle, third, high = np.array(boxes).T if boxes else np.zeros((5, 0))
        longest = max(longest, float(high.max(initial=0.0)))
        data.append(
            {
                **{"type": "box", "name": escape(result.policy[:60]), "x": names},
                **{"lowerfence": _short(low), "q1": _short(first), "median": _short(middle)},
                **{"q3": _short(third), "upperfence": _short(high)},
                "marker": {"color": _COLOURS[index % len(_COLOURS)]},
                "line": {"width": 1.5},
            }
        )
    order = [name for name in _SIZE_NAMES if name in seen]
    xaxis = {"title": {"text": "GPUs asked for"}, "type": "category", "categoryarray": order}
    yaxis = {"title": {"text": "time queued"}} | _log_time(longest)
    return {"data": data, "layout": {"xaxis": xaxis, "yaxis": yaxis, "boxmode": "group"}}


def _gantt(result: SimResult, divisor: float, unit: str, colour: str) -> Chart:
    """Each job a row: grey while it waits for its first start, coloured until its end."""
    jobs = result.jobs.filter(pl.col("status") != "rejected").sort("submit_s", maintain_order=True)
    rows = jobs.select("job_id", "submit_s", "start_s", "end_s", "gpus", "nodes").rows()
    names = [escape(str(row[0])[:40]) for row in rows]
    begin = np.array([row[1] for row in rows], dtype=np.float64)
    never = np.array([row[2] is None for row in rows], dtype=bool)
    start = np.array([row[2] if row[2] is not None else result.makespan_s for row in rows])
    end = np.array([row[3] if row[3] is not None else result.makespan_s for row in rows])
    end = np.where(never, start, end)
    where = [f"{row[4]:g} GPUs on {_node_list(row[5])}" for row in rows]
    row_axis = {"type": "category", "autorange": "reversed", "showticklabels": len(rows) <= 60}
    bar = {"type": "bar", "orientation": "h", "y": names}
    wait = {"name": "waiting", "marker": {"color": "#9ca3af"}, "opacity": 0.45}
    run = {"name": escape(result.policy[:60]), "marker": {"color": colour}, "text": where}
    return {
        "data": [
            bar | wait | {"base": _short(begin / divisor), "x": _short((start - begin) / divisor)},
            bar
            | run
            | {"base": _short(start / divisor), "x": _short((end - start) / divisor)}
            | {"textposition": "none", "hovertemplate": "job %{y}: %{text}, %{x} " + unit},
        ],
        "layout": {
            "barmode": "overlay",
            "bargap": 0.15,
            "height": 140 + 14 * max(len(rows), 8),
            "hovermode": "closest",
            "xaxis": {
                "title": {"text": f"time since the first submission ({unit})"},
                "range": [0, float(f"{result.makespan_s / divisor * 1.01:.6g}")],
            },
            "yaxis": row_axis | {"title": {"text": "jobs in order of submission"}},
        },
    }


def _node_list(nodes: Sequence[str] | None) -> str:
    names = sorted(set(nodes or ()))
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return escape(", ".join(name[:40] for name in names[:4])) + more


def _short(values: Floats) -> list[float]:
    """Six significant digits are more than a screen shows."""
    return [float(f"{value:.6g}") for value in np.asarray(values, dtype=np.float64)]
