"""Intervals for a group that nobody has seen."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from presage.learn.conformal import Conformal
from presage.learn.evaluate import coverage
from presage.learn.groups import GroupConformal
from presage.model.errors import UserError

Floats = npt.NDArray[np.float64]


def rows(seed: int, count: int, spread: float) -> tuple[Floats, npt.NDArray[np.intp]]:
    """Truths around a prediction of 1; each group has an offset of its own."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(count), rng.integers(2, 60, count))
    offset = rng.normal(0, spread, count)[group]
    return np.exp(offset + rng.normal(0, 0.05, group.size)), group


@pytest.mark.parametrize("count", [8, 15, 40])
def test_holds_four_fifths_of_unseen_groups(count: int) -> None:
    held, pooled = [], []
    for seed in range(25):
        truth, group = rows(seed, count, 0.4)
        unseen, _ = rows(1000 + seed, 30, 0.4)
        fitted = GroupConformal.fit(truth, np.ones(truth.size), {"gpu": group})
        held.append(coverage(unseen, fitted.interval(np.ones(unseen.size))))
        plain = Conformal.fit(truth, np.ones(truth.size), group, balance=0.0)
        pooled.append(coverage(unseen, plain.interval(np.ones(unseen.size))))
    assert 0.75 <= np.mean(held) <= 0.88
    assert abs(np.mean(held) - 0.8) < abs(np.mean(pooled) - 0.8) + 0.05


def test_widest_of_what_is_unseen() -> None:
    rng = np.random.default_rng(0)
    gpu, family = rng.integers(0, 12, 600), rng.integers(0, 40, 600)
    truth = np.exp(0.5 * rng.normal(size=12)[gpu] + 0.1 * rng.normal(size=40)[family])
    fitted = GroupConformal.fit(truth, np.ones(600), {"gpu": gpu, "family": family})
    width = {
        name: float(np.ptp(np.log(fitted.interval(np.ones(1), unseen=[name])[0])))
        for name in ("gpu", "family")
    }
    assert min(width.values()) > 0
    everything = np.log(fitted.interval(np.ones(1))[0])
    assert np.ptp(everything) >= max(width.values()) - 1e-9
    nothing = np.log(fitted.interval(np.ones(1), unseen=[])[0])
    assert np.ptp(nothing) <= min(width.values()) + 1e-9
    wider = np.log(fitted.interval(np.ones(1), np.full(1, 2.0))[0])
    assert wider[1] == pytest.approx(everything[1])
    assert np.ptp(wider) == pytest.approx(2 * np.ptp(everything))


def test_a_prediction_for_each_way_to_group() -> None:
    truth, group = rows(3, 10, 0.3)
    near = GroupConformal.fit(
        truth, {"a": truth, "b": np.ones(truth.size)}, {"a": group, "b": group}
    )
    assert near.low["a"] > near.low["b"]
    assert near.high["a"] < near.high["b"]


def test_survives_the_disk_and_one_group() -> None:
    truth, group = rows(1, 6, 0.2)
    fitted = GroupConformal.fit(truth, np.ones(truth.size), {"gpu": group, "one": group * 0})
    again = GroupConformal.from_arrays(fitted.to_arrays())
    assert np.array_equal(again.interval([2.0, 3.0]), fitted.interval([2.0, 3.0]))
    ordered = fitted.interval(np.array([5.0]))[0]
    assert ordered[0] <= ordered[1] <= ordered[2]


def test_mistakes_are_one_line() -> None:
    with pytest.raises(UserError, match="one way to group"):
        GroupConformal.fit([1.0], [1.0], {})
    with pytest.raises(UserError, match="finite"):
        GroupConformal.fit([1.0, np.nan], [1.0, 1.0], {"gpu": [0, 1]})
    with pytest.raises(UserError, match="no intervals by group"):
        GroupConformal.from_arrays({"middle": np.array(0.0)})
