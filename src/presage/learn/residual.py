"""A rough formula, put right by trees: log(truth ÷ base) is learned, intervals are conformal.

The formula carries what physics knows, so an unusual job gets an answer of the right size; the
trees only learn by which factor it is off. Columns that may be absent are named, and the model is
fitted with some of them hidden; the intervals are measured for each choice of absent ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from presage.learn import Estimator, Floats, sklearn_ensemble
from presage.learn.bundle import prefixed, under
from presage.learn.conformal import Conformal
from presage.learn.evaluate import grouped_folds
from presage.learn.trees import TreeEnsemble

__all__ = ["LogResidual"]

_HIDDEN = 0.3
"""How often a column that may be absent is hidden in the second copy of the rows."""


class LogResidual(Estimator):
    """p10, p50 and p90 of base × exp(what the trees add)."""

    def __init__(
        self,
        iterations: int = 300,
        learning_rate: float = 0.05,
        leaves: int = 15,
        least: int = 10,
        share: float = 1.0,
        forest: int = 0,
        optional: Sequence[Sequence[int]] = (),
        folds: int = 10,
        seed: int = 0,
    ) -> None:
        self.iterations = iterations
        self.learning_rate = learning_rate
        self.leaves = leaves
        self.least = least
        self.share = share
        self.forest = forest
        self.optional = optional
        self.folds = folds
        self.seed = seed

    def fit(
        self,
        X: npt.ArrayLike,
        y: npt.ArrayLike,
        groups: npt.ArrayLike | None = None,
        *,
        base: npt.ArrayLike,
    ) -> Self:
        """Learn the factor, and from families left out by turns how far it is off."""
        rows, target = np.asarray(X, np.float64), np.asarray(y, np.float64)
        start = np.asarray(base, np.float64)
        members = np.arange(len(target)) if groups is None else np.asarray(groups)
        count = min(self.folds, len(np.unique(members)))
        patterns = range(1 << len(self.optional))
        predicted = [np.empty(len(target)) for _ in patterns]
        place = grouped_folds(members, count, self.seed)
        hidden = [self._hide(rows, pattern) for pattern in patterns]
        for fold in range(count):
            test = place == fold
            learned = self._learn(rows[~test], np.log(target[~test] / start[~test]))
            for guess, seen in zip(predicted, hidden, strict=True):
                guess[test] = start[test] * np.exp(_factor(learned, seen[test]))
        self.out_of_fold_ = predicted[0]
        self.trees_ = self._learn(rows, np.log(target / start))
        self.intervals_ = _nested(
            [
                Conformal.fit(target, guess, members, space="log", balance=0.0)
                for guess in predicted
            ]
        )
        return self

    def predict(self, X: npt.ArrayLike, *, base: npt.ArrayLike = 1.0) -> Floats:
        """The median."""
        return self.predict_interval(X, base=base)[:, 1]

    def predict_interval(self, X: npt.ArrayLike, *, base: npt.ArrayLike = 1.0) -> Floats:
        """p10, p50, p90 for each row."""
        self._check_fitted("trees_")
        rows = np.asarray(X, np.float64)
        guess = np.asarray(base, np.float64) * np.exp(self.factor(rows))
        absent = self._absent(rows)
        out = np.empty((len(rows), 3))
        for pattern, interval in enumerate(self.intervals_):
            here = absent == pattern
            if here.any():
                out[here] = interval.interval(guess[here])
        return out

    def factor(self, X: npt.ArrayLike) -> Floats:
        """The logarithm of truth ÷ base, as the trees alone foresee it."""
        self._check_fitted("trees_")
        return _factor(self.trees_, np.asarray(X, np.float64))

    def mattered(self, row: Floats, typical: Floats, names: Sequence[str]) -> dict[str, float]:
        """By which factor each feature moves the answer away from that of a typical job: the
        largest five."""
        swapped = np.repeat(row[None, :], len(row) + 1, axis=0)
        for column in range(len(row)):
            swapped[column + 1, column] = typical[column]
        values = _factor(self.trees_, swapped)
        moved = values[0] - values[1:]
        order = np.argsort(-np.abs(moved))[:5]
        return {names[i]: float(np.exp(moved[i])) for i in order if moved[i]}

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        for which, trees in enumerate(self.trees_):
            arrays |= prefixed(f"trees{which}", trees.to_arrays())
        for pattern, interval in enumerate(self.intervals_):
            arrays |= prefixed(f"interval{pattern}", interval.to_arrays())
        mask = np.array([(i, c) for i, group in enumerate(self.optional) for c in group])
        arrays["optional"] = mask.reshape(-1, 2).astype(np.int64)
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> LogResidual:
        """The estimator in these arrays."""
        mask = arrays["optional"].reshape(-1, 2)
        count = int(mask[:, 0].max(initial=-1)) + 1
        made = cls(optional=[mask[mask[:, 0] == i, 1].tolist() for i in range(count)])
        parts = [under(f"trees{which}", arrays) for which in range(2)]
        made.trees_ = [TreeEnsemble.from_arrays(part) for part in parts if part]
        made.intervals_ = [
            Conformal.from_arrays(under(f"interval{i}", arrays)) for i in range(1 << count)
        ]
        return made

    def _learn(self, rows: Floats, factor: Floats) -> list[TreeEnsemble]:
        ensemble = sklearn_ensemble("fitting an estimator")
        if self.optional:
            generator = np.random.default_rng(self.seed)
            copy = rows.copy()
            for group in self.optional:
                out = generator.random(len(rows)) < _HIDDEN
                copy[np.ix_(out, np.array(group))] = np.nan
            rows, factor = np.concatenate([rows, copy]), np.concatenate([factor, factor])
        model = ensemble.HistGradientBoostingRegressor(
            loss="absolute_error",
            max_iter=self.iterations,
            learning_rate=self.learning_rate,
            max_leaf_nodes=self.leaves,
            min_samples_leaf=self.least,
            max_features=self.share,
            l2_regularization=1.0,
            early_stopping=False,
            random_state=self.seed,
        )
        learned = [TreeEnsemble.from_sklearn(model.fit(rows, factor))]
        if self.forest:  # not with columns that may be absent: a forest knows no gaps
            trees = ensemble.ExtraTreesRegressor(
                self.forest, min_samples_leaf=2, max_features=0.4, random_state=self.seed
            )
            learned.append(TreeEnsemble.from_sklearn(trees.fit(rows, factor)))
        return learned

    def _hide(self, rows: Floats, pattern: int) -> Floats:
        """The rows without the groups of columns whose bit is set."""
        seen = rows.copy()
        for i, group in enumerate(self.optional):
            if pattern >> i & 1:
                seen[:, list(group)] = np.nan
        return seen

    def _absent(self, rows: Floats) -> npt.NDArray[np.int64]:
        """The pattern of each row: a bit for each group that lacks something."""
        pattern = np.zeros(len(rows), np.int64)
        for i, group in enumerate(self.optional):
            pattern |= np.isnan(rows[:, list(group)]).any(axis=1).astype(np.int64) << i
        return pattern


def _nested(intervals: list[Conformal]) -> list[Conformal]:
    """As they are, but never narrower than where less is absent."""
    out = []
    for pattern, interval in enumerate(intervals):
        fewer = [other for known, other in enumerate(intervals) if known & pattern == known]
        low, high = min(one.low for one in fewer), max(one.high for one in fewer)
        out.append(replace(interval, low=low, high=high))
    return out


def _factor(learned: Sequence[TreeEnsemble], rows: Floats) -> Floats:
    mean: Floats = np.mean([trees.predict(rows) for trees in learned], axis=0)
    return mean
