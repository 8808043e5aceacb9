"""The peers of the CRBM: change points where they are, a hidden Markov model that fits."""

from __future__ import annotations

import numpy as np
import pytest

from presage.model.errors import BundleError
from presage.observe.phases.peers import (
    ChangePointEncoder,
    HmmEncoder,
    WindowEncoder,
    change_points,
)


def cut_run(seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    level = np.repeat([0.0, 3.0, 1.0], [20, 7, 33])
    return np.stack([level, -level], axis=1) + random.normal(0, 0.2, (60, 2))


def test_change_points_are_found_where_they_are() -> None:
    assert change_points(cut_run(), penalty=1.0) == [20, 27]
    assert change_points(cut_run(), penalty=1e6) == []
    assert change_points(np.zeros((10, 1)), penalty=1.0) == []


def test_change_points_cost_least_of_all_cuts() -> None:
    run = np.random.default_rng(1).normal(size=(9, 1)).cumsum(axis=0)
    penalty = 0.8

    def cost(cuts: list[int]) -> float:
        parts = np.split(run, cuts)
        return sum(float(((p - p.mean(axis=0)) ** 2).sum()) for p in parts) + penalty * len(cuts)

    every = [[at + 1 for at in range(8) if mask >> at & 1] for mask in range(1 << 8)]
    assert cost(change_points(run, penalty)) == pytest.approx(min(cost(cuts) for cuts in every))


def test_a_window_is_cut_where_it_changes() -> None:
    encoder, means = ChangePointEncoder.fit([cut_run()])
    assert means.shape == (60, 2)
    windows = np.array([[[0.0, 0], [0, 0], [5, 5], [5, 5]], [[1.0, 1], [1, 1], [1, 1], [1, 1.1]]])
    expected = np.array([[5.0, 5.0], [1.0, 1.025]])
    np.testing.assert_allclose(ChangePointEncoder(1.0).encode(windows), expected)
    again = ChangePointEncoder.from_arrays(encoder.to_arrays())
    assert again.penalty == encoder.penalty
    with pytest.raises(BundleError):
        ChangePointEncoder.from_arrays({})


def test_a_hidden_markov_model_finds_its_states_and_moves() -> None:
    random = np.random.default_rng(0)
    moves = np.array([[0.95, 0.05], [0.2, 0.8]])
    runs, truth = [], []
    for _ in range(40):
        state, path = 0, []
        for _ in range(100):
            path.append(state)
            state = int(random.random() < moves[state, 1])
        truth.append(np.array(path))
        runs.append(np.where(truth[-1][:, None] == 1, 2.0, 0.0) + random.normal(0, 1, (100, 2)))
    model = HmmEncoder.fit(runs, 2, seed=0)
    order = np.argsort(model.means[:, 0])
    np.testing.assert_allclose(model.means[order], [[0, 0], [2, 2]], atol=0.15)
    np.testing.assert_allclose(model.moves[order][:, order], moves, atol=0.04)
    np.testing.assert_allclose(model.variances, 1, atol=0.15)
    windows = np.stack([run[at : at + 4] for run in runs for at in range(50)])
    states = np.concatenate([path[3:53] for path in truth])
    found = model.encode(windows)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    assert (order[found.argmax(axis=1)] == states).mean() > 0.93
    assert (order[found.argmax(axis=1)] == states).mean() > (
        (windows[:, -1].mean(axis=1) > 1) == states
    ).mean()
    far = np.full((1, 4, 2), 50.0)
    assert model.surprise(far)[0] > model.surprise(windows).max()


def test_damaged_models_are_refused() -> None:
    arrays = HmmEncoder.fit([cut_run()], 2, seed=0).to_arrays()
    assert HmmEncoder.from_arrays(arrays).means.shape == (2, 2)
    for name in arrays:
        with pytest.raises(BundleError):
            HmmEncoder.from_arrays({**arrays, name: arrays[name][:1]})
        with pytest.raises(BundleError):
            HmmEncoder.from_arrays({key: part for key, part in arrays.items() if key != name})


def test_a_window_as_it_is() -> None:
    windows = np.arange(24.0).reshape(2, 4, 3)
    assert WindowEncoder().encode(windows).shape == (2, 12)
    assert WindowEncoder().surprise(windows).tolist() == [9.0, 9.0]
