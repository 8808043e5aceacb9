"""Advisors beside a simulated cluster: what they save, what they foresee, and what that costs."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from presage.control.simulated import Advised
from presage.model import event as ev
from presage.model.cluster import Node, Resources, Worker
from presage.model.errors import UserError
from presage.model.job import JobSpec, Reason, ReasonCode, Role
from presage.policy import registry
from presage.sim.run import simulate
from presage.sim.traces import Trace, read_trace
from presage.sim.usage import RecordedUse
from presage.sim.world import Task, World

NODES = [Node(f"n{k}", cpu_milli=8000, memory_mib=16384) for k in range(2)]
STORY = [(0.2, 200.0)] * 20 + [(1.5, 900.0)] * 20
"""Loads, then works; 5 s a sample."""


def use(story: list[tuple[float, float]]) -> RecordedUse:
    cores, memory = zip(*story, strict=True)
    return RecordedUse(tuple(5.0 * k for k in range(len(story))), cores, memory)


def runs(home: Path, count: int) -> Trace:
    file = home / "runs.parquet"
    pl.DataFrame(
        {
            "job_id": [f"j{k}" for k in range(count)],
            "submit_s": [250.0 * k for k in range(count)],
            "duration_s": 200.0,
            "workers": 1,
            "gpu_milli": 0,
            "cpu_milli": 2000,
            "memory_mib": 4096,
            "workload": "train",
        }
    ).write_parquet(file)
    return read_trace(file)


def test_what_runs_used_is_what_the_next_ones_get_and_are_foreseen_to_need(tmp_path: Path) -> None:
    trace = runs(tmp_path, 24)
    uses = {job: use(STORY) for job in trace.jobs["job_id"]}
    plain = simulate(trace, NODES, registry.build("fifo"), name="plain", uses=uses)
    advised = Advised(("sizing", "learning"), NODES)
    result = simulate(
        trace, NODES, registry.build("fifo"), name="advised", uses=uses, advise=advised
    )
    score = advised.score()
    assert result.summary["finished"] == 24
    assert score.out_of_memory == 0
    assert score.saved_pct["memory"] > 40  # it asks for 4 GiB and uses 900 MiB at most
    assert score.saved_pct["cpu"] > 10
    assert score.met_pct["memory"] == 100
    assert result.makespan_s == pytest.approx(plain.makespan_s, rel=0.05)
    before, *_, after = score.foreseen["memory"]
    assert before.jobs < 6  # the first ones nobody could foresee
    assert after.error_pct is not None
    assert after.error_pct < 5


def test_without_advice_recorded_use_changes_nothing(tmp_path: Path) -> None:
    trace = runs(tmp_path, 6)
    uses = {job: use(STORY) for job in trace.jobs["job_id"]}
    with_use = simulate(trace, NODES, registry.build("fifo"), name="a", uses=uses)
    without = simulate(trace, NODES, registry.build("fifo"), name="a")
    assert with_use.jobs.equals(without.jobs)


def running(story: list[tuple[float, float]]) -> tuple[World, Task]:
    spec = JobSpec("a", (Role("worker", Resources(cpu_milli=2000, memory_mib=4096)),))
    task = Task(spec, 0, False, 100.0, 1, 1, use=use(story))
    world = World(NODES)
    world.expect(task, 0.0)
    world.launch(ev.Launch("a", 1, (Worker(0, 0, "n0"),)))
    assert world.poll(0.0)
    return world, task


def hold(world: World, cpu_milli: int, memory_mib: int) -> None:
    why = Reason(ReasonCode.OK, "test")
    world.limit(ev.Limit("a", 1, Resources(cpu_milli, memory_mib), why))


def test_less_cpu_than_wanted_slows_a_run() -> None:
    world, task = running([(2.0, 100.0)] * 20)
    hold(world, 1000, 4096)
    world.measure(0.0)
    assert task.speed == 0.5
    assert world.next_event() == 200.0
    hold(world, 2000, 4096)
    world.measure(100.0)  # half of it is done
    assert world.next_event() == 150.0


def test_less_memory_than_wanted_ends_a_run() -> None:
    world, _ = running([(1.0, 100.0)] * 10 + [(1.0, 900.0)] * 10)
    hold(world, 2000, 500)
    world.measure(45.0)
    assert world.poll(45.0) == []
    world.measure(50.0)
    (fact,) = world.poll(50.0)
    assert isinstance(fact, ev.JobExited)
    assert fact.outcome is ev.Outcome.OUT_OF_MEMORY


def test_an_advisor_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match="no advisor 'luck'; there are sizing, learning"):
        Advised(("luck",), NODES)
