"""The contract of an estimator: parameters in, parameters out, clone-safe."""

from __future__ import annotations

import sys

import pytest
from sklearn.base import clone

from presage.learn import Estimator, sklearn_ensemble
from presage.model.errors import MissingExtra, NotFitted, UserError


class Sample(Estimator):
    def __init__(self, trees: int = 3, seed: int = 0) -> None:
        self.trees = trees
        self.seed = seed


def test_parameters() -> None:
    sample = Sample(trees=5)
    assert sample.get_params() == {"trees": 5, "seed": 0}
    assert sample.set_params(seed=2) is sample
    assert sample.seed == 2
    assert repr(sample) == "Sample(trees=5, seed=2)"
    with pytest.raises(UserError, match="no parameter 'tree'; there are: trees, seed"):
        sample.set_params(tree=1)


def test_scikit_learn_can_clone_it() -> None:
    sample = Sample(trees=7)
    copy = clone(sample)
    assert copy is not sample
    assert copy.get_params() == sample.get_params()


def test_not_fitted_is_said() -> None:
    with pytest.raises(NotFitted, match="Sample is not fitted"):
        Sample()._check_fitted("trees_")


def test_a_missing_scikit_learn_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    with pytest.raises(MissingExtra, match=r"fitting a sample.*presage\[learn\]"):
        sklearn_ensemble("fitting a sample")
