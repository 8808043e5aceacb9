"""How long a whole query takes that nobody has measured: a Gaussian process over its shape.

Lines in the logarithms, and smooth departures from them, so that it goes on between and beyond
scales and numbers of executors where trees have steps. Knows no stage's time and no DAG.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from presage.learn import Floats

__all__ = ["TotalProcess"]

_LINES = 0.03
_SMOOTH = ((0.5, 4.0), (0.1, 2.0))
"""Variance and length of what departs from the lines, in standard deviations."""
_NOISE = 0.03
_ALL_ALIKE = 1e-6
"""A column that spreads less tells nothing of other queries."""
_FARTHEST = 4.0
"""Standard deviations; what is farther counts as so far, as lines do not go on for ever."""
_LOGGED = 4
"""The first so many columns are logarithms; the others become logarithms here."""


@dataclass(frozen=True, slots=True, eq=False)
class TotalProcess:
    """Measured totals, as they bear on others."""

    rows: Floats
    told: Floats
    centre: Floats
    spread: Floats
    middle: float

    @classmethod
    def fit(cls, rows: Floats, logs: Floats) -> TotalProcess:
        """Learn from rows that describe whole queries and the logarithms of their times."""
        logged = _logged(rows)
        centre, spread = logged.mean(axis=0), logged.std(axis=0)
        spread = np.where(spread > _ALL_ALIKE, spread, np.inf)
        near = (logged - centre) / spread
        middle = float(logs.mean())
        inside = _kernel(near, near) + _NOISE * np.eye(len(near))
        told: Floats = np.linalg.solve(inside, logs - middle).astype(np.float64)
        return cls(near, told, centre, spread, middle)

    def predict(self, rows: Floats) -> Floats:
        """The logarithm of the time of each query."""
        near = np.clip((_logged(rows) - self.centre) / self.spread, -_FARTHEST, _FARTHEST)
        out: Floats = _kernel(near, self.rows) @ self.told + self.middle
        return out

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        return {
            "rows": self.rows,
            "told": self.told,
            "centre": self.centre,
            "spread": self.spread,
            "middle": np.array(self.middle),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> TotalProcess:
        """The process in these arrays."""
        return cls(
            arrays["rows"],
            arrays["told"],
            arrays["centre"],
            arrays["spread"],
            float(arrays["middle"]),
        )


def _logged(rows: Floats) -> Floats:
    out: Floats = np.hstack([rows[:, :_LOGGED], np.log1p(np.maximum(rows[:, _LOGGED:], 0.0))])
    return out


def _kernel(left: Floats, right: Floats) -> Floats:
    apart = np.sum(left**2, axis=1)[:, None] + np.sum(right**2, axis=1)[None] - 2 * left @ right.T
    out: Floats = _LINES * (1 + left @ right.T)
    for variance, length in _SMOOTH:
        out = out + variance * np.exp(-0.5 * np.maximum(apart, 0.0) / length**2)
    return out
