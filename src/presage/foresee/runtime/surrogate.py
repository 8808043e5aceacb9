"""What a workload may be like before it is tried: as a known one, or halfway to the mean of them.

Each known workload is a guess of its own (as it is, and halfway), with and without a cliff where
memory runs out. Around every guess lies the same Gaussian process. Its kernels (how the known ones
differ, near in all, near or linear in one thing that describes a configuration) have the shares
that make known workloads most probable when each program is left out. Trials say which guesses to
believe. A library's Gaussian process has one mean, not many with one covariance, and searched
worse (ADR 0032), so the few lines of algebra are here. Chooses nothing and reads no table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from presage.learn import Floats
from presage.model.errors import MissingExtra

__all__ = ["Case", "Described", "Guesses", "KernelShares", "Posterior", "likely_shares"]

_LEVEL = 4.0
"""Variance of how long a workload takes altogether, in logarithms: nearly anything."""
_HALVES = (0.5, 1.0)
"""How far from the mean towards a known workload guesses are."""
_CLIFFS = (0.5, 1.0, 1.5)
"""How much longer, in logarithms, a workload takes whose data does not fit in memory ..."""
_CLIFF_EACH = 0.5
"""... which it may stop to do at each half of a doubling ..."""
_CLIFF_SOFT = 0.125
_CLIFF_ODDS = 0.5
"""... with this probability somewhere."""
_NARROW = 0.7
"""Length of the kernel in one thing, in standard deviations."""
_FAINT = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class Described:
    """The configurations that may be chosen, in numbers."""

    features: Floats
    """Standardised, a row for each configuration."""
    blocks: tuple[int, ...]
    """Which of the columns describe one thing: a number for each."""
    memory: Floats | None = None
    """The binary logarithm of the memory of all machines, where it is known."""

    def at(self, rows: Sequence[int] | npt.NDArray[np.intp]) -> Described:
        """Some of the configurations."""
        memory = None if self.memory is None else self.memory[rows]
        return Described(self.features[rows], self.blocks, memory)


@dataclass(frozen=True, slots=True, eq=False)
class KernelShares:
    """The variance of each kernel, and of a measurement."""

    kernels: Floats
    noise: float

    @classmethod
    def usual(cls, blocks: int) -> KernelShares:
        """Before anything is known."""
        each = np.tile([0.03, 0.03], blocks) / max(1, blocks)
        return cls(np.concatenate([[1.0, 0.06, 0.02], each]), 0.001)


@dataclass(frozen=True, slots=True, eq=False)
class Guesses:
    """What the workload may be like, in logarithms less its level, and how probable that is."""

    described: Described
    differ: Floats
    """How each known workload differs from the mean of them: a row for each."""
    weights: Floats
    logs: Floats
    """A row for each guess."""
    odds: Floats

    @classmethod
    def of(
        cls, described: Described, mean: Floats, differ: Floats, weights: Floats, cliffs: bool
    ) -> Guesses:
        """All guesses from what is known."""
        if len(differ):
            logs = np.concatenate([mean + share * differ for share in _HALVES])
            odds = np.tile(weights / len(_HALVES), len(_HALVES))
        else:
            logs, odds = mean[None], np.ones(1)
        if cliffs and described.memory is not None and np.ptp(described.memory) > _CLIFF_EACH:
            falls, chance = _cliffs(described.memory)
            logs = (logs[:, None] + falls[None]).reshape(-1, len(mean))
            odds = (odds[:, None] * chance[None]).ravel()
        return cls(described, differ, weights, logs, odds)

    def kernels(self, rows: npt.NDArray[np.intp] | slice = slice(None)) -> Iterator[Floats]:
        """The covariance of some configurations that each kernel says."""
        differ, features = self.differ[:, rows], self.described.features[rows]
        yield (differ.T * self.weights) @ differ
        blocks = np.array(self.described.blocks)
        apart = [
            _apart(features[:, blocks == number])
            for number in range(int(blocks.max(initial=-1)) + 1)
        ]
        whole = sum(apart, np.zeros((len(features), len(features)))) / max(1, len(apart))
        yield np.exp(-0.5 * whole)
        yield np.exp(-2.0 * whole)
        for number, far in enumerate(apart):
            yield np.exp(-0.5 * far / _NARROW**2)
            mine = features[:, blocks == number]
            yield mine @ mine.T

    def believe(self, shares: KernelShares) -> Posterior:
        """Ready to be told of trials."""
        size = self.logs.shape[1]
        between = np.full((size, size), _LEVEL)
        for share, kernel in zip(shares.kernels, self.kernels(), strict=True):
            if share > _FAINT:
                between += share * kernel
        return Posterior(self.logs, self.odds, between, shares.noise)


@dataclass(frozen=True, slots=True, eq=False)
class Posterior:
    """Guesses and the process around them."""

    logs: Floats
    odds: Floats
    between: Floats
    noise: float

    def told(self, tried: Sequence[int], logs: Floats) -> tuple[Floats, Floats, Floats]:
        """The guesses that are left (a row each), the standard deviation around them, and how
        probable each is, after trials that took so long."""
        if not len(tried):
            return self.logs, np.sqrt(np.diag(self.between)), self.odds
        places = np.array(tried, np.intp)
        inverse = np.linalg.inv(
            self.between[np.ix_(places, places)] + self.noise * np.eye(len(places))
        )
        gain = self.between[:, places] @ inverse
        off = logs - self.logs[:, places]
        fit = np.log(self.odds) - 0.5 * np.einsum("kt,tu,ku->k", off, inverse, off)
        odds = np.exp(fit - fit.max())
        kept = odds > _FAINT * odds.sum()
        odds = odds[kept] / odds[kept].sum()
        left = np.diag(self.between) - np.sum(gain * self.between[:, places], axis=1)
        means = self.logs[kept] + off[kept] @ gain.T
        return means, np.sqrt(np.maximum(left, 1e-6)), odds


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A known workload as if it were new: some of its configurations."""

    kernels: Floats
    off: Floats
    """How far it is from each guess (a row), less the mean of that."""
    odds: Floats
    weight: float

    @classmethod
    def of(cls, guesses: Guesses, logs: Floats, rows: npt.NDArray[np.intp], weight: float) -> Case:
        """What so many trials of it say."""
        off = logs[rows] - guesses.logs[:, rows]
        off = off - off.mean(axis=1, keepdims=True)
        return cls(np.stack(list(guesses.kernels(rows))), off, guesses.odds, weight)

    def unlikely(self, values: Floats) -> tuple[float, Floats]:
        """The negative logarithm of its probability, and the slope in the logarithm of each
        share."""
        size = self.off.shape[1]
        inside = np.tensordot(values[:-1], self.kernels, 1) + values[-1] * np.eye(size) + _LEVEL
        inverse = np.linalg.inv(inside)
        told = self.off @ inverse
        fit = np.log(self.odds) - 0.5 * np.sum(told * self.off, axis=1)
        highest = float(fit.max())
        believed = np.exp(fit - highest)
        total = float(believed.sum())
        left = inverse - (told.T * (believed / total)) @ told
        slope = 0.5 * np.tensordot(self.kernels, left, 2) * values[:-1]
        slope = np.append(slope, 0.5 * np.trace(left) * values[-1])
        _, volume = np.linalg.slogdet(inside)
        return 0.5 * float(volume) - highest - float(np.log(total)), slope


def likely_shares(cases: Sequence[Case]) -> KernelShares:
    """The shares that make the known workloads most probable."""
    try:
        from scipy.optimize import minimize
    except ImportError:
        raise MissingExtra("learn", "tuning") from None
    whole = sum(case.weight for case in cases)
    count = len(cases[0].kernels)

    def unlikely(powers: Floats) -> tuple[float, Floats]:
        values = np.exp(powers)
        total, slope = 0.003 * float(np.sum((powers + 5) ** 2)), 0.006 * (powers + 5)
        for case in cases:
            one, its_slope = case.unlikely(values)
            total += case.weight / whole * one
            slope += case.weight / whole * its_slope
        return total, slope

    limits = [(-10.0, 3.0)] * count + [(-7.0, -1.0)]
    start = np.full(count + 1, -5.0)
    fit = minimize(
        unlikely, start, jac=True, method="L-BFGS-B", bounds=limits, options={"maxiter": 60}
    )
    values = np.exp(fit.x)
    return KernelShares(values[:-1], float(values[-1]))


def _apart(features: Floats) -> Floats:
    squares = np.sum(features**2, axis=1)
    out: Floats = np.maximum(squares[:, None] + squares[None, :] - 2 * features @ features.T, 0.0)
    return out


def _cliffs(memory: Floats) -> tuple[Floats, Floats]:
    """How much longer each configuration takes by each guess of a cliff (a row), and its odds."""
    places = np.arange(memory.min() + _CLIFF_EACH / 2, memory.max(), _CLIFF_EACH)
    falls = [np.zeros(len(memory))]
    for place in places.tolist():
        over = 1 / (1 + np.exp((memory - place) / _CLIFF_SOFT))
        falls += [height * over for height in _CLIFFS]
    count = len(falls) - 1
    return np.stack(falls), np.array([1 - _CLIFF_ODDS] + [_CLIFF_ODDS / count] * count)
