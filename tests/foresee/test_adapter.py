"""Estimates of jobs behind the Predictor port."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from presage.core.ports import Predictor
from presage.foresee.adapter import FittedSlowdowns, Foreseen, signature
from presage.foresee.fitting import MODELS
from presage.foresee.gpus import find
from presage.foresee.interference import InterferenceEstimator
from presage.model.estimate import Estimate, Estimates
from presage.model.job import Job, JobSpec
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
def predict() -> Foreseen:
    return Foreseen(Half(), StablePredictor())


def test_what_was_foreseen_at_submission_counts(predict: Foreseen) -> None:
    known = job("a", needs(0.4, 1000.0))
    assert predict.runtime(known).p50 == 77.0
    assert predict.utilization(known).p50 == 0.4
    assert predict.memory(known).p90 == 2000.0
    assert predict.slowdown(known, [known, known]).p50 == 2.0


def test_what_was_not_is_left_to_another_predictor(predict: Foreseen) -> None:
    other: Predictor = StablePredictor()
    unknown = job("a", Estimates("test"))
    assert predict.runtime(unknown) == other.runtime(unknown)
    assert predict.utilization(job("b")) == other.utilization(job("b"))


def test_a_workload_that_ran_out_of_memory_is_given_more(predict: Foreseen) -> None:
    first = job("a", needs(0.4, 1000.0), model="resnet")
    before = predict.version
    predict.out_of_memory(first.spec)
    assert predict.memory(job("b", needs(0.4, 1000.0), model="resnet")).p90 == 3000.0
    assert predict.memory(job("c", needs(0.4, 1000.0), model="vgg")).p90 == 2000.0
    assert predict.version != before


def test_the_command_tells_workloads_apart_where_no_model_is_named() -> None:
    assert signature(JobSpec("a", (), entrypoint=("python", "a.py"))) == "python a.py"


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
