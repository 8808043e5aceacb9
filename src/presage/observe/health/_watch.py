"""The state of many series at once, moved on by one sample each: the online half of `anomalies`.

For each metric two levels are followed, one that keeps up with it and one that takes days, each
with how far values usually are from it. How far a value is from what was forecast, in those units,
is its energy; the energies of a series' metrics are put together over three lengths of time. All
is NumPy over (series, metrics): a step of 100,000 series is a few dozen passes over an array.
Knows nothing of thresholds, files or times: who steps it says where a series has a gap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from presage.telemetry.series import Floats, Ints

__all__ = ["SPOKEN", "WARM_UP", "Kind", "Step", "Watch"]

Flags = npt.NDArray[np.bool_]

WARM_UP = 30
"""A series is not judged before it has so many samples."""
SPOKEN = 3
"""So many metrics are named for each sample."""

_GAIN = 0.75
"""How far the quick level goes towards each new value; 1 would be `the last value again`."""
_SPREAD_OVER, _SLOW_OVER = 20_000, 6_000
"""Samples over which the spread and the slow level are learned."""
_OUTLIER = 6.0
"""A deviation teaches no more than this many spreads."""
_MOST_ENERGY, _MOST_SLOW = 225.0, 100.0
_QUICK, _LONG, _OFF = 0.2, 0.02, 0.2
"""How much one sample moves the three averages of energy."""
_LASTING, _WORST = 8.0, 3
"""Whether trouble lasts is seen by the so many metrics that are worst at each sample; energy
beyond this says no more about it."""
_LEAST, _LEAST_SLOW = 0.01, 0.1
_LONG_WEIGHT, _OFF_WEIGHT = 2.0, 0.6
_OFF_BLAME = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """What series that are alike share, per metric."""

    metrics: tuple[str, ...]
    floor: Floats
    """The least spread that counts, so that a metric which hardly moves may move a little."""
    slow_floor: Floats


class Step(NamedTuple):
    """What one sample of each series came to."""

    energy: Floats
    """Per series, of this sample alone; NaN where nothing was measured."""
    level: Floats
    """Per series: the three averages together, on a scale that only orders."""
    speak: Ints
    """Per series, the metrics that are farthest off, the worst first."""
    deviation: Floats
    """Per series and metric: how many spreads from the forecast."""


class Watch:
    """Series of one kind, from their first sample on."""

    def __init__(self, kind: Kind, series: int) -> None:
        shape = (series, len(kind.metrics))
        self.kind = kind
        self._level, self._slow = np.zeros(shape), np.zeros(shape)
        self._spread = np.broadcast_to(kind.floor, shape).copy()
        self._slow_spread = np.broadcast_to(kind.slow_floor, shape).copy()
        self._seen = np.zeros(shape)
        self._blame = np.zeros(shape)
        self._quick, self._long, self._off = (np.zeros(series) for _ in range(3))
        self.samples = np.zeros(series, dtype=np.int64)
        """Per series, how many samples had a value."""

    def forecast(self, first: int) -> tuple[Floats, Floats]:
        """What the next sample of the first so many series should be, and the unit of surprise;
        NaN where a metric was never seen."""
        known = self._seen[:first] > 0
        width = self._spread[:first] + self.kind.floor
        return np.where(known, self._level[:first], np.nan), width

    def step(self, values: Floats, gap: Flags | None = None) -> Step:
        """Take one sample of each of the first `len(values)` series; NaN is what was not
        measured. After a gap a series starts from the value it has then."""
        n, kind = len(values), self.kind
        known = np.isfinite(values)
        seen, level, slow = self._seen[:n], self._level[:n], self._slow[:n]
        new = known & (seen == 0)
        again = new if gap is None else new | (known & gap[:, None])
        np.copyto(level, values, where=again)
        np.copyto(slow, values, where=new)
        seen += known
        left = np.where(known, values - level, 0.0)
        level += _GAIN * left
        deviation = _learn(left, self._spread[:n], kind.floor, seen, known, _SPREAD_OVER)
        far = np.where(known, values - slow, 0.0)
        width = _OUTLIER * (self._slow_spread[:n] + kind.slow_floor)
        off = _learn(far, self._slow_spread[:n], kind.slow_floor, seen, known, _SLOW_OVER)
        slow += np.clip(far, -width, width) / np.minimum(np.maximum(seen, 1), _SLOW_OVER)
        energy = np.minimum(deviation * deviation, _MOST_ENERGY)
        slow_energy = np.minimum(off * off, _MOST_SLOW)
        blame = self._blame[:n]
        blame += _QUICK * (energy + _OFF_BLAME * slow_energy - blame)
        return self._judge(known, energy, slow_energy, deviation)

    def _judge(self, known: Flags, energy: Floats, slow: Floats, deviation: Floats) -> Step:
        n, measured = len(known), known.sum(axis=1)
        some = measured > 0
        share = np.maximum(measured, 1)
        now, away = energy.sum(axis=1) / share, slow.sum(axis=1) / share
        self.samples[:n] += some
        quick, lasting, off = self._quick[:n], self._long[:n], self._off[:n]
        quick += np.where(some, _QUICK * (now - quick), 0.0)
        capped = np.minimum(_mean_of_worst(energy), _LASTING)
        lasting += np.where(some, _LONG * (capped - lasting), 0.0)
        off += np.where(some, _OFF * (away - off), 0.0)
        level = np.log(quick + _LEAST) + _LONG_WEIGHT * np.log(lasting + _LEAST)
        level += _OFF_WEIGHT * np.log(off + _LEAST_SLOW)
        speak = np.argsort(-self._blame[:n], axis=1, kind="stable")[:, :SPOKEN]
        return Step(np.where(some, now, np.nan), level, speak, deviation)


def _mean_of_worst(energy: Floats) -> Floats:
    """Of each series' metrics; one that was not measured has none."""
    metrics = energy.shape[1]
    if metrics > _WORST:
        energy = np.partition(energy, metrics - _WORST, axis=1)[:, -_WORST:]
    return np.asarray(energy.mean(axis=1))


def _learn(
    left: Floats, spread: Floats, floor: Floats, seen: Floats, known: Flags, over: int
) -> Floats:
    """How many spreads off; the spread learns from it in place."""
    width = spread + floor
    size = np.abs(left)
    toward = np.minimum(size, _OUTLIER * width) - spread
    spread += np.where(known, toward / np.minimum(np.maximum(seen, 1), over), 0.0)
    return left / width
