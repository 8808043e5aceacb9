"""How a series pulses: bursts and the idle time between them, as three numbers and a pattern.

The samples of one resource are divided in two by k-means (k = 2). On a line the best division is
a threshold, so it is found exactly by trying all of them: no seed, no iterations. A series that is
nearly constant has no two levels; it is all idle or all burst. Nothing here measures.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

import numpy as np
import numpy.typing as npt

from presage.model.errors import TelemetryError

__all__ = ["METRICS", "RESOURCES", "TARGETS", "Bursts", "Pattern", "label", "two_means"]

Floats = npt.NDArray[np.float64]

RESOURCES = {"util": "pct", "memory": "pct", "sent": "mib_s", "received": "mib_s"}
"""Each resource with the unit of its samples."""
METRICS = ("burst", "burst_ms", "idle_ms")
"""What is told of a resource: the mean of a burst, and how long bursts and idle times are."""
TARGETS = tuple(
    f"{resource}_burst_{unit}" if metric == "burst" else f"{resource}_{metric}"
    for resource, unit in RESOURCES.items()
    for metric in METRICS
)
"""The twelve numbers in order."""

_APART = 0.1
"""Levels that are closer than this share of the higher one are one level."""
_FLOOR = {"pct": 1.0, "mib_s": 0.02}
"""What stays below is idle."""


class Pattern(StrEnum):
    """What a series looks like."""

    IDLE = "I"
    """Nothing worth mentioning, all the time."""
    BURST = "B"
    """One level, all the time."""
    ALTERNATING = "BIB"
    """Bursts with idle times between them."""


@dataclass(frozen=True, slots=True)
class Bursts:
    """How one resource pulsed."""

    pattern: Pattern
    burst: float
    """The mean of the samples in bursts, in the resource's unit."""
    burst_ms: float
    """The mean length of a burst."""
    idle_ms: float
    """The mean length of an idle time."""
    count: int = 0
    """How many bursts were seen."""

    @property
    def numbers(self) -> tuple[float, float, float]:
        """In the order of `METRICS`."""
        return self.burst, self.burst_ms, self.idle_ms


def two_means(values: npt.ArrayLike) -> tuple[float, float, npt.NDArray[np.bool_]]:
    """The lower and the higher centre of k-means with k = 2, and which values are with the higher
    one: of all divisions that with the least sum of squares."""
    given = np.asarray(values, np.float64)
    ordered = np.sort(given)
    count = len(ordered)
    sums = np.cumsum(ordered)
    below = np.arange(1, count)
    # the sum of squares within both parts falls as that between them rises
    between = sums[:-1] ** 2 / below + (sums[-1] - sums[:-1]) ** 2 / (count - below)
    between[ordered[1:] <= ordered[:-1]] = -np.inf  # equal values stay together
    if count < 2 or not np.isfinite(between.max()):
        return float(given.mean()), float(given.mean()), np.zeros(count, np.bool_)
    cut = int(np.argmax(between))
    low = float(sums[cut] / (cut + 1))
    high = float((sums[-1] - sums[cut]) / (count - cut - 1))
    return low, high, given > ordered[cut]


def label(values: npt.ArrayLike, hz: float, unit: str = "pct") -> Bursts:
    """How a series of samples, taken so many times a second, pulses. All runs count, also those
    that the series cuts at its ends."""
    series = np.asarray(values, np.float64)
    if series.ndim != 1 or not series.size or not np.all(np.isfinite(series)) or not hz > 0:
        raise TelemetryError("bursts need a series of finite samples and their rate")
    low, high, busy = two_means(series)
    whole_ms = 1e3 * series.size / hz
    if high < _FLOOR[unit]:
        return Bursts(Pattern.IDLE, 0.0, 0.0, whole_ms)
    if high - low < _APART * high:
        return Bursts(Pattern.BURST, float(series.mean()), whole_ms, 0.0, 1)
    runs = [(bool(key), len(list(group))) for key, group in groupby(busy.tolist())]
    bursts = [length for key, length in runs if key]
    idles = [length for key, length in runs if not key]
    return Bursts(
        Pattern.ALTERNATING,
        float(series[busy].mean()),
        1e3 * float(np.mean(bursts)) / hz,
        1e3 * float(np.mean(idles)) / hz,
        len(bursts),
    )
