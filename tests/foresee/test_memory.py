"""GPU memory: the floor is found, parts add up, and less knowledge means wider intervals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
from sklearn.base import clone

from presage.foresee import estimators
from presage.foresee.allocator import MIB, live_peak, reserved_bytes
from presage.foresee.fitting import memory_data
from presage.foresee.floors import Floor, floor_mib
from presage.foresee.gpus import Gpu, find
from presage.foresee.graph import precomputed, zoo
from presage.foresee.graph.opgraph import KINDS, InputSpec, OpGraph
from presage.foresee.known import graph_memory_rows
from presage.foresee.memory import (
    GRAPH_FEATURES,
    MemoryEstimator,
    MemoryPhysics,
    largest_batch,
    memory_features,
)
from presage.foresee.memory_table import TABLE_FEATURES, TableMemoryEstimator, table_features
from presage.learn.evaluate import coverage, family_of, grouped_folds, mape, rmsle
from presage.model.errors import NotFitted, UserError
from presage.model.setup import Setup

Floats = npt.NDArray[np.float64]
FLOOR = 600.0
QUICK = {"iterations": 120, "folds": 3}  # enough for what is made up here


A100 = find("a100-40g")
SETUP = Setup(optimizer="adam")


def measured(count: int, seed: int = 0) -> tuple[Floats, Floats]:
    """Features of made-up jobs and what they took: a floor, and somewhat more than is reserved
    with the state of Adam."""
    random = np.random.default_rng(seed)
    reserved = 10 ** random.uniform(1.5, 4.3, count)
    rows = reserved[:, None] * random.uniform(0.1, 0.6, (count, len(GRAPH_FEATURES)))
    rows[:, 0] = reserved
    rows[:, 1] = reserved * random.uniform(0.8, 1.0, count)
    rows[:, 3] = reserved * random.uniform(0.0, 0.05, count)
    rows[:, -1] = 2.0 ** random.integers(0, 9, count)
    held = reserved + 2 * rows[:, 3]
    return rows, (FLOOR + 1.1 * held) * np.exp(random.normal(0, 0.02, count))


@pytest.fixture(scope="module")
def estimator() -> MemoryEstimator:
    return MemoryEstimator(**QUICK).fit(*measured(150))


@pytest.fixture(scope="module")
def graph() -> OpGraph:
    found = precomputed.read(
        zoo.find("resnet18"), optimizer="adam", precision="fp32", inference=False
    )
    assert found is not None
    return found


# -- from a graph


def test_features_of_a_graph(graph: OpGraph) -> None:
    row = dict(zip(GRAPH_FEATURES, memory_features(graph, 16), strict=True))
    assert row["reserved"] == reserved_bytes(graph, 16) / MIB
    assert row["peak"] == live_peak(graph, 16).bytes / MIB
    assert row["weights"] == pytest.approx(graph.params * 4 / MIB)
    assert row["batch"] == 16
    assert row["lasting"] > 3 * row["weights"]  # with Adam's two values each
    assert row["largest"] <= row["largest_5"] <= row["largest_20"]
    assert row["operator"] <= row["operators_10"]
    # The first convolution: 16 x 112 x 112 windows of 3 x 7 x 7, the most of any.
    assert row["columns"] == pytest.approx(16 * 112 * 112 * 147 * 4 / MIB)
    assert row["most_depthwise"] == 0 < row["most_conv"]


def test_the_floor_is_found(estimator: MemoryEstimator) -> None:
    assert estimator.floor_ == pytest.approx(FLOOR, rel=0.03)


def test_a_floor_is_never_negative() -> None:
    rows, _ = measured(60)
    assert MemoryEstimator(**QUICK).fit(rows, 2 * (rows[:, 0] + 2 * rows[:, 3]) - 30).floor_ == 0


def test_new_jobs_are_foreseen(estimator: MemoryEstimator) -> None:
    rows, truth = measured(200, seed=1)
    found = estimator.predict_interval(rows)
    assert (np.diff(found, axis=1) >= 0).all()
    assert np.array_equal(found[:, 1], estimator.predict(rows))
    assert mape(truth, found[:, 1]) < 0.05
    assert 0.6 < coverage(truth, found) < 0.95


def test_never_less_than_the_tensors_need(estimator: MemoryEstimator) -> None:
    rows, _ = measured(20)
    rows[:, 1] = 100 * rows[:, 0]
    assert (estimator.predict_interval(rows) >= rows[:, 1:2]).all()


@pytest.mark.parametrize("setup", [SETUP, Setup(cudnn_benchmark=True), Setup(gpus=8)])
def test_parts_add_up_to_the_median(
    estimator: MemoryEstimator, graph: OpGraph, setup: Setup
) -> None:
    for batch in (1, 16, 128):
        parts = estimator.parts(graph, batch, A100, setup)
        median = estimator.quantiles(graph, batch, A100, setup)[1]
        assert sum(parts.values()) == pytest.approx(median)
        assert min(parts.values()) >= 0
        assert parts["weights"] == pytest.approx(graph.params * 4 / MIB, rel=0.01)
        assert parts["optimizer"] == pytest.approx(2 * graph.params * 4 / MIB, rel=0.01)
        assert ("communication" in parts) == (setup.gpus > 1)
    assert parts["activations"] > 100 * estimator.parts(graph, 1, A100, setup)["activations"]


def test_a_negative_term_is_taken_from_what_was_traced(graph: OpGraph) -> None:
    rows, truth = measured(150)
    modest = MemoryEstimator(**QUICK).fit(rows, np.maximum(truth * 0.6, rows[:, 1]))
    parts = modest.parts(graph, 128, A100, SETUP)
    assert min(parts.values()) >= 0
    assert sum(parts.values()) == pytest.approx(modest.quantiles(graph, 128, A100, SETUP)[1])


def test_the_floor_is_that_of_the_gpu_or_of_own_runs(
    estimator: MemoryEstimator, graph: OpGraph
) -> None:
    physics = MemoryPhysics.of(graph, 8)
    small, large = find("t4"), find("h100-80g")
    medians = [estimator.forecast(physics, gpu, SETUP).shows[1] for gpu in (small, large)]
    expected = floor_mib(large).p50 - floor_mib(small).p50
    assert medians[1] - medians[0] == pytest.approx(expected, abs=1)
    own = estimator.forecast(physics, A100, SETUP, Floor(900.0, 950.0, 1000.0))
    table = estimator.forecast(physics, A100, SETUP)
    assert own.parts["device and driver"] == 950.0
    assert np.ptp(own.shows) < np.ptp(table.shows)


def test_what_is_unlike_the_data_is_physics_alone_and_wide(
    estimator: MemoryEstimator, graph: OpGraph
) -> None:
    """A language model of many parameters gets no learned share of them."""
    text = replace(graph, inputs=(InputSpec((512,), "int64", 1000),), params=70_000_000_000)
    near, far = (estimator.forecast(MemoryPhysics.of(g, 8), A100, SETUP) for g in (graph, text))
    assert near.distance == 0
    assert far.distance > 0.5
    assert far.parts["workspace and rest"] == 0
    physics = MemoryPhysics.of(text, 8)
    assert far.shows[1] == pytest.approx(floor_mib(A100).p50 + physics.reserved)
    width = [np.log(each.shows[2] / each.shows[0]) for each in (near, far)]
    assert width[1] > width[0]
    assert "more parameters" in far.words
    assert "like the measured" in near.words


def test_distance_grows_with_every_difference(estimator: MemoryEstimator, graph: OpGraph) -> None:
    setups = [Setup(), Setup(compile=True), Setup(compile=True, gpus=8)]
    found = [estimator.domain(graph, 16, A100, setup)[0] for setup in setups]
    assert found == sorted(found)
    assert len(set(found)) == 3
    assert estimator.domain(graph, 16, find("mi300x"), Setup())[0] > 0
    assert estimator.domain(graph, 4096, A100, Setup())[0] > 0


def test_workspaces_are_tried_only_where_asked(graph: OpGraph) -> None:
    fitted = MemoryEstimator(**QUICK).fit(*tried(400))
    physics = MemoryPhysics.of(graph, 4)
    quiet = fitted.forecast(physics, A100, Setup())
    tries = fitted.forecast(physics, A100, Setup(cudnn_benchmark=True))
    assert np.array_equal(tries.needs, quiet.needs), "what is tried decides nothing"
    assert tries.shows[1] >= tries.needs[1]
    small = replace(A100, usable_mib=int(tries.needs[1] * 1.05))
    full = fitted.forecast(physics, small, Setup(cudnn_benchmark=True))
    assert full.shows[1] < small.usable_mib  # a median is never the whole card for it
    idle = fitted.forecast(physics, A100, Setup(inference=True))
    asked = fitted.forecast(physics, A100, Setup(cudnn_benchmark=True, inference=True))
    assert np.array_equal(asked.shows, idle.shows)


@pytest.mark.parametrize(
    ("model", "optimizer", "precision", "batch"),
    [("resnet50", "momentum", "fp32", 152), ("neumf-ml20m", "adam-fused", "fp32", 1_400_000)],
)
def test_trainings_that_filled_their_card_fit(
    model: str, optimizer: str, precision: str, batch: int
) -> None:
    """Published: both ran on a Quadro RTX 5000, which showed 15,962 and 15,371 of 16,045 MiB."""
    graph = precomputed.read(zoo.find(model), optimizer=optimizer, precision=precision)
    assert graph is not None
    gpu, setup = find("quadrortx5000"), Setup.make(optimizer=optimizer, cudnn_benchmark=True)
    found = estimators.memory().graph.forecast(MemoryPhysics.of(graph, batch), gpu, setup)
    assert found.needs[1] < found.shows[1] <= gpu.usable_mib
    assert found.needs[0] < gpu.usable_mib * 0.9


def test_what_mattered_has_names(estimator: MemoryEstimator, graph: OpGraph) -> None:
    found = estimator.mattered(MemoryPhysics.of(graph, 256))
    names = {*GRAPH_FEATURES, "log size", "log weights", "spare"}
    assert set(found) <= names
    assert len(found) <= 5
    assert all(factor > 0 for factor in found.values())


def test_arrays_bring_it_back(estimator: MemoryEstimator, graph: OpGraph) -> None:
    again = MemoryEstimator.from_arrays(estimator.to_arrays())
    rows, _ = measured(50, seed=3)
    assert np.array_equal(again.predict_interval(rows), estimator.predict_interval(rows))
    parts = [each.parts(graph, 8, A100, SETUP) for each in (again, estimator)]
    assert parts[0] == parts[1]


TRIED, TRIED_SUM = GRAPH_FEATURES.index("tried"), GRAPH_FEATURES.index("tried_sum")


def tried(count: int, seed: int = 0) -> tuple[Floats, Floats]:
    """Jobs that try workspaces of four times their memory; where much is tried, half of them
    show it."""
    random = np.random.default_rng([seed, 1])  # not the numbers of `measured`
    rows, truth = measured(count, seed)
    held = rows[:, 0] + 2 * rows[:, 3]
    rows[:, TRIED] = 4 * (FLOOR + held) - FLOOR - 2 * rows[:, 3]
    rows[:, TRIED_SUM] = random.uniform(0, 1e5, count)
    seen = (rows[:, TRIED_SUM] > 8e4) & (random.random(count) < 0.5)
    return rows, np.where(seen, 4 * (FLOOR + held), truth)


def test_tried_workspaces_count_by_how_often_they_are_seen() -> None:
    fitted = MemoryEstimator(**QUICK).fit(*tried(400))
    rare, often = np.interp([4e4, 9e4], *fitted.chance_)
    assert rare < 0.1
    assert often == pytest.approx(0.5, abs=0.15)
    rows, _ = tried(100, seed=1)
    without = rows.copy()
    without[:, TRIED] = 0
    found, plain = fitted.predict_interval(rows), fitted.predict_interval(without)
    lift = np.log(found[:, 1] / plain[:, 1])
    expected = np.interp(rows[:, TRIED_SUM], *fitted.chance_) * np.log(4)
    assert np.allclose(lift, expected, atol=0.05)
    assert np.array_equal(found[:, 0], plain[:, 0])  # it may as well not be seen
    assert (np.diff(found, axis=1) >= 0).all()


def test_what_an_older_release_fitted_knows_no_tried_workspaces(
    estimator: MemoryEstimator,
) -> None:
    arrays = estimator.to_arrays()
    del arrays["chance"]
    rows, _ = tried(20)
    without = rows.copy()
    without[:, TRIED] = 0
    older = MemoryEstimator.from_arrays(arrays)
    assert np.array_equal(older.predict_interval(rows), older.predict_interval(without))


@pytest.mark.soak
def test_families_never_seen(shared_data: Path) -> None:
    """The figures of `benchmarks.foresee_memory`, from graphs."""
    table, rows = graph_memory_rows(memory_data(shared_data))
    truth = table["max_gpu_mem_mib"].cast(pl.Float64).to_numpy()
    families = np.array([family_of(name) for name in table["model"]])
    place = grouped_folds(families, 10, 0)
    found = np.empty((len(truth), 3))
    for fold in range(10):
        test = place == fold
        fitted = MemoryEstimator().fit(rows[~test], truth[~test], families[~test])
        found[test] = fitted.predict_interval(rows[test])
    assert mape(truth, found[:, 1]) < 0.07
    assert rmsle(truth, found[:, 1]) < 0.14
    assert 0.75 < coverage(truth, found) < 0.85


@pytest.mark.parametrize("kind", [MemoryEstimator, TableMemoryEstimator])
def test_scikit_learn_can_clone_it(
    kind: type[MemoryEstimator] | type[TableMemoryEstimator],
) -> None:
    copy = clone(kind(seed=7))
    assert copy.get_params() == {"iterations": 300, "folds": 10, "seed": 7}
    with pytest.raises(NotFitted, match="is not fitted"):
        copy.predict(np.zeros((1, len(GRAPH_FEATURES))))


# -- the largest batch


def with_room(room: float) -> Gpu:
    return replace(A100, usable_mib=int(room))


def test_the_largest_batch(estimator: MemoryEstimator, graph: OpGraph) -> None:
    rooms = [0, 500, 2_000, 8_000, 24_000, 80_000]
    found = [largest_batch(estimator, graph, with_room(room), SETUP) for room in rooms]
    assert found == sorted(found)
    assert found[:2] == [0, 0]  # less than the floor
    assert found[-1] > found[3] > 0
    for room, batch in zip(rooms[3:], found[3:], strict=True):
        here, beyond = (
            estimator.needs(graph, b, with_room(room), SETUP)[2] for b in (batch, 1 + batch * 1.02)
        )
        assert here <= room < beyond


def test_the_largest_batch_stops_where_it_is_told(
    estimator: MemoryEstimator, graph: OpGraph
) -> None:
    assert largest_batch(estimator, graph, with_room(1e9), SETUP, most=100) == 100
    assert largest_batch(estimator, graph, with_room(1e9), SETUP, most=1) == 1


# -- from a table


def table(count: int, seed: int = 0) -> tuple[pl.DataFrame, Floats]:
    """Jobs whose memory follows the tracer's estimate, and beyond it the work per activation."""
    random = np.random.default_rng(seed)
    params = 10 ** random.uniform(0.3, 2, count)
    macts = 10 ** random.uniform(0.5, 1.8, count)
    gmacs = macts * 10 ** random.uniform(-1.3, -0.3, count)
    batch = 2.0 ** random.integers(2, 9, count)
    forward = macts * batch * 3.8 * random.uniform(0.8, 1.6, count)
    estimate = forward + 8 * params
    dense = np.where(gmacs / macts > 0.16, 1.3, 1.0)
    truth = (450 + estimate * dense) * np.exp(random.normal(0, 0.02, count))
    return pl.DataFrame(
        {
            "faketensor_est_mb": estimate,
            "faketensor_fwd_mb": forward,
            "faketensor_bwd_mb": forward * 0.3,
            "gmacs": gmacs,
            "macts": macts,
            "param_count": params,
            "img_size": random.choice([192.0, 224.0, 288.0], count),
            "batch_size": batch,
        }
    ), truth


@pytest.fixture(scope="module")
def by_table() -> TableMemoryEstimator:
    rows, truth = table(200)
    return TableMemoryEstimator(**QUICK).fit(table_features(rows), truth)


def test_fewer_columns_mean_wider_intervals(by_table: TableMemoryEstimator) -> None:
    rows, _ = table(200, seed=1)
    widths = []
    for absent in (
        [],
        ["gmacs", "macts", "img_size"],
        ["faketensor_est_mb", "faketensor_fwd_mb", "faketensor_bwd_mb"],
    ):
        found = by_table.predict_interval(table_features(rows.drop(absent)))
        assert np.isfinite(found).all()
        assert (np.diff(found, axis=1) >= 0).all()
        widths.append(float(np.log(found[:, 2] / found[:, 0]).mean()))
    assert widths == sorted(widths)
    assert widths[2] > 1.5 * widths[0]


def test_a_table_is_foreseen(by_table: TableMemoryEstimator) -> None:
    rows, truth = table(200, seed=2)
    found = by_table.predict_interval(table_features(rows))
    assert mape(truth, found[:, 1]) < 0.08
    assert 0.6 < coverage(truth, found) < 0.95


def test_rows_may_differ_in_what_is_known(by_table: TableMemoryEstimator) -> None:
    rows, _ = table(10, seed=4)
    mixed = table_features(rows)
    mixed[5:, :3] = np.nan
    found = by_table.predict_interval(mixed)
    assert np.array_equal(found[:5], by_table.predict_interval(mixed[:5]))
    assert np.array_equal(found[5:], by_table.predict_interval(mixed[5:]))


def test_arrays_bring_the_table_estimator_back(by_table: TableMemoryEstimator) -> None:
    rows = table_features(table(20, seed=5)[0])
    rows[::2, :3] = np.nan
    rows[::3, 3:5] = np.nan
    again = TableMemoryEstimator.from_arrays(by_table.to_arrays())
    assert np.array_equal(again.predict_interval(rows), by_table.predict_interval(rows))


def test_features_of_a_table() -> None:
    rows = pl.DataFrame(
        {"batch_size": [8, 16], "param_count": ["25.6", "many"], "macts": [3, None]}
    )
    found = dict(zip(TABLE_FEATURES, table_features(rows).T, strict=True))
    assert found["batch_size"].tolist() == [8, 16]
    assert found["param_count"][0] == 25.6
    assert np.isnan([found["param_count"][1], found["macts"][1], *found["gmacs"]]).all()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"macts": [1.0]}, "needs the column batch_size"),
        ({"batch_size": [8], "color": ["red"]}, "no usable columns for memory: .*param_count"),
    ],
)
def test_a_useless_table_is_refused(columns: dict[str, list[object]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        table_features(pl.DataFrame(columns))


def test_attention_that_is_written_out_depends_on_the_version() -> None:
    entry = zoo.find("bert-base-squad")
    traced = precomputed.read(entry, precision="amp")
    assert traced is not None
    model, gpu = estimators.memory().graph, find("v100-16g")
    physics = MemoryPhysics.of(traced, 8)
    softmaxes = np.full(12, KINDS.index("softmax"))
    written = replace(physics, graph=replace(traced, kind=np.r_[traced.kind[12:], softmaxes]))
    fused, eager = (
        model.forecast(written, gpu, Setup(precision="amp", attention=how))
        for how in ("sdpa", "eager")
    )
    assert eager.needs[1] == pytest.approx(fused.needs[1])
    saved = physics.by_role["saved"] / 2**20
    assert eager.needs[2] > eager.needs[1] + 0.5 * saved
    assert eager.needs[0] < fused.needs[0]
