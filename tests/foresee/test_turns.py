"""Jobs that take turns on a GPU: what the benchmark on Gavel's pairs goes by for a new model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks._turns import (
    Alone,
    Turns,
    TurnsEstimator,
    foreseen_turns,
    turns_of,
    turns_row,
)
from presage.foresee.gpus import find
from presage.foresee.graph.load import load_graph
from presage.foresee.interference import Pairs, read_gavel
from presage.foresee.predict import predict_graph
from presage.learn import Floats
from presage.learn.evaluate import coverage, mae

GPU = find("v100")


def test_what_decides_who_waits() -> None:
    starved = Alone(kernel_ms=0.1, gpu_share=0.05, host_share=0.8)
    four = Alone(kernel_ms=2.0, gpu_share=0.6, host_share=0.25, processes=4)
    own, other, wants, host = turns_row(starved, four, GPU)
    assert np.exp([own, other]) == pytest.approx(np.array([0.1, 2.0]) * GPU.bandwidth_gbs)
    assert np.exp(wants) == pytest.approx(0.6 * 0.05 / (1 - 0.8) * 2)
    assert host == pytest.approx(0.8 * 0.25)
    assert np.exp(turns_row(four, starved, GPU)[2]) == pytest.approx(0.3 * 0.6 / 0.75 / 2)


@pytest.fixture(scope="module")
def gavel(shared_data: Path) -> tuple[Pairs, Floats]:
    """All pairs that could share a GPU, and their turns."""
    pairs = read_gavel(shared_data)
    able = pairs.take(~pairs.cannot)
    return able, turns_of(shared_data, able)


Known = tuple[TurnsEstimator, tuple[Pairs, Floats], tuple[Pairs, Floats]]


@pytest.fixture(scope="module")
def without_lm(gavel: tuple[Pairs, Floats]) -> Known:
    """Fitted without one model; the rows without it, and those with it."""
    able, turns = gavel
    unseen = np.any(able.models == "LM", axis=1)
    train, test = ((able.take(rows), turns[rows]) for rows in (~unseen, unseen))
    return TurnsEstimator(trees=30).fit(*train), train, test


def test_speeds_beside_each_model_that_was_left_out(gavel: tuple[Pairs, Floats]) -> None:
    able, turns = gavel
    errors = []
    for name in np.unique(able.models):
        test = np.any(able.models == name, axis=1)
        fitted = Turns.fit(able.take(~test), turns[~test])
        errors.append(np.abs(fitted.predict(able.take(test), turns[test]) - able.speed[test]))
    assert np.concatenate(errors).mean() <= 0.09


def test_games_keep_the_host_busy(gavel: tuple[Pairs, Floats]) -> None:
    """Two of A3C wait for each other's host for the square of what the GPU leaves, and want the
    GPU for all of the rest."""
    able, turns = gavel
    *_, wants, host = turns[np.all(able.models == "A3C", axis=1)].T
    np.testing.assert_allclose(host, (1 - np.exp(wants)) ** 2, atol=1e-12)
    assert np.all(host[np.argsort(wants)[:2]] > 0.1)


def test_turns_from_graphs(gavel: tuple[Pairs, Floats]) -> None:
    able, _ = gavel
    twins = able.take(np.all(able.configurations == "ResNet-50 (batch size 32)", axis=1))
    assert len(twins.speed) == 3, "one on each GPU"
    graph = load_graph("zoo:resnet50")
    for gpu, (own, other, wants, host) in zip(
        ("k80", "p100", "v100"), foreseen_turns(twins), strict=True
    ):
        (told,) = predict_graph(graph, 32, [find(gpu)]).gpus.values()
        length = told.step_ms.p50 / len(graph) * find(gpu).bandwidth_gbs
        assert np.exp([own, other]) == pytest.approx(length)
        assert np.exp(wants) == pytest.approx((told.gpu_util_pct.p50 / 100) ** 2)
        assert host == 0


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
