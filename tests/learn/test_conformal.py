"""Intervals cover four fifths of the rows of families that nobody has seen."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pytest

from presage.learn.conformal import Conformal, out_of_fold
from presage.learn.evaluate import coverage, family_out
from presage.model.errors import UserError

Floats = npt.NDArray[np.float64]


class Line:
    """Least squares in log space."""

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        self.families_ = set(groups)
        self.slope_ = np.linalg.lstsq(_with_one(X), np.log(y), rcond=None)[0]
        return self

    def predict(self, X: Any) -> Floats:
        return np.asarray(np.exp(_with_one(X) @ self.slope_))


def _with_one(X: Floats) -> Floats:
    return np.column_stack([X, np.ones(len(X))])


def families(seed: int, count: int = 60) -> tuple[Floats, Floats, npt.NDArray[np.intp]]:
    """Rows whose families have an offset of their own, as model families do."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(count), rng.integers(3, 40, count))
    X = rng.normal(size=(groups.size, 1))
    offset = rng.normal(0, 0.3, count)[groups]
    y = np.exp(X[:, 0] + offset + rng.normal(0, 0.1, groups.size))
    return X, y, groups


def test_covers_unseen_families() -> None:
    found = []
    for seed in range(20):
        X, y, groups = families(seed)
        train, test = next(family_out(groups, 2, seed))
        fitted = Line().fit(X[train], y[train], groups[train])
        held_out = out_of_fold(Line, X[train], y[train], groups[train])
        conformal = Conformal.fit(y[train], held_out, groups[train])
        found.append(coverage(y[test], conformal.interval(fitted.predict(X[test]))))
    assert 0.75 <= np.mean(found) <= 0.85


def test_out_of_fold_models_never_saw_the_family() -> None:
    X, y, groups = families(0)
    made: list[Line] = []

    def make() -> Line:
        made.append(Line())
        return made[-1]

    assert out_of_fold(make, X, y, groups, k=4).shape == y.shape
    assert len(made) == 4
    assert all(len(model.families_) < 60 for model in made)
    left_out = [set(groups) - model.families_ for model in made]
    assert sum(len(part) for part in left_out) == 60


@pytest.mark.parametrize("space", ["plain", "log", "log1p"])
def test_columns_are_ordered_and_undo_the_space(space: Any) -> None:
    rng = np.random.default_rng(0)
    guess = rng.uniform(1, 9, 500)
    conformal = Conformal.fit(guess * rng.uniform(0.8, 1.5, 500), guess, space=space)
    interval = conformal.interval(guess)
    assert np.all(np.diff(interval, axis=1) >= 0)
    again = Conformal.from_arrays(conformal.to_arrays())
    assert again == conformal


def test_small_samples_get_wider_intervals() -> None:
    ones = np.ones(1000)
    spread = np.exp(np.linspace(-1, 1, 1000))
    many = Conformal.fit(spread, ones)
    few = Conformal.fit(spread[::90], ones[::90])
    assert few.high > many.high
    assert few.low < many.low
    assert many.high == pytest.approx(0.8, abs=0.01)


def test_a_large_family_does_not_decide_alone() -> None:
    """Half of the rows, easy ones, are of one family; the other half, hard ones, of fifty."""
    rng = np.random.default_rng(0)
    actual = np.exp(np.concatenate([rng.normal(0, 0.01, 500), rng.normal(0, 1, 500)]))
    groups = np.concatenate([np.zeros(500), np.repeat(np.arange(1, 51), 10)])
    width = [
        Conformal.fit(actual, np.ones(1000), groups, balance=balance).high
        for balance in (0.0, 0.5, 1.0)
    ]
    assert width[0] < width[1] < width[2]


def test_difficulty_widens_a_row() -> None:
    rng = np.random.default_rng(0)
    scale = np.where(np.arange(800) % 2, 3.0, 1.0)
    actual = np.exp(scale * rng.normal(0, 0.1, 800))
    conformal = Conformal.fit(actual, np.ones(800), scale=scale)
    easy, hard = np.log(conformal.interval(np.ones(2), np.array([1.0, 3.0])))
    assert hard[2] - hard[0] == pytest.approx(3 * (easy[2] - easy[0]))


def test_nonsense_is_refused() -> None:
    with pytest.raises(UserError, match="finite and in range"):
        Conformal.fit([np.nan], [1.0])
    with pytest.raises(UserError, match="hold no intervals"):
        Conformal.from_arrays({"offsets": np.array([3.0, 2.0, 1.0]), "space": np.array("log")})
    with pytest.raises(UserError, match="hold no intervals"):
        Conformal.from_arrays({})
