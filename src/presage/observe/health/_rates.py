"""From a level that only orders to a rate that means something: how often a series that is well
gets so far. Learned from unlabelled samples; beyond the highest of them the rate falls on
exponentially. Knows nothing of metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from presage.telemetry.series import Floats

__all__ = ["Rates"]

_QUIET = 30
"""Samples without an alarm after which the next one is another alarm."""
_KNOTS = 400
_TAIL = 40
"""The rate beyond what was seen is taken from so many of the highest alarms."""
_TIES = 1e-3
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, eq=False)
class Rates:
    """Alarms a day and series, by level."""

    level: Floats
    """Rising."""
    log_rate: Floats
    """Falling."""
    tail: float
    """How fast the logarithm falls beyond the last level."""

    @classmethod
    def fit(cls, levels: Sequence[Floats], every_s: float) -> Rates:
        """From the levels of each series, in the order of time."""
        seen = np.concatenate(levels)
        days = max(len(seen) * every_s / _DAY_S, 1e-9)
        knots = _knots(seen)
        alarms = _alarms(levels, knots)
        alarms = np.maximum.accumulate(alarms[::-1])[::-1]
        samples = len(seen) - np.searchsorted(np.sort(seen), knots, side="left")
        log_rate = np.log(np.maximum(alarms, 0.5) / days + _TIES * np.maximum(samples, 0.5) / days)
        top = np.flatnonzero(alarms >= min(_TAIL, alarms.max()))[-1]
        over = seen[seen > knots[top]] - knots[top]
        mean = float(over.mean()) if len(over) else 1.0
        last = np.flatnonzero(alarms >= 1)[-1]
        return cls(knots[: last + 1], log_rate[: last + 1], 1.0 / max(mean, 1e-6))

    def score(self, level: Floats) -> Floats:
        """1 ÷ (1 + rate): 0.5 is what comes once a day, 0.9 once in nine days, 1 never."""
        beyond = np.maximum(level - self.level[-1], 0.0)
        log_rate = np.interp(level, self.level, self.log_rate) - self.tail * beyond
        return np.asarray(1.0 / (1.0 + np.exp(np.clip(log_rate, -30.0, 30.0))))

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {"level": self.level, "log_rate": self.log_rate, "tail": np.array(self.tail)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Rates:
        return cls(arrays["level"], arrays["log_rate"], float(arrays["tail"]))


def _knots(seen: Floats) -> Floats:
    """Levels to count at: most of them where alarms are."""
    tail = np.geomspace(1.0, 1.0 / max(len(seen), 2), _KNOTS)
    return np.unique(np.quantile(seen, 1.0 - tail))


def _alarms(levels: Sequence[Floats], knots: Floats) -> Floats:
    """For each knot, how many times a series rose above it after being below for a while."""
    count = np.zeros(len(knots) + 1)
    for one in levels:
        before = _highest_before(one)
        rises = one > before
        low = np.searchsorted(knots, before[rises], side="right")
        high = np.searchsorted(knots, one[rises], side="right")
        np.add.at(count, low, 1.0)
        np.add.at(count, high, -1.0)
    return np.cumsum(count)[:-1]


def _highest_before(levels: Floats) -> Floats:
    """For each sample, the highest of the `_QUIET` before it."""
    padded = np.concatenate([np.full(_QUIET, -np.inf), levels])
    windows = np.lib.stride_tricks.sliding_window_view(padded, _QUIET)
    return np.asarray(windows[: len(levels)].max(axis=1))
