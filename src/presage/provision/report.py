"""Right-sizing as one HTML page: the policies side by side, allocation against use, and what more
or less allocation would have meant.

The page stays small: a few pods of each resource are drawn, long ones thinned. Nothing here writes
files.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from presage.page import COLOURS, counted, duration_text, figure, readable_unit, render, short
from presage.provision.allocate import score
from presage.provision.rightsize import RightsizeResult, SizedResource
from presage.provision.usage import MEMORY, Floats

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["draw_tradeoff", "gap_closed", "rightsize_page"]

Chart = dict[str, Any]
Ints = npt.NDArray[np.int64]

_PODS = 6
_POINTS = 500
_SCALES = np.round(np.geomspace(0.2, 3.0, 33), 4)
_USE = "#94a3b8"
_FIXED = ("dynamic", "static")
_LEAST_GAP = 0.03
_CLOCK = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"))


def rightsize_page(title: str, outcome: RightsizeResult) -> str:
    """The page as HTML."""
    policies = list(outcome.sized)
    colours = _colours(outcome)
    resources = list(next(iter(outcome.sized.values())))
    pods = {name: _worth_seeing(outcome.sized[policies[0]][name]) for name in resources}
    figures = {
        "charts": {},
        "choices": {
            "traces": [
                _trace(outcome, name, pod, colours) for name in resources for pod in pods[name]
            ],
            "tradeoff": [_tradeoff(outcome, name, colours) for name in resources],
        },
    }
    return render(
        "rightsize.html",
        title=title,
        facts=_facts(outcome, resources),
        rows=_rows(outcome, resources),
        pods=pods,
        figures=figures,
    )


def draw_tradeoff(outcome: RightsizeResult, resource: str) -> Figure:
    """How allocation buys service, as a figure."""
    chart = _tradeoff(outcome, resource, _colours(outcome))
    return figure(chart, f"Allocation and service: {resource}")


def _colours(outcome: RightsizeResult) -> dict[str, str]:
    return {name: COLOURS[at % len(COLOURS)] for at, name in enumerate(outcome.sized)}


def gap_closed(outcome: RightsizeResult, resource: str) -> str | None:
    """How much of the allocation between `adaptive` and `dynamic` the policy `forecast` saves, in
    words; None unless all three were asked for."""
    ratios = []
    for policy in ("adaptive", "forecast", "dynamic"):
        sized = outcome.sized.get(policy, {}).get(resource)
        if sized is None or sized.score.alloc_over_use is None:
            return None
        ratios.append(sized.score.alloc_over_use)
    adaptive, forecast, dynamic = ratios
    if adaptive - dynamic < _LEAST_GAP:
        return f"{resource}: adaptive gives at most {_LEAST_GAP:.0%} of use more than dynamic"
    share = (adaptive - forecast) / (adaptive - dynamic)
    return f"{resource}: forecast closes {share:.0%} of the gap between adaptive and dynamic"


def _facts(outcome: RightsizeResult, resources: list[str]) -> dict[str, str]:
    usage = [sized.usage for sized in next(iter(outcome.sized.values())).values()]
    pods = len({pod for each in usage for pod in each.pods})
    facts = {
        "Telemetry": f"{counted(pods, 'pod')}, {', '.join(resources)}",
        "Windows": f"{duration_text(outcome.window_s)}; a window stands for its {outcome.value}",
        "Margins": "as given"
        if outcome.target_pct is None
        else f"the smallest that meet {outcome.target_pct:g} % of the samples of the bundle's "
        "training",
    }
    gaps = [gap for name in resources if (gap := gap_closed(outcome, name)) is not None]
    if outcome.target_pct is not None and gaps:
        facts["Forecast"] = "; ".join(gaps)
    return facts


def _rows(outcome: RightsizeResult, resources: list[str]) -> list[tuple[str, tuple[str, ...]]]:
    rows: list[tuple[str, tuple[str, ...]]] = []
    for name in resources:
        for policy, by_resource in outcome.sized.items():
            one = by_resource[name].score
            is_memory = name in MEMORY
            ratio = one.alloc_over_use
            cells = (
                "–" if ratio is None else f"{ratio:.3f}",
                *(f"{one.fulfilment_pct:.2f} %", f"{one.worst_pod_pct:.1f} %"),
                f"{one.oom:,}" if is_memory else "",
                "" if is_memory else f"{one.throttled:,}",
                *(f"{one.resizes:,}", f"{one.margin:+.1%}"),
            )
            rows.append((f"{name}, {policy}", cells))
    return rows


def _worth_seeing(sized: SizedResource) -> list[str]:
    """The pods with the most windows."""
    usage = sized.usage
    windows = np.bincount(usage.pod, minlength=len(usage.pods))
    most = np.argsort(-windows, kind="stable")[:_PODS]
    return [usage.pods[at] for at in most if windows[at] > 1]


def _trace(outcome: RightsizeResult, resource: str, pod: str, colours: dict[str, str]) -> Chart:
    """A pod's use as an area, and a step line for what each policy gave."""
    first = next(iter(outcome.sized.values()))[resource]
    drawn = first.trace(pod)
    length = float(drawn.times[-1] - drawn.times[0]) if len(drawn.times) else 0.0
    size, clock = next((pair for pair in _CLOCK if length >= 3 * pair[0]), (1.0, "s"))
    divisor, unit = readable_unit(first.usage.unit, float(drawn.use.max()))
    peaks = _peaks(drawn.use)
    data: list[Chart] = [
        {
            **{"type": "scatter", "mode": "lines", "fill": "tozeroy", "name": "use"},
            **{"x": short(drawn.times[peaks] / size), "y": short(drawn.use[peaks] / divisor)},
            "line": {"color": _USE, "width": 1},
        }
    ]
    for policy, by_resource in outcome.sized.items():
        given = by_resource[resource].trace(pod).allocation
        steps = _steps(given)
        data.append(
            {
                **{"type": "scatter", "mode": "lines", "name": policy},
                **{"x": short(drawn.times[steps] / size), "y": short(given[steps] / divisor)},
                "line": {"color": colours[policy], "width": 1.8, "shape": "hv"},
            }
        )
    layout = {
        "height": 420,
        "xaxis": {"title": {"text": f"time since the pod's first sample ({clock})"}},
        "yaxis": {
            "title": {"text": f"{resource} ({unit})" if unit else resource},
            "rangemode": "tozero",
        },
    }
    return {"data": data, "layout": layout}


def _peaks(use: Floats) -> Ints:
    """The place of the largest sample in each of some slices."""
    if len(use) <= _POINTS:
        return np.arange(len(use))
    cuts = np.linspace(0, len(use), _POINTS + 1).astype(np.int64)
    return np.array([a + int(np.argmax(use[a:b])) for a, b in pairwise(cuts)])


def _steps(given: Floats) -> Ints:
    """Where the allocation changes, and the ends."""
    changes = np.flatnonzero(np.diff(given) != 0) + 1
    places = np.unique(np.concatenate([[0], changes, [len(given) - 1]]))
    return places[:: max(1, len(places) // (2 * _POINTS))]


def _tradeoff(outcome: RightsizeResult, resource: str, colours: dict[str, str]) -> Chart:
    data: list[Chart] = []
    for policy, by_resource in outcome.sized.items():
        sized = by_resource[resource]
        usage, floor = sized.usage, None
        if resource in MEMORY and policy not in _FIXED:
            floor = usage.before(usage.last)
        scores = []
        for scale in _SCALES:
            given = sized.allocation * scale
            given = given if floor is None else np.fmax(given, floor)
            scores.append(score(usage, given, sized.score.margin))
        line = {"color": colours[policy], "width": 1.8}
        data.append(
            {
                **{"type": "scatter", "mode": "lines", "name": policy, "line": line},
                "x": short([_ratio(one.alloc_over_use) for one in scores]),
                "y": short([one.fulfilment_pct for one in scores]),
                "hovertemplate": "%{y:.2f} % met with %{x:.3f} × use",
                "legendgroup": policy,
            }
        )
        data.append(
            {
                **{"type": "scatter", "mode": "markers", "name": policy, "legendgroup": policy},
                **{"x": short([_ratio(sized.score.alloc_over_use)]), "showlegend": False},
                "y": [sized.score.fulfilment_pct],
                "marker": {"color": colours[policy], "size": 11},
                "hovertemplate": "%{y:.2f} % met with %{x:.3f} × use",
            }
        )
    ratios = [_ratio(one[resource].score.alloc_over_use) for one in outcome.sized.values()]
    most = float(np.nanmax([*ratios, 1.0]))
    layout = {
        "height": 420,
        "hovermode": "closest",
        "xaxis": {"title": {"text": "allocation ÷ use"}, "range": [0.8, min(1.6 * most, 12.0)]},
        "yaxis": {"title": {"text": "samples met (%)"}, "range": [70, 100.8]},
    }
    return {"data": data, "layout": layout}


def _ratio(value: float | None) -> float:
    return float("nan") if value is None else value
