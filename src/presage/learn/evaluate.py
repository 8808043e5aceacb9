"""How good is an estimate: measures of error, and splits that do not leak.

A random split lets relatives of a test row into the training set; a family-out split does not, and
is what tells how an estimator does on a model that nobody has seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from presage.learn import Floats
from presage.model.errors import UserError

__all__ = [
    "coverage",
    "f1",
    "family_of",
    "family_out",
    "grouped_folds",
    "mae",
    "mape",
    "random_split",
    "rmsle",
    "rmsle1p",
]

Indices = npt.NDArray[np.intp]


def rmsle(actual: npt.ArrayLike, predicted: npt.ArrayLike) -> float:
    """Root mean square of log(predicted ÷ actual); both must be positive."""
    true, guess = _pair(actual, predicted)
    return float(np.sqrt(np.mean((np.log(guess) - np.log(true)) ** 2)))


def rmsle1p(actual: npt.ArrayLike, predicted: npt.ArrayLike) -> float:
    """The same of log(1 + x), for quantities that may be zero."""
    true, guess = _pair(actual, predicted)
    return float(np.sqrt(np.mean((np.log1p(guess) - np.log1p(true)) ** 2)))


def mape(actual: npt.ArrayLike, predicted: npt.ArrayLike) -> float:
    """Mean of |predicted − actual| ÷ |actual|, as a fraction."""
    true, guess = _pair(actual, predicted)
    return float(np.mean(np.abs(guess - true) / np.abs(true)))


def mae(actual: npt.ArrayLike, predicted: npt.ArrayLike) -> float:
    """Mean of |predicted − actual|."""
    true, guess = _pair(actual, predicted)
    return float(np.mean(np.abs(guess - true)))


def f1(actual: npt.ArrayLike, predicted: npt.ArrayLike) -> float:
    """Harmonic mean of precision and recall of the true class; 0 where nothing was found."""
    true, guess = np.asarray(actual, dtype=bool), np.asarray(predicted, dtype=bool)
    both = int(np.sum(true & guess))
    either = int(np.sum(true)) + int(np.sum(guess))
    return 2 * both / either if either else 0.0


def coverage(actual: npt.ArrayLike, interval: npt.ArrayLike) -> float:
    """Share of rows that lie within [first column, last column]."""
    true, bounds = np.asarray(actual, dtype=np.float64), np.asarray(interval, dtype=np.float64)
    if bounds.ndim != 2 or len(bounds) != len(true):
        raise UserError(f"{len(true)} values need as many intervals; got shape {bounds.shape}")
    return float(np.mean((bounds[:, 0] <= true) & (true <= bounds[:, -1])))


def random_split(n: int, test_share: float, seed: int) -> tuple[Indices, Indices]:
    """Indices of a shuffled training and test set, in that order."""
    if not 0 < test_share < 1:
        raise UserError(f"test_share is between 0 and 1, not {test_share}")
    order = np.random.default_rng(seed).permutation(n)
    held_out = max(1, round(n * test_share))
    return order[held_out:], order[:held_out]


def grouped_folds(groups: npt.ArrayLike, k: int, seed: int) -> Indices:
    """The fold, 0 to k − 1, of each row: a group is in one fold, and folds have similar sizes.

    Groups are dealt from the largest to the smallest, each to the fold with the fewest rows; the
    seed decides between groups of one size.
    """
    names, member, sizes = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    if k < 2 or names.size < k:
        raise UserError(f"{names.size} families cannot be split into {k} folds; ask for 2 or more")
    chance = np.random.default_rng(seed).random(names.size)
    fold_of = np.empty(names.size, dtype=np.intp)
    rows = np.zeros(k, dtype=np.intp)
    for group in np.lexsort((chance, -sizes)):
        fold_of[group] = fold = int(np.argmin(rows))
        rows[fold] += sizes[group]
    return fold_of[member.reshape(-1)]


def family_out(groups: npt.ArrayLike, k: int, seed: int) -> Iterator[tuple[Indices, Indices]]:
    """k times the indices of a training and a test set that have no family in common."""
    folds = grouped_folds(groups, k, seed)
    for fold in range(k):
        yield np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)


def family_of(timm_name: str) -> str:
    """The letters before the first digit or underscore: `resnet50d` → `resnet`."""
    return re.split(r"[\d_]", timm_name, maxsplit=1)[0]


def _pair(actual: npt.ArrayLike, predicted: npt.ArrayLike) -> tuple[Floats, Floats]:
    true, guess = np.asarray(actual, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    if true.shape != guess.shape or not true.size:
        raise UserError(f"cannot compare shapes {true.shape} and {guess.shape}")
    return true, guess
