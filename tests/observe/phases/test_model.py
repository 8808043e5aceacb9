"""Phase models: what they find, the same answers online and offline, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.learn.bundle import load_bundle, save_bundle
from presage.model.errors import BundleError, TelemetryError
from presage.observe.phases import PhaseModel
from presage.observe.phases.clusters import adjusted_rand
from presage.observe.phases.model import Method
from presage.telemetry.series import Series
from tests.observe.phases._made import FEATURES, LEVELS, pod, pods

METHODS: tuple[Method, ...] = ("crbm", "hmm", "changepoints", "windows")


@pytest.fixture(scope="module")
def model() -> PhaseModel:
    return PhaseModel.fit(pods(), features=FEATURES, method="crbm")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_finds_the_behaviours(method: Method) -> None:
    model = PhaseModel.fit(pods(), features=FEATURES, k=3, method=method, forecast=False)
    assert model.method == method
    series, truth = pod("unseen", 99)
    found = model.predict(series)
    assert found[:3].tolist() == [-1] * 3
    assert (found[3:] >= 0).all()
    settled = np.ones(len(truth), dtype=bool)
    settled[:3] = False
    for lag in (1, 2, 3):  # right after a change a window is a bit of both
        settled[lag:] &= truth[lag:] == truth[:-lag]
    assert adjusted_rand(found[settled], truth[settled]) > 0.95


@pytest.mark.parametrize("method", METHODS)
def test_steps_give_the_answers_of_predict(method: Method) -> None:
    model = PhaseModel.fit(pods(), features=FEATURES, k=3, method=method, forecast=False)
    series, _ = pod("unseen", 99)
    stepper = model.stepper()
    online = [
        stepper.step("a", time, values)
        for time, values in zip(series.times, series.values, strict=True)
    ]
    assert online == model.predict(series).tolist()


def test_the_number_of_phases_is_chosen_and_the_curve_kept(model: PhaseModel) -> None:
    assert 3 <= model.n_phases <= 8  # three behaviours, and the ways between them
    assert list(model.curve) == list(range(1, 13))
    assert model.every == 15.0


def test_statistics_are_those_of_the_samples(model: PhaseModel) -> None:
    series = pods()
    phases = model.predict_many(series)
    cpu = np.concatenate([each.column("cpu") for each in series])
    label = np.concatenate(phases)
    statistics = model.statistics
    assert statistics.names == (*FEATURES, "cpu", "memory")
    for phase in range(model.n_phases):
        mine = cpu[label == phase]
        numbers = statistics.of(phase, "cpu")
        assert numbers["mean"] == pytest.approx(mine.mean())
        assert numbers["sd"] == pytest.approx(mine.std())
        assert (numbers["min"], numbers["max"]) == (mine.min(), mine.max())
        assert numbers["p95"] == pytest.approx(np.quantile(mine, 0.95))
        assert statistics.samples[phase] == len(mine)
    assert statistics.share.sum() == pytest.approx(1)
    assert (statistics.dwell_s > 0).all()
    assert statistics.dwell_s.max() <= 2 * 15 * 15.0
    assert {record["phase"] for record in statistics.to_json()} <= set(range(model.n_phases))


def irregular(seed: int, gaps: bool = True) -> Series:
    """A pod with samples at any time, missing values and gaps."""
    random = np.random.default_rng(seed)
    steps = random.choice([3.0, 10, 15, 15, 16, 31, 80 if gaps else 15, 400 if gaps else 15], 120)
    values = LEVELS[random.integers(3, size=120).repeat(6)[:120]]
    values = values + random.normal(0, 0.3, values.shape)
    values[random.random(values.shape) < 0.05] = np.nan
    values[60:66, 1] = np.nan
    return Series("a", np.cumsum(steps), values, FEATURES)


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000))
def test_gaps_and_missing_values_are_the_same_online_and_offline(seed: int) -> None:
    model = _shared_model()
    series = irregular(seed)
    offline = model.predict(series)
    stepper = model.stepper()
    for at, (time, values) in enumerate(zip(series.times, series.values, strict=True)):
        assert stepper.step("a", time, values) == offline[at]
    assert (offline < 0).any()
    assert (offline >= 0).any()


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000))
def test_forecasts_are_the_same_online_and_offline(seed: int) -> None:
    model = _shared_model()
    series = irregular(seed, gaps=seed % 2 == 0)
    offline = model.forecast(series, 60)
    stepper = model.stepper()
    for at, (time, values) in enumerate(zip(series.times, series.values, strict=True)):
        if stepper.step("a", time, values) >= 0:
            online = model.forecast_online(stepper, ["a"], 60)
            np.testing.assert_allclose(online.at[0], offline.at[at], atol=1e-9)
            assert online.phase[0] == offline.phase[at]
            assert online.wait_s[0] == pytest.approx(offline.wait_s[at])
        else:
            assert np.isnan(offline.at[at]).all()
            assert offline.phase[at] == -1


_models: list[PhaseModel] = []


def _shared_model() -> PhaseModel:
    if not _models:
        _models.append(PhaseModel.fit(pods(), features=FEATURES, seed=1))
    return _models[0]


def test_many_pods_step_together_and_a_pod_may_come_twice(model: PhaseModel) -> None:
    series = [irregular(seed) for seed in range(7)]
    expected = model.predict_many(series)
    order = np.random.default_rng(0).permutation(np.repeat(np.arange(7), 120))
    place = np.empty(len(order), dtype=np.int64)
    for each in range(7):
        place[order == each] = np.arange(120)
    stepper = model.stepper()
    for first in range(0, len(order), 50):
        which = [(int(o), int(p)) for o, p in zip(order[first:][:50], place[first:], strict=False)]
        found = stepper.step_many(
            [f"p{o}" for o, _ in which],
            np.array([series[o].times[p] for o, p in which]),
            np.array([series[o].values[p] for o, p in which]),
        )
        assert found.tolist() == [expected[o][p] for o, p in which]
    assert len(stepper) == 7
    assert 0 < stepper.bytes_per_pod < 1000


def test_a_sample_that_is_late_is_ignored_and_a_forgotten_pod_starts_anew(
    model: PhaseModel,
) -> None:
    series, _ = pod("a", 5)
    stepper = model.stepper()
    for time, values in zip(series.times[:10], series.values[:10], strict=True):
        now = stepper.step("a", time, values)
    assert now >= 0
    assert stepper.step("a", series.times[4], [99.0, 99.0, 99.0]) == now
    assert stepper.step("a", series.times[10], series.values[10]) == model.predict(series)[10]
    stepper.forget("a")
    assert len(stepper) == 0
    assert stepper.step("b", 0.0, series.values[0]) == -1
    with pytest.raises(TelemetryError, match="no phase yet"):
        stepper.situations(["b"])
    with pytest.raises(TelemetryError, match="3 features"):
        stepper.step("b", 1.0, [1.0])
    with pytest.raises(TelemetryError, match="finite time"):
        stepper.step("b", float("nan"), series.values[0])


def test_a_file_gives_a_phase_for_every_input_row(model: PhaseModel, tmp_path: Path) -> None:
    series, _ = pod("a", 3)
    lines = ["timestamp,pod," + ",".join(FEATURES)]
    for time, values in zip(series.times, series.values, strict=True):
        lines.append(f"{time},a," + ",".join(repr(float(value)) for value in values))
    path = tmp_path / "t.csv"
    path.write_text("\n".join([*lines, lines[-1]]) + "\n")
    found = model.predict(path)
    expected = model.predict(series)
    assert [each.tolist() for each in found.values()] == [[*expected, expected[-1]]]


def test_expanding_splits_one_phase_and_keeps_the_other_ids(model: PhaseModel) -> None:
    random = np.random.default_rng(0)
    new = []
    for each in pods(6):
        values = each.values.copy()
        heavy = values[:, 0] > 3
        values[heavy] += np.where(random.random(len(values)) < 0.5, 0.0, 1.5)[heavy, None]
        new.append(replace(each, values=values))
    before = np.concatenate(model.predict_many(new))
    phase = int(np.bincount(before[before >= 0]).argmax())
    larger = model.expand(new, phase)
    after = np.concatenate(larger.predict_many(new))
    assert larger.n_phases >= model.n_phases + 2
    np.testing.assert_array_equal(after[before != phase], before[before != phase])
    assert (after[before == phase] >= model.n_phases).all()
    assert len(np.unique(after[before == phase])) == larger.n_phases - model.n_phases
    old = model.statistics.of(phase, "cpu")
    assert larger.statistics.of(phase, "cpu") == old
    part = larger.statistics.of(model.n_phases, "cpu")
    assert np.isfinite(list(part.values())).all()
    largest = int(np.bincount(after[after >= 0]).argmax())
    twice = larger.expand(new, largest)
    again = np.concatenate(twice.predict_many(new))
    kept = after != largest
    np.testing.assert_array_equal(again[kept], after[kept])
    with pytest.raises(TelemetryError, match="no phase"):
        larger.expand(new, phase)
    with pytest.raises(TelemetryError, match="no phase 77"):
        model.expand(new, 77)
    with pytest.raises(TelemetryError, match="are needed to split"):
        model.expand([replace(new[0], times=new[0].times[:8], values=new[0].values[:8])], phase)


def test_drift_is_told_from_more_of_the_same(model: PhaseModel) -> None:
    same = model.drift([pod("x", 50)[0], pod("y", 51)[0]])
    assert not same.drifted
    assert "the model fits" in str(same)
    strange, _ = pod("z", 52)
    values = strange.values[:, ::-1] * 3
    other = model.drift([replace(strange, values=values)])
    assert other.drifted
    assert "fit the model again" in str(other)


def test_a_bundle_gives_back_the_model(model: PhaseModel, tmp_path: Path) -> None:
    path = tmp_path / "phases.npz"
    model.save(path, date="2026-01-01", data="made", licence="none")
    again = PhaseModel.load(path)
    series = irregular(3)
    np.testing.assert_array_equal(again.predict(series), model.predict(series))
    np.testing.assert_array_equal(again.forecast(series, 60).at, model.forecast(series, 60).at)
    assert again.curve == model.curve
    assert again.statistics.names == model.statistics.names
    np.testing.assert_array_equal(again.statistics.quantiles, model.statistics.quantiles)
    assert again.drift([series]) == model.drift([series])
    assert [each.pod for each in again.training] == sorted(each.pod for each in pods())
    kept, given = again.training[0], pods(1)[0]
    np.testing.assert_allclose(kept.values, given.matrix(kept.features), rtol=1e-6)
    np.testing.assert_array_equal(kept.times, given.times)
    assert kept.resources == given.resources
    assert kept.units == given.units


@pytest.mark.parametrize("method", METHODS)
def test_every_method_survives_its_bundle(method: Method, tmp_path: Path) -> None:
    model = PhaseModel.fit(pods(4), features=FEATURES, method=method, k=3, forecast=False)
    model.save(tmp_path / "b.npz")
    again = PhaseModel.load(tmp_path / "b.npz")
    assert again.forecaster is None
    np.testing.assert_array_equal(again.predict(irregular(1)), model.predict(irregular(1)))
    with pytest.raises(TelemetryError, match="without a forecast"):
        again.forecast(irregular(1), 60)


def test_at_most_so_many_samples_of_whole_pods_are_kept() -> None:
    series = pods(6)
    model = PhaseModel.fit(series, features=("cpu",), k=2, keep=150, forecast=False)
    assert 0 < sum(len(each) for each in model.training) <= 150
    lengths = {each.pod: len(each) for each in series}
    assert all(len(each) == lengths[each.pod] for each in model.training)
    assert {"cpu_cores", "mem_bytes"} == set(model.training[0].features)
    one = PhaseModel.fit(series[:1], features=("cpu",), k=2, keep=20, forecast=False)
    np.testing.assert_array_equal(one.training[0].times, series[0].times[-20:])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"card": {"version": 2}}, "version 2"),
        ({"card": {"name": "memory"}}, "no phases"),
        ({"card": {"method": "magic"}}, "damaged"),
        ({"card": {"every": -1.0}}, "the grid"),
        ({"centres": np.zeros((99, 3))}, "centres"),
        ({"scale": np.zeros(3)}, "the scaler"),
        ({"mean": np.full(3, np.nan)}, "mean"),
        ({"parents": np.array([3])}, "damaged"),
        ({"encoder.W": np.zeros((2, 2), np.float32)}, "CRBM"),
        ({"statistics.mean": np.zeros((1, 1))}, "statistics"),
        ({"forecast.path": np.array([99], np.int16)}, "forecast"),
        ({"forecast.network.layer0": np.zeros((1, 1), np.float32)}, "network"),
        ({"training.times": np.zeros(3)}, "training"),
    ],
)
def test_a_bundle_that_was_tampered_with_is_refused_in_one_line(
    model: PhaseModel, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    path = tmp_path / "phases.npz"
    model.save(path)
    arrays, card = load_bundle(path)
    changed = {name: array for name, array in change.items() if name != "card"}
    save_bundle(path, arrays | changed, card | change.get("card", {}))
    with pytest.raises(BundleError, match=says) as refused:
        PhaseModel.load(path)
    assert "\n" not in str(refused.value)


def test_telemetry_that_cannot_be_learned_from_is_refused() -> None:
    short = Series("a", np.array([0.0, 15.0]), np.ones((2, 3)), FEATURES)
    with pytest.raises(TelemetryError, match="too few"):
        PhaseModel.fit([short], features=FEATURES)
    single = Series("a", np.array([0.0]), np.ones((1, 3)), FEATURES)
    with pytest.raises(TelemetryError, match="two samples"):
        PhaseModel.fit([single], features=FEATURES)
    with pytest.raises(TelemetryError, match="no feature 'gpu'"):
        PhaseModel.fit(pods(2), features=("gpu",))
    empty = [replace(each, values=np.full_like(each.values, np.nan)) for each in pods(2)]
    with pytest.raises(TelemetryError, match="has no values"):
        PhaseModel.fit(empty, features=FEATURES)
    with pytest.raises(TelemetryError, match="no pods"):
        PhaseModel.fit([])
    with pytest.raises(TelemetryError, match="at least 1"):
        PhaseModel.fit(pods(2), history=0)


def test_a_pod_of_two_rows_has_no_phases_and_a_constant_series_has_one(model: PhaseModel) -> None:
    short = Series("a", np.array([0.0, 15.0]), np.ones((2, 3)), FEATURES)
    assert model.predict(short).tolist() == [-1, -1]
    assert np.isnan(model.forecast(short, 60).change).all()
    assert model.predict_many([]) == []
    flat = Series("a", np.arange(0, 900, 15.0), np.full((60, 3), 7.0), FEATURES)
    constant = PhaseModel.fit([flat], features=FEATURES)
    assert constant.n_phases == 1
    assert constant.predict(flat).tolist() == [-1] * 3 + [0] * 57
    forecast = constant.forecast(flat, 60)
    np.testing.assert_allclose(forecast.at[3:], 1.0)
    assert not constant.drift([flat]).drifted
