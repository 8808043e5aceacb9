"""Step time: a roofline that moves with the GPU, a learned factor, gaps that are filled."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
from sklearn.base import clone

from presage.foresee import steptime_totals
from presage.foresee.gpus import Gpu, find
from presage.foresee.graph import precomputed, zoo
from presage.foresee.graph.opgraph import KINDS, OpGraph
from presage.foresee.steptime import (
    TOTALS,
    Operators,
    StepTimeEstimator,
    Totals,
    TotalsStepTimeEstimator,
    class_factors,
    step_feature_names,
    step_features,
    totals,
    totals_features,
)
from presage.learn.evaluate import coverage, mape, rmsle
from presage.model.errors import NotFitted, UserError
from tests.counting import opcodes

Floats = npt.NDArray[np.float64]
LAUNCH_MS = 0.004


def graph_of(name: str) -> OpGraph:
    found = precomputed.read(zoo.find(name), optimizer="sgd", precision="amp", inference=False)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def ops() -> Operators:
    return Operators.of(graph_of("resnet18"))


def base(ops: Operators, batch: float, gpu: Gpu, precision: str = "amp") -> float:
    return float(step_features(ops, batch, gpu, precision)[0])


def times(gpu: Gpu, compute: float = 1, bandwidth: float = 1) -> Gpu:
    """A GPU that is so many times as fast."""
    assert gpu.fp16_tflops is not None
    return replace(
        gpu,
        fp16_tflops=gpu.fp16_tflops * compute,
        fp32_tflops=gpu.fp32_tflops * compute,
        bandwidth_gbs=gpu.bandwidth_gbs * bandwidth,
        watts=None if gpu.watts is None else gpu.watts * compute,
    )


# -- operators


def test_like_operators_are_counted(ops: Operators) -> None:
    graph = graph_of("resnet18")
    assert ops.count.sum() == sum(name != "_to_copy" for name in graph.operators)
    assert len(ops.count) < ops.count.sum() < len(graph)
    assert (ops.macs * ops.count[:, None]).sum(axis=0) == pytest.approx(graph.macs.sum(axis=0))
    again = Operators.from_rows(ops.rows(), ops.params)
    assert np.array_equal(again.rows(), ops.rows())
    assert ops.params == graph.params


# -- features


def test_every_feature_has_a_name(ops: Operators) -> None:
    names = step_feature_names()
    assert len(set(names)) == len(names)
    for batch in (1, 64):
        row = step_features(ops, batch, find("v100"))
        assert row.shape == (len(names),)
        assert np.isfinite(row).all()
    found = dict(zip(names, row, strict=True))
    shares = [v for k, v in found.items() if k.endswith(" time")]
    assert sum(shares) == pytest.approx(1)
    assert found["forward depthwise 3 time"] == 0 < found["forward conv plain time"]


def test_the_roofline_of_one_product_by_hand() -> None:
    gpu = times(find("v100"))
    row = np.zeros((1, 14))
    row[0, 0] = KINDS.index("linear")
    row[0, 3], row[0, 6], row[0, 9] = 1e9, 1e6, 2e6  # macs, read, written for each sample
    row[0, 11:] = [1000, 0, 3]  # channels, side, count
    one = Operators.from_rows(row, 1e6)
    compute_ms = 2 * 1e9 * 16 / (gpu.tflops("fp16") * 1e12) * 1e3
    traffic_ms = 3e6 * 16 * 2 / (gpu.bandwidth_gbs * 1e9) * 1e3
    assert base(one, 16, gpu) == pytest.approx(3 * max(compute_ms, traffic_ms))
    assert base(one, 16, times(gpu, compute=1e6)) == pytest.approx(3 * traffic_ms)
    assert base(one, 1, times(gpu, 1e9, 1e9)) == pytest.approx(3 * LAUNCH_MS)
    exact_ms = 2 * 1e9 * 16 / (gpu.fp32_tflops * 1e12) * 1e3
    assert base(one, 16, gpu, "fp32") == pytest.approx(3 * exact_ms)


@pytest.mark.parametrize("name", ["v100", "a100-40g", "rtx3090"])
def test_the_base_goes_with_the_gpu(ops: Operators, name: str) -> None:
    gpu, many = find(name), 1 << 14
    once = base(ops, many, gpu)
    assert base(ops, many, times(gpu, 2, 2)) == pytest.approx(once / 2, rel=1e-3)
    # One of the two alone helps, but less.
    for half in (times(gpu, compute=2), times(gpu, bandwidth=2)):
        assert once / 2 < base(ops, many, half) < once
    # No GPU is faster than its launches.
    assert base(ops, 1, times(gpu, 1e9, 1e9)) == pytest.approx(ops.count.sum() * LAUNCH_MS)


def test_shares_do_not_move_with_a_faster_gpu(ops: Operators) -> None:
    """Twice as fast in everything is the same picture at half the time."""
    names = step_feature_names()
    one = step_features(ops, 1 << 14, find("v100"))
    two = step_features(ops, 1 << 14, times(find("v100"), 2, 2))
    shares = [i for i, n in enumerate(names) if n.endswith((" time", " arithmetic", " traffic"))]
    assert two[shares] == pytest.approx(one[shares], abs=1e-3)


def test_a_board_with_little_power_does_not_reach_its_peak(ops: Operators) -> None:
    gpu, many = find("a100-40g"), 1 << 14
    once = base(ops, many, gpu)
    assert base(ops, many, replace(gpu, watts=None)) == once  # 400 W are enough for 312
    weak = base(ops, many, replace(gpu, watts=100))  # 90 TFLOP/s
    assert once < weak == base(ops, many, replace(gpu, fp16_tflops=90.0))
    assert base(ops, many, gpu, "fp32") == base(ops, many, replace(gpu, watts=100), "fp32")


def test_depthwise_convolutions_do_not_use_tensor_cores() -> None:
    gpu = find("v100")
    row = np.zeros((1, 14))
    row[0, 0] = KINDS.index("depthwise")
    row[0, 3], row[0, 6], row[0, 9] = 1e9, 1e6, 1e6
    row[0, 11:] = [64, 56, 1]
    one = Operators.from_rows(row, 1e3)
    assert base(one, 16, gpu) == pytest.approx(2e9 * 16 / (0.1 * gpu.fp32_tflops * 1e12) * 1e3)


# -- learned from graphs


def test_the_factor_of_each_class_is_recovered() -> None:
    random = np.random.default_rng(0)
    shares = random.dirichlet(np.full(6, 0.5), 300)
    truth = np.array([0.2, 0.4, 0.6, 0.8, 1.2, 2.0])
    noise = random.normal(0, 0.02, 300)
    noise[:6] = 3.0  # a few that went wrong do not spoil it
    found = class_factors(shares, np.log(shares @ np.exp(truth)) + noise)
    assert found == pytest.approx(truth, abs=0.1)
    # A class that never occurs keeps the usual factor.
    absent = class_factors(np.c_[shares, np.zeros(300)], np.log(shares @ np.exp(truth)))
    assert absent[-1] == pytest.approx(0.6)


@pytest.fixture(scope="module")
def rows() -> Floats:
    """Three models at seven batches on two GPUs, in both layouts."""
    found = []
    for name in ("resnet18", "mobilenetv2", "vgg11"):
        of = Operators.of(graph_of(name))
        for gpu in (find("v100"), find("t4")):
            for power in range(7):
                row = step_features(of, 2**power, gpu)
                found += [[*row, 0.0], [*row, 1.0]]
    return np.array(found)


@pytest.fixture(scope="module")
def fitted(rows: Floats) -> StepTimeEstimator:
    factor = np.where(rows[:, -1] > 0, 2.0, 3.0)
    return StepTimeEstimator(iterations=100, forest=3, folds=2).fit(rows, factor * rows[:, 0])


def test_a_factor_for_each_layout_is_recovered(fitted: StepTimeEstimator, rows: Floats) -> None:
    found = fitted.predict_interval(rows)
    assert found[::2, 1] == pytest.approx(3 * rows[::2, 0], rel=1e-6)
    assert found[1::2, 1] == pytest.approx(2 * rows[1::2, 0], rel=1e-6)
    assert (np.diff(found, axis=1) >= 0).all()
    assert fitted.out_of_fold_ == pytest.approx(fitted.predict(rows), rel=1e-6)


def test_a_gpu_nobody_measured(fitted: StepTimeEstimator, ops: Operators) -> None:
    row = step_features(ops, 256, times(find("v100"), 7, 5))
    found = fitted.predict(np.array([[*row, 0.0]]))
    assert found == pytest.approx(3 * row[:1], rel=1e-6)


@pytest.fixture(scope="module")
def of_one_layout(rows: Floats) -> tuple[StepTimeEstimator, Floats]:
    """Four times as slow as the roofline where launches decide, and the rows it learned from."""
    only = rows[rows[:, -1] == 0]
    bound = only[:, step_feature_names().index("launches time")]
    truth = only[:, 0] * np.where(bound > 0.3, 4.0, 1.0)
    return StepTimeEstimator(iterations=150, forest=0, folds=2).fit(only, truth), only


def test_a_layout_nobody_measured_gets_the_other(
    of_one_layout: tuple[StepTimeEstimator, Floats],
) -> None:
    model, only = of_one_layout
    other = only.copy()
    other[:, -1] = 1
    assert np.array_equal(model.predict(other), model.predict(only))


def test_what_is_learned_is_explained(of_one_layout: tuple[StepTimeEstimator, Floats]) -> None:
    model, only = of_one_layout
    bound = only[:, step_feature_names().index("launches time")]
    slow, fast = only[bound.argmax()], only[bound.argmin()]
    factor = model.predict(np.array([slow, fast])) / [slow[0], fast[0]]
    assert factor == pytest.approx([4, 1], rel=0.2)
    assert np.median(bound) < 0.3  # the typical job is fast
    found = model.explain(slow)
    assert 0 < len(found) <= 5
    assert set(found) <= set(step_feature_names()[1:])
    assert max(found.values()) > 1.1


def test_arrays_bring_it_back(fitted: StepTimeEstimator, rows: Floats) -> None:
    again = StepTimeEstimator.from_arrays(fitted.to_arrays())
    assert np.array_equal(again.predict_interval(rows), fitted.predict_interval(rows))
    assert again.explain(rows[0]) == fitted.explain(rows[0])


# -- learned from totals


def table(count: int, seed: int = 0) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    macts = 10 ** random.uniform(0.3, 2, count)
    return pl.DataFrame(
        {
            "gmacs": macts * 10 ** random.uniform(-1.5, -0.3, count),
            "macts": macts,
            "param_count": 10 ** random.uniform(0.3, 2, count),
            "img_size": random.choice([192, 224, 288], count),
            "batch_size": 2 ** random.integers(0, 9, count),
            "device": random.choice(["rtx3090", "rtx4090", "v100"], count),
            "layout": random.choice(["nchw", "nhwc"], count),
        }
    )


def measured(jobs: Totals, seed: int = 0) -> Floats:
    """Three times the roofline, and less where there is much work for each activation."""
    _, roof = totals_features(jobs.rows)
    noise = np.exp(np.random.default_rng(seed).normal(0, 0.05, len(jobs)))
    heavy = jobs.rows[:, 0] / jobs.rows[:, 1] > 0.12
    return np.asarray(roof * np.where(heavy, 2.0, 3.0) * noise)


@pytest.fixture(scope="module")
def by_totals() -> TotalsStepTimeEstimator:
    rows = totals(table(300))
    return TotalsStepTimeEstimator(iterations=40, folds=3).fit(rows, measured(rows))


def test_the_roofline_of_totals_by_hand() -> None:
    gpu = find("v100")
    row = totals(
        pl.DataFrame(
            {
                "gmacs": [4.0],
                "macts": [11.0],
                "param_count": [25.0],
                "batch_size": [32],
                "device": ["v100"],
            }
        )
    )
    compute = 2 * 4e9 * 32 / (gpu.tflops("fp16") * 1e12) * 1e3
    traffic = (11e6 * 32 * 6 + 25e6 * 2) / (gpu.bandwidth_gbs * 1e9) * 1e3
    assert totals_features(row.rows)[1] == pytest.approx([compute + traffic])


def test_totals_are_foreseen(by_totals: TotalsStepTimeEstimator) -> None:
    rows = totals(table(300, seed=1))
    truth = measured(rows, seed=1)
    found = by_totals.predict_interval(rows)
    assert (np.diff(found, axis=1) >= 0).all()
    assert mape(truth, found[:, 1]) < 0.12
    assert 0.65 < coverage(truth, found) < 0.95


@pytest.mark.parametrize(
    "absent", [["gmacs"], ["macts"], ["param_count", "img_size"], ["gmacs", "param_count"]]
)
def test_columns_may_be_missing(by_totals: TotalsStepTimeEstimator, absent: list[str]) -> None:
    whole = table(200, seed=2)
    full = by_totals.predict_interval(totals(whole))
    found = by_totals.predict_interval(totals(whole.drop(absent)))
    assert np.isfinite(found).all()
    assert (np.diff(found, axis=1) >= 0).all()
    assert mape(full[:, 1], found[:, 1]) < 3  # of the right size still

    def width(interval: Floats) -> float:
        return float(np.log(interval[:, 2] / interval[:, 0]).mean())

    assert width(found) >= width(full)


def test_a_gap_in_one_row_is_its_own_affair(by_totals: TotalsStepTimeEstimator) -> None:
    whole = table(6, seed=3)
    some = whole.with_columns(
        gmacs=pl.when(pl.int_range(pl.len()) < 2).then(None).otherwise(pl.col("gmacs"))
    )
    one, other = (by_totals.predict(totals(t)) for t in (whole, some))
    assert np.array_equal(one[2:], other[2:])
    assert (one[:2] != other[:2]).all()


def test_a_faster_device_takes_less(by_totals: TotalsStepTimeEstimator) -> None:
    whole = table(50, seed=4)
    slow, fast = (
        totals_features(totals(whole.with_columns(device=pl.lit(name))).rows)[1]
        for name in ("t4", "a100-40g")
    )
    assert (fast < slow).all()
    cpu = totals(whole.with_columns(device=pl.lit("i9-10940x"), dtype=pl.lit("fp32")))
    assert (totals_features(cpu.rows)[1] > slow).all()
    assert np.isfinite(by_totals.predict(cpu)).all()


def test_rows_are_not_looped_over_in_python() -> None:
    rows = totals(table(120))
    model = TotalsStepTimeEstimator(folds=2).fit(rows, measured(rows))
    few, many = (totals(table(n, seed=5)) for n in (100, 2000))
    assert model.predict_interval(many).shape == (2000, 3)
    work = [opcodes(partial(model.predict_interval, jobs)) for jobs in (few, many)]
    assert work[1] <= work[0] + 20 * 2000  # what a name costs is paid by row


def test_arrays_bring_totals_back(by_totals: TotalsStepTimeEstimator) -> None:
    again = TotalsStepTimeEstimator.from_arrays(by_totals.to_arrays())
    rows = totals(table(30, seed=6).drop("macts"))
    assert np.array_equal(again.predict_interval(rows), by_totals.predict_interval(rows))


FAMILIES = ("resnet", "regnetx", "regnety", "wideresnet", "vit", "deit", "beit", "davit")


def named(count: int, seed: int = 0, families: tuple[str, ...] = FAMILIES) -> pl.DataFrame:
    chosen = np.random.default_rng(seed + 100).choice(families, count)
    return table(count, seed).with_columns(
        model=pl.Series([f"{family}_{n % 90:03}" for n, family in enumerate(chosen)])
    )


def slow_attention(jobs: Totals, seed: int = 0) -> Floats:
    """What no total tells: attention takes twice as long."""
    attends = np.array(["it" in name for name in jobs.names])
    return measured(jobs, seed) * np.where(attends, 2.0, 1.0)


def without(jobs: Totals, family: str) -> npt.NDArray[np.bool_]:
    return np.array([not name.startswith(family) for name in jobs.names])


@pytest.fixture(scope="module")
def by_name() -> TotalsStepTimeEstimator:
    """Has never seen a `davit` nor a `regnety`."""
    jobs = totals(named(300))
    jobs = jobs[without(jobs, "davit") & without(jobs, "regnety")]
    families = np.array([name.split("_")[0] for name in jobs.names])
    return TotalsStepTimeEstimator(iterations=40, folds=3).fit(
        jobs, slow_attention(jobs), families
    )


@pytest.mark.parametrize("family", ["davit", "regnety"])
def test_relatives_tell_of_a_family_that_nobody_has_seen(
    by_name: TotalsStepTimeEstimator, family: str
) -> None:
    whole = named(100, seed=1, families=(family,))
    truth = slow_attention(totals(whole), seed=1)
    known, nameless = (by_name.predict_interval(totals(t)) for t in (whole, whole.drop("model")))
    assert mape(truth, known[:, 1]) < 0.8 * mape(truth, nameless[:, 1])
    assert (np.diff(known, axis=1) >= 0).all()
    assert np.all(known[:, 2] / known[:, 0] < nameless[:, 2] / nameless[:, 0])


def test_a_recipe_after_the_dot_is_not_part_of_a_name() -> None:
    jobs = totals(table(2).with_columns(model=pl.Series(["vit_base.augreg_in1k", None])))
    assert jobs.names.tolist() == ["vit_base", ""]


def test_relatives_need_a_name_and_all_totals(by_name: TotalsStepTimeEstimator) -> None:
    whole = named(4, seed=2)
    lacking = whole.with_columns(
        model=pl.when(pl.int_range(pl.len()) == 0).then(None).otherwise(pl.col("model")),
        macts=pl.when(pl.int_range(pl.len()) == 1).then(None).otherwise(pl.col("macts")),
    )
    full, found = (by_name.predict_interval(totals(t)) for t in (whole, lacking))
    trees = by_name.predict_interval(totals(lacking.drop("model")))
    assert np.array_equal(found[:2], trees[:2])
    assert np.array_equal(trees, by_name.predict_interval(totals(lacking).rows))
    assert found[2:] == pytest.approx(full[2:])
    assert not np.any(np.isclose(full, trees))


def test_arrays_bring_relatives_back(by_name: TotalsStepTimeEstimator) -> None:
    again = TotalsStepTimeEstimator.from_arrays(by_name.to_arrays())
    jobs = totals(named(30, seed=6))
    assert np.array_equal(again.predict_interval(jobs), by_name.predict_interval(jobs))


def test_a_model_is_off_on_a_new_gpu_as_it_was_on_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more rows than relatives are learned from, of several GPUs."""
    monkeypatch.setattr(steptime_totals, "_MOST", 200)
    model = np.arange(600) % 30
    jobs = Totals(totals(table(600)).rows, np.array([f"net{n}" for n in model]))
    own = np.exp(0.5 * np.sin(model))  # nothing else tells it
    truth = measured(jobs) * own
    new = jobs.rows[:, 6] == find("v100").bandwidth_gbs * 1e9
    fitted = TotalsStepTimeEstimator(iterations=40, folds=3).fit(jobs[~new], truth[~new])
    assert fitted.relatives_ is None
    found = fitted.predict_interval(jobs[new])
    nameless = fitted.predict_interval(Totals(jobs.rows[new], np.full(new.sum(), "")))
    assert rmsle(truth[new], found[:, 1]) < 0.8 * rmsle(truth[new], nameless[:, 1])
    assert coverage(truth[new], found) > 0.7
    again = TotalsStepTimeEstimator.from_arrays(fitted.to_arrays())
    assert np.array_equal(again.predict_interval(jobs), fitted.predict_interval(jobs))


def test_many_strangers_are_as_much_work_each_as_few() -> None:
    """Each with a name of its own; linear in their number."""
    jobs = totals(named(300))
    model = TotalsStepTimeEstimator(iterations=20, folds=2).fit(jobs, measured(jobs), jobs.names)

    def strangers(count: int) -> Totals:
        name = "efficientvit_" + pl.int_range(pl.len()).cast(pl.String) + "_patch16"
        return totals(table(count, seed=5).with_columns(model=name))

    few, many = strangers(100), strangers(1000)
    assert np.isfinite(model.predict_interval(many)).all()
    work = [opcodes(partial(model.predict_interval, jobs)) for jobs in (few, many)]
    assert work[1] <= 12 * work[0]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"gmacs": [1.0]}, "needs the column batch_size"),
        ({"batch_size": [8], "color": ["red"]}, "no usable columns for step_time"),
        ({"batch_size": [8], "gmacs": [1.0], "device": ["rtx9999x"]}, "unknown GPU 'rtx9999x'"),
    ],
)
def test_a_useless_table_is_refused(columns: dict[str, list[object]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        totals(pl.DataFrame(columns))


@pytest.mark.parametrize("kind", [StepTimeEstimator, TotalsStepTimeEstimator])
def test_scikit_learn_can_clone_it(
    kind: type[StepTimeEstimator] | type[TotalsStepTimeEstimator],
) -> None:
    copy = clone(kind(folds=4, seed=7))
    assert copy.get_params() == kind(folds=4, seed=7).get_params()
    with pytest.raises(NotFitted, match="is not fitted"):
        copy.predict(np.ones((1, len(TOTALS) + 7)))
