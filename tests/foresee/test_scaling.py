"""The speed model of data parallelism: recovers what made the steps, learns on, comes back."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from presage.foresee import scaling
from presage.foresee.gpus import find
from presage.foresee.scaling import (
    ANY_JOB,
    Bend,
    ScalingModel,
    Speeds,
    StepModel,
    Stretches,
    family_of,
    fit_steps,
    foreseen_on,
    foreseen_steps,
    own_scaling,
    parameters_of,
)
from presage.model.setup import Setup
from presage.learn.bundle import save_bundle
from presage.model.errors import BundleError, UserError
from presage.model.speed import SpeedBook, SpeedPoint

TRUE = StepModel((0.10, 0.002, 0.01, 0.004, 0.05, 0.006), 64.0)
CARD = {
    "name": "scaling",
    "date": "2026-01-01",
    "data": "made in a test",
    "licence": "none",
    "features": ["local batch", "replicas", "nodes"],
    "splits": "none",
    "errors": {},
}


def steps(true: StepModel, count: int = 200, noise: float = 0.0, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    replicas = rng.integers(1, 17, count)
    nodes = np.minimum(rng.integers(1, 4, count), replicas)
    batch = rng.choice([16.0, 64.0, 256.0], count)
    times = [
        true.step_s(int(r), int(n), float(b)) * float(np.exp(noise * rng.normal()))
        for r, n, b in zip(replicas, nodes, batch, strict=True)
    ]
    return {"step_s": times, "local_batch": batch, "replicas": replicas, "nodes": nodes}


def test_it_finds_the_coefficients_that_made_the_steps() -> None:
    found = ScalingModel().update("net", **steps(TRUE)).step_model("net")
    assert found.coefficients == pytest.approx(TRUE.coefficients, rel=1e-4)


def test_no_coefficient_is_negative_however_noisy_the_steps() -> None:
    flat = StepModel((0.1, 0.001, 0.0, 0.0, 0.0, 0.0), 64.0)
    for seed in range(20):
        model = ScalingModel().update("net", **steps(flat, 12, noise=0.3, seed=seed))
        assert min(model.step_model("net").coefficients) >= 0.0


def test_a_global_batch_is_shared_by_the_workers() -> None:
    assert TRUE.time(1, 1, 4, 64.0) == pytest.approx(0.10 + 0.002 * 256)
    assert TRUE.time(4, 1, 4, 64.0) == pytest.approx(0.10 + 0.002 * 64 + 0.01 + 2 * 0.004)
    assert TRUE.time(4, 2, 4, 64.0) == pytest.approx(0.10 + 0.002 * 64 + 0.05 + 2 * 0.006)


def test_an_unknown_family_is_the_typical_one() -> None:
    model = ScalingModel()
    assert model.step_model("what").step_s(8) > model.step_model("what").step_s(1)
    slow = StepModel(tuple(10 * one for one in TRUE.coefficients), 64.0)
    model.update("fast", **steps(TRUE)).update("slow", **steps(slow))
    typical, known = model.step_model(None), model.step_model("fast")
    for shape in ((2, 1), (8, 1), (8, 2)):
        ours = typical.step_s(*shape) / typical.step_s(1)
        assert ours == pytest.approx(known.step_s(*shape) / known.step_s(1), rel=1e-3)


def test_own_runs_replace_what_was_learned_elsewhere() -> None:
    here = StepModel((0.2, 0.002, 0.01, 0.02, 0.3, 0.02), 64.0)
    model = ScalingModel().update("net", **steps(TRUE, 2000))
    before = model.version

    def error() -> float:
        found = model.step_model("net")
        return abs(found.step_s(8, 2) / here.step_s(8, 2) - 1)

    errors = [error()]
    for seed in range(1, 6):
        model.update("net", **steps(here, 100, seed=seed))
        errors.append(error())
    assert errors[0] > 0.3
    assert errors[-1] < 0.1
    assert errors == sorted(errors, reverse=True)
    assert model.version != before


def test_few_steps_are_not_enough_to_know_a_family() -> None:
    model = ScalingModel().update("net", **steps(TRUE, 3))
    assert model.families == []
    assert model.update("net", **steps(TRUE, 10)).families == ["net"]


@pytest.mark.parametrize("bad", [[], [0.0], [-1.0]])
def test_steps_that_make_no_sense_are_refused(bad: list[float]) -> None:
    ones = [1.0] * len(bad)
    with pytest.raises(UserError, match="must be positive numbers"):
        ScalingModel().update("net", bad, ones, ones, ones)


def test_it_comes_back_from_disk_and_learns_on(tmp_path: Path) -> None:
    model = ScalingModel().update("a", **steps(TRUE, 50, 0.1)).update("b", **steps(TRUE, 3))
    model.save(tmp_path / "scaling.npz", CARD)
    again = ScalingModel.load(tmp_path / "scaling.npz")
    assert again.version == model.version
    assert again.step_model("a") == model.step_model("a")
    assert again.families == ["a"]
    more = steps(TRUE, 10, seed=1)
    assert again.update("b", **more).step_model("b") == model.update("b", **more).step_model("b")


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    save_bundle(tmp_path / "other.npz", {"x": np.zeros(2)}, {**CARD, "version": "1"})
    with pytest.raises(BundleError, match="holds no scaling model"):
        ScalingModel.load(tmp_path / "other.npz")


@pytest.mark.parametrize(("machines", "most"), [("aws", 0.13), ("dgx-ext", 0.25)])
def test_steps_that_were_not_fitted_on_are_foreseen(
    shared_data: Path, machines: str, most: float
) -> None:
    rows = pl.read_parquet(shared_data / "profiles" / "sia_step_sync_times.parquet").filter(
        (pl.col("cluster") == machines) & (pl.col("model") != "gpt_pmp")
    )
    rng = np.random.default_rng(0)
    for (family,), group in rows.group_by("model", maintain_order=True):
        fit = pl.Series(rng.random(group.height) < 0.8)
        seen, unseen = group.filter(fit), group.filter(~fit)
        model = ScalingModel().update(
            str(family),
            seen["step_time"],
            seen["local_bsz"],
            seen["num_replicas"],
            seen["num_nodes"],
        )
        step = model.step_model(str(family)).step_s
        shapes = unseen.select("num_replicas", "num_nodes", "local_bsz").iter_rows()
        foreseen = np.array([step(int(r), int(n), b) for r, n, b in shapes])
        assert np.abs(foreseen / unseen["step_time"].to_numpy() - 1).mean() < most


# -- own runs -----------------------------------------------------------------------------------


Curve = Callable[[int], float]


def points(curve: Curve, *sizes: int, seconds: float = 60.0) -> list[SpeedPoint]:
    """What a job with this curve reports at these sizes, on one node."""
    return [SpeedPoint(n, 1, 5000 * curve(n), seconds) for n in sizes]


def flat(workers: int) -> float:
    return 1.0


def linear(workers: int) -> float:
    return 1.0 / workers


def worse(workers: int) -> float:
    return 0.5 + 0.5 / workers + 0.2 * (workers - 1)


def saturated(workers: int) -> float:
    return 1.0 / min(workers, 4)


@pytest.mark.parametrize("true", [flat, linear, worse, saturated])
def test_own_runs_bend_the_curve_to_what_they_reported(true: Curve) -> None:
    def off(measured: list[SpeedPoint], new: int, old: int) -> float:
        """How wrong it is about other workers, in logarithms."""
        foreseen = ANY_JOB.time(new, 1, 1) / ANY_JOB.time(old, 1, 1)
        told = foreseen * Bend.fit(ANY_JOB, 1, measured).times(new, old)
        return float(abs(np.log(told / (true(new) / true(old)))))

    one, short, long = (
        off(points(true, *sizes, seconds=seconds), 8, 4)
        for sizes, seconds in (((4,), 600.0), ((2, 4, 8), 2.0), ((2, 4, 8), 600.0))
    )
    assert one == pytest.approx(off([], 8, 4))  # one size says nothing about others
    assert long < 0.05
    assert long <= short
    assert off(points(true, 1, 3, 4), 3, 2) < 0.25  # a size between those measured


def test_a_job_that_does_not_scale_is_told_from_one_that_nobody_knows() -> None:
    book = SpeedBook()
    speeds = Speeds(None, book)
    assert not speeds.tells
    assert speeds.ratio("job", None, 1, (3, 1), (1, 1)) == 1.0
    for point in points(flat, 1, 3):
        before = speeds.version
        book.add("job", point)
        assert speeds.version != before
    assert 0.9 < speeds.ratio("job", None, 1, (3, 1), (1, 1)) < 1.0
    assert speeds.ratio("other", None, 1, (3, 1), (1, 1)) == 1.0


def test_a_fitted_family_is_known_by_the_model_a_job_names() -> None:
    model = ScalingModel().update("imagenet", **steps(TRUE))
    speeds, fitted = Speeds(model), model.step_model("imagenet")
    told = speeds.ratio("job", "zoo:resnet50", 1, (4, 2), (1, 1))
    assert told == pytest.approx(fitted.time(4, 2, 1) / fitted.time(1, 1, 1), rel=1e-3)


def test_what_nobody_measured_is_foreseen_from_bytes_and_links() -> None:
    """BERT-large on eight cards: fine over NVLink, poor where copies go through the host."""
    step = 0.45
    told = {
        name: foreseen_steps(336e6, step, find(name)) for name in ("a100-80g", "a6000", "rtx3090")
    }
    of_eight = {name: step / one.step_s(8) for name, one in told.items()}
    assert of_eight["a100-80g"] > of_eight["a6000"] > of_eight["rtx3090"]
    assert 0.8 < of_eight["a100-80g"] < 0.98
    assert told["a100-80g"].step_s(1) == pytest.approx(step)
    slow = foreseen_steps(336e6, step, find("a100-80g"), Setup(interconnect="eth10"))
    assert slow.step_s(16, 2) > 1.5 * told["a100-80g"].step_s(16, 2)


def test_measured_families_come_first_and_own_points_last() -> None:
    sizes = {"hf:bert-large": 336e6}
    foreseen = foreseen_on(find("rtx3090"), sizes.get)
    model = ScalingModel().update("imagenet", **steps(TRUE))
    ask = (1, (8, 1), (1, 1), 0.45)
    both, alone = Speeds(model, foreseen=foreseen), Speeds(model)
    assert both.ratio("job", "zoo:resnet50", *ask) == alone.ratio("job", "zoo:resnet50", *ask)
    assert both.ratio("job", "other", *ask) == alone.ratio("job", "other", *ask)
    only = Speeds(foreseen=foreseen)
    assert only.tells
    assert "foreseen" in only.version
    assert only.ratio("job", "other", *ask) == 1.0
    told = only.ratio("job", "hf:bert-large", *ask)
    assert told == both.ratio("job", "hf:bert-large", *ask)
    assert 0.5 < told < 3.0  # eight cards hardly do more than one
    book = SpeedBook()
    for point in points(linear, 1, 4, 8):
        book.add("job", point)
    bent = only.reading(book).ratio("job", "hf:bert-large", *ask)
    assert bent < 0.3 < told


def test_parameters_of_models_that_are_known_by_name() -> None:
    assert parameters_of("zoo:resnet50") == pytest.approx(25.6e6, rel=0.01)
    assert parameters_of("hf:llama-3.1-8b") == pytest.approx(8.03e9, rel=0.01)
    for unknown in ("zoo:nothing-like-it", "hf:nobody/knows", "train.py", ""):
        assert parameters_of(unknown) is None


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("zoo:resnet50", "imagenet"),
        ("zoo:resnet18", "cifar10"),
        ("bert", "bert"),
        ("models/yolov3.onnx", "yolov3"),
        (None, ""),
    ],
)
def test_models_belong_to_families(model: str | None, family: str) -> None:
    assert family_of(model) == family


def _told(point: SpeedPoint | None) -> list[float]:
    assert point is not None
    return [point.workers, point.nodes, point.whole_s, point.measured_s]


def test_a_stretch_at_one_size_becomes_a_point() -> None:
    seen, at_two, at_four = Stretches(), (1, 100.0, 2, 1), (1, 160.0, 4, 1)
    assert seen.see("a", at_two, 0.10, 8.0) is None  # starting up is over by now
    assert seen.see("a", at_two, 0.12, 10.0) is None  # too short
    assert _told(seen.see("a", at_two, 0.20, 18.0)) == pytest.approx([2, 1, 100.0, 10.0])
    assert seen.see("a", at_two, 0.26, 24.0) is None  # the next takes longer
    assert seen.see("a", at_four, 0.30, 60.0) is None  # the time of a resize is nobody's speed
    assert _told(seen.see("a", at_four, 0.50, 70.0)) == pytest.approx([4, 1, 50.0, 10.0])
    assert seen.see("a", at_four, 0.40, 90.0) is None  # back to a checkpoint
    seen.keep(set())
    assert seen.see("a", at_four, 0.90, 190.0) is None


def test_reports_that_say_no_progress_are_no_speed() -> None:
    seen = Stretches()
    for ran_s in (0.0, 10.0, 20.0):
        assert seen.see("a", (1, 0.0, 1, 1), 0.0, ran_s) is None
    assert seen.see("a", (1, 0.0, 1, 1), 5e-324, 30.0) is None  # nor is this


def table_of(found: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "model": ["net"] * len(found["step_s"]),
            "step_time": found["step_s"],
            "local_bsz": found["local_batch"],
            "num_replicas": found["replicas"],
            "num_nodes": found["nodes"],
        }
    )


def test_a_table_of_steps_is_fitted_by_family() -> None:
    table = table_of(steps(TRUE))
    assert fit_steps(table).step_model("net").coefficients == pytest.approx(
        TRUE.coefficients, rel=1e-4
    )
    with pytest.raises(UserError, match="lack the column local_bsz"):
        fit_steps(table.drop("local_bsz"))


def test_a_fitted_model_is_read_where_a_users_own_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRESAGE_HOME", str(tmp_path))
    assert own_scaling() is None
    (tmp_path / "models").mkdir()
    ScalingModel().update("net", **steps(TRUE)).save(tmp_path / "models" / "scaling.npz", CARD)
    found = own_scaling()
    assert found is not None
    assert found.families == ["net"]


def test_a_table_is_fitted_by_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fit(table: pl.DataFrame) -> int:
        table.write_csv(tmp_path / "steps.csv")
        monkeypatch.setattr("sys.argv", ["scaling", str(tmp_path / "steps.csv"), "2026-01-01"])
        try:
            runpy.run_path(scaling.__file__, run_name="__main__")
        except SystemExit as ended:
            return int(str(ended.code))
        return 0

    monkeypatch.setenv("PRESAGE_HOME", str(tmp_path))
    assert fit(table_of(steps(TRUE))) == 0
    assert "knows net" in capsys.readouterr().out
    found = own_scaling()
    assert found is not None
    assert found.families == ["net"]
    assert fit(table_of(steps(TRUE)).drop("num_nodes")) == 2
    assert capsys.readouterr().err == "the measured steps lack the column num_nodes\n"
