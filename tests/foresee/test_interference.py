"""Speed beside others: symmetric where it must be, sure where it can be, better than baselines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.isotonic import IsotonicRegression

from presage.foresee._colocation import limit_row, row
from presage.foresee.gpus import find
from presage.foresee.interference import (
    FEATURES,
    InterferenceEstimator,
    JobAlone,
    MemoryLimit,
    Pairs,
    fit_shipped,
    over_capacity,
    read_gavel,
    read_lucid,
)
from presage.learn.bundle import save_bundle
from presage.learn.evaluate import coverage, f1, family_out, mae
from presage.model.errors import UserError

GPU = find("rtx3090")
LIGHT = JobAlone(util_pct=12, mem_util_pct=1, memory_mib=2000, step_ms=5)
HEAVY = JobAlone(util_pct=98, mem_util_pct=70, memory_mib=9000, step_ms=100)


@pytest.fixture(scope="module")
def lucid(shared_data: Path) -> Pairs:
    return read_lucid(shared_data)


@pytest.fixture(scope="module")
def gavel(shared_data: Path) -> Pairs:
    return read_gavel(shared_data)


@pytest.fixture(scope="module")
def fitted(lucid: Pairs) -> InterferenceEstimator:
    return InterferenceEstimator(trees=30).fit(lucid.X, lucid.speed, lucid.models)


def by_pair(pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
    return next(family_out(pairs.pair, 5, 0))


def test_features_of_a_pair() -> None:
    told = dict(zip(FEATURES, row(LIGHT, HEAVY, GPU), strict=True))
    assert told["own utilization"] == pytest.approx(0.12)
    assert told["other's utilization"] == pytest.approx(0.98)
    assert told["summed utilization"] == pytest.approx(1.10)
    assert told["difference in step time"] == pytest.approx(np.log(5 / 100))
    assert told["time sharing"] == pytest.approx(1 / (1 + 0.12 * 0.98))
    assert np.isnan(told["own batch"])


def test_a_heavy_neighbour_costs_more(fitted: InterferenceEstimator) -> None:
    beside_light = fitted.speed(HEAVY, [LIGHT], GPU)
    beside_heavy = fitted.speed(HEAVY, [HEAVY], GPU)
    assert beside_heavy.p50 < beside_light.p50
    assert beside_heavy.p10 <= beside_heavy.p50 <= beside_heavy.p90
    assert fitted.speed(HEAVY, [], GPU).p50 == 1.0


def test_several_others_add_up(fitted: InterferenceEstimator) -> None:
    one = fitted.speed(HEAVY, [HEAVY], GPU)
    two = fitted.speed(HEAVY, [HEAVY, HEAVY], GPU)
    assert 1 / two.p50 - 1 == pytest.approx(2 * (1 / one.p50 - 1))
    assert two.p10 <= two.p50 <= two.p90
    mixed = fitted.speed(HEAVY, [LIGHT, HEAVY], GPU)
    assert mixed == fitted.speed(HEAVY, [HEAVY, LIGHT], GPU)
    assert two.p50 <= mixed.p50 <= one.p50


def test_on_a_gpu_where_no_pair_was_measured_only_what_exceeds_it_costs(
    fitted: InterferenceEstimator,
) -> None:
    new = find("h100")
    one = fitted.speed(HEAVY, [LIGHT], new)
    assert one.source == "over capacity"
    assert one.p50 == pytest.approx(1 / (1 + 0.65 * 0.10))
    assert one.p10 < one.p50 < one.p90
    two = fitted.speed(HEAVY, [LIGHT, HEAVY], new)
    assert two.p50 == pytest.approx(1 / (1 + 0.65 * 1.08))
    assert fitted.speed(LIGHT, [LIGHT], new).p50 == 1.0
    kept = InterferenceEstimator.from_arrays(fitted.to_arrays())
    assert kept.speed(HEAVY, [LIGHT], new) == one
    assert kept.speed(HEAVY, [LIGHT], GPU).source == "interference"


def test_pairs_of_unknown_jobs_get_the_constant_and_all_that_may_be() -> None:
    low, middle, high = over_capacity(JobAlone(), [JobAlone()])
    assert middle == pytest.approx(0.9, abs=0.02)
    assert low < 0.72
    assert high >= 1.0


def test_foreseen_utilization_widens_what_measured_utilization_narrows() -> None:
    measured = over_capacity(JobAlone(util_pct=90), [JobAlone(util_pct=80)])
    foreseen = over_capacity(
        JobAlone(util_pct=90, util_low_pct=30, util_high_pct=97),
        [JobAlone(util_pct=80, util_low_pct=20, util_high_pct=95)],
    )
    assert foreseen[2] - foreseen[0] > 1.5 * (measured[2] - measured[0])


def test_jobs_far_from_those_measured_are_left_to_capacity(
    fitted: InterferenceEstimator,
) -> None:
    far = JobAlone(util_pct=98, mem_util_pct=70, memory_mib=9000, step_ms=90_000)
    assert fitted.speed(far, [far], GPU).p50 == pytest.approx(
        over_capacity(far, [far])[1], abs=0.02
    )
    near, bound = fitted.speed(HEAVY, [HEAVY], GPU).p50, over_capacity(HEAVY, [HEAVY])[1]
    assert near != pytest.approx(bound, abs=1e-4)


def test_what_is_not_known_widens_the_estimate(fitted: InterferenceEstimator) -> None:
    known = fitted.speed(HEAVY, [HEAVY], GPU)
    less = fitted.speed(JobAlone(util_pct=98), [JobAlone(util_pct=98)], GPU)
    nothing = fitted.speed(JobAlone(), [JobAlone()], GPU)
    assert known.p90 - known.p10 < less.p90 - less.p10 < nothing.p90 - nothing.p10


def test_says_what_mattered(fitted: InterferenceEstimator) -> None:
    told = fitted.explain(HEAVY, HEAVY, GPU)
    assert set(told) <= set(FEATURES)
    sizes = [abs(change) for change in told.values()]
    assert sizes == sorted(sizes, reverse=True)
    assert any("utilization" in name or "time sharing" in name for name in list(told)[:5])


def test_scikit_learn_can_clone_it(fitted: InterferenceEstimator) -> None:
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    with pytest.raises(UserError, match="not fitted"):
        copy.speed(LIGHT, [HEAVY], GPU)


def test_wrong_input_is_one_clear_line(fitted: InterferenceEstimator) -> None:
    with pytest.raises(UserError, match="util_pct of a job is 0 or more"):
        JobAlone(util_pct=-1)
    with pytest.raises(UserError, match=f"rows have {len(FEATURES)} features"):
        fitted.predict(np.zeros((2, 3)))
    with pytest.raises(UserError, match="one speed for each"):
        InterferenceEstimator().fit(np.zeros((30, len(FEATURES))), np.zeros(29))
    with pytest.raises(UserError, match="leave out pairs that could not share"):
        InterferenceEstimator().fit(np.zeros((30, len(FEATURES))), np.zeros(30))
    with pytest.raises(UserError, match="two columns"):
        InterferenceEstimator().fit(np.zeros((30, len(FEATURES))), np.ones(30), np.zeros(30))
    with pytest.raises(UserError, match="holds no interference estimator"):
        InterferenceEstimator.from_arrays({})


def test_pairs_are_there_from_both_sides_and_shared_measurements_are_not(
    lucid: Pairs, gavel: Pairs
) -> None:
    assert len(lucid.speed) == 2 * 475
    assert len(gavel.speed) == 3 * 26 * 26
    assert np.isfinite(gavel.speed).all()
    for pairs in (lucid, gavel):
        train, test = by_pair(pairs)
        assert not set(pairs.pair[train]) & set(pairs.pair[test])
        # The same two jobs have the same features, whatever was measured while they shared.
        assert len(np.unique(pairs.X[:, :22], axis=0)) > 100


def test_better_than_a_monotone_fit_on_summed_utilization(lucid: Pairs) -> None:
    load = FEATURES.index("summed utilization")
    without = ~np.any(lucid.models == "ResNet18", axis=1)
    splits = {"pair": by_pair(lucid), "model": (np.flatnonzero(without), np.flatnonzero(~without))}
    for kind, (train, test) in splits.items():
        model = InterferenceEstimator(trees=40)
        model.fit(lucid.X[train], lucid.speed[train], lucid.models[train])
        monotone = IsotonicRegression(increasing=False, out_of_bounds="clip")
        monotone.fit(lucid.X[train, load], lucid.speed[train])
        error = mae(lucid.speed[test], model.predict(lucid.X[test]))
        assert error <= mae(lucid.speed[test], monotone.predict(lucid.X[test, load]))
        assert error <= {"pair": 0.06, "model": 0.09}[kind]


def test_pairs_of_gavel(gavel: Pairs) -> None:
    able = gavel.take(~gavel.cannot)
    train, test = by_pair(able)
    model = InterferenceEstimator(trees=40)
    model.fit(able.X[train], able.speed[train], able.models[train])
    interval = model.predict_interval(able.X[test])
    constant = np.full(test.size, np.median(able.speed[train]))
    assert mae(able.speed[test], interval[:, 1]) <= 0.06 < mae(able.speed[test], constant)
    assert coverage(able.speed[test], interval) >= 0.75


def test_pairs_that_cannot_share(gavel: Pairs) -> None:
    actual, foreseen = [], []
    for train, test in family_out(gavel.pair, 5, 0):
        limit = MemoryLimit().fit(gavel.limits[train], gavel.cannot[train])
        actual.append(gavel.cannot[test])
        foreseen.append(limit.predict(gavel.limits[test]))
    assert f1(np.concatenate(actual), np.concatenate(foreseen)) >= 0.8
    limit = MemoryLimit().fit(gavel.limits, gavel.cannot)
    k80 = find("k80")
    assert limit.cannot_share([JobAlone(memory_mib=9000)] * 2, k80) > 0.9
    assert limit.cannot_share([JobAlone(memory_mib=1000)] * 2, k80) < 0.1
    assert limit_row([JobAlone(memory_mib=1000)] * 3, k80)[0] == pytest.approx(
        3000 / k80.usable_mib
    )


def test_what_is_shipped_comes_back(shared_data: Path, tmp_path: Path) -> None:
    arrays, card = fit_shipped(shared_data, "2026-01-31", trees=10)
    assert "Lucid" not in card["data"]
    save_bundle(tmp_path / "i.npz", arrays, card)
    again = InterferenceEstimator.from_bundle(tmp_path / "i.npz")
    speed = again.speed(HEAVY, [HEAVY], find("v100"))
    assert 0 < speed.p10 <= speed.p50 <= speed.p90
