"""A group nobody has seen, from a few runs of it: a Gaussian process around the models' answer.

Known groups are tasks: `Tasks` says how long a row would take if it belonged to each of them. What
they agree on is expected of a new group; how they differ is how a new one may differ, so a run of
it says which known groups it is like. To this come kernels that say which runs of a group err
alike (the same category, near in a number, near in all). The share of each kernel is the one that
makes the errors for groups left out most probable, so a few runs move the answer as far as they
did for groups whose end is known. Nothing here fits trees or reads tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from presage.learn import Floats
from presage.learn.bundle import prefixed, under
from presage.learn.conformal import Conformal
from presage.model.errors import MissingExtra

__all__ = ["FEW", "Alikeness", "Episode", "FewShot"]

FEW = (0, 1, 2, 5, 10, 20)
"""Numbers of runs for which intervals are measured."""
_ROWS = 90
"""Rows of a group that the shares of kernels are fitted on."""
_TESTED = 120
_DRAWS = 6
_MOST_RUNS = 300
_WILD = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Alikeness:
    """What says how alike two rows of one group are."""

    categories: npt.NDArray[np.int64]
    """Codes, a column for each category."""
    numbers: Floats
    """Standardised logarithms, a column for each number."""
    tasks: Floats
    """How long the row would take in each known group, less the mean of them."""

    def at(self, rows: npt.NDArray[np.intp] | slice) -> Alikeness:
        """Some of the rows."""
        return Alikeness(self.categories[rows], self.numbers[rows], self.tasks[rows])


@dataclass(frozen=True, slots=True, eq=False)
class Episode:
    """A group that the models had not seen: what they expected and what came."""

    group: str
    rows: Alikeness
    expected: Floats
    logs: Floats


@dataclass(frozen=True, slots=True, eq=False)
class FewShot:
    """The shares of the kernels, and how far answers are off after so many runs."""

    shares: Floats
    noise: float
    intervals: tuple[Conformal, ...]
    """For each of `FEW`."""

    @classmethod
    def fit(cls, episodes: Sequence[Episode], seed: int = 0) -> FewShot:
        """Learn from groups left out, each by turns the new one."""
        rng = np.random.default_rng(seed)
        shares, noise = _most_probable_shares(episodes, rng)
        draft = cls(shares, noise, ())
        intervals = tuple(draft._measured(episodes, few, rng) for few in FEW)
        return cls(shares, noise, intervals)

    def adapt(
        self, rows: Alikeness, expected: Floats, seen: Alikeness, surprise: Floats
    ) -> tuple[Floats, Floats]:
        """The logarithm of the time of each row and its standard deviation, after `seen` runs that
        took `surprise` longer (in logarithms) than expected."""
        own = self._diagonal(rows) + self.noise
        runs = len(surprise)
        if not runs:
            return expected, np.sqrt(own)
        keep = slice(0, _MOST_RUNS)
        seen, surprise = seen.at(keep), surprise[keep]
        between = self._kernel(seen, seen) + self.noise * np.eye(len(surprise))
        across = self._kernel(rows, seen)
        told = np.linalg.solve(between, np.column_stack([surprise, across.T]))
        left = own - np.sum(across * told[:, 1:].T, axis=1)
        return expected + across @ told[:, 0], np.sqrt(np.maximum(left, 0.2 * self.noise))

    def interval(self, logs: Floats, deviation: Floats, runs: int) -> Floats:
        """p10, p50 and p90 of the time."""
        nearest = max(place for place, few in enumerate(FEW) if few <= runs)
        return self.intervals[nearest].interval(np.exp(logs), deviation)

    def likest(self, seen: Alikeness, logs: Floats, expected: Floats) -> Floats:
        """The share of each known group in what the new one is like."""
        if not len(logs):
            return np.full(seen.tasks.shape[1], 1 / max(1, seen.tasks.shape[1]))
        off = (logs - expected)[:, None] - seen.tasks
        off = off - np.mean(off, axis=0) * len(logs) / (len(logs) + 1)
        chance = -0.5 * np.sum(off**2, axis=0) / (self.noise + 0.02)
        odds = np.exp(chance - chance.max())
        out: Floats = odds / odds.sum()
        return out

    def _kernel(self, left: Alikeness, right: Alikeness) -> Floats:
        out: Floats = np.tensordot(self.shares, _kernels(left, right), 1)
        return out

    def _diagonal(self, rows: Alikeness) -> Floats:
        task = np.mean(rows.tasks**2, axis=1) if rows.tasks.shape[1] else np.zeros(len(rows.tasks))
        alone = _kernels(rows.at(slice(0, 1)), rows.at(slice(0, 1)))[:, 0, 0]
        total = np.full(len(task), self.shares @ alone) if len(task) else task
        if len(task):
            total += self.shares[1] * (task - task[0]) + self.shares[2] * (task - task[0])
        return total

    def _measured(
        self, episodes: Sequence[Episode], few: int, rng: np.random.Generator
    ) -> Conformal:
        actual, said, scale, groups = [], [], [], []
        for episode in episodes:
            size = len(episode.logs)
            if size <= few:
                continue
            for _ in range(_DRAWS if few else 1):
                order = rng.permutation(size)
                runs, rest = order[:few], order[few : few + _TESTED]
                logs, deviation = self.adapt(
                    episode.rows.at(rest),
                    episode.expected[rest],
                    episode.rows.at(runs),
                    episode.logs[runs] - episode.expected[runs],
                )
                actual.append(episode.logs[rest])
                said.append(logs)
                scale.append(deviation)
                groups += [episode.group] * len(rest)
        if not actual:
            return Conformal(-1.2816, 0.0, 1.2816, "log")
        return Conformal.fit(
            np.exp(np.concatenate(actual)),
            np.exp(np.concatenate(said)),
            groups,
            np.concatenate(scale),
        )

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "shares": self.shares,
            "noise": np.array(self.noise),
        }
        for place, interval in enumerate(self.intervals):
            arrays |= prefixed(f"interval{place}", interval.to_arrays())
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> FewShot:
        """The process in these arrays."""
        intervals = tuple(
            Conformal.from_arrays(under(f"interval{place}", arrays)) for place in range(len(FEW))
        )
        return cls(arrays["shares"], float(arrays["noise"]), intervals)


def _kernels(left: Alikeness, right: Alikeness) -> Floats:
    """1, tasks, tasks of one category, near in all, near in numbers; then one for each column."""
    shape = (len(left.tasks), len(right.tasks))
    known = max(1, left.tasks.shape[1])
    task = left.tasks @ right.tasks.T / known
    same = left.categories[:, None, :] == right.categories[None, :, :]
    apart = (left.numbers[:, None, :] - right.numbers[None, :, :]) ** 2
    unlike = np.sum(~same, axis=2) + 0.25 * np.sum(apart, axis=2)
    near = np.exp(-unlike)
    broad = np.exp(-0.3 * unlike)
    parts = [np.ones(shape), task, task * near, near, broad]
    parts += [same[:, :, column].astype(np.float64) for column in range(same.shape[2])]
    parts += [np.exp(-0.5 * apart[:, :, column]) for column in range(apart.shape[2])]
    return np.stack(parts)


def _most_probable_shares(
    episodes: Sequence[Episode], rng: np.random.Generator
) -> tuple[Floats, float]:
    """Shares of the kernels and the noise that make the surprises most probable."""
    try:
        from scipy.optimize import minimize
    except ImportError:
        raise MissingExtra("learn", "fitting run times") from None
    prepared = []
    for episode in episodes:
        rows = rng.permutation(len(episode.logs))[:_ROWS]
        inside = episode.rows.at(rows)
        surprise = np.clip(episode.logs - episode.expected, -_WILD, _WILD)[rows]
        prepared.append((_kernels(inside, inside), surprise))
    count = len(prepared[0][0])

    def unlikely(powers: Floats) -> tuple[float, Floats]:
        values = np.exp(powers)
        total, slope = 0.01 * float(np.sum((powers + 5) ** 2)), 0.02 * (powers + 5)
        for kernels, surprise in prepared:
            weight = len(surprise) ** -0.5
            inside = np.tensordot(values[:-1], kernels, 1) + values[-1] * np.eye(len(surprise))
            inverse = np.linalg.inv(inside)
            told = inverse @ surprise
            _, volume = np.linalg.slogdet(inside)
            total += 0.5 * weight * float(surprise @ told + volume)
            left = inverse - np.outer(told, told)
            slope[:-1] += 0.5 * weight * np.tensordot(kernels, left, 2) * values[:-1]
            slope[-1] += 0.5 * weight * float(np.trace(left)) * values[-1]
        return total, slope

    start = np.append(np.full(count, -4.0), -3.0)
    limits = [(-9.0, 2.0)] * count + [(-7.0, 0.0)]
    fit = minimize(
        unlikely, start, jac=True, method="L-BFGS-B", bounds=limits, options={"maxiter": 40}
    )
    values = np.exp(fit.x)
    return values[:-1], float(values[-1])
