"""The policies that need no learning of their own: the bound, what people run today, and the
published use of phases. Each says what it wants a window to have, from the samples before it.

- `dynamic` knows the window itself: the bound.
- `adaptive`: the last window repeats.
- `phase`: the last window ended in a phase, and gets what that phase was measured to use
  (AI4DL, HotCloud 2020).
- `vpa`: the Kubernetes Vertical Pod Autoscaler's target (recommender defaults: histogram with
  buckets that grow by 5 % and a half-life of 24 h, p90 + 15 %; memory by the peak of each day over
  8 days, an OOM counts as max(use + 100 MiB, 1.2 × use)), taken in every window. That is kinder
  to it than its updater, which waits until a pod is outside of wide bounds.
- `krr`: Robusta KRR's simple strategy: the p95 of all use so far; memory: the largest use so far
  + 15 %, and 1.25 × after an OOM.
- `static`: one value for all, as somebody would ask for who knows the worst case.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from presage.provision.allocate import Wish
from presage.provision.usage import MEMORY, Floats, Ints, Usage, Value
from presage.telemetry.series import Series

__all__ = [
    "ExpectedPhases",
    "PhaseSource",
    "PhaseTable",
    "adaptive",
    "by_phase",
    "dynamic",
    "krr",
    "static",
    "vpa",
]

_DAY_S = 86_400.0
_MIB = {"bytes": float(1 << 20), "kB": 1024.0, "MiB": 1.0}
"""100 MiB is added only where the unit says how much that is."""
_FIRST_BUCKET = {"cores": 0.01, "%": 1.0, "share": 0.01, "bytes": 1e7, "kB": 1e4, "MiB": 10.0}
"""VPA's first bucket is 0.01 cores or 10 MB wide; one percent stands for the former."""
_GROWTH, _SAFETY, _TARGET, _PEAKS_KEPT = 1.05, 1.15, 0.9, 8


class PhaseSource(Protocol):
    """What provisioning asks of a phase model; `presage.observe.phases.PhaseModel` has it."""

    @property
    def training(self) -> list[Series]:
        """What the model was fitted on."""
        ...

    @property
    def n_phases(self) -> int:
        """Phases are numbered from 0."""
        ...

    def predict_many(self, series: Sequence[Series]) -> list[Ints]:
        """The phase of each sample; −1 where there is none."""
        ...

    def forecast_many(self, series: Sequence[Series], horizon_s: float) -> Sequence[Any]:
        """For each series, `share` (samples, phases) and `change` (samples) until the horizon."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedPhases:
    """The phases of samples, and what is expected after each; pods laid end to end."""

    phase: Ints
    share: Floats
    """(samples, phases): the part of the next window that each phase will have; NaN if unknown."""
    change: Floats
    """The probability that the phase ends within the next window."""

    @classmethod
    def of(cls, model: PhaseSource, series: Sequence[Series], window_s: float) -> ExpectedPhases:
        """Ask a phase model."""
        forecasts = model.forecast_many(series, window_s)
        return cls(
            np.concatenate(model.predict_many(series)),
            np.concatenate([one.share for one in forecasts]),
            np.concatenate([one.change for one in forecasts]),
        )

    def before(self, usage: Usage) -> ExpectedPhases:
        """Per window, the outlook at the last sample before it."""
        place = usage.before(usage.places[usage.starts + usage.counts - 1].astype(np.float64))
        at = np.nan_to_num(place).astype(np.int64)
        known = ~np.isnan(place)
        return ExpectedPhases(
            np.where(known, self.phase[at], -1),
            np.where(known[:, None], self.share[at], np.nan),
            np.where(known, self.change[at], np.nan),
        )


@dataclass(frozen=True, slots=True, eq=False)
class PhaseTable:
    """What each phase was measured to use of one resource; NaN for a phase without samples."""

    value: Floats
    mean: Floats
    upper: Floats
    """mean + 2 sd"""

    @classmethod
    def measured(
        cls, use: Floats, phase: Ints, n_phases: int, value: Value | None = None
    ) -> PhaseTable:
        """From samples. The maximum is not for phases (a single pod would set it): as published,
        mean + 2 sd stands in for it."""
        known = phase >= 0
        use, phase = use[known], phase[known]
        size = np.bincount(phase, minlength=n_phases).astype(np.float64)
        size[size == 0] = np.nan
        mean = np.bincount(phase, use, n_phases) / size
        sd = np.sqrt(np.bincount(phase, (use - mean[phase]) ** 2, n_phases) / size)
        upper = mean + 2 * sd
        if value is None or value.quantile in (None, 1):
            return cls(upper, mean, upper)
        each = [use[phase == one] for one in range(n_phases)]
        wanted = [np.quantile(part, value.quantile) if part.size else np.nan for part in each]
        return cls(np.array(wanted), mean, upper)


def dynamic(usage: Usage, value: Value) -> Wish:
    """What the window itself will need."""
    return Wish(np.where(usage.first, np.nan, usage.value(value)), fixed=True)


def adaptive(usage: Usage, value: Value) -> Wish:
    """What the last window needed."""
    return Wish(usage.before(usage.value(value)))


def by_phase(
    usage: Usage, value: Value, now: ExpectedPhases, tables: Sequence[PhaseTable]
) -> Wish:
    """What the phase that a pod is in was measured to need; `tables` has one for each window's
    pod, or one for all. Without a phase, the last window repeats."""
    every = np.stack([table.value for table in tables])
    mine = every[usage.pod if len(tables) > 1 else np.zeros(len(usage), dtype=np.int64)]
    wanted = mine[np.arange(len(usage)), np.maximum(now.phase, 0)]
    lacking = (now.phase < 0) | np.isnan(wanted)
    return Wish(np.where(lacking, adaptive(usage, value).values, wanted))


def static(usage: Usage, worst: float) -> Wish:
    """The worst case that is known, for everybody and always."""
    return Wish(np.where(usage.first, np.nan, worst), fixed=True)


def krr(usage: Usage) -> Wish:
    """Robusta KRR: `simple` strategy with its defaults."""
    if usage.resource in MEMORY:
        return Wish(usage.before(_SAFETY * usage.so_far(usage.maximum)), bump=1.25)
    target = np.empty(len(usage))
    seen: list[float] = []
    samples = usage.use.tolist()
    ends = (usage.starts + usage.counts).tolist()
    for row, (begins, end) in enumerate(zip(usage.starts.tolist(), ends, strict=True)):
        if usage.first[row]:
            seen = []
        for sample in samples[begins:end]:
            insort(seen, sample)
        target[row] = seen[max(0, -(-19 * len(seen) // 20) - 1)]
    return Wish(usage.before(target))


def vpa(usage: Usage) -> Wish:
    """The Vertical Pod Autoscaler's target."""
    if usage.resource in MEMORY:
        return Wish(
            usage.before(_SAFETY * _daily_peaks(usage)),
            bump=1.2,
            bump_least=100 * _MIB.get(usage.unit, 0.0),
            bump_gain=_SAFETY,
        )
    first = _first_bucket(usage)
    bucket = _bucket(usage.use, first)
    n_buckets = int(bucket.max()) + 1
    target, total = np.empty(len(usage)), np.zeros((len(usage.pods), n_buckets))
    weight = np.exp2(usage.times / _DAY_S)  # later samples count more; only ratios matter
    window = np.repeat(np.arange(len(usage)), usage.counts)
    cell = window * n_buckets + bucket
    cells, where = np.unique(cell, return_inverse=True)
    weights = np.bincount(where, weight)
    begins = np.searchsorted(cells, np.arange(len(usage) + 1) * n_buckets)
    for rows, pods in usage.steps():
        sizes = begins[rows + 1] - begins[rows]
        inside = np.repeat(begins[rows] - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
        total[np.repeat(pods, sizes), cells[inside] % n_buckets] += weights[inside]
        rising = np.cumsum(total[pods], axis=1)
        at = (rising < _TARGET * rising[:, -1:] * (1 - 1e-12)).sum(axis=1)
        target[rows] = _end_of(at, first)
    return Wish(usage.before(_SAFETY * target))


def _daily_peaks(usage: Usage) -> Floats:
    """Per window, the p90 (by bucket) of the peaks of up to 8 days, the younger counting more."""
    first = _first_bucket(usage)
    day = np.floor(usage.index * usage.window_s / _DAY_S).astype(np.int64)
    peaks = np.full((len(usage.pods), _PEAKS_KEPT), -np.inf)
    of_day = np.full((len(usage.pods), _PEAKS_KEPT), -1)
    ends = np.empty(len(usage))
    for rows, pods in usage.steps():
        slot = day[rows] % _PEAKS_KEPT
        stale = of_day[pods, slot] != day[rows]
        of_day[pods, slot] = day[rows]
        kept = np.where(stale, -np.inf, peaks[pods, slot])
        peaks[pods, slot] = np.maximum(kept, usage.maximum[rows])
        here, age = peaks[pods], day[rows, None] - of_day[pods]
        valid = (of_day[pods] >= 0) & (age < _PEAKS_KEPT)
        weight = np.where(valid, np.exp2(-age.astype(np.float64)), 0.0)
        order = np.argsort(np.where(valid, here, np.inf), axis=1)
        rising = np.cumsum(np.take_along_axis(weight, order, axis=1), axis=1)
        at = (rising < _TARGET * rising[:, -1:] * (1 - 1e-12)).sum(axis=1)
        peak = np.take_along_axis(here, order, axis=1)[np.arange(len(rows)), at]
        ends[rows] = _end_of(_bucket(peak, first), first)
    return ends


def _first_bucket(usage: Usage) -> float:
    """Of a unit that VPA does not know: a hundredth of what pods use in their first window."""
    usual = float(np.mean(usage.mean[usage.first])) / 100
    return _FIRST_BUCKET.get(usage.unit) or (usual if usual > 0 else 1.0)


def _bucket(use: Floats, first: float) -> Ints:
    """The bucket of each use: the first is `first` wide, each next one 5 % wider."""
    steps = np.log1p(np.maximum(use, 0) / first * (_GROWTH - 1)) / np.log(_GROWTH)
    return np.asarray(np.floor(steps + 1e-9), dtype=np.int64)


def _end_of(bucket: Ints, first: float) -> Floats:
    """Where a bucket ends; a percentile is read there, on the safe side."""
    return np.asarray(first * (_GROWTH ** (bucket + 1.0) - 1) / (_GROWTH - 1))
