"""Other ways to find phases, behind the interface of the CRBM: each encodes the same windows.

- `WindowEncoder`: the window itself, for k-means on windows.
- `ChangePointEncoder`: the mean since the last change. Fitting cuts whole series with PELT
  (Killick, Fearnhead and Eckley 2012; cost: squared error around the segment's mean) and clusters
  the segments' means. Online only the window is there: it is cut once, where that gains most and
  more than the same penalty.
- `HmmEncoder`: the probabilities of the states of a Gaussian hidden Markov model with diagonal
  covariances, fitted by Baum-Welch and filtered forward through the window from the stationary
  distribution. No look-ahead, and no memory beyond the window.

All are seeded and fitted on at most `MOST_ROWS` rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from presage.model.errors import BundleError
from presage.observe.phases.clusters import kmeans

__all__ = ["MOST_ROWS", "ChangePointEncoder", "HmmEncoder", "WindowEncoder", "change_points"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Arrays = Mapping[str, npt.NDArray[Any]]

MOST_ROWS = 60_000
_CHUNK = 64
"""Baum-Welch takes runs in pieces of this many rows, all pieces at once."""
_LEAST_VARIANCE = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class WindowEncoder:
    """A window is described by its values."""

    kind = "windows"

    def encode(self, windows: Floats) -> Floats:
        """The window in one row."""
        return windows.reshape(len(windows), windows.shape[1] * windows.shape[2])

    def surprise(self, windows: Floats) -> Floats:
        """The mean squared step from the row before to the last one."""
        before = windows[:, -2] if windows.shape[1] > 1 else 0.0
        step: Floats = np.mean((windows[:, -1] - before) ** 2, axis=1)
        return step

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Nothing is learned."""
        return {}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> WindowEncoder:
        """The encoder; there is nothing to read."""
        return cls()


@dataclass(frozen=True, slots=True, eq=False)
class ChangePointEncoder:
    """A window is described by the mean since its last change."""

    penalty: float
    kind = "changepoints"

    @classmethod
    def fit(cls, runs: list[Floats]) -> tuple[ChangePointEncoder, Floats]:
        """The encoder, and the means of all segments of the runs, each as often as it is long."""
        steps = np.concatenate([np.diff(run, axis=0) for run in runs])
        noise = float((steps**2).mean() / 2) if steps.size else 1.0
        rows = sum(len(run) for run in runs)
        penalty = 2 * runs[0].shape[1] * noise * float(np.log(max(rows, 2)))
        means = []
        for run in runs:
            cuts = [0, *change_points(run, penalty), len(run)]
            for first, end in pairwise(cuts):
                means.append(np.repeat(run[first:end].mean(axis=0)[None], end - first, axis=0))
        return cls(penalty), np.concatenate(means)

    def encode(self, windows: Floats) -> Floats:
        """The mean since the last change."""
        length = windows.shape[1]
        sums = windows.cumsum(axis=1)
        whole = sums[:, -1]
        if length == 1:
            return whole
        tails = whole[:, None] - sums[:, :-1]
        heads = np.arange(1.0, length)
        # What a cut saves of the squared error: means of both parts against the mean of all.
        saved = (sums[:, :-1] ** 2).sum(axis=2) / heads
        saved += (tails**2).sum(axis=2) / (length - heads)
        saved -= (whole**2).sum(axis=1)[:, None] / length
        cut = saved.argmax(axis=1)
        at = np.arange(len(windows))
        changed = (saved[at, cut] > self.penalty)[:, None]
        since = tails[at, cut] / (length - heads[cut])[:, None]
        code: Floats = np.where(changed, since, whole / length)
        return code

    def surprise(self, windows: Floats) -> Floats:
        """The mean squared distance of the last row from that mean."""
        apart: Floats = np.mean((windows[:, -1] - self.encode(windows)) ** 2, axis=1)
        return apart

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        return {"penalty": np.array(self.penalty)}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> ChangePointEncoder:
        """A fitted encoder from its arrays."""
        penalty = np.asarray(arrays.get("penalty", np.nan))
        if penalty.shape != () or not np.isfinite(penalty):
            raise BundleError("the penalty of the change points is missing or damaged")
        return cls(float(penalty))


@dataclass(frozen=True, slots=True, eq=False)
class HmmEncoder:
    """A window is described by the probabilities of the states at its end."""

    start: Floats
    moves: Floats
    """(states, states): from row to row."""
    means: Floats
    variances: Floats
    kind = "hmm"

    @classmethod
    def fit(cls, runs: list[Floats], states: int, seed: int, rounds: int = 25) -> HmmEncoder:
        """Baum-Welch from the clusters of k-means, until the likelihood hardly grows."""
        pieces = [run[at : at + _CHUNK] for run in runs for at in range(0, len(run), _CHUNK)]
        lengths = np.array([len(piece) for piece in pieces])
        width = runs[0].shape[1]
        rows = np.zeros((len(pieces), int(lengths.max()), width))
        there = np.arange(rows.shape[1]) < lengths[:, None]
        rows[there] = np.concatenate(pieces)
        first = kmeans(rows[there], states, seed, starts=2)
        spread = np.stack([_variance(rows[there][first.labels == s]) for s in range(states)])
        moves = np.full((states, states), 0.1 / max(states - 1, 1))
        np.fill_diagonal(moves, 0.9 if states > 1 else 1.0)
        model = cls(np.full(states, 1 / states), moves, first.centres, spread)
        likelihood = -np.inf
        for _ in range(rounds):
            model, now = model._better(rows, there)
            if now - likelihood < 1e-4 * abs(now):
                break
            likelihood = now
        return model

    def encode(self, windows: Floats) -> Floats:
        """The filtered probabilities of the states."""
        return self._filtered(windows)[0]

    def surprise(self, windows: Floats) -> Floats:
        """Minus the log likelihood of the last row, given those before."""
        return self._filtered(windows)[1]

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        return {name: getattr(self, name) for name in ("start", "moves", "means", "variances")}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> HmmEncoder:
        """A fitted model from its arrays; refuses any that contradict each other."""
        try:
            parts = [
                np.asarray(arrays[name], dtype=np.float64)
                for name in ("start", "moves", "means", "variances")
            ]
        except (KeyError, ValueError) as wrong:
            raise BundleError(f"the hidden Markov model is damaged: {wrong}") from None
        start, moves, means, variances = parts
        sound = (
            start.ndim == 1
            and means.ndim == 2
            and moves.shape == (start.size, start.size)
            and means.shape == variances.shape
            and len(means) == start.size
            and all(np.isfinite(part).all() for part in parts)
            and bool((variances > 0).all() and (moves >= 0).all() and (start >= 0).all())
        )
        if not sound:
            raise BundleError("the hidden Markov model is damaged: its arrays contradict")
        return cls(start, moves, means, variances)

    def _log_density(self, rows: Floats) -> Floats:
        """(..., states)"""
        by = 1 / self.variances
        squares = rows**2 @ by.T - 2 * (rows @ (self.means * by).T)
        constant = (self.means**2 * by + np.log(2 * np.pi * self.variances)).sum(axis=1)
        density: Floats = -0.5 * (squares + constant)
        return density

    def _filtered(self, windows: Floats) -> tuple[Floats, Floats]:
        now = np.broadcast_to(self.start, (len(windows), self.start.size))
        surprise = np.zeros(len(windows))
        for step in range(windows.shape[1]):
            expected = now if step == 0 else now @ self.moves
            density = self._log_density(windows[:, step])
            top = density.max(axis=1, keepdims=True)
            joint = expected * np.exp(density - top) + 1e-300
            total = joint.sum(axis=1, keepdims=True)
            now, surprise = joint / total, -(np.log(total) + top)[:, 0]
        return np.asarray(now), surprise

    def _better(self, rows: Floats, there: npt.NDArray[np.bool_]) -> tuple[HmmEncoder, float]:
        """One round of Baum-Welch: the new model and the log likelihood of the old one."""
        density = self._log_density(rows)
        top = density.max(axis=2, keepdims=True)
        shape = np.where(there[..., None], np.exp(density - top), 1.0)
        forward, total = np.empty_like(shape), np.empty(there.shape)
        now = self.start * shape[:, 0]
        for step in range(rows.shape[1]):
            if step:
                now = (now @ self.moves) * shape[:, step]
            total[:, step] = now.sum(axis=1) + 1e-300
            now = now / total[:, step, None]
            forward[:, step] = now
        later = np.ones_like(now)
        state = np.empty_like(shape)
        moved = np.zeros_like(self.moves)
        for step in range(rows.shape[1] - 1, -1, -1):
            state[:, step] = forward[:, step] * later
            if step:
                ahead = shape[:, step] * later / total[:, step, None]
                counted = forward[:, step - 1] * there[:, step, None]
                moved += counted.T @ ahead
                later = np.where(there[:, step, None], ahead @ self.moves.T, later)
        state = state / (state.sum(axis=2, keepdims=True) + 1e-300)
        weight, seen = state[there], rows[there]
        mass = weight.sum(axis=0) + 1e-9
        means = weight.T @ seen / mass[:, None]
        variances = np.maximum(weight.T @ seen**2 / mass[:, None] - means**2, _LEAST_VARIANCE)
        moves = moved * self.moves + 1e-6
        moves /= moves.sum(axis=1, keepdims=True)
        log_likelihood = float((np.log(total) + top[..., 0])[there].sum())
        return HmmEncoder(_stationary(moves), moves, means, variances), log_likelihood


def change_points(run: Floats, penalty: float) -> list[int]:
    """The first rows of all segments but the first, by PELT: the cheapest way to cut the run, when
    each cut costs the penalty."""
    sums = np.concatenate([np.zeros((1, run.shape[1])), np.cumsum(run, axis=0)])
    squares = np.concatenate([[0.0], np.cumsum((run**2).sum(axis=1))])
    best = np.full(len(run) + 1, -penalty)
    came_from = np.zeros(len(run) + 1, dtype=np.int64)
    open_cuts = np.array([0])
    for end in range(1, len(run) + 1):
        length = end - open_cuts
        part = ((sums[end] - sums[open_cuts]) ** 2).sum(axis=1) / length
        cost = best[open_cuts] + squares[end] - squares[open_cuts] - part
        choice = int(cost.argmin())
        best[end], came_from[end] = cost[choice] + penalty, open_cuts[choice]
        open_cuts = np.append(open_cuts[cost <= best[end]], end)
    cuts, at = [], int(came_from[-1])
    while at > 0:
        cuts.append(at)
        at = int(came_from[at])
    return cuts[::-1]


def _variance(rows: Floats) -> Floats:
    spread = rows.var(axis=0) if len(rows) else np.ones(rows.shape[1])
    return np.maximum(spread, _LEAST_VARIANCE)


def _stationary(moves: Floats) -> Floats:
    share = np.linalg.matrix_power(moves, 1 << 12)[0]
    return np.asarray(share / share.sum())
