"""The speed model of data parallelism: recovers what made the steps, learns on, comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from presage.foresee.scaling import ScalingModel, StepModel
from presage.learn.bundle import BundleError, save_bundle
from presage.model.errors import UserError

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
