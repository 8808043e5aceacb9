"""Windows: what is known of a pod when a sample arrives.

A sample's window is the `history` grid rows before its bucket and the running mean of the bucket,
scaled. It is whole only if all of these are there and finite: while a pod warms up, after a break
and where a value is missing, there is none, and the sample has no phase (−1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from presage.telemetry.resample import Grid

__all__ = [
    "Encoder",
    "Scaler",
    "Situations",
    "Windows",
    "phases_of_rows",
    "sample_windows",
    "situations",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_FARTHEST = 5.0
"""In standard deviations: what is farther out counts as this far, so that one spike does not rule
the training."""


class Encoder(Protocol):
    """Turns windows (n, history + 1, features) into points that can be clustered."""

    kind: str

    def encode(self, windows: Floats) -> Floats:
        """One point for each window."""
        ...

    def surprise(self, windows: Floats) -> Floats:
        """How badly the encoder knows each window; comparable within one encoder only."""
        ...

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What a bundle keeps of it."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Scaler:
    """Feature by feature: mean 0 and standard deviation 1, cut off far out."""

    mean: Floats
    scale: Floats

    @classmethod
    def of(cls, rows: Floats) -> Scaler:
        """Learned from the rows that are known; a feature that never changes is left at 0."""
        mean, sd = np.nanmean(rows, axis=0), np.nanstd(rows, axis=0)
        level = np.maximum(np.abs(mean), 1.0)
        return cls(mean, np.where(sd > 1e-9 * level, sd, 1.0))

    def __call__(self, rows: Floats) -> Floats:
        scaled: Floats = np.clip((rows - self.mean) / self.scale, -_FARTHEST, _FARTHEST)
        return scaled


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """The whole windows (n, history + 1, features), scaled, and the sample each belongs to."""

    values: Floats
    places: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Situations:
    """Where some pods are, as far as a forecast wants to know."""

    phase: Ints
    rows: Ints
    """For how many rows of the grid, with this one, the phase has lasted."""
    previous: Ints
    """The phase before; −1 when it was not seen."""
    windows: Floats

    def __len__(self) -> int:
        return len(self.phase)

    def take(self, places: Ints) -> Situations:
        """Some of them."""
        return Situations(
            self.phase[places], self.rows[places], self.previous[places], self.windows[places]
        )


def sample_windows(grid: Grid, scaler: Scaler, history: int) -> Windows:
    """The windows of all samples of a grid."""
    pods = np.repeat(np.arange(len(grid.starts)), np.diff(grid.sample_offsets))
    row, start = grid.bucket, grid.bucket - history
    unknown_before = np.concatenate([[0], np.cumsum(~np.isfinite(grid.values).all(axis=1))])
    whole = (start >= grid.offsets[pods]) & np.isfinite(grid.current).all(axis=1)
    whole &= unknown_before[row] == unknown_before[np.maximum(start, 0)]
    places = np.flatnonzero(whole)
    scaled = scaler(grid.values)
    values = np.empty((len(places), history + 1, grid.values.shape[1]))
    for step in range(history):
        values[:, step] = scaled[start[places] + step]
    values[:, history] = scaler(grid.current[places])
    return Windows(values, places)


def situations(grid: Grid, windows: Windows, phases: Ints) -> Situations:
    """The situations of the samples that have a phase; `phases` has one for every sample.

    A row has the phase of its last sample, a row in which nothing was measured that of the row
    before, and a break has none."""
    pods = np.repeat(np.arange(len(grid.starts)), np.diff(grid.offsets))
    row_phase = phases_of_rows(grid, phases)
    before = np.concatenate([[-1], row_phase[:-1]])
    changed = (row_phase != before) | (np.diff(pods, prepend=-1) != 0)
    begin = np.maximum.accumulate(np.where(changed, np.arange(len(pods)), 0))
    previous = np.where(begin > grid.offsets[pods], row_phase[np.maximum(begin - 1, 0)], -1)
    row, phase = grid.bucket[windows.places], phases[windows.places]
    last = np.maximum(row - 1, 0)
    has_past = row > grid.offsets[pods[row]]
    goes_on = has_past & (row_phase[last] == phase)
    return Situations(
        phase,
        np.where(goes_on, row - begin[last] + 1, 1),
        np.where(goes_on, previous[last], np.where(has_past, row_phase[last], -1)),
        windows.values,
    )


def phases_of_rows(grid: Grid, phases: Ints) -> Ints:
    """The phase of each row of the grid."""
    by_row = np.full(len(grid.values), -1)
    by_row[grid.bucket] = phases  # the last sample of a row is written last
    full = np.zeros(len(by_row), dtype=bool)
    full[grid.bucket] = True
    source = np.maximum.accumulate(np.where(full, np.arange(len(by_row)), 0))
    broken = ~full & np.isnan(grid.values).all(axis=1)
    answer: Ints = np.where(broken, -1, by_row[source])
    return answer
