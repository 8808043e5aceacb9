"""Frozen trees give what scikit-learn gives, fast, and without it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.ensemble import (
    ExtraTreesRegressor,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LinearRegression

from presage.learn.trees import TreeEnsemble
from presage.model.errors import UserError
from tests.counting import opcodes

Floats = npt.NDArray[np.float64]


def table(rows: int, seed: int = 0) -> tuple[Floats, Floats]:
    """Features of very different size, some of them rounded so that they repeat."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 6)) * np.array([1, 1e6, 1e-3, 10, 1, 1e9])
    X[:, 3] = np.round(X[:, 3])
    y = np.exp(X[:, 0]) + X[:, 1] / 1e6 * X[:, 3] + rng.normal(size=rows)
    return X, y


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomForestRegressor(20, random_state=0),
        lambda: RandomForestRegressor(5, max_depth=3, min_samples_leaf=4, random_state=0),
        lambda: ExtraTreesRegressor(20, random_state=0),
        lambda: GradientBoostingRegressor(n_estimators=30, subsample=0.7, random_state=0),
        lambda: GradientBoostingRegressor(n_estimators=3, init="zero", random_state=0),
        lambda: GradientBoostingRegressor(n_estimators=9, loss="quantile", random_state=0),
        lambda: HistGradientBoostingRegressor(max_iter=40, random_state=0),
        lambda: HistGradientBoostingRegressor(loss="absolute_error", max_iter=20),
        lambda: HistGradientBoostingRegressor(max_iter=20, monotonic_cst=[1, 0, 0, 0, 0, 0]),
    ],
)
def test_regressors_are_the_same(make: Callable[[], Any]) -> None:
    X, y = table(400)
    model = make().fit(X, y)
    fresh = np.concatenate([X, table(400, 1)[0]])
    assert TreeEnsemble.from_sklearn(model).predict(fresh) == pytest.approx(
        model.predict(fresh), rel=1e-9, abs=1e-12
    )


def test_rows_end_in_the_same_leaves() -> None:
    """Two rows share a leaf of a tree where they do in scikit-learn, which numbers otherwise; also
    of a model with several outputs."""
    X, y = table(200)
    model = ExtraTreesRegressor(10, min_samples_leaf=5, random_state=0)
    model.fit(X, np.column_stack([y, X[:, 0]]))
    ours, theirs = TreeEnsemble.from_sklearn(model).leaves(X), model.apply(X).T
    assert ours.shape == (10, 200)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mine[:, None] == mine, other[:, None] == other)
    with pytest.raises(UserError, match="rows of 6 features"):
        TreeEnsemble.from_sklearn(model).leaves(X[:, :5])


def test_log_link_is_the_same() -> None:
    X, y = table(300)
    model = HistGradientBoostingRegressor(loss="poisson", max_iter=20).fit(X, np.abs(y))
    assert TreeEnsemble.from_sklearn(model).predict(X) == pytest.approx(model.predict(X), rel=1e-9)


@pytest.mark.parametrize("kind", [RandomForestClassifier, HistGradientBoostingClassifier])
@pytest.mark.parametrize("classes", [2, 3])
def test_classifiers_give_probabilities(kind: Any, classes: int) -> None:
    X, y = table(300)
    label = np.digitize(y, np.quantile(y, np.linspace(0, 1, classes + 1)[1:-1]))
    model = kind(random_state=0).fit(X, label)
    expected = model.predict_proba(X)
    found = TreeEnsemble.from_sklearn(model).predict(X)
    assert found == pytest.approx(expected[:, 1] if classes == 2 else expected, rel=1e-9)


def test_missing_values_go_where_scikit_learn_sends_them() -> None:
    X, y = table(600)
    rng = np.random.default_rng(2)
    X[rng.random(X.shape) < 0.2] = np.nan
    boosting = HistGradientBoostingRegressor(max_iter=40, random_state=0).fit(X, y)
    forest = RandomForestRegressor(10, random_state=0).fit(X, y)
    for model in (boosting, forest):
        found = TreeEnsemble.from_sklearn(model).predict(X)
        assert found == pytest.approx(model.predict(X), rel=1e-9)


def test_a_forest_sees_features_rounded_to_32_bits() -> None:
    """Two values that differ only beyond 32 bits are one value to a forest."""
    X = np.array([[1.0], [1.0 + 1e-12], [2.0], [2.0 + 1e-12]])
    model = RandomForestRegressor(3, bootstrap=False).fit(X, [0, 0, 1, 1])
    middle = float(model.estimators_[0].tree_.threshold[0])
    near = np.array([[np.nextafter(middle, 9)], [middle], [middle + 1e-6]])
    assert TreeEnsemble.from_sklearn(model).predict(near) == pytest.approx(model.predict(near))


def test_arrays_bring_it_back() -> None:
    X, y = table(200)
    model = HistGradientBoostingRegressor(max_iter=10).fit(X, y)
    before = TreeEnsemble.from_sklearn(model)
    after = TreeEnsemble.from_arrays(before.to_arrays())
    assert np.array_equal(before.predict(X), after.predict(X))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("left", lambda left: left * 0),  # a walk that never ends
        ("left", lambda left: left + 10_000),
        ("feature", lambda feature: feature + 6),
        ("roots", lambda roots: roots[:0]),
        ("value", lambda value: value[:-1]),
        ("threshold", lambda threshold: threshold[:-1]),
        ("settings", lambda settings: settings[:-1]),
        ("link", lambda link: np.array("cubic")),
    ],
)
def test_contradictory_arrays_are_refused(name: str, change: Callable[[Any], Any]) -> None:
    X, y = table(200)
    arrays = TreeEnsemble.from_sklearn(RandomForestRegressor(2).fit(X, y)).to_arrays()
    arrays[name] = change(arrays[name])
    with pytest.raises(UserError, match="hold no tree ensemble"):
        TreeEnsemble.from_arrays(arrays)


def test_wrong_input_is_one_clear_line() -> None:
    X, y = table(50)
    ensemble = TreeEnsemble.from_sklearn(RandomForestRegressor(2).fit(X, y))
    with pytest.raises(UserError, match="rows of 6 features; got shape"):
        ensemble.predict(X[:, :4])
    with pytest.raises(UserError, match="LinearRegression cannot be turned"):
        TreeEnsemble.from_sklearn(LinearRegression())
    assert ensemble.predict(np.empty((0, 6))).shape == (0,)


def test_fast_enough_to_ask_while_scheduling() -> None:
    """A loop over levels and blocks of rows, not over trees or rows."""
    X, y = table(1000)
    model = HistGradientBoostingRegressor(max_iter=100, early_stopping=False).fit(X, y)
    ensemble = TreeEnsemble.from_sklearn(model)
    one, many = (opcodes(partial(ensemble.predict, X[:rows])) for rows in (1, 1000))
    assert one < 5000
    assert many < 10 * one


def test_prediction_needs_no_scikit_learn() -> None:
    code = (
        "import sys; import presage.learn.trees, presage.learn.conformal,"
        " presage.learn.bundle; sys.exit('sklearn' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
