"""Jobs that share GPUs in the simulated world: models, slowdowns, memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl
import pytest

from presage.core.ports import Predictor
from presage.foresee.adapter import EstimatePredictor
from presage.model.cluster import Device, Node, Resources
from presage.model.estimate import Estimate, Estimates
from presage.model.job import JobSpec, Role
from presage.model.parts import ENFORCED
from presage.policy.registry import build
from presage.sim.result import SimResult
from presage.sim.run import simulate
from presage.sim.traces import Trace, complete
from presage.sim.world import WorldRules

GPU = Device(memory_mib=24_000)


def trace(durations: list[float], gpus: int = 1, memory: int = 0) -> Trace:
    count = len(durations)
    columns = {
        "job_id": [str(n) for n in range(count)],
        "duration_s": durations,
        "gpu_milli": [1000 * gpus] * count,
        "gpu_memory_mib": [memory] * count,
        "utilization": [0.3] * count,
    }
    return Trace("t", "test", complete(pl.DataFrame(columns)))


def beside(own: str, others: Sequence[str]) -> float:
    return 1.0 + 0.25 * sum(name == "rude" for name in others)


def run(jobs: Trace, models: list[str], gpus: int = 1, **more: object) -> SimResult:
    rules = WorldRules(beside=beside)
    nodes = [Node("n0", (GPU,) * gpus)]
    policy = build("colocate")
    return simulate(
        jobs,
        nodes,
        policy,
        name="x",
        rules=rules,
        models=models,
        sharers=3,
        **more,  # type: ignore[arg-type]
    )


def test_jobs_slow_each_other_down_by_their_models() -> None:
    found = run(trace([100.0, 100.0]), ["calm", "rude"])
    assert found.jobs["end_s"].to_list() == [120.0, 100.0]


def test_a_job_of_several_gpus_has_a_worker_on_each() -> None:
    found = run(trace([100.0, 100.0], gpus=2), ["calm", "calm"], gpus=2)
    assert found.jobs["end_s"].to_list() == [100.0, 100.0]
    assert found.gpu_seconds == pytest.approx(100 * 4 * 0.333)


def test_a_job_that_ran_out_of_memory_is_remembered_by_its_model() -> None:
    predictors: list[EstimatePredictor] = []

    def foresee(world: Predictor) -> Predictor:
        predictors.append(EstimatePredictor(world, world))
        return predictors[0]

    too_low = Estimates("test", memory_mib=Estimate.exact(5000.0, "MiB", "test"))
    found = run(
        trace([100.0, 100.0, 100.0, 100.0], memory=13_000),
        ["calm"] * 4,
        gpus=2,
        estimates=[too_low] * 4,
        foresee=foresee,
    )
    assert found.jobs["status"].to_list() == ["finished"] * 4
    assert predictors[0].ran_out > 0
    assert "out of memory" in predictors[0].version


def held(requests: list[float], *models: str) -> dict[str, JobSpec]:
    """Jobs that ask for enforced shares."""
    return {
        str(n): JobSpec(
            str(n),
            (Role(resources=Resources(gpu_milli=round(1000 * part))),),
            model=model,
            labels={ENFORCED: "1"},
        )
        for n, (part, model) in enumerate(zip(requests, models, strict=True))
    }


def test_a_request_holds_in_a_world_that_enforces_it() -> None:
    jobs = trace([100.0, 100.0])
    specs = held([0.3, 0.5], "calm", "rude")
    found = run(jobs, ["calm", "rude"], specs=specs)
    assert found.jobs["end_s"].to_list() == [100.0, 100.0]  # as much as it wants is its request
    less = run(jobs, ["calm", "rude"], specs=held([0.25, 0.5], "calm", "rude"))
    assert 100.0 < less.jobs["end_s"][0] < 100.0 * 0.3 / 0.25 / 0.95 + 1e-6


def test_beside_a_job_that_takes_no_turns_nothing_is_enforced() -> None:
    specs = held([0.3, 0.5], "calm", "rude")
    specs["1"] = replace(specs["1"], labels={})
    found = run(trace([100.0, 100.0]), ["calm", "rude"], specs=specs)
    assert found.jobs["end_s"].to_list() == [120.0, 100.0]
