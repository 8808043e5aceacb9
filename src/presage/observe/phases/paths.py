"""Phases row by row, as one long path: what forecasts learn from.

A path holds the phases of the rows of all pods, one pod after the other, with −1 wherever the
story is cut: between pods, while one warms up, and at breaks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

__all__ = ["AGE_BINS", "Outcomes", "Path", "age_bin"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

AGE_BINS = np.array([1, 2, 3, 4, 6, 9, 14, 22, 35, 56])
"""The first age, in rows, of each bin."""


def age_bin(rows: Ints) -> Ints:
    """The bin of each age; ages start at 1."""
    return np.searchsorted(AGE_BINS, rows, side="right") - 1


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """What happened in the rows after some places of a path."""

    places: Ints
    at: Ints
    """The phase at the horizon."""
    share: Floats
    """(n, phases): the part of the rows up to the horizon that each phase had."""
    visit: Floats
    """(n, phases): 1 if the phase was there at all."""
    change: Floats
    """1 if the phase was left."""


@dataclass(frozen=True, eq=False)
class Path:
    """Phases, −1 where there is none."""

    phases: Ints
    n_phases: int

    @classmethod
    def of_pods(cls, rows: Ints, offsets: Ints, n_phases: int) -> tuple[Path, Ints]:
        """The path of pods that have these rows, and the place of each row in it."""
        pods = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        places = np.arange(len(rows)) + pods + 1
        phases = np.full(len(rows) + len(offsets), -1)
        phases[places] = rows
        return cls(phases, n_phases), places

    @cached_property
    def ages(self) -> Ints:
        """For how many rows, with this one, the phase has lasted."""
        begin = np.concatenate([[True], self.phases[1:] != self.phases[:-1]])
        place = np.arange(len(self.phases))
        return place - np.maximum.accumulate(np.where(begin, place, 0)) + 1

    @cached_property
    def previous(self) -> Ints:
        """The phase before the one that lasts; −1 when it was not seen."""
        before = np.arange(len(self.phases)) - self.ages
        return np.where(before >= 0, self.phases[np.maximum(before, 0)], -1)

    @cached_property
    def shares(self) -> Floats:
        """How often each phase is there, as if each had been seen once more."""
        seen = np.bincount(self.phases[self.phases >= 0], minlength=self.n_phases) + 1.0
        return np.asarray(seen / seen.sum())

    @cached_property
    def _cuts(self) -> Ints:
        return np.concatenate([[0], np.cumsum(self.phases < 0)])

    @cached_property
    def _counts(self) -> npt.NDArray[np.int32]:
        """(rows + 1, phases): how often each phase was there before a row."""
        there = self.phases[:, None] == np.arange(self.n_phases)
        zero = np.zeros((1, self.n_phases), np.int32)
        return np.concatenate([zero, np.cumsum(there, axis=0, dtype=np.int32)])

    def whole(self, places: Ints, rows: int) -> npt.NDArray[np.bool_]:
        """Whether the path has so many rows without a cut after each place."""
        end = places + rows + 1
        inside = end <= len(self.phases)
        end = np.minimum(end, len(self.phases))
        return np.asarray(inside & (self._cuts[end] == self._cuts[places]))

    def outcomes(self, places: Ints, rows: int) -> Outcomes:
        """What happened after those places that have so many rows after them."""
        places = places[self.whole(places, rows)]
        counts = self._counts[places + rows + 1] - self._counts[places + 1]
        return Outcomes(
            places,
            self.phases[places + rows],
            counts / rows,
            (counts > 0).astype(np.float64),
            (self.ages[places + rows] <= rows).astype(np.float64),
        )

    @cached_property
    def following(self) -> tuple[Ints, Ints]:
        """For each row, the phase after the one that lasts (−1 when the path is cut first), and
        how many rows are left of the one that lasts."""
        last = np.concatenate([self.phases[1:] != self.phases[:-1], [True]])
        place = np.arange(len(self.phases))
        end = np.minimum.accumulate(np.where(last, place, len(place))[::-1])[::-1]
        after = np.append(self.phases, -1)[end + 1]
        return after, end - place
