"""Forecasts: probabilities that add up, that follow what happened, and beat simple answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from presage.observe.phases import PhaseModel
from presage.observe.phases.forecast import ForecastKind, SemiMarkov, macro_f1
from presage.observe.phases.mlp import MLP
from presage.observe.phases.paths import Path, age_bin
from tests.observe.phases._made import FEATURES, pod, pods


@pytest.fixture(scope="module")
def model() -> PhaseModel:
    return PhaseModel.fit(pods(40), features=FEATURES, k=3)


def test_a_path_knows_what_followed() -> None:
    path, places = Path.of_pods(np.array([0, 0, 1, 1, 1, 2, 2]), np.array([0, 5, 7]), 3)
    assert path.phases.tolist() == [-1, 0, 0, 1, 1, 1, -1, 2, 2, -1]
    assert places.tolist() == [1, 2, 3, 4, 5, 7, 8]
    assert path.ages[places].tolist() == [1, 2, 1, 2, 3, 1, 2]
    assert path.previous[places].tolist() == [-1, -1, 0, 0, 0, -1, -1]
    seen = path.outcomes(places, 2)
    assert seen.places.tolist() == [1, 2, 3]
    assert seen.at.tolist() == [1, 1, 1]
    assert seen.share.tolist() == [[0.5, 0.5, 0], [0, 1, 0], [0, 1, 0]]
    assert seen.visit.tolist() == [[1, 1, 0], [0, 1, 0], [0, 1, 0]]
    assert seen.change.tolist() == [1, 1, 0]
    after, left = path.following
    assert after[places].tolist() == [1, 1, -1, -1, -1, -1, -1]
    assert left[places].tolist() == [1, 0, 2, 1, 0, 1, 0]


def test_counts_know_the_time_in_a_phase_and_the_phase_before() -> None:
    cycle = [0] * 4 + [1] * 2 + [0] * 4 + [2] * 2  # where 0 leads depends on what was before it
    counts = SemiMarkov(Path(np.array(cycle * 200), 3))
    table = counts.table(1)
    states = counts.states(np.array([0, 0, 0]), np.array([2, 4, 4]), np.array([1, 1, 2]))
    at = table[states, :3]
    assert at[0, 0] > 0.9
    assert at[1, 2] > 0.9
    assert at[2, 1] > 0.9
    following, wait = counts.following()
    assert following[states[0], 2] > 0.9
    assert wait[states[0]] == pytest.approx(3, abs=0.2)
    assert age_bin(np.array([1, 2, 5, 1000])).tolist() == [0, 1, 3, 9]


@pytest.mark.parametrize("kind", ["semi-markov", "mlp"])
def test_probabilities_are_probabilities(model: PhaseModel, kind: ForecastKind) -> None:
    assert model.forecaster is not None
    series, _ = pod("unseen", 99)
    model = replace(model, forecaster=replace(model.forecaster, choice=kind))
    forecast = model.forecast(series, 60)
    assert forecast.horizon_s == 60
    known = ~np.isnan(forecast.change)
    assert known.tolist() == [False] * 3 + [True] * (len(series) - 3)
    for part in (forecast.at, forecast.share, forecast.next):
        np.testing.assert_allclose(part[known].sum(axis=1), 1, atol=1e-9)
    for part in (forecast.at, forecast.visit, forecast.change):
        assert ((part[known] >= 0) & (part[known] <= 1)).all()
    phases = model.predict(series)
    assert (forecast.next[known, phases[known]] == 0).all()
    assert (forecast.wait_s[known] > 0).all()


def test_the_forecast_beats_stays_where_phases_have_a_rhythm(model: PhaseModel) -> None:
    unseen = [pod(f"u{seed}", seed)[0] for seed in range(100, 120)]
    rows = 8
    happened, named, stayed, probability = [], [], [], []
    for series, forecast in zip(unseen, model.forecast_many(unseen, rows * 15), strict=True):
        phases = model.predict(series)
        happened.append(phases[3 + rows :])
        stayed.append(phases[3:-rows])
        named.append(forecast.phase[3:-rows])
        probability.append(forecast.at[3:-rows])
    truth = np.concatenate(happened)
    score = macro_f1(truth, np.concatenate(named))
    assert score > macro_f1(truth, np.concatenate(stayed)) + 0.2
    sure = np.concatenate(probability)
    at_truth = sure[np.arange(len(truth)), truth]
    assert -np.log(at_truth).mean() < np.log(3)
    right = (sure.argmax(axis=1) == truth).mean()
    assert abs(right - sure.max(axis=1).mean()) < 0.1


def test_longer_horizons_bring_more_change(model: PhaseModel) -> None:
    series, _ = pod("unseen", 99)
    changes = [np.nanmean(model.forecast(series, 15 * rows).change) for rows in (1, 4, 16)]
    assert changes == sorted(changes)
    assert model.forecast(series, 1e6).at.shape == (len(series), 3)


def test_the_better_one_of_both_answers(model: PhaseModel) -> None:
    assert model.forecaster is not None
    losses = model.forecaster.losses
    assert losses[model.forecaster.choice] == min(losses.values())


def test_macro_f1_is_that_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(0)
    truth, named = random.integers(4, size=(2, 500))
    expected = metrics.f1_score(truth, named, average="macro")
    assert macro_f1(truth, named) == pytest.approx(expected)


def test_a_perceptron_learns_what_is_not_linear() -> None:
    random = np.random.default_rng(0)
    rows = random.uniform(-1, 1, (2000, 2)).astype(np.float32)
    apart = (rows[:, 0] * rows[:, 1] > 0).astype(np.int64)
    targets = np.column_stack([np.eye(2)[apart], apart]).astype(np.float32)
    network = MLP(2, 16, [("softmax", 2), ("sigmoid", 1)], seed=0)
    network.train(
        (rows[at : at + 100], targets[at : at + 100]) for at in [*range(0, 2000, 100)] * 60
    )
    softmax, sigmoid = network.split(network.logits(rows))
    assert (softmax.argmax(axis=1) == apart).mean() > 0.95
    assert ((sigmoid[:, 0] > 0) == apart).mean() > 0.95
