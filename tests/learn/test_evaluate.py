"""Measures agree with hand-made numbers; splits do not leak."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.learn.evaluate import (
    coverage,
    f1,
    family_of,
    family_out,
    grouped_folds,
    mae,
    mape,
    random_split,
    rmsle,
    rmsle1p,
)
from presage.model.errors import UserError


def test_measures() -> None:
    assert rmsle([1.0, 2.0], [np.e, 2.0]) == pytest.approx(np.sqrt(0.5))
    assert rmsle1p([0.0], [np.e - 1]) == pytest.approx(1.0)
    assert mape([10.0, 20.0], [11.0, 16.0]) == pytest.approx(0.15)
    assert mae([1.0, 2.0], [2.0, 2.0]) == pytest.approx(0.5)
    assert f1([True, True, False, False], [True, False, True, False]) == pytest.approx(0.5)
    assert f1([False], [False]) == 0.0
    assert coverage([1.0, 5.0], [[0, 1, 2], [0, 1, 2]]) == pytest.approx(0.5)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(UserError, match="cannot compare shapes"):
        rmsle([1.0], [1.0, 2.0])
    with pytest.raises(UserError, match="as many intervals"):
        coverage([1.0], [1.0])
    with pytest.raises(UserError, match="between 0 and 1"):
        random_split(10, 1.5, 0)
    with pytest.raises(UserError, match="2 families cannot be split into 3"):
        grouped_folds(["a", "b"], 3, 0)


def test_random_split_is_seeded_and_complete() -> None:
    train, test = random_split(100, 0.2, 7)
    assert (train.size, test.size) == (80, 20)
    assert sorted([*train, *test]) == list(range(100))
    assert np.array_equal(test, random_split(100, 0.2, 7)[1])
    assert not np.array_equal(test, random_split(100, 0.2, 8)[1])


@given(st.lists(st.integers(0, 12), min_size=5, max_size=80), st.integers(2, 4), st.integers(0, 9))
def test_no_family_on_both_sides(groups: list[int], k: int, seed: int) -> None:
    if len(set(groups)) < k:
        return
    seen = []
    for train, test in family_out(groups, k, seed):
        families = np.asarray(groups)
        assert not set(families[train]) & set(families[test])
        assert test.size
        assert train.size + test.size == len(groups)
        seen += list(test)
    assert sorted(seen) == list(range(len(groups)))


def test_folds_have_similar_sizes_and_depend_on_the_seed() -> None:
    groups = np.repeat(np.arange(40), np.random.default_rng(0).integers(1, 30, 40))
    sizes = np.bincount(grouped_folds(groups, 5, 0))
    assert np.ptp(sizes) <= 30
    assert not np.array_equal(grouped_folds(groups, 5, 0), grouped_folds(groups, 5, 1))


@pytest.mark.parametrize(
    ("name", "family"),
    [("resnet50d", "resnet"), ("vit_base_patch16", "vit"), ("xception", "xception")],
)
def test_family_of_a_timm_model(name: str, family: str) -> None:
    assert family_of(name) == family
