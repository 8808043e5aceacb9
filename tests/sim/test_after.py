"""Jobs of a trace that wait for others, and when jobs that wait will start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import presage
from presage.core.engine import Engine
from presage.core.state import State
from presage.model import event as ev
from presage.model.cluster import Device, Node, Resources
from presage.model.errors import TraceError
from presage.model.job import Dependency, DependsOn, Job, JobSpec, Role
from presage.policy.config import PolicyConfig
from presage.policy.registry import build
from presage.sim.ahead import run_ahead
from presage.testing.machine import StablePredictor

HEAD = "job_id,submit_s,duration_s,gpus,after\n"


def trace(folder: Path, rows: str) -> presage.Trace:
    path = folder / "jobs.csv"
    path.write_text(HEAD + rows)
    return presage.read_trace(path)


def test_jobs_of_a_trace_wait_for_others(tmp_path: Path) -> None:
    jobs = trace(tmp_path, "a,0,100,1,\nb,0,50,1,\nc,1,10,1,a|b\nd,1,5,1,c\ne,200,5,1,a\n")
    result = presage.simulate(jobs, cluster="1x4", policy="fifo", check_every=1)
    starts = dict(result.jobs.select("job_id", "start_s").rows())
    assert starts == {"a": 0.0, "b": 0.0, "c": 100.0, "d": 110.0, "e": 200.0}


def test_what_waits_for_a_job_that_cannot_run_is_cancelled(tmp_path: Path) -> None:
    jobs = trace(tmp_path, "big,0,10,64,\nb,1,5,1,big\nc,2,5,1,b\n")
    result = presage.simulate(jobs, cluster="1x4", policy="fifo", check_every=1)
    told = dict(result.jobs.select("job_id", "status").rows())
    assert told == {"big": "rejected", "b": "cancelled", "c": "cancelled"}


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("a,0,1,1,x\n", "job a waits for 'x', which is no job of the trace"),
        ("a,0,1,1,b\nb,5,1,1,\n", "job a waits for 'b', which is not submitted before it"),
        ("a,0,1,1,a\n", "job a waits for 'a', which is not submitted before it"),
    ],
)
def test_a_trace_whose_jobs_wait_for_nobody_is_refused(
    tmp_path: Path, rows: str, says: str
) -> None:
    with pytest.raises(TraceError, match=says):
        trace(tmp_path, rows)


class Known:
    """Every job runs for 100 seconds."""

    def sample(
        self, jobs: Sequence[Job], now: float, samples: int, rng: np.random.Generator
    ) -> npt.NDArray[np.float64]:
        left = [100.0 - job.ran(now) for job in jobs]
        return np.repeat(np.asarray(left)[:, None], samples, axis=1)


def test_the_start_of_a_job_that_waits_for_others_is_foreseen() -> None:
    roles = (Role("worker", Resources(gpu_milli=1000)),)
    specs = [
        JobSpec("a", roles),
        JobSpec("b", roles, after=(Dependency("a"),)),
        *(JobSpec(f"m{k}", roles, array="arr", at_once=1) for k in range(3)),
        JobSpec("c", roles, after=(Dependency("arr", DependsOn.ANY),)),
    ]
    engine = Engine(build(PolicyConfig()), StablePredictor(), State(), check_every=1)
    engine.handle(0.0, [ev.NodeUp(Node("n0", (Device(),) * 8)), *map(ev.JobSubmitted, specs)])
    engine.handle(1.0, [ev.JobStarted("a", 1), ev.JobStarted("m0", 1)])
    forecast = run_ahead(engine.state, lambda: build(PolicyConfig()), Known(), samples=3)
    starts = {job: start.p50_s for job, start in forecast.starts.items()}
    assert starts == {"b": 100.0, "m1": 100.0, "m2": 200.0, "c": 300.0}
    ends = {name: end.p50_s for name, end in forecast.ends.items()}
    assert ends == {"a": 100.0, "arr": 300.0}
    assert engine.state.gates.blocked.keys() == {"b", "m1", "m2", "c"}  # nothing was touched
