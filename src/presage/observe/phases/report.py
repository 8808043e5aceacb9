"""Phases as people would rather look at them, each as one HTML page: usage with coloured phases,
how executions go, and which phase follows which.

Pages stay small whatever the telemetry: a dozen pods are drawn, long ones thinned, rare branches
left out. Nothing here writes files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import atan2, cos, hypot, pi, sin, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from presage.observe.phases.model import PhaseModel
from presage.observe.phases.sequences import (
    Graph,
    TreeNode,
    covering,
    length_range,
    markov_graph,
    prototype_tree,
    semi_markov_graph,
)
from presage.observe.phases.statistics import names_in_all
from presage.page import COLOURS, counted, duration_text, figure, readable_unit, render, short
from presage.telemetry.series import RESOURCES, Series

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = [
    "draw_usage",
    "graph_page",
    "graphs_to_json",
    "names_to_show",
    "show_page",
    "unit_of_name",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Chart = dict[str, Any]

_PODS = 12
_POINTS = 500
_PANELS = 4
_PANEL_HEIGHT = 170
_DEPTH = 6
_BRANCHES = 400
_STATES = 20
_LEAST_MOVE = 0.02
_LABELLED_MOVE = 0.1
_BORDER = {"line": {"width": 1, "color": "rgba(255,255,255,0.5)"}}
_NO_PHASE = "#9ca3af"
_LINE = "#64748b"
_COVER = 0.9


def show_page(
    title: str, model: PhaseModel, series: Sequence[Series], phases: Sequence[Ints]
) -> str:
    """Usage with coloured phases, the phases' numbers, the prototype tree and the transition
    graph; `phases` has one for each sample of each series."""
    names = names_to_show(series, model.features)
    pods = _worth_seeing(series, phases)
    charts = {"curve": _curve(model)} if model.curve else {}
    columns, rows = _table(model, series, phases, names)
    return _page(
        title,
        model,
        series,
        phases,
        1,
        {
            "charts": charts,
            "choices": {"usage": [_usage(series[at], phases[at], names) for at in pods]},
        },
        graph_is_wide=not model.curve,
        usage=[series[at].pod for at in pods],
        pods=len(series),
        columns=columns,
        rows=rows,
    )


def graph_page(
    title: str,
    model: PhaseModel,
    series: Sequence[Series],
    phases: Sequence[Ints],
    memory: int,
) -> str:
    """The transition graph, the chances from one sample to the next, and the prototype tree."""
    figures: Chart = {"charts": {"moves": _matrix(markov_graph(phases))}, "choices": {}}
    return _page(title, model, series, phases, memory, figures, graph_is_wide=memory > 1)


def draw_usage(
    model: PhaseModel, series: Sequence[Series], phases: Sequence[Ints], at: int | None = None
) -> Figure:
    """A pod with its phases, as a figure; the one with the most phases unless one is named."""
    place = _worth_seeing(series, phases)[0] if at is None else at
    chart = _usage(series[place], phases[place], names_to_show(series, model.features))
    return figure(chart, f"Phases of {series[place].pod}")


def graphs_to_json(phases: Sequence[Ints], memory: int) -> dict[str, Any]:
    """The graphs, the tree and the prototypes behind the page, as JSON values."""
    return {
        "semi_markov": semi_markov_graph(phases, memory).to_json(),
        "markov": markov_graph(phases, memory).to_json(),
        "prototypes": [way.to_json() for way in covering(phases, _COVER)],
        "tree": prototype_tree(phases).to_json(),
    }


def names_to_show(series: Sequence[Series], features: Sequence[str]) -> tuple[str, ...]:
    """What people want to see of a pod: the resources that all pods have, else the features."""
    common = names_in_all(series, features)
    return tuple(name for name in common if name in RESOURCES) or tuple(features)


def unit_of_name(series: Sequence[Series], name: str) -> str:
    """The unit of a feature, or of the features that a resource is made of."""
    head = series[0]
    feature = head.resources.get(name, (name,))[0]
    return head.units[head.features.index(feature)] if head.units else ""


def _facts(model: PhaseModel, series: Sequence[Series], phases: Sequence[Ints]) -> dict[str, str]:
    samples = sum(map(len, series))
    known = sum(int((each >= 0).sum()) for each in phases)
    pods = counted(len(series), "pod")
    return {
        "Telemetry": f"{pods}, {samples:,} samples, {known:,} of them with a phase",
        "Model": f"{model.n_phases} phases by {model.method}, a row every "
        f"{duration_text(model.every)}, {model.history} rows of history",
        "Features": ", ".join(model.features),
        "Drift": str(model.drift(series)),
    }


def _colour(phase: int) -> str:
    return _NO_PHASE if phase < 0 else COLOURS[phase % len(COLOURS)]


def _worth_seeing(series: Sequence[Series], phases: Sequence[Ints]) -> list[int]:
    """The pods with the most phases, the longest first."""
    order = sorted(
        range(len(series)),
        key=lambda at: (-len(np.unique(phases[at][phases[at] >= 0])), -len(series[at]), at),
    )
    return order[:_PODS]


def _table(
    model: PhaseModel, series: Sequence[Series], phases: Sequence[Ints], names: Sequence[str]
) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The names of the columns of use, and the phases with their cells."""
    label = np.concatenate([*phases, np.empty(0, np.int64)])
    here = np.bincount(label[label >= 0], minlength=model.n_phases)
    measured = [name for name in names if name in model.statistics.names][:6]
    scales = {}
    for name in measured:
        column = model.statistics.names.index(name)
        usual = model.statistics.mean[:, column] + model.statistics.sd[:, column]
        scales[name] = readable_unit(unit_of_name(series, name), float(np.nanmax(usual)))
    heads = [f"{name} ({unit})" if unit else name for name, (_, unit) in scales.items()]
    rows = []
    for phase in np.flatnonzero(here + model.statistics.samples):
        number = int(phase)
        cells = [
            f"{here[number] / max(1, here.sum()):.1%}",
            f"{model.statistics.share[number]:.1%}",
            duration_text(model.statistics.dwell_s[number, 2]),
        ]
        for name, (size, _) in scales.items():
            one = model.statistics.of(number, name)
            cells.append(f"{one['mean'] / size:.3g} ± {one['sd'] / size:.2g}")
        rows.append((number, cells))
    return heads, rows


def _usage(pod: Series, phases: Ints, names: Sequence[str]) -> Chart:
    """One panel for each resource, the area below the line in the colour of the phase."""
    shown = names[:_PANELS]
    panels = len(shown)
    data: list[Chart] = []
    layout: Chart = {"height": 90 + _PANEL_HEIGHT * panels, "hovermode": "closest"}
    length = float(pod.times[-1] - pod.times[0]) if len(pod) else 0.0
    size, unit = _clock(length)
    seen: set[int] = set()
    for number, name in enumerate(shown):
        times, use, label = _thinned(pod, phases, pod.column(name))
        most = float(np.nanmax(use, initial=0.0))
        divisor, amount = readable_unit(unit_of_name([pod], name), most)
        suffix = "" if number == 0 else str(number + 1)
        top = 1 - number / panels
        layout[f"yaxis{suffix}"] = {
            "title": {"text": f"{name} ({amount})" if amount else name},
            "domain": [top - 0.9 / panels, top],
            "rangemode": "tozero",
        }
        for phase in np.unique(label):
            x, y = _areas(times / size, use / divisor, label == phase)
            text = f"phase {phase}" if phase >= 0 else "no phase"
            data.append(
                {
                    **{"type": "scatter", "mode": "lines", "fill": "tozeroy", "x": x, "y": y},
                    **{"name": text, "legendgroup": text, "legendrank": int(phase) + 2},
                    "showlegend": int(phase) not in seen,
                    "line": {"color": _colour(int(phase)), "width": 0},
                    "fillcolor": _colour(int(phase)),
                    **{"xaxis": "x", "yaxis": f"y{suffix}", "hoverinfo": "skip"},
                }
            )
            seen.add(int(phase))
        data.append(
            {
                **{"type": "scatter", "mode": "lines", "x": short(times / size)},
                **{"y": short(use / divisor), "line": {"color": _LINE, "width": 1}},
                **{"xaxis": "x", "yaxis": f"y{suffix}", "showlegend": False},
                "hovertemplate": f"%{{y:.4g}} {amount} after %{{x:.4g}} {unit}<extra></extra>",
            }
        )
    layout["xaxis"] = {
        "title": {"text": f"time since the pod's first sample ({unit})"},
        "anchor": f"y{panels if panels > 1 else ''}",
    }
    return {"data": data, "layout": layout}


def _clock(length_s: float) -> tuple[float, str]:
    for size, unit in ((86_400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if length_s >= 3 * size:
            return size, unit
    return 1.0, "s"


def _thinned(pod: Series, phases: Ints, use: Floats) -> tuple[Floats, Floats, Ints]:
    """At most so many points: of each slice of samples its largest use, and the phase there."""
    since = pod.times - (pod.times[0] if len(pod) else 0.0)
    if len(pod) <= _POINTS:
        return since, use, phases
    cuts = np.linspace(0, len(pod), _POINTS + 1).astype(np.int64)
    peaks = [
        first + int(np.argmax(np.nan_to_num(use[first:end], nan=-np.inf)))
        for first, end in pairwise(cuts)
    ]
    return since[peaks], use[peaks], phases[peaks]


def _areas(
    times: Floats, use: Floats, mine: npt.NDArray[np.bool_]
) -> tuple[list[float | None], list[float | None]]:
    """The outline of the areas below the stretches of one phase. A stretch goes on to the sample
    after it, so that areas touch; between stretches the outline runs along zero."""
    edges = np.flatnonzero(np.diff(mine, prepend=False, append=False))
    x: list[float | None] = []
    y: list[float | None] = []
    for first, end in edges.reshape(-1, 2):
        last = min(end, len(times) - 1)
        x += short(times[[first, *range(first, last + 1), last]])
        y += [0.0, *short(use[first : last + 1]), 0.0]
    return x, y


def _curve(model: PhaseModel) -> Chart:
    ks = list(model.curve)
    chosen = int((model.parents < 0).sum())
    line = {
        **{"type": "scatter", "mode": "lines+markers", "name": "cohesion"},
        **{"x": ks, "y": short(list(model.curve.values())), "line": {"color": COLOURS[0]}},
    }
    mark = {
        **{"type": "scatter", "mode": "markers", "name": f"chosen: {chosen}"},
        **{"x": [chosen], "y": short([model.curve.get(chosen, np.nan)])},
        "marker": {"size": 13, "color": COLOURS[1]},
    }
    layout = {
        "xaxis": {"title": {"text": "phases"}, "dtick": 1},
        "yaxis": {"title": {"text": "SSW"}, "rangemode": "tozero"},
        "hovermode": "closest",
    }
    return {"data": [line, mark], "layout": layout}


def _page(
    title: str,
    model: PhaseModel,
    series: Sequence[Series],
    phases: Sequence[Ints],
    memory: int,
    figures: Chart,
    **more: object,
) -> str:
    """A page on how executions go (the graph, the tree, the prototypes) with `more` before it."""
    cadences = [pod.cadence for pod in series if len(pod) > 1]
    sample_s = float(np.median(cadences)) if cadences else model.every
    figures["charts"]["tree"] = _icicle(prototype_tree(phases, _DEPTH), sample_s)
    ways = [
        (f"{way.share:.1%}", [(phase, _lengths(size)) for phase, size in way.steps])
        for way in covering(phases, _COVER, _DEPTH)
    ]
    return render(
        "phases.html",
        title=title,
        facts=_facts(model, series, phases),
        figures=figures,
        memory=memory,
        least_move=f"{_LEAST_MOVE:.0%}",
        graph=_picture(semi_markov_graph(phases, memory), sample_s),
        cover=f"{_COVER:.0%}",
        ways=ways,
        colour=_colour,
        **more,
    )


def _lengths(size: int) -> str:
    low, high = length_range(size)
    return f"{low}" if low == high else f"{low}–{high}"


def _icicle(tree: TreeNode, sample_s: float) -> Chart:
    """The most frequent branches; boxes of one parent need not fill it."""
    branches = sorted(_branches(tree, "all", ""), key=lambda branch: -branch[2].count)
    ids, labels, parents, values, colours, hover = [], [], [], [], [], []
    for name, parent, node in branches[:_BRANCHES]:
        root = node.phase < 0
        low, high = length_range(node.bin)
        ids.append(name)
        parents.append(parent)
        values.append(node.count)
        colours.append("rgba(0,0,0,0)" if root else _colour(node.phase))
        labels.append("all executions" if root else f"{node.phase} ({_lengths(node.bin)})")
        hover.append(
            f"{node.count:,} executions, {node.ends:,} end here"
            if root
            else f"phase {node.phase} for {duration_text(low * sample_s)} to "
            f"{duration_text(high * sample_s)}: {node.probability:.0%} of those who come here, "
            f"{node.count:,} executions, {node.ends:,} end here"
        )
    trace = {
        **{"type": "icicle", "ids": ids, "labels": labels, "parents": parents, "values": values},
        **{"branchvalues": "total", "text": hover, "textinfo": "label+percent root"},
        **{"hovertemplate": "%{text}<extra></extra>", "marker": {"colors": colours} | _BORDER},
        **{"sort": True, "tiling": {"orientation": "h"}, "pathbar": {"visible": True}},
    }
    small = {"mode": "hide", "minsize": 9}
    return {
        "data": [trace],
        "layout": {"height": 460, "hovermode": "closest", "uniformtext": small},
    }


def _branches(node: TreeNode, name: str, parent: str) -> Iterator[tuple[str, str, TreeNode]]:
    yield name, parent, node
    for child in node.children:
        yield from _branches(child, f"{name}/{child.phase}.{child.bin}", name)


def _matrix(graph: Graph) -> Chart:
    ids = [state[-1] for state in graph.states]
    shares = np.zeros((len(ids), len(ids)))
    for (a, b), share in graph.moves.items():
        shares[a, b] = share
    texts = [[f"{share:.0%}" if share >= 0.005 else "" for share in row] for row in shares]
    names = [f"phase {phase}" for phase in ids]
    trace = {
        **{"type": "heatmap", "x": names, "y": names, "z": [short(row) for row in shares]},
        **{"text": texts, "texttemplate": "%{text}", "zmin": 0, "zmax": 1, "showscale": False},
        "colorscale": [[0, "rgba(59,130,246,0)"], [1, "rgba(59,130,246,0.85)"]],
        "hovertemplate": "from %{y} to %{x}: %{text}<extra></extra>",
    }
    layout = {
        "xaxis": {"title": {"text": "the sample after"}, "type": "category"},
        "yaxis": {"type": "category", "autorange": "reversed"},
        "hovermode": "closest",
    }
    return {"data": [trace], "layout": layout}


@dataclass(slots=True)
class _Drawing:
    """What `phases.html` draws in 520 × 430: its parts have the order of their use there."""

    arrows: list[tuple[str, ...]] = field(default_factory=list)
    circles: list[tuple[float, float, float, str, str, str, str]] = field(default_factory=list)
    labels: list[tuple[float, float, str]] = field(default_factory=list)


def _picture(graph: Graph, sample_s: float) -> _Drawing:
    """States on a circle, moves as arrows that bend to one side."""
    most = np.argsort([-count for count in graph.counts], kind="stable")[:_STATES]
    shown = sorted(int(at) for at in most)
    picture = _Drawing()
    peak = max((graph.counts[at] for at in shown), default=0)
    around = 0 if len(shown) == 1 else 165
    spot, radius = {}, {}
    for place, at in enumerate(shown):
        turn = 2 * pi * place / len(shown) - pi / 2
        x, y = spot[at] = (260 + 1.25 * around * cos(turn), 207 + around * sin(turn))
        r = radius[at] = (12 if len(shown) > 10 else 16) + 16 * sqrt(graph.counts[at] / peak)
        name = "→".join(map(str, graph.states[at]))
        low, middle, top = (
            duration_text(samples * sample_s) for samples in graph.dwell.get(at, (0.0, 0.0, 0.0))
        )
        story = f"{name}: entered {graph.counts[at]:,} times, lasts {low} (p10) to {top} (p90)"
        colour = _colour(graph.states[at][-1])
        picture.circles.append(
            (round(x, 1), round(y, 1), round(r, 1), colour, name, story, middle)
        )
    for (a, b), share in sorted(graph.moves.items(), key=lambda move: move[1]):
        if a in spot and b in spot and share >= _LEAST_MOVE:
            arrow, (x, y) = _arrow(spot[a], radius[a], spot[b], radius[b], share)
            picture.arrows.append((_colour(graph.states[a][-1]), *arrow))
            if share >= _LABELLED_MOVE and len(shown) <= 8:
                picture.labels.append((round(x), round(y), f"{share:.0%}"))
    return picture


def _arrow(
    start: tuple[float, float],
    start_radius: float,
    end: tuple[float, float],
    end_radius: float,
    share: float,
) -> tuple[tuple[str, str, str, str], tuple[float, float]]:
    """A bent line with a head (its opacity, path, width, head), and where its label goes."""
    (ax, ay), (bx, by) = start, end
    length = hypot(bx - ax, by - ay)
    bend = 0.16 * length
    mx, my = (ax + bx) / 2 - bend * (by - ay) / length, (ay + by) / 2 + bend * (bx - ax) / length
    head = 7 + 4 * share
    sx, sy = _towards(start, (mx, my), start_radius + 2)
    tx, ty = _towards(end, (mx, my), end_radius + 3)
    hx, hy = _towards((tx, ty), (mx, my), head)
    turn = atan2(ty - hy, tx - hx)
    side = head * 0.5
    left = f"{hx - side * sin(turn):.1f},{hy + side * cos(turn):.1f}"
    right = f"{hx + side * sin(turn):.1f},{hy - side * cos(turn):.1f}"
    line = (
        f"{0.35 + 0.65 * share:.2f}",
        f"M{sx:.1f} {sy:.1f} Q{mx:.1f} {my:.1f} {hx:.1f} {hy:.1f}",
        f"{1 + 5 * share:.1f}",
        f"{tx:.1f},{ty:.1f} {left} {right}",
    )
    # A third of the way, so that the labels of a pair of arrows stay apart.
    x, y = (0.42 * sx + 0.46 * mx + 0.12 * tx), (0.42 * sy + 0.46 * my + 0.12 * ty)
    return line, (x, y + 4)


def _towards(
    start: tuple[float, float], goal: tuple[float, float], steps: float
) -> tuple[float, float]:
    length = max(hypot(goal[0] - start[0], goal[1] - start[1]), 1e-9)
    return (
        start[0] + steps * (goal[0] - start[0]) / length,
        start[1] + steps * (goal[1] - start[1]) / length,
    )
