"""Anomalies: how unusual each sample of a series is, causally, and whether that is an alarm.

A model is fitted without labels on series that are alike (machines, pods of one kind) and judges
any series of that kind, known or not, from its first samples on. It must not look at a later
sample to judge an earlier one, and must not be told what is wrong.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from presage.learn.bundle import load_bundle, prefixed, save_bundle, under
from presage.model.errors import BundleError, TelemetryError
from presage.observe.health._rates import Rates
from presage.observe.health._watch import SPOKEN, WARM_UP, Kind, Watch
from presage.telemetry.series import Floats, Ints, Series

__all__ = ["QUANTILES", "AnomalyModel", "Judged", "MetricForecast", "deviations", "usual_time"]

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Of the forecast of each metric."""

_NAME, _VERSION = "health-anomalies", "2"
_FLOOR, _SLOW_FLOOR = 0.1, 0.03
"""Shares of a metric's range."""
_WIDEST = 10.0
"""No series makes the range of a metric larger than so many times what is typical."""
_GAP = 10.0
"""A gap is so many times the usual time between samples."""
_NUMBERED = 1e6
"""Row numbers start below this."""
_KEPT = 2_000
"""Deviations per metric that its quantiles are taken from, at least."""
Report = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """One series, judged: per sample."""

    score: Floats
    """0 to 1, larger is worse: 1 ÷ (1 + how often a day a series that is well gets so far). NaN
    where nothing was measured."""
    speak: Ints
    """The metrics that speak for it, as places in the model's `metrics`, worst first."""

    def alarm(self, per_day: float) -> npt.NDArray[np.bool_]:
        """Whether the score is one that healthy series reach at most so often a day."""
        return np.asarray(self.score >= 1.0 / (1.0 + per_day))


@dataclass(frozen=True, slots=True, eq=False)
class MetricForecast:
    """What one series was expected to be, per sample, metric and quantile."""

    quantiles: Floats


class AnomalyModel:
    """What series of one kind usually do, and how often they stray from it."""

    def __init__(self, kind: Kind, rates: Rates, spread: Floats, every_s: float) -> None:
        self.kind = kind
        self.rates = rates
        self.spread = spread
        """Per metric, the quantiles of a deviation from the forecast, in spreads."""
        self.every_s = every_s

    @property
    def metrics(self) -> tuple[str, ...]:
        return self.kind.metrics

    @classmethod
    def fit(
        cls, series: Sequence[Series], every_s: float | None = None, report: Report | None = None
    ) -> AnomalyModel:
        """Learn from telemetry that is mostly healthy. `every_s` is how long a sample stands for;
        without it, the median time between samples."""
        judged = [pod for pod in series if len(pod) > WARM_UP]
        if not judged:
            raise TelemetryError(
                f"no series has more than {WARM_UP} samples, and fewer say nothing of what is "
                "usual; give longer telemetry"
            )
        every = every_s or float(np.median([pod.cadence for pod in judged]))
        metrics = _metrics(judged)
        kind = _kind(judged, metrics)
        run = _SideBySide(kind, judged, report)
        rates = Rates.fit([level[WARM_UP:] for level in run.levels], every)
        return cls(kind, rates, run.quantiles(), every)

    def judge(self, series: Sequence[Series], report: Report | None = None) -> list[Judged]:
        """Each series from its first sample to its last. The first samples, and series shorter
        than the warm-up, score 0."""
        if series and not any(set(self.metrics) & set(pod.features) for pod in series):
            raise TelemetryError(
                "the telemetry has none of the metrics of the bundle: "
                f"{', '.join(self.metrics[:5])}{' …' if len(self.metrics) > 5 else ''}"
            )
        run = _SideBySide(self.kind, series, report)
        judged = []
        for level, energy, speak in zip(run.levels, run.energies, run.spoken, strict=True):
            score = self.rates.score(level)
            score[:WARM_UP] = 0.0
            judged.append(Judged(np.where(np.isnan(energy), np.nan, score), speak))
        return judged

    def forecast(self, pod: Series) -> MetricForecast:
        """What each sample was expected to be when the one before it had come."""
        watch, (matrix, _) = Watch(self.kind, 1), _matrix(self.kind, pod)
        quantiles = np.empty((*matrix.shape, len(QUANTILES)))
        for row, values in enumerate(matrix):
            middle, width = watch.forecast(1)
            quantiles[row] = middle.T + width.T * self.spread
            watch.step(values[None])
        return MetricForecast(quantiles)

    def save(self, path: Path, *, date: str, data: str) -> None:
        """Write a bundle."""
        kind = self.kind
        arrays = {
            "floor": kind.floor,
            "slow_floor": kind.slow_floor,
            "spread": self.spread,
            **prefixed("rates", self.rates.to_arrays()),
        }
        card = {
            "name": _NAME,
            "version": _VERSION,
            "date": date,
            "data": data,
            "licence": "that of the data",
            "features": list(kind.metrics),
            "splits": "",
            "errors": {},
            "every_s": self.every_s,
        }
        save_bundle(path, arrays, card)

    @classmethod
    def load(cls, path: Path) -> AnomalyModel:
        """Read a bundle; anything wrong with it is a `BundleError`."""
        arrays, card = load_bundle(path)
        if card["name"] != _NAME:
            raise BundleError(f"{path} is no bundle of `presage health fit`; fit one first")
        if card["version"] != _VERSION:
            raise BundleError(f"{path} was fitted by another version of presage: fit it again")
        try:
            return cls._from(arrays, card)
        except (KeyError, TypeError, ValueError):
            raise BundleError(f"{path} is damaged: fit it again") from None

    @classmethod
    def _from(
        cls, arrays: Mapping[str, npt.NDArray[Any]], card: Mapping[str, Any]
    ) -> AnomalyModel:
        metrics = tuple(map(str, card["features"]))
        floor, slow_floor = (
            arrays[name].reshape(len(metrics)) for name in ("floor", "slow_floor")
        )
        kind = Kind(metrics, floor, slow_floor)
        spread = arrays["spread"].reshape(len(metrics), len(QUANTILES))
        rates = Rates.from_arrays(under("rates", arrays))
        return cls(kind, rates, spread, float(card["every_s"]))


def deviations(pod: Series, until: int) -> Floats:
    """For the first `until` samples of one series, how many spreads each metric was from its
    forecast; the ranges are those of the samples themselves. NaN where nothing was measured."""
    metrics = pod.features
    seen = Series(pod.pod, pod.times[:until], pod.values[:until], metrics)
    kind = _kind([seen], metrics)
    watch, (matrix, gap) = Watch(kind, 1), _matrix(kind, seen)
    spreads = np.empty_like(matrix)
    for row in range(until):
        spreads[row] = watch.step(matrix[row, None], gap[row, None]).deviation[0]
    return np.where(np.isfinite(matrix), spreads, np.nan)


def usual_time(series: Sequence[Series]) -> float | None:
    """How long a sample stands for where times are row numbers (0, 1, 2, …): a minute. None where
    they are times."""
    times = [pod.times for pod in series if len(pod) > 1]
    counts = [bool((np.diff(one) == 1).all()) and one[0] < _NUMBERED for one in times]
    return 60.0 if times and all(counts) else None


def _metrics(series: Sequence[Series]) -> tuple[str, ...]:
    """The metrics that any of the series has, in the order they come."""
    metrics = {
        name: None
        for pod in series
        for at, name in enumerate(pod.features)
        if np.isfinite(pod.values[:, at]).any()
    }
    if not metrics:
        raise TelemetryError("the telemetry has no metric with a value")
    return tuple(metrics)


class _SideBySide:
    """All samples of all series, stepped through side by side: the k-th of each at once."""

    def __init__(self, kind: Kind, series: Sequence[Series], report: Report | None = None) -> None:
        order = sorted(range(len(series)), key=lambda at: -len(series[at]))
        matrices, gaps = zip(*(_matrix(kind, series[at]) for at in order), strict=True)
        lengths = np.array([len(matrix) for matrix in matrices])
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        values, gap = np.concatenate(matrices), np.concatenate(gaps)
        level, energy = np.empty(len(values)), np.empty(len(values))
        speak = np.empty((len(values), min(SPOKEN, len(kind.metrics))), dtype=np.int64)
        watch, steps = Watch(kind, len(series)), int(lengths.max())
        keep = max(1, len(values) // _KEPT)
        self._deviations: list[Floats] = []
        for k in range(steps):
            alive = int(np.searchsorted(-lengths, -k, side="left"))
            rows = starts[:alive] + k
            step = watch.step(values[rows], gap[rows])
            level[rows], energy[rows], speak[rows] = step.level, step.energy, step.speak
            if k >= WARM_UP and (k % keep == 0 or keep <= alive):
                seen = np.where(np.isfinite(values[rows]), step.deviation, np.nan)
                self._deviations.append(seen)
            if report is not None and k % 100 == 0:
                report(k, steps)
        back = np.argsort(order)
        slices = [slice(starts[at], starts[at] + lengths[at]) for at in back]
        self.levels = [level[part] for part in slices]
        self.energies = [energy[part] for part in slices]
        self.spoken = [speak[part] for part in slices]

    def quantiles(self) -> Floats:
        """Per metric, of the deviations; of a metric without any they are 0."""
        seen = np.concatenate(self._deviations)
        known = np.isfinite(seen).any(axis=0)
        quantiles = np.zeros((seen.shape[1], len(QUANTILES)))
        quantiles[known] = np.nanquantile(seen[:, known], QUANTILES, axis=0).T
        return quantiles


def _matrix(kind: Kind, pod: Series) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """The values of the metrics, NaN for those it has not, and where a gap comes before."""
    matrix = np.full((len(pod), len(kind.metrics)), np.nan)
    place = {name: at for at, name in enumerate(pod.features)}
    for column, name in enumerate(kind.metrics):
        if name in place:
            matrix[:, column] = pod.values[:, place[name]]
    gap = np.zeros(len(pod), dtype=bool)
    if len(pod) > 1:
        gap[1:] = np.diff(pod.times) > _GAP * pod.cadence
    return matrix, gap


def _kind(series: Sequence[Series], metrics: tuple[str, ...]) -> Kind:
    """The range of each metric over all series."""
    blank = Kind(metrics, np.ones(len(metrics)), np.ones(len(metrics)))
    low, high = np.full((2, len(series), len(metrics)), np.nan)
    for at, pod in enumerate(series):
        matrix = _matrix(blank, pod)[0]
        known = np.isfinite(matrix).any(axis=0)
        low[at, known] = np.nanmin(matrix[:, known], axis=0)
        high[at, known] = np.nanmax(matrix[:, known], axis=0)
    if not (high > low).any():
        raise TelemetryError(
            "no metric changes in any series; such telemetry says not what is usual"
        )
    with np.errstate(invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a metric without any value has no range
        size = _range(low, high)
    return Kind(metrics, _FLOOR * size, _SLOW_FLOOR * size)


def _range(low: Floats, high: Floats) -> Floats:
    """From the lowest to the highest value of any series, but no more than `_WIDEST` times what a
    series that moves has; for a metric that never moved, its size, or 1. Telemetry that is all
    between 0 and 1 was put on that scale: its ranges are 1."""
    if np.nanmin(low) >= 0 and np.nanmax(high) <= 1:
        return np.ones(low.shape[1])
    size = np.nanmax(np.abs(np.concatenate([low, high])), axis=0)
    size[~(size > 0)] = 1.0
    own = np.where(high > low, high - low, np.nan)
    moved = np.isfinite(own).any(axis=0)
    whole = np.nanmax(high, axis=0) - np.nanmin(low, axis=0)
    size[moved] = np.minimum(whole[moved], _WIDEST * np.nanmedian(own[:, moved], axis=0))
    return np.asarray(size)
