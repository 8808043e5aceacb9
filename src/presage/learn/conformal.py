"""Intervals that hold for families nobody has seen: split conformal prediction by family.

The residuals come from predictions for families that the model was not fitted on (`out_of_fold`),
so they are as wide as those of a new family will be. Rows are weighed by family: w = n^−balance in
a family of n rows. 0 promises the coverage for the average row, 1 for the average family; the
default of ½ keeps a family with hundreds of rows from deciding alone, without letting a family of
one row shout. Quantiles carry the finite-sample correction of split conformal prediction: the p-th
is the p(n + 1)-th smallest of n, so that the expected coverage is exactly as told. Rows of one
family err alike, so n is an effective number of rows: what it takes to know a weighted mean as
well, given the correlation r within families (the design effect of survey sampling). It is the
number of rows where r is 0 and about that of families where r is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, get_args

import numpy as np
import numpy.typing as npt

from presage.learn import Floats
from presage.learn.evaluate import grouped_folds
from presage.model.errors import UserError

__all__ = ["Conformal", "grouped_folds", "out_of_fold"]

Space = Literal["plain", "log", "log1p"]
LEVELS = (0.1, 0.5, 0.9)


class Regressor(Protocol):
    """What can be fitted anew for each fold."""

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self: ...
    def predict(self, X: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Conformal:
    """How far the truth is from a prediction, in a space where that is the same for all rows."""

    low: float
    """The 10 % quantile of (transformed truth − transformed prediction) ÷ difficulty."""
    middle: float
    high: float
    space: Space

    @classmethod
    def fit(
        cls,
        actual: npt.ArrayLike,
        predicted: npt.ArrayLike,
        groups: npt.ArrayLike | None = None,
        scale: npt.ArrayLike | None = None,
        space: Space = "log",
        balance: float = 0.5,
    ) -> Conformal:
        """Learn from out-of-fold predictions; `scale` is each row's difficulty, 1 if not given."""
        forward = _FORWARD[space]
        true, guess = np.asarray(actual, np.float64), np.asarray(predicted, np.float64)
        residual = forward(true) - forward(guess)
        if scale is not None:
            residual = residual / np.asarray(scale, np.float64)
        if residual.ndim != 1 or not residual.size or not np.all(np.isfinite(residual)):
            raise UserError("intervals need predictions and truths that are finite and in range")
        member = np.arange(residual.size)
        if groups is not None:
            member = np.unique(np.asarray(groups), return_inverse=True)[1].reshape(-1)
        weights = np.bincount(member)[member].astype(np.float64) ** -balance
        effective = _effective_rows(residual, weights, member)
        low, middle, high = (_quantile(residual, weights, effective, level) for level in LEVELS)
        return cls(low, middle, high, space)

    def interval(self, predicted: npt.ArrayLike, scale: npt.ArrayLike | None = None) -> Floats:
        """p10, p50, p90 for each prediction, as three columns in order."""
        moved = _FORWARD[self.space](np.asarray(predicted, np.float64))
        difficulty = np.ones(moved.shape) if scale is None else np.asarray(scale, np.float64)
        offsets = np.array([self.low, self.middle, self.high])
        return _BACK[self.space](moved[:, None] + difficulty[:, None] * offsets)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        return {
            "offsets": np.array([self.low, self.middle, self.high]),
            "space": np.array(self.space),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Conformal:
        """The intervals in these arrays."""
        try:
            low, middle, high = (float(offset) for offset in arrays["offsets"])
            space = str(arrays["space"])
        except (KeyError, ValueError, TypeError) as wrong:
            raise UserError(f"these arrays hold no intervals: {wrong}") from None
        if space not in get_args(Space) or not low <= middle <= high:
            raise UserError("these arrays hold no intervals: they contradict each other")
        return cls(low, middle, high, space)  # type: ignore[arg-type]  # checked above


def out_of_fold(
    make: Callable[[], Regressor],
    X: npt.NDArray[Any],
    y: Floats,
    groups: npt.ArrayLike,
    k: int = 5,
    seed: int = 0,
) -> Floats:
    """Each row's prediction by a model that saw no row of its family."""
    folds = grouped_folds(groups, k, seed)
    families = np.asarray(groups)
    predicted = np.empty(len(y))
    for fold in range(k):
        test = folds == fold
        model = make().fit(X[~test], y[~test], families[~test])
        predicted[test] = model.predict(X[test])
    return predicted


def _effective_rows(residual: Floats, weights: Floats, member: npt.NDArray[np.intp]) -> float:
    """How many independent rows would tell as much as these."""
    sizes = np.bincount(member).astype(np.float64)
    alike = 0.0
    if residual.size > sizes.size > 1:
        mean = np.bincount(member, residual) / sizes
        within = np.sum((residual - mean[member]) ** 2) / (residual.size - sizes.size)
        between = np.sum(sizes * (mean - residual.mean()) ** 2) / (sizes.size - 1)
        typical = (residual.size - np.sum(sizes**2) / residual.size) / (sizes.size - 1)
        spread = between + (typical - 1) * within
        alike = max(0.0, (between - within) / spread) if spread > 0 else 0.0
    together = np.bincount(member, weights)
    variance = (1 - alike) * np.sum(weights**2) + alike * np.sum(together**2)
    return float(weights.sum() ** 2 / variance)


def _quantile(values: Floats, weights: Floats, effective: float, level: float) -> float:
    """A weighted quantile, moved outwards by the finite-sample correction; the median stays."""
    outwards = level + (level - 0.5) / effective  # the p(n + 1)-th of n, as a share of weight
    order = np.argsort(values)
    share = (np.cumsum(weights[order]) - 0.5 * weights[order]) / weights.sum()
    return float(np.interp(outwards, share, values[order]))


_FORWARD: dict[Space, Callable[[Floats], Floats]] = {
    "plain": lambda values: values,
    "log": np.log,
    "log1p": np.log1p,
}
_BACK: dict[Space, Callable[[Floats], Floats]] = {
    "plain": lambda values: values,
    "log": np.exp,
    "log1p": np.expm1,
}
