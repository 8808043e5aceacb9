"""A formula put right by trees: what is known is recovered, and what is absent widens."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.base import clone

from presage.learn.evaluate import coverage
from presage.learn.residual import LogResidual
from presage.model.errors import NotFitted, UserError

Floats = npt.NDArray[np.float64]


def jobs(count: int, seed: int = 0) -> tuple[Floats, Floats, Floats]:
    """Features, a base over five orders of magnitude, and a truth that is off by a factor that
    the first two features decide."""
    random = np.random.default_rng(seed)
    X = random.uniform(0, 1, (count, 4))
    base = 10 ** random.uniform(0, 5, count)
    factor = np.where(X[:, 0] > 0.5, 2.0, 1.0) * np.where(X[:, 1] > 0.5, 1.5, 1.0)
    return X, base, base * factor * np.exp(random.normal(0, 0.05, count))


def quick(**options: Any) -> LogResidual:
    return LogResidual(**{"iterations": 25, "learning_rate": 0.3, "folds": 4} | options)


@pytest.fixture(scope="module")
def fitted() -> LogResidual:
    X, base, y = jobs(300)
    return quick(optional=[[0], [1]]).fit(X, y, base=base)


def test_a_constant_factor_is_recovered_at_every_size() -> None:
    X, base, _ = jobs(120)
    model = quick().fit(X, 3 * base, base=base)
    far = np.array([1e-3, 1.0, 1e9])
    assert model.predict(X[:3], base=far) == pytest.approx(3 * far, rel=1e-6)


def test_the_factor_is_learned(fitted: LogResidual) -> None:
    X, base, y = jobs(300, seed=1)
    found = fitted.predict_interval(X, base=base)
    assert np.median(np.abs(found[:, 1] / y - 1)) < 0.06
    assert (np.diff(found, axis=1) >= 0).all()
    assert 0.7 < coverage(y, found) < 0.9
    raw = np.median(np.abs(base / y - 1))
    assert raw > 0.3  # what the formula alone gives


def test_what_is_absent_widens_the_interval(fitted: LogResidual) -> None:
    X, base, y = jobs(300, seed=2)
    widths, hits = [], []
    for hidden in ([], [0], [1], [0, 1]):
        seen = X.copy()
        seen[:, hidden] = np.nan
        found = fitted.predict_interval(seen, base=base)
        widths.append(float(np.log(found[:, 2] / found[:, 0]).mean()))
        hits.append(coverage(y, found))
    full, *one, both = widths
    assert full < min(one) <= max(one) < both
    assert hits[0] < 0.9
    assert min(hits) > 0.7  # whichever is absent; never narrower than with less absent
    assert max(hits) < 0.97


def test_it_learns_from_families_left_out() -> None:
    """A feature that only names the family is of no use for a new one: the intervals say so."""
    random = np.random.default_rng(0)
    family = np.repeat(np.arange(20), 10)
    off = random.normal(0, 0.5, 20)[family]
    X = np.c_[family.astype(float), random.uniform(size=200)]
    base = random.uniform(1, 100, 200)
    y = base * np.exp(off)
    known = quick(least=5).fit(X, y, base=base)
    new = quick(least=5).fit(X, y, family, base=base)

    def width(model: LogResidual) -> float:
        found = model.predict_interval(X, base=base)
        return float(np.log(found[:, 2] / found[:, 0]).mean())

    assert width(new) > 3 * width(known)
    assert (
        np.abs(np.log(new.out_of_fold_ / y)).mean()
        > 3 * np.abs(np.log(known.out_of_fold_ / y)).mean()
    )


@pytest.mark.parametrize(
    "options",
    [{}, {"optional": [[0], [1, 2]]}, {"forest": 5}],
    ids=["plain", "optional", "forest"],
)
def test_arrays_bring_it_back(options: dict[str, Any]) -> None:
    X, base, y = jobs(100)
    before = quick(iterations=15, folds=2, **options).fit(X, y, base=base)
    arrays = before.to_arrays()
    assert all(array.dtype != object for array in arrays.values())
    after = LogResidual.from_arrays(arrays)
    if options.get("optional"):
        X[:50, [1, 2]] = np.nan
        X[25:75, 0] = np.nan
    assert np.array_equal(
        before.predict_interval(X, base=base), after.predict_interval(X, base=base)
    )
    assert np.array_equal(before.predict(X, base=base), after.predict(X, base=base))


def test_the_same_seed_gives_the_same_model() -> None:
    X, base, y = jobs(100)
    one, two = (
        quick(iterations=15, folds=2, optional=[[0]]).fit(X, y, base=base).predict(X, base=base)
        for _ in range(2)
    )
    assert np.array_equal(one, two)


def test_what_mattered_is_named(fitted: LogResidual) -> None:
    row, typical = np.array([0.9, 0.2, 0.9, 0.9]), np.array([0.1, 0.2, 0.1, 0.1])
    found = fitted.mattered(row, typical, ["first", "second", "third", "fourth"])
    name, factor = next(iter(found.items()))
    assert name == "first"
    assert factor == pytest.approx(2.0, rel=0.15)
    assert "second" not in found  # it is as in the typical job


def test_the_contract() -> None:
    X, base, y = jobs(40)
    model = quick(optional=[[0], [1, 2]], forest=3)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    with pytest.raises(NotFitted, match="LogResidual is not fitted"):
        copy.predict(X, base=base)
    with pytest.raises(UserError, match="1 families cannot be split"):
        quick().fit(X, y, np.zeros(40), base=base)
