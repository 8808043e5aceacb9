"""The charts of the HTML report, and of notebooks, as plain Plotly dictionaries, small whatever
the run.

Long series are thinned to a few hundred points: queues by their peak in each slice of time,
utilization by its mean, distributions by quantiles. Nothing here writes files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from presage.model.cluster import WHOLE_GPU
from presage.model.errors import UserError
from presage.page import COLOURS, figure, short
from presage.sim._compare import time_unit

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from presage.sim.result import SimResult
    from presage.sim.traces import Trace

__all__ = ["GANTT_JOBS", "charts", "demand", "draw", "gantts"]

GANTT_JOBS = 200
"""Runs with more jobs have no Gantt chart: nobody could read it."""

Chart = dict[str, Any]
Floats = NDArray[np.float64]

_DASHES = ("solid", "dash", "dot")
_POINTS = 12_000  # of one chart, shared by its policies
_GANTTS = 12
_TICKS = {
    **{1: "≤ 1 s", 10: "10 s", 60: "1 min", 600: "10 min", 3600: "1 h", 21_600: "6 h"},
    **{86_400: "1 d", 604_800: "1 wk", 2_592_000: "30 d", 31_536_000: "1 y"},
}
_SIZES = (0.0, 0.999, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, float("inf"))
_SIZE_NAMES = ("CPU only", "part of 1", "1", "2", "3–4", "5–8", "9–16", "17–32", "> 32")


_TITLES = {
    "jct": "Job completion time",
    "wait": "Wait by job size",
    "queue": "Queue length",
    "utilization": "GPU utilization",
}


def draw(results: Sequence[SimResult], what: str) -> Figure:
    """One chart as a figure: any of the report's, or `gantt` for one small run."""
    if what in _TITLES:
        return figure(charts(results)[what], _TITLES[what])
    if what != "gantt":
        raise UserError(f"there is no chart {what!r}; there are {', '.join(_TITLES)}, gantt")
    drawn = gantts(results)
    if len(drawn) != 1:
        raise UserError(f"a Gantt chart shows one policy and at most {GANTT_JOBS} jobs")
    return figure(next(iter(drawn.values())), "Gantt chart")


def demand(trace: Trace) -> Figure:
    """The GPUs that all jobs of a trace would hold, had each started when it was submitted."""
    gpus = pl.col("gpu_milli") * pl.col("workers").fill_null(1) / WHOLE_GPU
    jobs = trace.jobs.select("submit_s", end=pl.col("submit_s") + pl.col("duration_s"), gpus=gpus)
    ends = jobs.select(t="end", by=-pl.col("gpus"))
    moves = pl.concat([jobs.select(t="submit_s", by="gpus"), ends])
    moves = moves.group_by("t").agg(pl.col("by").sum()).sort("t")
    divisor, unit = time_unit(float(moves["t"][-1]))
    time, held = _peaks(moves["t"].to_numpy(), moves["by"].cum_sum().to_numpy(), 800)
    line = {"type": "scatter", "mode": "lines", "line": {"shape": "hv", "color": COLOURS[0]}}
    axes = {
        "xaxis": {"title": {"text": f"time since the first submission ({unit})"}},
        "yaxis": {"title": {"text": "GPUs asked for"}, "rangemode": "tozero"},
    }
    data = [line | {"x": short(time / divisor), "y": short(held)}]
    return figure({"data": data, "layout": axes}, f"Demand of {trace.name}")


def charts(results: Sequence[SimResult]) -> dict[str, Chart]:
    """The charts by the id of their place in the page."""
    divisor, unit = time_unit(max((result.makespan_s for result in results), default=0.0))
    points = max(50, min(800, _POINTS // max(len(results), 1)))
    clock: Chart = {"title": {"text": f"time since the first submission ({unit})"}}
    clock["range"] = [0, *short(np.array([_busy_until(results) / divisor]))]

    def over_time(draw: Callable[[SimResult, int], list[Chart]], y: Chart) -> Chart:
        data = []
        for index, result in enumerate(results):
            for trace in draw(result, points):
                trace["x"] = short(np.asarray(trace["x"]) / divisor)
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
        result.policy: _gantt(result, divisor, unit, COLOURS[index % len(COLOURS)])
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
    colour = COLOURS[index % len(COLOURS)]
    line = {"color": colour, "dash": _DASHES[index // len(COLOURS) % 3], "width": 1.8}
    trace["line"] = line | trace.get("line", {})
    name = result.policy[:60]
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
            "x": short(x),
            "y": short(share),
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
    time, queued = _peaks(*_series(result, "queued"), points)
    return [{"x": time, "y": short(queued), "line": {"shape": "hv"}}]


def _peaks(time: Floats, value: Floats, points: int) -> tuple[Floats, Floats]:
    """A step function by its peak in each of some slices of time."""
    if time.size <= points:
        return time, value
    edges = np.linspace(time[0], time[-1], points + 1)
    at = np.searchsorted(time, edges, side="right") - 1
    return edges[:-1], np.maximum(np.maximum.reduceat(value, at[:-1]), value[at[1:]])


def _utilization(result: SimResult, points: int) -> list[Chart]:
    used = _mean_share(result, "used_gpus", points)
    held = _mean_share(result, "held_gpus", points)
    if not np.any(held["y"]):
        return [used]
    line = {"shape": "hv", "dash": "dot", "width": 1.2}
    return [
        used,
        held | {"line": line, "name": f"{result.policy[:60]}: held, not started"},
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
    return {"x": time, "y": short(value), "line": {"shape": "hv"}}


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
                **{"type": "box", "name": result.policy[:60], "x": names},
                **{"lowerfence": short(low), "q1": short(first), "median": short(middle)},
                **{"q3": short(third), "upperfence": short(high)},
                "marker": {"color": COLOURS[index % len(COLOURS)]},
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
    names = [str(row[0])[:40] for row in rows]
    begin = np.array([row[1] for row in rows], dtype=np.float64)
    never = np.array([row[2] is None for row in rows], dtype=bool)
    start = np.array([row[2] if row[2] is not None else result.makespan_s for row in rows])
    end = np.array([row[3] if row[3] is not None else result.makespan_s for row in rows])
    end = np.where(never, start, end)
    where = [f"{row[4]:g} GPUs on {_node_list(row[5])}" for row in rows]
    row_axis = {"type": "category", "autorange": "reversed", "showticklabels": len(rows) <= 60}
    bar = {"type": "bar", "orientation": "h", "y": names}
    wait = {"name": "waiting", "marker": {"color": "#9ca3af"}, "opacity": 0.45}
    run = {"name": result.policy[:60], "marker": {"color": colour}, "text": where}
    return {
        "data": [
            bar | wait | {"base": short(begin / divisor), "x": short((start - begin) / divisor)},
            bar
            | run
            | {"base": short(start / divisor), "x": short((end - start) / divisor)}
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
    return ", ".join(name[:40] for name in names[:4]) + more
