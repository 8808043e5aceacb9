"""Jobs that take turns on a GPU: what the benchmark on Gavel's pairs goes by for a new model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks._turns import Alone, TurnsEstimator, turns_of, turns_row
from presage.foresee.gpus import find
from presage.foresee.interference import Pairs, read_gavel
from presage.learn import Floats
from presage.learn.evaluate import coverage, mae

GPU = find("v100")


def test_what_decides_who_waits() -> None:
    starved = Alone(kernel_ms=0.1, gpu_share=0.05, host_share=0.8)
    four = Alone(kernel_ms=2.0, gpu_share=0.9, host_share=0.25, processes=4)
    own, other, wants, host = turns_row(starved, four, GPU)
    assert np.exp([own, other]) == pytest.approx(np.array([0.1, 2.0]) * GPU.bandwidth_gbs)
    assert np.exp(wants) == pytest.approx(0.9 * 2)
    assert host == pytest.approx(0.8 * 0.25)
    assert np.exp(turns_row(four, starved, GPU)[2]) == pytest.approx(0.3 / 2)


Known = tuple[TurnsEstimator, tuple[Pairs, Floats], tuple[Pairs, Floats]]


@pytest.fixture(scope="module")
def without_lm(shared_data: Path) -> Known:
    """Fitted without one model; the rows without it, and those with it."""
    gavel = read_gavel(shared_data)
    able = gavel.take(~gavel.cannot)
    turns = turns_of(shared_data, able)
    unseen = np.any(able.models == "LM", axis=1)
    train, test = ((able.take(rows), turns[rows]) for rows in (~unseen, unseen))
    return TurnsEstimator(trees=30).fit(*train), train, test


def test_turns_foresee_a_model_that_trees_cannot(without_lm: Known) -> None:
    fitted, train, (test, turns) = without_lm
    interval = fitted.predict_interval(test, turns)
    trees = fitted.of_met_.predict(test.X)
    assert mae(test.speed, interval[:, 1]) < 0.75 * mae(test.speed, trees)
    assert mae(test.speed, interval[:, 1]) <= 0.09
    assert coverage(test.speed, interval) >= 0.75
    assert np.all(np.diff(interval, axis=1) >= 0)
    met = fitted.predict_interval(*train)
    np.testing.assert_array_equal(met, fitted.of_met_.predict_interval(train[0].X))


@pytest.mark.parametrize(("column", "faster"), [(0, True), (1, False), (2, False), (3, False)])
def test_turns_go_the_way_they_must(without_lm: Known, column: int, faster: bool) -> None:
    """Own long kernels help; long kernels of the other, its wish for the GPU and for the host
    cost."""
    fitted, _, (test, turns) = without_lm
    more = turns.copy()
    more[:, column] += 0.2
    change = fitted.turns_.predict(test, more) - fitted.turns_.predict(test, turns)
    assert np.all(change >= 0) if faster else np.all(change <= 0)
    assert np.abs(change).mean() > 0.002
