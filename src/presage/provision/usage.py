"""What pods used of one resource, cut into windows: the table that policies and scores work on.

Windows of a fixed length start at each pod's first sample. Samples that were not measured (NaN)
are left out. A window without samples has no row: it is neither sized nor scored, and after it
"the last window" is the last one that has samples. The first window of a pod has nothing before it
and is not scored either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from presage.model.errors import ProvisionError
from presage.telemetry.series import RESOURCES, Series

__all__ = ["MEMORY", "Floats", "Ints", "Usage", "Value", "resources_in"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MEMORY = ("memory", "gpu_memory")
"""Resources that cannot be squeezed: too little of them kills a container."""

_ROUNDING = 1e-9
"""A sample this part of a window early still begins it; times are floats."""


@dataclass(frozen=True, slots=True)
class Value:
    """What a window, or a phase, stands for: its mean + 2 sd, its maximum or a quantile."""

    quantile: float | None = None
    """None for mean + 2 sd; 1 for the maximum."""

    @classmethod
    def parse(cls, text: str) -> Value:
        """`mean+2sd`, `max`, or a quantile such as `p95`."""
        if text == "mean+2sd":
            return cls()
        if text == "max":
            return cls(1.0)
        if (match := re.fullmatch(r"p(\d{1,2}(\.\d+)?)", text)) is not None:
            return cls(float(match[1]) / 100)
        raise ProvisionError(f"there is no value '{text}'; choose mean+2sd, max or e.g. p95")

    def __str__(self) -> str:
        if self.quantile is None:
            return "mean + 2 sd"
        return "maximum" if self.quantile == 1 else f"p{100 * self.quantile:g}"


@dataclass(frozen=True, eq=False)
class Usage:
    """One resource of many pods. Rows are windows, by pod and then by time."""

    resource: str
    unit: str
    window_s: float
    pods: tuple[str, ...]
    pod: Ints
    """Per window, its place in `pods`."""
    index: Ints
    """Per window, how many windows of time there are before it in its pod."""
    starts: Ints
    """Per window, its first sample."""
    counts: Ints
    """Per window, its samples; at least 1."""
    use: Floats
    """Per sample."""
    times: Floats
    """Per sample."""
    places: Ints
    """Per sample, its row in the telemetry of all pods laid end to end."""

    @classmethod
    def of(cls, series: Sequence[Series], resource: str, window_s: float) -> Usage:
        """The windows of every pod that has the resource."""
        pods: list[str] = []
        pod, times, use, places = [], [], [], []
        start, unit = 0, ""
        for one in series:
            if resource in one.resources and len(one):
                column = one.column(resource)
                known = np.flatnonzero(np.isfinite(column))
                if known.size:
                    pod.append(np.full(known.size, len(pods)))
                    # Windows begin at the pod's first sample, measured or not.
                    times.append(one.times[known] - one.times[0])
                    use.append(column[known])
                    places.append(known + start)
                    pods.append(one.pod)
                    unit = unit or _unit(one, resource)
            start += len(one)
        if not pods:
            raise ProvisionError(f"no pod has any measured {resource}")
        pod_of, since = np.concatenate(pod), np.concatenate(times)
        window = np.floor(since / window_s + _ROUNDING).astype(np.int64)
        new = np.ones(len(pod_of), dtype=np.bool_)
        new[1:] = (np.diff(pod_of) != 0) | (np.diff(window) != 0)
        starts = np.flatnonzero(new)
        return cls(
            resource,
            unit,
            window_s,
            tuple(pods),
            pod_of[starts],
            window[starts],
            starts,
            np.diff(np.append(starts, len(pod_of))),
            np.concatenate(use),
            since,
            np.concatenate(places),
        )

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def first(self) -> npt.NDArray[np.bool_]:
        """Whether a window is its pod's first."""
        first = np.ones(len(self), dtype=np.bool_)
        first[1:] = np.diff(self.pod) != 0
        return first

    @cached_property
    def order(self) -> Ints:
        """Per window, how many windows with samples its pod has before it."""
        starts = np.flatnonzero(self.first)
        return np.arange(len(self)) - starts[self.pod]

    @cached_property
    def _steps(self) -> list[Ints]:
        by_order = np.argsort(self.order, kind="stable")
        return np.split(by_order, np.cumsum(np.bincount(self.order))[:-1])

    def steps(self) -> Iterator[tuple[Ints, Ints]]:
        """Through time, all pods at once: the windows of a step, and their pods."""
        for rows in self._steps:
            yield rows, self.pod[rows]

    @cached_property
    def mean(self) -> Floats:
        """Per window."""
        return np.asarray(np.add.reduceat(self.use, self.starts) / self.counts)

    @cached_property
    def sd(self) -> Floats:
        """Per window, of the samples themselves."""
        away = (self.use - self.spread(self.mean)) ** 2
        return np.sqrt(np.add.reduceat(away, self.starts) / self.counts)

    @cached_property
    def maximum(self) -> Floats:
        """Per window."""
        return np.asarray(np.maximum.reduceat(self.use, self.starts))

    @cached_property
    def minimum(self) -> Floats:
        """Per window."""
        return np.asarray(np.minimum.reduceat(self.use, self.starts))

    @cached_property
    def last(self) -> Floats:
        """Per window, its last sample."""
        last: Floats = self.use[self.starts + self.counts - 1]
        return last

    def quantile(self, share: float) -> Floats:
        """Per window: the least sample that at least this share of the samples do not exceed."""
        window = np.repeat(np.arange(len(self)), self.counts)
        rising = self.use[np.lexsort((self.use, window))]
        rank = np.ceil(share * self.counts - _ROUNDING).astype(np.int64) - 1
        values: Floats = rising[self.starts + np.clip(rank, 0, self.counts - 1)]
        return values

    def value(self, value: Value) -> Floats:
        """Per window, what it stands for."""
        if value.quantile is None:
            return self.mean + 2 * self.sd
        return self.maximum if value.quantile == 1 else self.quantile(value.quantile)

    def spread(self, per_window: npt.NDArray[np.float64]) -> Floats:
        """Per sample, the number of its window."""
        return np.repeat(per_window, self.counts)

    def before(self, per_window: Floats, steps: int = 1) -> Floats:
        """Per window, the number of the window so many before it in its pod; NaN if none is."""
        shifted = np.full(len(self), np.nan)
        has = np.flatnonzero(self.order >= steps)
        shifted[has] = per_window[has - steps]
        return shifted

    def so_far(self, per_window: Floats, keep: float | None = None) -> Floats:
        """Per window, the largest number of its pod up to and including it; with `keep`, the mean
        in which each older window counts that much of the one after it."""
        peaks, state = np.empty(len(self)), np.full(len(self.pods), -np.inf)
        for rows, pods in self.steps():
            now = per_window[rows]
            if keep is None:
                state[pods] = np.maximum(state[pods], now)
            else:
                begins = np.isneginf(state[pods])
                state[pods] = np.where(begins, now, keep * state[pods] + (1 - keep) * now)
            peaks[rows] = state[pods]
        return peaks

    def running_total(self, per_window: Floats) -> Floats:
        """Per window, the sum of its pod up to and including it."""
        total = np.cumsum(per_window)
        starts = np.flatnonzero(self.first)
        before = np.where(starts > 0, total[starts - 1], 0.0)
        totals: Floats = total - before[self.pod]
        return totals


def resources_in(series: Sequence[Series]) -> list[str]:
    """The resources that any pod has."""
    return [name for name in RESOURCES if any(name in one.resources for one in series)]


def _unit(series: Series, resource: str) -> str:
    if not series.units:
        return ""
    return series.units[series.features.index(series.resources[resource][0])]
