"""Intervals of the time to start that keep their promise, learned from earlier forecasts.

Run times drawn one by one know nothing of what all jobs of a week have in common, so the time to
start varies more than they say: on public traces, what they give as 80 % holds for a third of the
jobs. How much more it varies is learned from forecasts whose outcome is known, by split conformal
prediction on the ratio of true to foreseen waits (`presage.learn.conformal`). An uncertain
forecast is allowed a larger ratio than a certain one.

Values only: the caller says what the time is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from presage.learn.conformal import Conformal

__all__ = ["Calibration", "ForecastLog"]

Floats = npt.NDArray[np.float64]

_OFFSET_S = 60.0
"""A minute more or less is no error, however short the wait."""
_COMMON = 0.5
"""What jobs of one time have in common, in units of log seconds: as uncertain as the most certain
forecast is taken to be."""
_NORMAL = 2.56
"""Standard deviations between the 10 % and the 90 % quantile."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """How far off forecasts were, relative to what they said of their own uncertainty."""

    errors: Conformal

    @classmethod
    def fit(
        cls,
        p10_s: npt.ArrayLike,
        p50_s: npt.ArrayLike,
        p90_s: npt.ArrayLike,
        waited_s: npt.ArrayLike,
        groups: npt.ArrayLike | None = None,
    ) -> Calibration:
        """Learn from forecasts (uncalibrated) and from what came of them.

        Forecasts of one group, such as a cluster's week, err alike and count for less.
        """
        low, middle, high, waited = (
            np.asarray(values, np.float64) for values in (p10_s, p50_s, p90_s, waited_s)
        )
        scale = _uncertainty(low, high)
        return cls(Conformal.fit(waited + _OFFSET_S, middle + _OFFSET_S, groups, scale))

    @classmethod
    def prior(cls) -> Calibration:
        """For a cluster that has too few forecasts behind it: what `benchmarks/eta.py` learns from
        the weeks before the test weeks on the ITP trace (microsoft/elasticflow-traces)."""
        return cls(Conformal(*_PRIOR, "log"))

    def interval(self, p10_s: float, p50_s: float, p90_s: float) -> tuple[float, float, float]:
        """p10, p50 and p90 as they should have been told."""
        scale = _uncertainty(np.array([p10_s]), np.array([p90_s]))
        told = self.errors.interval([p50_s + _OFFSET_S], scale)[0] - _OFFSET_S
        low, middle, high = np.maximum(told, 0.0).tolist()
        return low, middle, high


_PRIOR = (-1.70, 0.10, 1.23)


def _uncertainty(low: Floats, high: Floats) -> Floats:
    told = np.log((high + _OFFSET_S) / (low + _OFFSET_S)) / _NORMAL
    return np.hypot(told, _COMMON)


class ForecastLog:
    """Forecasts made at submission, and what came of them: the memory of a live cluster.

    Bounded: open forecasts and outcomes beyond `most` are forgotten, the oldest first.
    """

    def __init__(self, most: int = 5000, least: int = 50, group_s: float = 7 * 86_400.0) -> None:
        self.most = most
        self.least = least
        """Outcomes below which the prior is used."""
        self.group_s = group_s
        """Forecasts of one such span err alike."""
        self._open: dict[str, tuple[float, float, float, float]] = {}
        self._outcomes: deque[tuple[float, float, float, float, float]] = deque(maxlen=most)

    def made(self, job: str, at: float, p10_s: float, p50_s: float, p90_s: float) -> None:
        """A forecast, as it was before calibration; the first of a job counts."""
        if job not in self._open:
            self._open[job] = at, p10_s, p50_s, p90_s
            if len(self._open) > self.most:
                del self._open[next(iter(self._open))]

    def started(self, job: str, at: float) -> None:
        """A job started for the first time."""
        found = self._open.pop(job, None)
        if found is not None and at > found[0]:  # who did not wait teaches nothing about waiting
            self._outcomes.append((*found, at - found[0]))

    def gone(self, job: str) -> None:
        """A job ended without a start."""
        self._open.pop(job, None)

    def __len__(self) -> int:
        """Outcomes that are known."""
        return len(self._outcomes)

    def calibration(self) -> Calibration:
        """What the outcomes teach."""
        if len(self) < self.least:
            return Calibration.prior()
        at, low, middle, high, waited = np.array(self._outcomes).T
        return Calibration.fit(low, middle, high, waited, np.floor(at / self.group_s))
