"""Scaling laws of jobs: log time is linear in the logarithms of what the job is given.

Ernest's terms in log space: each number has a slope and a curvature, each category an offset, and
each job (group) slopes of its own that are shrunk to those of all. Extrapolates where trees
cannot. Knows nothing of intervals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from presage.learn import Floats
from presage.model.errors import BundleError

__all__ = ["ScalingLaw"]

_OWN = 0.3
"""How far slopes of one category are from those of all, against how far those are from 0."""
_RIDGE = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class ScalingLaw:
    """Ridge regression on logarithms, their squares, categories, and slopes by category."""

    n_numbers: int
    first: int
    """The categories that have slopes of their own are the columns from here on ..."""
    last: int
    """... to before this one."""
    centre: Floats
    spread: Floats
    slopes: Floats
    middle: float

    @classmethod
    def fit(
        cls, rows: Floats, logs: Floats, n_numbers: int, own: tuple[int, int] = (0, 0)
    ) -> ScalingLaw:
        """Learn from rows; `own` are the columns of categories with slopes of their own."""
        logged = _logs(rows, n_numbers)
        centre = np.asarray(logged.mean(axis=0), np.float64)
        spread = np.asarray(logged.std(axis=0), np.float64) + 1e-9
        empty = cls(
            n_numbers,
            *own,
            centre,
            spread,
            np.empty(0),
            0.0,
        )
        design = empty._design(rows)
        middle = float(logs.mean())
        gram = design.T @ design + _RIDGE * np.eye(design.shape[1])
        slopes = np.asarray(np.linalg.solve(gram, design.T @ (logs - middle)), np.float64)
        return cls(n_numbers, *own, empty.centre, empty.spread, slopes, middle)

    def predict(self, rows: Floats) -> Floats:
        """The logarithm of the time of each row."""
        out: Floats = self._design(rows) @ self.slopes + self.middle
        return out

    def _design(self, rows: Floats) -> Floats:
        numbers = np.clip((_logs(rows, self.n_numbers) - self.centre) / self.spread, -5, 5)
        words = rows[:, self.n_numbers :]
        own = rows[:, self.first : self.last]
        slopes = _OWN * (own[:, :, None] * numbers[:, None, :]).reshape(len(rows), -1)
        one = np.ones((len(rows), 1))
        return np.hstack([one, numbers, 0.5 * numbers**2, words, slopes])

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        return {
            "settings": np.array([self.n_numbers, self.first, self.last, self.middle]),
            "centre": self.centre,
            "spread": self.spread,
            "slopes": self.slopes,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> ScalingLaw:
        """The law in these arrays."""
        try:
            n_numbers, first, last, middle = map(float, arrays["settings"])
            return cls(
                int(n_numbers),
                int(first),
                int(last),
                arrays["centre"],
                arrays["spread"],
                arrays["slopes"],
                middle,
            )
        except (KeyError, ValueError) as wrong:
            raise BundleError(f"these arrays hold no scaling law: {wrong}") from None


def _logs(rows: Floats, n_numbers: int) -> Floats:
    numbers = rows[:, :n_numbers]
    out: Floats = np.sign(numbers) * np.log1p(np.abs(numbers))
    return out
