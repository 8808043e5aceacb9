"""`elastic-kubeflow`: the set-ups are what they say, and the targets hold on other seeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from presage.foresee.scaling import StepModel
from presage.model.errors import UserError
from presage.reproduce import elastic_kubeflow as ek


@pytest.fixture(scope="module")
def mix(shared_data: Path) -> list[ek.ElasticSetup]:
    return [ek.mix_setup(shared_data, seed) for seed in (100, 101, 102)]


def less(ours: list[ek.ElasticFigures], static: list[ek.ElasticFigures], key: str) -> float:
    shares = [getattr(a, key) / getattr(b, key) for a, b in zip(ours, static, strict=True)]
    return 100 * (1 - float(np.mean(shares)))


def test_by_gain_beats_static_and_the_triggers(mix: list[ek.ElasticSetup]) -> None:
    found = {
        name: [ek.measure(one, ek.POLICIES[name]) for one in mix]
        for name in (ek.STATIC, ek.TRIGGERS, ek.BY_GAIN)
    }
    assert all(one.finished == ek.MIX_JOBS for some in found.values() for one in some)
    static, gain = found[ek.STATIC], found[ek.BY_GAIN]
    assert less(gain, static, "run_s") > 15
    assert less(gain, static, "wait_s") > 25
    assert less(gain, found[ek.TRIGGERS], "jct_s") > 5


def test_a_wrong_model_costs_but_never_more_than_static_loses(mix: list[ek.ElasticSetup]) -> None:
    static = [ek.measure(one, ek.POLICIES[ek.STATIC]) for one in mix]
    for error in ek.MODEL_ERRORS:
        wrong = [ek.measure(one, ek.POLICIES[ek.BY_GAIN], error=error) for one in mix]
        assert less(wrong, static, "jct_s") > 0


def test_a_seed_names_a_workload(shared_data: Path, mix: list[ek.ElasticSetup]) -> None:
    again = ek.mix_setup(shared_data, 100)
    assert again.trace.jobs.equals(mix[0].trace.jobs)
    assert not again.trace.jobs.equals(mix[1].trace.jobs)


def test_an_itp_cluster_has_the_fewest_nodes_for_its_load(shared_data: Path) -> None:
    setup = ek.itp_setup(shared_data, 0, "cluster06")
    jobs = setup.trace.jobs
    gpus = 8 * int(setup.cluster.split("x")[0])
    work = float((jobs["duration_s"] * jobs["workers"]).sum())
    submit = jobs["submit_s"].to_numpy()
    load = work / float(submit.max() - submit.min()) / gpus
    assert load <= 0.9 < load * gpus / (gpus - 8)
    assert jobs.select((pl.col("min_workers") == pl.col("workers")).all()).item()


def test_measured_steps_are_used_where_there_are_any() -> None:
    rows = pl.DataFrame(
        {
            "num_replicas": [2.0, 2.0, 2.0],
            "num_nodes": [1.0, 1.0, 1.0],
            "local_bsz": [10.0, 10.0, 20.0],
            "step_time": [1.0, 3.0, 4.0],
        }
    )
    fitted = StepModel((9.0, 0.0, 0.0, 0.0, 0.0, 0.0), 10.0)
    steps = ek.MeasuredSteps(rows, fitted)
    assert steps.step_s(2, 1, 15.0) == 3.0  # between the median of 1 and 3, and 4
    assert steps.step_s(2, 2, 15.0) == steps.step_s(2, 1, 30.0) == 9.0


def test_missing_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"sia_step_sync_times\.parquet is missing"):
        ek.mix_setup(tmp_path, 0)
    with pytest.raises(UserError, match=r"itp_jobs\.parquet is missing"):
        ek.itp_setup(tmp_path, 0)


@pytest.mark.soak
def test_the_targets_are_met(shared_data: Path) -> None:
    found = ek.run(shared_data, seeds=5, progress=lambda done, total: None)
    assert found.met
