"""Scores of samples: causal, calibrated, blind to drift that lasts, and the same from a bundle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from presage.model.errors import BundleError, TelemetryError
from presage.observe.health._rates import Rates
from presage.observe.health._watch import WARM_UP
from presage.observe.health.anomalies import AnomalyModel, usual_time
from presage.telemetry.series import Floats, Series

DAY = 1440


def machine(
    seed: int, samples: int = DAY, name: str = "m", broken: tuple[int, int] = (0, 0)
) -> Series:
    """Three noisy metrics and one that never moves; `broken` lifts the second."""
    random = np.random.default_rng(seed)
    values: Floats = random.normal([10.0, 20.0, 30.0, 0.0], 1.0, (samples, 4)).astype(np.float64)
    values[:, 3] = 7.0
    values[broken[0] : broken[1], 1] += 60.0 * random.random(broken[1] - broken[0])
    return Series(name, 60.0 * np.arange(float(samples)), values, ("a", "b", "c", "still"))


@pytest.fixture(scope="module")
def model() -> AnomalyModel:
    return AnomalyModel.fit([machine(seed) for seed in range(4)])


def test_trouble_scores_above_all_that_is_well_and_its_metric_speaks_first(
    model: AnomalyModel,
) -> None:
    (judged,) = model.judge([machine(9, broken=(700, 740))])
    assert judged.score[700:740].max() > judged.score[:700].max()
    assert judged.alarm(1.0)[700:740].any()
    assert model.metrics[judged.speak[720, 0]] == "b"
    assert ((judged.score >= 0) & (judged.score <= 1)).all()


def test_a_later_sample_changes_no_earlier_score(model: AnomalyModel) -> None:
    whole = machine(9, broken=(700, 740))
    part = Series("m", whole.times[:720], whole.values[:720], whole.features)
    (all_of_it,), (some,) = model.judge([whole]), model.judge([part])
    np.testing.assert_array_equal(all_of_it.score[:720], some.score)


def test_series_side_by_side_score_as_each_alone(model: AnomalyModel) -> None:
    one, other = machine(5, 300), machine(6, 500, broken=(100, 120))
    together = model.judge([one, other])
    np.testing.assert_array_equal(together[0].score, model.judge([one])[0].score)
    np.testing.assert_array_equal(together[1].score, model.judge([other])[0].score)


def test_healthy_series_alarm_about_as_often_as_stated(model: AnomalyModel) -> None:
    alarms = 0
    for judged in model.judge([machine(seed, 4 * DAY) for seed in range(20, 28)]):
        on = judged.alarm(1.0)
        alarms += int((on[1:] & ~on[:-1]).sum())
    assert 32 * 0.1 < alarms < 32 * 4


def test_a_level_that_stays_is_no_alarm_for_ever(model: AnomalyModel) -> None:
    pod = machine(9, 12 * DAY)
    pod.values[DAY:, 1] += 8.0
    (judged,) = model.judge([pod])
    assert judged.score[DAY : DAY + 10].max() > np.median(judged.score[:DAY])
    assert judged.alarm(1.0)[-DAY:].mean() < 0.02


def test_gaps_missing_values_and_short_series(model: AnomalyModel) -> None:
    pod = machine(9)
    pod.values[100:140, 0] = np.nan
    pod.values[200:210] = np.nan
    times = pod.times.copy()
    times[400:] += 86_400.0
    gap = Series("m", times, pod.values, pod.features)
    short = machine(1, WARM_UP - 1)
    judged, none = model.judge([gap, short])
    assert np.isnan(judged.score[200:210]).all()
    assert np.isfinite(np.delete(judged.score, np.s_[200:210])).all()
    assert not judged.alarm(1.0)[400:405].any()
    assert not none.score.any()


def test_a_bundle_judges_as_the_model_that_wrote_it(model: AnomalyModel, tmp_path: Path) -> None:
    model.save(tmp_path / "b.npz", date="2026-01-01", data="made up")
    again = AnomalyModel.load(tmp_path / "b.npz")
    pod = machine(9, broken=(700, 740))
    np.testing.assert_array_equal(again.judge([pod])[0].score, model.judge([pod])[0].score)
    (tmp_path / "bad.npz").write_text("no")
    with pytest.raises(BundleError):
        AnomalyModel.load(tmp_path / "bad.npz")


def test_the_forecast_holds_what_it_says(model: AnomalyModel) -> None:
    pod = machine(30)
    expected = model.forecast(pod).quantiles[WARM_UP:, 0]
    inside = (pod.values[WARM_UP:, 0] >= expected[:, 0]) & (
        pod.values[WARM_UP:, 0] <= expected[:, -1]
    )
    assert 0.8 < inside.mean() < 0.97


def test_what_cannot_be_learned_from_or_judged_is_refused(model: AnomalyModel) -> None:
    with pytest.raises(TelemetryError, match="more than 30 samples"):
        AnomalyModel.fit([machine(0, 20)])
    stranger = Series("x", np.arange(50.0), np.zeros((50, 1)), ("other",))
    with pytest.raises(TelemetryError, match="none of the metrics"):
        model.judge([stranger])


def test_what_never_changes_says_nothing_of_what_is_usual() -> None:
    times = np.arange(100.0) * 60
    still = [Series(str(level), times, np.full((100, 1), level), ("x",)) for level in (1.0, 5.0)]
    with pytest.raises(TelemetryError, match="no metric changes"):
        AnomalyModel.fit(still)


def test_row_numbers_count_as_minutes_and_times_as_they_are() -> None:
    counted = Series("m", np.arange(50.0), np.zeros((50, 1)), ("a",))
    assert usual_time([counted]) == 60.0
    assert usual_time([machine(0, 50)]) is None
    clock = Series("m", 1.7e9 + np.arange(50.0), np.zeros((50, 1)), ("a",))
    assert usual_time([clock]) is None


def test_rates_fall_with_the_level_and_beyond_what_was_seen() -> None:
    levels = np.random.default_rng(0).normal(size=5_000)
    rates = Rates.fit([levels], 60.0)
    score = rates.score(np.linspace(levels.min(), levels.max() + 3, 200))
    assert (np.diff(score) >= 0).all()
    assert score[-1] > rates.score(np.array([levels.max()]))[0]
