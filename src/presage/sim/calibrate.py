"""Intervals of the time to start that keep their promise, learned from earlier forecasts.

Run times drawn one by one know nothing of what all jobs of a week have in common, so the time to
start varies more than they say: on public traces, what they give as 80 % holds for a third of the
jobs. How much more it varies is learned from earlier forecasts, by split conformal prediction on
the ratio of true to foreseen waits. An uncertain forecast is allowed a larger ratio than a certain
one.

Two things would make intervals too wide, above all on the short side. Of the jobs that started
already, many started early: those that still wait count too, as waiting at least so long
(Kaplan and Meier's estimate of a distribution from censored values). And forecasts get better as
more run times are known: earlier ones weigh less.

Values only: the caller says what the time is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from presage.learn.conformal import Conformal
from presage.model.errors import UserError

__all__ = ["Calibration", "ForecastLog", "Outcome"]

Floats = npt.NDArray[np.float64]
Outcome: TypeAlias = tuple[float, float, float, float, float]
"""When a forecast was made, its p10, p50 and p90, and how long the job then waited."""

_OFFSET_S = 60.0
"""A minute more or less is no error, however short the wait."""
_COMMON = 0.5
"""What jobs of one time have in common, in units of log seconds: as uncertain as the most certain
forecast is taken to be."""
_HALF_LIFE_S = 14 * 86_400.0
"""Age at which a forecast weighs half: that of a run in `sim.history`, which it was made from."""
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
        *,
        started: npt.ArrayLike | None = None,
        age_s: npt.ArrayLike | None = None,
    ) -> Calibration:
        """Learn from forecasts (uncalibrated) and from what came of them.

        A job that has not `started` has waited so long up to now. `age_s` says how long ago each
        forecast was made. Forecasts of one group, such as a cluster's week, err alike and count
        for less.
        """
        low, middle, high, waited = (
            np.asarray(values, np.float64) for values in (p10_s, p50_s, p90_s, waited_s)
        )
        ratio = np.log((waited + _OFFSET_S) / (middle + _OFFSET_S))
        weight = np.ones(ratio.size)
        if groups is not None:
            member = np.unique(np.asarray(groups), return_inverse=True)[1].reshape(-1)
            weight *= np.bincount(member)[member] ** -0.5
        if age_s is not None:
            weight *= 0.5 ** (np.asarray(age_s, np.float64) / _HALF_LIFE_S)
        known = np.ones(ratio.size, bool) if started is None else np.asarray(started, bool)
        quantiles = _quantiles(ratio / _uncertainty(low, high), known, weight)
        return cls(Conformal(*quantiles, "log"))

    @classmethod
    def prior(cls, wider: float = 1.0) -> Calibration:
        """For a cluster that has too few forecasts behind it: what `benchmarks/eta.py` learns from
        the weeks before the test weeks on the ITP trace (microsoft/elasticflow-traces). `wider`
        is for one of which less is known: so many times further out, in units of log seconds."""
        low, middle, high = _PRIOR
        return cls(Conformal(low * wider, middle, high * wider, "log"))

    def interval(self, p10_s: float, p50_s: float, p90_s: float) -> tuple[float, float, float]:
        """p10, p50 and p90 as they should have been told."""
        scale = _uncertainty(np.array([p10_s]), np.array([p90_s]))
        told = self.errors.interval([p50_s + _OFFSET_S], scale)[0] - _OFFSET_S
        low, middle, high = np.maximum(told, 0.0).tolist()
        return low, middle, high


_PRIOR = (-1.55, 0.12, 1.27)


def _quantiles(
    values: Floats, known: npt.NDArray[np.bool_], weight: Floats
) -> tuple[float, float, float]:
    """10 %, 50 % and 90 % of values of which some are only known to be at least so large; the
    outer ones moved outwards, as few values demand (the p(n + 1)-th of n)."""
    if not known.any() or not np.all(np.isfinite(values)):
        raise UserError("a calibration needs waits that are finite, and some that are over")
    order = np.lexsort((~known, values))
    values, known, weight = values[order], known[order], weight[order]
    at_risk = np.cumsum(weight[::-1])[::-1]
    below = 1 - np.cumprod(np.where(known, 1 - weight / at_risk, 1.0))
    values, below = values[known], below[known]
    middle = (np.concatenate(([0.0], below[:-1])) + below) / 2
    count = weight.sum() ** 2 / np.sum(weight**2)
    levels = [level + (level - 0.5) / count for level in (0.1, 0.5, 0.9)]
    low, half, high = np.interp(levels, middle, values).tolist()
    return low, half, high


def _uncertainty(low: Floats, high: Floats) -> Floats:
    told = np.log((high + _OFFSET_S) / (low + _OFFSET_S)) / _NORMAL
    return np.hypot(told, _COMMON)


class ForecastLog:
    """Forecasts made at submission, and what came of them: the memory of a live cluster.

    Bounded: open forecasts and outcomes beyond `most` are forgotten, the oldest first.
    """

    def __init__(
        self,
        most: int = 5000,
        least: int = 50,
        group_s: float = 7 * 86_400.0,
        prior: Calibration | None = None,
    ) -> None:
        self.most = most
        self.least = least
        """Outcomes below which the prior is used."""
        self.prior = prior or Calibration.prior()
        self.group_s = group_s
        """Forecasts of one such span err alike."""
        self.open: dict[str, tuple[float, float, float, float]] = {}
        """By job that waits: when the forecast was made, and its p10, p50 and p90."""
        self._outcomes: deque[Outcome] = deque(maxlen=most)

    def made(self, job: str, at: float, p10_s: float, p50_s: float, p90_s: float) -> None:
        """A forecast, as it was before calibration; the first of a job counts."""
        if job not in self.open:
            self.open[job] = at, p10_s, p50_s, p90_s
            if len(self.open) > self.most:
                del self.open[next(iter(self.open))]

    def started(self, job: str, at: float) -> Outcome | None:
        """A job started for the first time; what that teaches, if anything."""
        opened = self.open.pop(job, None)
        if opened is None or at <= opened[0]:  # who did not wait teaches nothing about waiting
            return None
        outcome = (*opened, at - opened[0])
        self._outcomes.append(outcome)
        return outcome

    def remember(self, outcome: Outcome) -> None:
        """An outcome from before, oldest first."""
        self._outcomes.append(outcome)

    def gone(self, job: str) -> None:
        """A job ended without a start."""
        self.open.pop(job, None)

    def __len__(self) -> int:
        """Outcomes that are known."""
        return len(self._outcomes)

    def calibration(self, now: float) -> Calibration:
        """What the outcomes teach, and the jobs that still wait."""
        if len(self) < self.least:
            return self.prior
        waiting = [(*told, now - told[0]) for told in self.open.values() if told[0] < now]
        at, low, middle, high, waited = np.array([*self._outcomes, *waiting]).T
        return Calibration.fit(
            *(low, middle, high, waited, np.floor(at / self.group_s)),
            started=np.arange(at.size) < len(self),
            age_s=np.maximum(now - at, 0.0),
        )
