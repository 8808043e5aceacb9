"""Which pods of a training are taken for kin when nobody names their workloads: those alike.

A new workload is unlike the pods that margins were set on, and its own pods are like each other.
So pods are judged by what was learned from pods unlike them: they are halved again and again by
the level, the spread or the peak of a resource, whichever tells most pods apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from presage.provision.usage import Floats, Ints
from presage.telemetry.series import Series

__all__ = ["alike"]

_GROUPS = 16
_LEAST_PODS = 4 * _GROUPS
"""With fewer pods, each is alone."""


def alike(series: Sequence[Series]) -> dict[str, str]:
    """A name for the kin of each pod; empty where pods are few."""
    if len(series) < _LEAST_PODS:
        return {}
    names = sorted({name for one in series for name in one.resources})
    table = np.array([[value for name in names for value in _sums(one, name)] for one in series])
    spread = table.std(axis=0)
    group = _halved((table - table.mean(axis=0)) / np.where(spread > 0, spread, 1.0))
    return {one.pod: f"alike {at}" for one, at in zip(series, group, strict=True)}


def _sums(one: Series, resource: str) -> tuple[float, float, float]:
    """Logarithms of level, spread and peak; nothing where the pod does not have the resource."""
    use = one.column(resource) if resource in one.resources else np.empty(0)
    use = use[np.isfinite(use)]
    if not use.size:
        return 0.0, 0.0, 0.0
    level, spread, peak = np.log1p(np.abs([use.mean(), use.std(), use.max()]))
    return float(level), float(spread), float(peak)


def _halved(table: Floats) -> Ints:
    """The group of each row; groups differ by one row at most."""
    groups = [np.arange(len(table))]
    while len(groups) < _GROUPS:
        halves = []
        for rows in groups:
            widest = int(np.argmax(table[rows].std(axis=0)))
            order = rows[np.argsort(table[rows, widest], kind="stable")]
            halves += [order[: len(order) // 2], order[len(order) // 2 :]]
        groups = halves
    group = np.empty(len(table), np.int64)
    for at, rows in enumerate(groups):
        group[rows] = at
    return group
