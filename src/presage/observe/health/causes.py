"""Root causes: which series, and which of its metrics, is to blame for a window of time.

Each metric is compared with itself: with what the series did just before the window when there are
several series (who changed?), with all that came before when there is one (which metric is off?).
A series that computes more than before is blamed before one that only shows symptoms, and with a
graph of services a service is blamed less while one that it calls is off, too. It needs no
training, must not look past the window, and may say that nothing stands out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from presage.model.errors import TelemetryError
from presage.model.words import moment
from presage.observe.health.anomalies import deviations
from presage.telemetry.series import Floats, Series

__all__ = ["Cause", "Causes", "Moved", "changes_of", "find_causes", "service_graph"]

_BEFORE_S = 300.0
"""Changes are measured against this long before the window, or as long as the window."""
_LEAST_BEFORE = 2
_RISE, _STANDS_OUT = 2.0, 1.0
"""Changes, in what is usual for a metric: from where on more computing explains the rest, and
below which nothing stands out."""
_ONE_STANDS_OUT = 0.5
"""The same for one series, in errors of forecast: low, for somebody asks who knows of trouble."""
_WEAK = 0.5
"""Below this share of what is seldom it is said that the answer is weak."""
_MOST_CHANGE = 8.0
_SHARE, _SHARE_OF_ALL = 0.1, 0.01
_EXPLAINED = 0.5
"""What is left of a service's change when a service that it calls is off as well."""
_SELDOM, _LEAST_SELDOM = 0.99, 3.0
"""How far a metric seldom goes is this quantile of its errors of forecast; so much is added, so
that one which hardly moved before does not lead with a small step."""
_LEADS = 100.0
_METRICS = 3
_SHARPNESS = 2.0
_COMPUTES = re.compile(r"cpu(?!.*(idle|wait|request|limit))", re.IGNORECASE)
_REMEMBERS = re.compile("mem|rss", re.IGNORECASE)
_MEMORY = 20.0
"""How many other metrics one of memory counts for."""
_NODE = re.compile(r"^(node|host)", re.IGNORECASE)
_CALLERS = ("caller", "source", "src", "from", "client", "parent")
_CALLEES = ("callee", "target", "dst", "to", "server", "child")


@dataclass(frozen=True, slots=True)
class Cause:
    """One who may be to blame."""

    name: str
    metric: str
    """The one that is farthest off."""
    metrics: tuple[str, ...]
    """It and those that follow."""
    probability: float
    """Among all that are named, how likely it is this one."""
    evidence: str


@dataclass(frozen=True, slots=True)
class Causes:
    """The answer: most likely first, and empty when nothing stands out."""

    causes: tuple[Cause, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "causes": [
                {
                    "name": cause.name,
                    "metric": cause.metric,
                    "metrics": list(cause.metrics),
                    "probability": cause.probability,
                    "evidence": cause.evidence,
                }
                for cause in self.causes
            ],
            "notes": list(self.notes),
        }


def find_causes(
    series: Sequence[Series],
    begin: float,
    end: float,
    graph: Mapping[str, Sequence[str]] | None = None,
    most: int = 5,
) -> Causes:
    """Who is to blame for what happened from `begin` to before `end`. `graph` has the series that
    each series calls."""
    if end <= begin:
        raise TelemetryError("--to must be after --from")
    inside = [pod for pod in series if _window(pod, begin, end).any()]
    if not inside:
        first = min(float(pod.times[0]) for pod in series)
        last = max(float(pod.times[-1]) for pod in series)
        raise TelemetryError(
            f"no sample is from {moment(begin)} to {moment(end)}; there are samples from "
            f"{moment(first)} to {moment(last)}"
        )
    if len(inside) == 1:
        return _of_one(inside[0], begin, end, most)
    return _of_many(inside, begin, end, graph or {}, most)


def service_graph(table: pl.DataFrame, series: Sequence[Series]) -> dict[str, list[str]]:
    """Series -> the series it calls, from a table of callers and callees. A service stands for
    the series of its name, or whose names begin with it and a dash; services that no series
    belongs to are left out, and a table without any known service is refused."""
    columns = {name.lower(): name for name in table.columns}
    caller = next((columns[name] for name in _CALLERS if name in columns), None)
    callee = next((columns[name] for name in _CALLEES if name in columns), None)
    if caller is None or callee is None:
        raise TelemetryError(
            "the graph needs the columns caller and callee, and a row for each call; it has "
            + (", ".join(table.columns) or "nothing")
        )
    names = [pod.pod for pod in series]
    graph: dict[str, list[str]] = {}
    known = False
    for one, other in table.select(caller, callee).iter_rows():
        callers, callees = _stand_for(str(one), names), _stand_for(str(other), names)
        known = known or bool(callers) or bool(callees)
        for name in callers:
            graph.setdefault(name, []).extend(each for each in callees if each != name)
    if not known:
        raise TelemetryError("the graph names no service that the telemetry has a series of")
    return graph


def _stand_for(service: str, names: Sequence[str]) -> list[str]:
    return [name for name in names if name == service or name.startswith(f"{service}-")]


def _window(pod: Series, begin: float, end: float) -> Any:
    return (pod.times >= begin) & (pod.times < end)


# -- one series: which metric ---------------------------------------------------------------------


def _of_one(pod: Series, begin: float, end: float, most: int) -> Causes:
    """The metrics of a series, by how far they went from what was forecast at most, against how
    far they had gone before: a metric that is often far off says less."""
    until = int(np.searchsorted(pod.times, end, side="left"))
    start = int(np.searchsorted(pod.times, begin, side="left"))
    off = np.abs(deviations(pod, until))
    highest = np.nan_to_num(_over(np.nanmax, off[start:]))
    if highest.max() < _ONE_STANDS_OUT:
        return Causes(())
    seldom = np.nan_to_num(_over(_seldom, off[:start]))
    rank = highest / (_LEAST_SELDOM + seldom)
    order = np.argsort(-rank, kind="stable")[:most]
    order = order[highest[order] > 0]
    weight = rank**_SHARPNESS
    causes = tuple(
        Cause(
            pod.pod,
            pod.features[at],
            (pod.features[at],),
            float(weight[at] / weight.sum()),
            f"{highest[at]:.1f} times its usual error of forecast, seldom "
            f"over {seldom[at]:.1f} before",
        )
        for at in order
    )
    weak = "weak: no metric went further than it now and then does when all is well"
    return Causes(causes, (weak,) if rank.max() < _WEAK else ())


def _seldom(off: Floats, axis: int) -> Floats:
    return np.asarray(np.nanquantile(off, _SELDOM, axis=axis))


# -- many series: which of them -------------------------------------------------------------------


def _of_many(
    series: Sequence[Series],
    begin: float,
    end: float,
    graph: Mapping[str, Sequence[str]],
    most: int,
) -> Causes:
    table = _compare(series, begin, end)
    change = np.nan_to_num(table.change)
    blame = _with_graph(_blame(change, table.metrics), change, series, graph)
    return Causes(_ranked(series, table, change, blame, most), _told(table.short))


@dataclass(frozen=True, slots=True)
class Moved:
    """What one metric of one series did."""

    change: float
    """In what is usual for it; 0 if it is not known."""
    then: float
    """Its mean in the window; NaN if it was not measured."""


def changes_of(series: Sequence[Series], begin: float, end: float) -> list[dict[str, Moved]]:
    """What each metric of each series did in a window of time."""
    table = _compare(series, begin, end)
    change = np.nan_to_num(table.change).tolist()
    return [
        {name: Moved(*each) for name, *each in zip(table.metrics, moved, then, strict=True)}
        for moved, then in zip(change, table.now.tolist(), strict=True)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class _Compared:
    """Series (rows) and metrics (columns), before the window and in it."""

    metrics: tuple[str, ...]
    usual: Floats
    now: Floats
    change: Floats
    short: tuple[str, ...]


def _compare(series: Sequence[Series], begin: float, end: float) -> _Compared:
    metrics = tuple(dict.fromkeys(name for pod in series for name in pod.features))
    before_s = max(_BEFORE_S, end - begin)
    usual, spread, now = np.full((3, len(series), len(metrics)), np.nan)
    short = []
    for at, pod in enumerate(series):
        columns = [metrics.index(name) for name in pod.features]
        earlier = pod.values[_window(pod, begin - before_s, begin)]
        if len(earlier) < _LEAST_BEFORE:
            short.append(pod.pod)
            continue
        usual[at, columns] = _over(np.nanmedian, earlier)
        spread[at, columns] = _over(np.nanmedian, np.abs(earlier - usual[at, columns]))
        now[at, columns] = _over(np.nanmean, pod.values[_window(pod, begin, end)])
    change = _changes(usual, spread, now)
    if len(short) == len(series):
        raise TelemetryError(
            f"no series has {_LEAST_BEFORE} samples in the {before_s:g} s before --from"
        )
    if not np.isfinite(change).any():
        raise TelemetryError(
            f"no metric was measured both from {moment(begin)} to {moment(end)} and in the "
            f"{before_s:g} s before"
        )
    return _Compared(metrics, usual, now, change, tuple(short))


def _told(short: Sequence[str]) -> tuple[str, ...]:
    if not short:
        return ()
    some = ", ".join(short[:3]) + (" …" if len(short) > 3 else "")
    return (f"not compared, for too little is known of before: {len(short)} series ({some})",)


def _over(function: Any, values: Floats) -> Floats:
    """Per column that has a value."""
    results = np.full(values.shape[1], np.nan)
    known = np.isfinite(values).any(axis=0)
    results[known] = function(values[:, known], axis=0)
    return results


def _changes(usual: Floats, spread: Floats, now: Floats) -> Floats:
    """How far each metric went, in what is usual for it; never less than a tenth of its size or a
    hundredth of the largest of its kind."""
    size = np.abs(usual)
    largest = np.nan_to_num(_over(np.nanmax, size))
    width = spread + _SHARE * size + _SHARE_OF_ALL * largest
    return np.asarray((now - usual) / np.where(width > 0, width, 1.0))


def _blame(change: Floats, metrics: Sequence[str]) -> Floats:
    """Per series. Computing far more than before leads; else it is how much its metrics changed:
    memory counts most, for it is the series' own while traffic and latency spread through those
    who call it, and what belongs to the node counts not at all."""
    own = np.array([_NODE.match(name) is None for name in metrics])
    computes = np.array([_COMPUTES.search(name) is not None for name in metrics]) & own
    weight = np.array([_MEMORY if _REMEMBERS.search(name) else 1.0 for name in metrics])[own]
    size = np.minimum(np.abs(change[:, own]), _MOST_CHANGE)
    total = size @ weight / max(weight.sum(), 1.0)
    if not computes.any():
        return np.asarray(total)
    rise = change[:, computes].max(axis=1)
    return np.asarray(np.where(rise > _RISE, _MOST_CHANGE + rise, total))


def _with_graph(
    blame: Floats, change: Floats, series: Sequence[Series], graph: Mapping[str, Sequence[str]]
) -> Floats:
    place = {pod.pod: at for at, pod in enumerate(series)}
    off = np.abs(change).max(axis=1) > _RISE
    adjusted = blame.copy()
    for caller, callees in graph.items():
        if caller in place and any(off[place[name]] for name in callees if name in place):
            adjusted[place[caller]] *= _EXPLAINED
    return adjusted


def _ranked(
    series: Sequence[Series], table: _Compared, change: Floats, blame: Floats, most: int
) -> tuple[Cause, ...]:
    metrics, usual, now = table.metrics, table.usual, table.now
    strongest = np.abs(change).max(axis=1)
    order = [at for at in np.argsort(-blame, kind="stable") if strongest[at] >= _STANDS_OUT]
    if not order:
        return ()
    weight = blame**_SHARPNESS
    chance = weight / weight[order].sum()
    computes = [_COMPUTES.search(name) is not None for name in metrics]
    causes = []
    for at in order[:most]:
        size = np.abs(change[at])
        leads = np.array(computes) & (change[at] > _RISE)
        worst = np.argsort(-(size + _LEADS * leads), kind="stable")[:_METRICS]
        top = worst[0]
        causes.append(
            Cause(
                series[at].pod,
                metrics[top],
                tuple(metrics[each] for each in worst),
                float(chance[at]),
                f"{usual[at, top]:.3g} before, {now[at, top]:.3g} then "
                f"({change[at, top]:+.1f} times what is usual)",
            )
        )
    return tuple(causes)
