"""Utilization foreseen: the step model behaves like a step, and the estimator beats baselines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
from sklearn.base import clone

from presage.foresee import utilization
from presage.foresee._workloads import read_layers
from presage.foresee.gpus import find
from presage.foresee.utilization import (
    FEATURES,
    Features,
    InputPipeline,
    LayerClass,
    TrainingProfile,
    UtilizationEstimator,
    families_of,
    features_of,
    read_profiles,
    usable_rows,
    utilization_of,
)
from presage.learn.bundle import save_bundle
from presage.learn.evaluate import coverage, family_out, rmsle1p
from presage.model.errors import UserError

A100 = find("a100")


def network(
    batch: float = 32, width: int = 64, depth: int = 4, **changes: object
) -> TrainingProfile:
    """A plain stack of convolutions on 32 × 32 pixels."""
    out = np.full(depth, width * 1024.0)
    params = np.full(depth, 9.0 * width * width)
    kinds = np.full(depth, LayerClass.CONV, dtype=np.intp)
    given = {"gpu": A100, "pipeline": InputPipeline.IMAGES, **changes}
    return TrainingProfile(batch, 3072, kinds, 1024 * params, out, params, **given)  # type: ignore[arg-type]


def drawn(n: int, seed: int = 0) -> tuple[Features, npt.NDArray[np.float64]]:
    """Networks of all sizes with a utilization that follows their work, and noise."""
    rng = np.random.default_rng(seed)
    jobs = [
        network(int(rng.integers(1, 128)), int(rng.integers(4, 128)), int(rng.integers(2, 12)))
        for _ in range(n)
    ]
    X = Features.of(jobs)
    work = X.total(X.layers[:, 1]) * X.rows[:, 0]
    busy = work / 1e13 + 2e-4
    return X, np.clip(95 * busy / (busy + 2e-3) * rng.normal(1, 0.03, n), 0, 100)


@pytest.fixture(scope="module")
def fitted() -> UtilizationEstimator:
    X, y = drawn(150)
    return UtilizationEstimator(trees=20).fit(X, y)


def test_learns_what_it_was_shown(fitted: UtilizationEstimator) -> None:
    X, y = drawn(100, seed=1)
    constant = np.full(100, np.expm1(np.log1p(y).mean()))
    assert rmsle1p(y, fitted.predict(X)) < 0.3 * rmsle1p(y, constant)


def test_intervals_are_ordered_and_in_range(fitted: UtilizationEstimator) -> None:
    X, y = drawn(200, seed=2)
    interval = fitted.predict_interval(X)
    assert interval.shape == (200, 3)
    assert np.all(np.diff(interval, axis=1) >= 0)
    assert interval.min() >= 0
    assert interval.max() <= 100
    assert np.array_equal(interval[:, 1], fitted.predict(X))
    assert 0.7 <= coverage(y, interval) <= 0.9


def test_a_larger_batch_and_a_slower_gpu_mean_more_utilization(
    fitted: UtilizationEstimator,
) -> None:
    small, large = fitted.base(Features.of([network(batch=1), network(batch=100)]))
    assert large > small
    fast, slow = fitted.base(Features.of([network(), network(gpu=find("k80"))]))
    assert slow > fast


def test_a_stranger_gets_the_step_model_and_a_wide_interval(fitted: UtilizationEstimator) -> None:
    known = network()
    strange = TrainingProfile.from_totals(32, 3072, 1e13, 1e10, 1e12, (0, 5000, 0, 0), A100)
    X = Features.of([known, strange])
    base, moved = np.expm1(fitted.base(X)), fitted.predict(X)
    assert abs(moved[1] - base[1]) < 0.1
    _, correction, difficulty = fitted._parts(X)
    assert abs(correction[1]) < 1e-3 < abs(correction[0])
    assert difficulty[0] == 1
    assert difficulty[1] > 2.9


def test_says_what_mattered(fitted: UtilizationEstimator) -> None:
    (told,) = fitted.explain(Features.of([network(batch=120, width=120)]))
    assert set(told) == {"step model", *FEATURES}
    assert 0 < told["step model"] <= 100
    assert any(abs(told[name]) > 0 for name in FEATURES)
    assert told["half precision"] == 0  # never varied, so it cannot have mattered


def test_a_bundle_brings_it_back(fitted: UtilizationEstimator, tmp_path: Path) -> None:
    keys = ("name", "version", "date", "data", "licence", "features", "splits", "errors")
    save_bundle(tmp_path / "u.npz", fitted.to_arrays(), dict.fromkeys(keys, "x"))
    again = UtilizationEstimator.from_bundle(tmp_path / "u.npz")
    X, _ = drawn(20, seed=3)
    assert np.array_equal(again.predict_interval(X), fitted.predict_interval(X))
    arrays = fitted.to_arrays()
    arrays["constants"] = arrays["constants"][:-1]
    with pytest.raises(UserError, match="of this version"):
        UtilizationEstimator.from_arrays(arrays)
    with pytest.raises(UserError, match="holds no utilization estimator"):
        UtilizationEstimator.from_arrays({})


def test_scikit_learn_can_clone_it(fitted: UtilizationEstimator) -> None:
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    with pytest.raises(UserError, match="not fitted"):
        copy.predict(drawn(2)[0])


def test_rows_are_chosen_with_their_layers() -> None:
    jobs = [network(depth=depth) for depth in (1, 2, 3)]
    X = Features.of(jobs)
    for index in ([2, 0], np.array([True, False, True]), slice(1, None), 1):
        chosen = np.atleast_1d(np.arange(3)[index])
        part = X[index]
        assert part.total(np.ones(part.owner.size)).tolist() == [n + 1 for n in chosen]
    joined = Features.joined([X, X[[1]]])
    assert joined.total(np.ones(joined.owner.size)).tolist() == [1, 2, 3, 2]


def test_wrong_input_is_one_clear_line() -> None:
    X, y = drawn(30)
    with pytest.raises(UserError, match="one utilization for each"):
        UtilizationEstimator().fit(X, y[:-1])
    with pytest.raises(UserError, match="in percent, 0 to 100"):
        UtilizationEstimator().fit(X, y + 100)
    with pytest.raises(UserError, match="workload 1: the batch is 1 or more"):
        Features.of([network(), network(batch=0)])
    with pytest.raises(UserError, match="workload 0: MACs"):
        Features.of([network(width=-1, depth=3)])
    with pytest.raises(UserError, match="at least one layer"):
        TrainingProfile.from_totals(1, 1, 1, 1, 1, (0, 0, 0, 0), A100)
    with pytest.raises(UserError, match="neither GPUMemNet"):
        features_of(pl.DataFrame({"a": [1]}))
    with pytest.raises(UserError, match="no facts about the model 'x'"):
        features_of(pl.DataFrame({"model": ["x"], "batch": [1]}))


def test_layers_are_read_and_never_run() -> None:
    assert read_layers("[('conv2d', 10, 2), ('ReLU', 10, 0)]") == [
        ("conv2d", 10, 2),
        ("ReLU", 10, 0),
    ]
    for text in ("", "[]", "[('a', 1, 2)", "[('a', -1, 2)]", "[__import__('os')]", "[" * 10_000):
        with pytest.raises(UserError, match="is no list of"):
            read_layers(text)


def test_work_of_a_listed_network_is_that_of_its_shapes() -> None:
    """conv 3 × 3, 1 → 128 on 16 × 16 pixels has 1,280 parameters; then a linear layer."""
    table = pl.DataFrame(
        {
            "Activations-Params": [
                "[('conv2d', 32768, 1280), ('batchnorm2d', 32768, 256), ('GELU', 32768, 0),"
                " ('conv2d', 4096, 73792), ('linear', 10, 650)]"
            ],
            "Batch Size": [8],
            "cfg_input_size": [16],
            "cfg_input_channels": [1],
            "Avg GPUTL": [50.0],
            "util_valid": [True],
        }
    )
    X = features_of(table)
    assert X.layers[:, 1].tolist() == [256 * 1280, 0, 0, 256 * 73792, 650]
    assert X.layers[:, 0].tolist() == [
        LayerClass.CONV,
        LayerClass.OTHER,
        LayerClass.ACTIVATION,
        LayerClass.CONV,
        LayerClass.LINEAR,
    ]
    assert X.rows[0, :3].tolist() == [8, 256, InputPipeline.IMAGES]


def test_measured_columns_are_no_features(shared_data: Path) -> None:
    for name in ("gpumemnet_cnn_a100", "lucid_single_rtx3090", "miso_util_a100"):
        table = usable_rows(pl.read_parquet(shared_data / "profiles" / f"{name}.parquet")).head(30)
        measured = [
            column
            for column in table.columns
            if column.startswith(("Avg ", "Max ", "util_", "memory", "power", "speed", "gmem"))
            or column in ("gpu_util", "label", "Status")
        ]
        assert measured
        before, after = features_of(table), features_of(table.drop(measured))
        assert np.array_equal(before.rows, after.rows)
        assert np.array_equal(before.layers, after.layers)


def test_convolutions_of_unseen_families(shared_data: Path) -> None:
    X, y, families = read_profiles(shared_data, ("gpumemnet_cnn_a100",))
    train, test = next(family_out(families, 5, 0))
    fitted = UtilizationEstimator(trees=20, folds=4).fit(X[train], y[train], families[train])
    assert rmsle1p(y[test], fitted.predict(X[test])) < 0.09
    assert 0.7 <= coverage(y[test], fitted.predict_interval(X[test])) <= 0.9


def test_convolutions_tell_of_perceptrons(shared_data: Path) -> None:
    """No MLP is in the training set, and the features of the two do not overlap."""
    X, y, families = read_profiles(shared_data, ("gpumemnet_cnn_a100",))
    fitted = UtilizationEstimator(trees=10, folds=2).fit(X, y, families)
    table = pl.read_parquet(shared_data / "profiles" / "gpumemnet_mlp_a100.parquet")
    table = usable_rows(table).sample(800, seed=0)
    actual = utilization_of(table)
    constant = np.full(actual.size, np.expm1(np.log1p(actual).mean()))
    error = rmsle1p(actual, fitted.predict(features_of(table)))
    assert error <= 0.30
    assert error < rmsle1p(actual, constant)


def test_constants_are_found_from_another_start(
    shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pl.read_parquet(shared_data / "profiles" / "gpumemnet_mlp_a100.parquet")
    table = usable_rows(table).sample(1500, seed=0)
    X, y = features_of(table), utilization_of(table)
    monkeypatch.setitem(utilization._CONSTANTS, "vector_s", 4e-6)
    constants = utilization._fit_constants(X, y, pull=0.05)
    assert rmsle1p(y, utilization._step(constants, X)[0]) < 0.2


def test_families(shared_data: Path) -> None:
    table = pl.read_parquet(shared_data / "profiles" / "lucid_single_rtx3090.parquet")
    assert {"resnet", "bert", "mobilenet", "td"} <= set(families_of(table))
    table = pl.read_parquet(shared_data / "profiles" / "gpumemnet_cnn_a100.parquet")
    assert "cnn/residual/ReLU" in set(families_of(table))
