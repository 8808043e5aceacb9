"""Utilization of real jobs: it follows from the step, and an unknown pipeline widens it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from presage.foresee import estimators
from presage.foresee._jobsteps import JobUtilization
from presage.foresee._realjobs import read_lucid_jobs, read_miso_jobs
from presage.foresee.gpus import Gpu, find
from presage.foresee.graph.load import load_graph
from presage.foresee.utilization import Features, InputPipeline, TrainingProfile, profile_of
from presage.learn import Floats
from presage.learn.evaluate import coverage, rmsle1p
from presage.model.errors import UserError

A100 = find("a100")


def job(batch: float = 32, gmacs: float = 4.0, layers: int = 50, gpu: Gpu = A100) -> Features:
    counts = (layers, 1, layers, layers)
    images = InputPipeline.IMAGES
    one = TrainingProfile.from_totals(batch, 150_528, gmacs * 1e9, 1e7, 2.5e7, counts, gpu, images)
    return Features.of([one])


def drawn(n: int) -> tuple[Features, Floats, list[str]]:
    """Jobs of ten models whose utilization the shipped constants tell, with noise."""
    chance = np.random.default_rng(0)
    parts, names = [], []
    for at in range(n):
        model = at % 10
        batch = float(chance.integers(1, 65))
        parts.append(job(batch, 0.02 * 2.0**model, 10 + 4 * model))
        names.append(f"m{model}")
    X = Features.joined(parts)
    told = estimators.job_utilization().predict(X)
    return X, np.clip(told * np.exp(chance.normal(0, 0.1, n)), 0, 100), names


def test_kernels_that_fill_the_step_keep_the_gpu_busy_and_launches_do_not() -> None:
    known = estimators.job_utilization()
    small, large = known.predict(job(2, 0.05))[0], known.predict(job(256, 10.0))[0]
    assert small < 50 < 80 < large
    fast, slow = (known.predict(job(16, 0.5, gpu=find(name)))[0] for name in ("h100", "k80"))
    assert slow > fast


def test_a_fused_recurrent_layer_is_busy_and_a_loop_over_its_steps_is_not() -> None:
    known = estimators.job_utilization()
    fused = TrainingProfile.from_totals(8, 100, 1e9, 1e6, 2e7, (0, 6, 2, 4), A100, serial=2000)
    looped = TrainingProfile.from_totals(8, 100, 1e9, 1e6, 2e7, (0, 2000, 800, 1200), A100)
    assert known.predict(Features.of([fused]))[0] > known.predict(Features.of([looped]))[0] + 20


def test_the_interval_says_that_a_job_may_be_starved() -> None:
    known = estimators.job_utilization()
    hungry, heavy = job(512, 0.02, 10), job(64, 40.0)
    low, middle, high = known.predict_interval(hungry)[0]
    assert low < middle <= high <= 100
    fed = known.unstarved(hungry)[0]
    assert fed[1] >= middle
    assert fed[0] > low
    assert known.starved(hungry)[0] > 0.1 > known.starved(heavy)[0]
    width = np.diff(known.predict_interval(heavy)[0, [0, 2]])[0]
    assert width < high - low


def test_learns_and_calibrates_and_comes_back() -> None:
    X, y, names = drawn(80)
    fitted = JobUtilization(folds=5).fit(X, y, names)
    assert rmsle1p(y, fitted.held_out_) < 0.2
    interval = fitted.predict_interval(X)
    assert np.all(np.diff(interval, axis=1) >= 0)
    assert coverage(y, interval) >= 0.75
    again = JobUtilization.from_arrays(fitted.to_arrays())
    assert np.array_equal(again.predict_interval(X), interval)


def test_wrong_input_is_one_clear_line() -> None:
    X, y, names = drawn(20)
    with pytest.raises(UserError, match="one utilization for each"):
        JobUtilization().fit(X, y[:-1], names)
    with pytest.raises(UserError, match="in percent, 0 to 100"):
        JobUtilization().fit(X, y + 100, names)
    with pytest.raises(UserError, match="holds no utilization of jobs"):
        JobUtilization.from_arrays({})
    arrays = estimators.job_utilization().to_arrays()
    with pytest.raises(UserError, match="of this version"):
        JobUtilization.from_arrays(arrays | {"constants": arrays["constants"][1:]})


def test_graphs_tell_what_they_are_fed_and_how_they_recur() -> None:
    image = profile_of(load_graph("zoo:resnet18-cifar10"), 32, A100)
    assert image.pipeline == InputPipeline.IMAGES
    assert image.tf32  # convolutions have it in FP32
    text = profile_of(load_graph("zoo:bert-base"), 32, A100)
    assert text.pipeline == InputPipeline.VECTORS
    assert not text.tf32
    assert profile_of(load_graph("zoo:lstm-wikitext2"), 32, A100).serial == 2 * 35
    assert not image.serial


def test_what_is_shipped_does_on_a_lab_it_has_not_seen(shared_data: Path) -> None:
    jobs = read_lucid_jobs(shared_data)
    interval = estimators.job_utilization().predict_interval(jobs.X)
    constant = np.full(len(jobs.util_pct), np.median(read_miso_jobs(shared_data).util_pct))
    assert rmsle1p(jobs.util_pct, interval[:, 1]) < 0.45 < rmsle1p(jobs.util_pct, constant)
    assert coverage(jobs.util_pct, interval) >= 0.75
