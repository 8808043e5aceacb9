"""Estimates of jobs behind the Predictor port."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from presage.core.ports import Predictor
from presage.foresee.adapter import (
    EnforcedSlowdowns,
    EstimatePredictor,
    FittedSlowdowns,
    TimeSharing,
)
from presage.foresee.fitting import MODELS
from presage.foresee.gpus import find
from presage.foresee.interference import InterferenceEstimator
from presage.model.cluster import Resources, Worker
from presage.model.estimate import Estimate, Estimates
from presage.model.job import Job, JobSpec, Role
from presage.model.parts import ENFORCED
from presage.model.speed import SpeedBook, SpeedPoint
from presage.model.workload import same_work
from presage.testing.machine import StablePredictor


def job(name: str, known: Estimates | None = None, **spec: object) -> Job:
    made = Job(JobSpec(name, (), **spec), 0, 0.0, 0.0)  # type: ignore[arg-type]
    made.estimates = known
    return made


def needs(busy: float, memory: float) -> Estimates:
    return Estimates(
        "test",
        runtime_s=Estimate.exact(77.0, "s", "test"),
        memory_mib=Estimate(memory / 2, memory, 2 * memory, "MiB", "test"),
        utilization=Estimate.exact(busy, "share", "test"),
    )


class Half:
    """Every neighbour adds a half."""

    version = "half"

    def slowdown(self, job: Job, neighbours: Sequence[Job]) -> Estimate:
        return Estimate.exact(1 + len(neighbours) / 2, "times", self.version)


@pytest.fixture
def predict() -> EstimatePredictor:
    return EstimatePredictor(Half(), StablePredictor())


def test_what_was_foreseen_at_submission_counts(predict: EstimatePredictor) -> None:
    known = job("a", needs(0.4, 1000.0))
    assert predict.runtime(known).p50 == 77.0
    assert predict.utilization(known).p50 == 0.4
    assert predict.memory(known).p90 == 2000.0
    assert predict.slowdown(known, [known, known]).p50 == 2.0


def test_what_was_not_is_left_to_another_predictor(predict: EstimatePredictor) -> None:
    other: Predictor = StablePredictor()
    unknown = job("a", Estimates("test"))
    assert predict.runtime(unknown) == other.runtime(unknown)
    assert predict.utilization(job("b")) == other.utilization(job("b"))


def test_a_workload_that_ran_out_of_memory_is_given_more(predict: EstimatePredictor) -> None:
    first = job("a", needs(0.4, 1000.0), model="resnet")
    before = predict.version
    predict.with_speeds(SpeedBook()).out_of_memory(first.spec)  # as the one that an engine has
    assert predict.ran_out == 1
    assert predict.memory(job("b", needs(0.4, 1000.0), model="resnet")).p90 == 3000.0
    assert predict.memory(job("c", needs(0.4, 1000.0), model="vgg")).p90 == 2000.0
    assert predict.version != before


def test_fitted_slowdowns_rise_with_the_load() -> None:
    fitted = FittedSlowdowns(
        InterferenceEstimator.from_bundle(MODELS / "interference.npz"), find("v100")
    )
    one = job("a", needs(0.5, 2000.0))
    alone, beside = fitted.slowdown(one, []), fitted.slowdown(one, [one])
    both = fitted.slowdown(one, [one, one])
    assert alone.p50 == 1.0
    assert 1.0 <= beside.p10 <= beside.p50 <= beside.p90
    assert both.p50 > beside.p50
    assert np.isfinite(both.p90)
    assert fitted.slowdown(one, [one]) is beside


def test_progress_sharpens_the_run_time(predict: EstimatePredictor) -> None:
    hour = Estimates("v1", runtime_s=Estimate(1800.0, 3600.0, 7200.0, "s", "model"))
    running = job("j", hour)
    assert predict.runtime(running).p50 == 3600
    running.progress, running.progress_s = 0.5, 600.0  # so it takes 1200 s in all
    later = predict.runtime(running)
    assert 1200 < later.p50 < 1600
    assert later.p90 - later.p10 < 5400
    assert later.source == "model, 50% done"
    running.progress, running.progress_s = 1.0, 1180.0
    assert predict.runtime(running).p50 == pytest.approx(1180, rel=0.12)


def test_jobs_take_turns_on_a_core() -> None:
    sharing = TimeSharing()
    light, heavy = job("a", needs(0.2, 100)), job("b", needs(0.9, 100))
    assert sharing.slowdown(light, []).p50 == 1.0
    assert sharing.slowdown(light, [light]).p50 == pytest.approx(1.04)
    assert sharing.slowdown(heavy, [heavy]).p50 == pytest.approx(1.81)
    assert sharing.slowdown(heavy, [heavy, heavy]).p50 == pytest.approx(2.7)
    assert sharing.slowdown(job("c"), [job("d")]).p50 == 2.0


def test_a_request_bounds_what_is_foreseen_beside_others() -> None:
    def held(name: str, busy: float, milli: int, limit: str = "1") -> Job:
        made = job(name, needs(busy, 100), labels={ENFORCED: limit})
        role = Role(resources=Resources(gpu_milli=milli))
        made.spec = replace(made.spec, roles=(role,))
        return made

    free, told = Half(), EnforcedSlowdowns(Half(), 0.0)
    calm, rude, plain = held("a", 0.6, 400), held("b", 1.0, 600), job("c", needs(0.6, 100))
    assert told.slowdown(calm, [rude]).p50 == pytest.approx(1.5)
    assert told.slowdown(rude, [calm]).p50 > free.slowdown(rude, [calm]).p50
    assert told.slowdown(calm, []).p50 == 1.0
    assert told.slowdown(plain, [rude]).p50 == free.slowdown(plain, [rude]).p50
    assert told.slowdown(held("d", 0.6, 100, "0.2"), [calm]).p50 == pytest.approx(3.0)


def elastic(command: str) -> Job:
    made = Job(JobSpec("a", (Role(min=1, max=4),), entrypoint=(command,)), 0, 0.0, 0.0)
    made.estimates = needs(0.4, 1000.0)
    return made


def on(count: int) -> tuple[Worker, ...]:
    return tuple(Worker(0, k, "n") for k in range(count))


def test_the_run_time_on_other_workers_is_as_own_runs_scaled() -> None:
    book, nobody = SpeedBook(), EstimatePredictor(Half(), StablePredictor())
    predict, good, poor = nobody.with_speeds(book), elastic("g"), elastic("p")
    assert predict.runtime(good, on(4)).p50 == 77.0  # nobody knows
    before = predict.version
    for size in (1, 4):
        book.add(same_work(good.spec), SpeedPoint(size, 1, 1000.0 / size, 600.0))
        book.add(same_work(poor.spec), SpeedPoint(size, 1, 1000.0, 600.0))
    assert predict.version != before
    assert predict.runtime(good).p50 == 77.0
    assert predict.runtime(good, on(1)).p50 == 77.0
    assert predict.runtime(good, on(4)).p50 == pytest.approx(77 / 4, rel=0.05)
    assert predict.runtime(poor, on(4)).p50 == pytest.approx(77, rel=0.05)
    assert nobody.runtime(good, on(4)).p50 == 77.0  # it reads another book


def test_progress_tells_the_run_time_on_the_workers_it_was_made_with() -> None:
    book, running = SpeedBook(), elastic("g")
    for size in (1, 4):
        book.add(same_work(running.spec), SpeedPoint(size, 1, 1000.0 / size, 600.0))
    predict = EstimatePredictor(Half(), StablePredictor()).with_speeds(book)
    running.allocation, running.progress, running.progress_s = on(4), 0.99, 100.0
    here, alone = predict.runtime(running, on(4)).p50, predict.runtime(running, on(1)).p50
    assert here == pytest.approx(100.0, rel=0.1)
    assert alone == pytest.approx(4 * here, rel=0.05)
