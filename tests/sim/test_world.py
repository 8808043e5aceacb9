"""The simulated world: how fast jobs get on, what a stop or an outage costs, who shares what."""

from __future__ import annotations

from typing import Any

import pytest

from presage.core.engine import Engine
from presage.core.loop import step
from presage.model import event as ev
from presage.model.cluster import Device, Node, Resources, Worker
from presage.model.job import JobSpec, Reason, ReasonCode, Role, StopIntent
from presage.policy.config import PolicyConfig
from presage.policy.registry import build
from presage.sim.speed import SpeedModel
from presage.sim.world import Outage, World, WorldRules
from presage.store.memory import MemoryStore
from presage.testing.machine import StablePredictor, task_for
from tests.scenario import job, nodes

REASON = Reason(ReasonCode.PREEMPTED, "made room")


def on(*devices: int, node: str = "n0") -> tuple[Worker, ...]:
    """One worker on each of these devices."""
    return tuple(Worker(0, i, node, (d,)) for i, d in enumerate(devices))


class Stage:
    """A world and what it said, with the time at which it did."""

    def __init__(self, *cluster: Node, **rules: Any) -> None:
        self.world = World(cluster or nodes(4, 4), WorldRules(**rules))
        self.said: list[tuple[float, ev.Fact]] = []

    def to(self, now: float) -> Stage:
        """Let time pass, from one thing that happens to the next."""
        while (due := self.world.next_event()) <= now:
            self.said += [(due, fact) for fact in self.world.poll(due)]
        self.said += [(now, fact) for fact in self.world.poll(now)]
        return self

    def launch(
        self, spec: JobSpec, *workers: Worker, duration: float = 100.0, peak: int = 0
    ) -> Stage:
        """Submit a job if it is new, and launch its next attempt."""
        if spec.id not in self.world.tasks:
            self.world.expect(task_for(spec, duration, peak), self.world.now)
        attempt = self.world.tasks[spec.id].ended_attempt + 1
        self.world.launch(ev.Launch(spec.id, attempt, workers))
        return self

    def stop(self, name: str) -> Stage:
        attempt = self.world.tasks[name].attempt
        self.world.stop(ev.Stop(name, attempt, StopIntent.REQUEUE, REASON))
        return self

    def resize(self, name: str, *workers: Worker) -> Stage:
        self.world.resize(ev.Resize(name, self.world.tasks[name].attempt, workers))
        return self

    def ends(self) -> dict[str, float]:
        """When jobs ended well, to the millisecond, once everything that runs has ended."""
        self.to(10_000.0)
        return {
            fact.job: round(at, 3)
            for at, fact in self.said
            if isinstance(fact, ev.JobExited) and fact.outcome is ev.Outcome.SUCCEEDED
        }

    def outcomes(self, name: str) -> list[tuple[float, str]]:
        return [
            (at, fact.outcome.value)
            for at, fact in self.said
            if isinstance(fact, ev.JobExited) and fact.job == name
        ]


def test_a_run_starts_and_ends_on_time() -> None:
    stage = Stage().to(7.0).launch(job("a"), *on(0))
    assert stage.world.next_event() == 107.0
    assert stage.ends() == {"a": 107.0}
    assert stage.said[0][1] == ev.JobStarted("a", 1, at=7.0)
    assert not stage.world.tasks
    assert [task.spec.id for task in stage.world.finished] == ["a"]


def test_a_launch_takes_its_time() -> None:
    stage = Stage(launch_delay_s=5.0).launch(job("a"), *on(0))
    assert stage.ends() == {"a": 105.0}
    assert stage.said[0] == (5.0, ev.JobStarted("a", 1, at=5.0))


@pytest.mark.parametrize(
    ("spec", "rules", "end"),
    [
        (job("a"), {}, 110.0),  # stopped after 40 s, on again at 50 s
        (job("a"), {"restart_cost_s": 8.0}, 118.0),
        (job("a"), {"restart_cost_s": 8.0, "launch_delay_s": 2.0}, 122.0),
        (job("a"), {"checkpoint_every_s": 30.0}, 110.0),  # a stop waits for a checkpoint
        (job("a", checkpointable=False), {"restart_cost_s": 8.0}, 158.0),
    ],
    ids=str,
)
def test_what_a_stop_costs(spec: JobSpec, rules: dict[str, float], end: float) -> None:
    stage = Stage(**rules).launch(spec, *on(0)).to(40.0).stop("a").to(50.0)
    assert stage.outcomes("a") == [(40.0, "stopped")]
    assert stage.launch(spec, *on(1)).ends() == {"a": end}


@pytest.mark.parametrize(
    ("spec", "rules", "end"),
    [
        (job("a"), {}, 120.0),  # lost after 70 s, on again at 90 s, the checkpoint is fresh
        (job("a"), {"checkpoint_every_s": 30.0}, 130.0),  # 10 s of work are gone
        (job("a"), {"checkpoint_every_s": 30.0, "restart_cost_s": 5.0}, 135.0),
        (job("a", checkpointable=False), {"checkpoint_every_s": 30.0}, 190.0),
    ],
    ids=str,
)
def test_an_outage_loses_the_work_since_the_last_checkpoint(
    spec: JobSpec, rules: dict[str, float], end: float
) -> None:
    stage = Stage(outages=(Outage("n0", 70.0, 15.0),), **rules).launch(spec, *on(0)).to(70.0)
    assert stage.said[-1] == (70.0, ev.NodeDown("n0"))
    assert [node.name for node in stage.world.nodes()] == ["n1"]
    stage.stop("a").to(90.0)
    assert stage.outcomes("a") == [(70.0, "lost")]
    assert (85.0, ev.NodeUp(nodes(4)[0])) in stage.said
    assert stage.launch(spec, *on(0)).ends() == {"a": end}


@pytest.mark.parametrize("spec", [job("a"), job("a", checkpointable=False)], ids=str)
def test_a_run_that_is_lost_before_its_first_step_has_all_its_work_left(spec: JobSpec) -> None:
    rules = {"launch_delay_s": 5.0, "checkpoint_every_s": 30.0}
    stage = Stage(outages=(Outage("n0", 3.0, 10.0),), **rules).launch(spec, *on(0)).to(3.0)
    stage.stop("a").to(20.0)
    assert stage.outcomes("a") == [(3.0, "lost")]
    assert stage.launch(spec, *on(0)).ends() == {"a": 125.0}


def test_who_ends_in_the_second_of_an_outage_has_ended() -> None:
    stage = Stage(outages=(Outage("n0", 100.0, 5.0),)).launch(job("a"), *on(0)).to(100.0)
    kinds = [type(fact).__name__ for _, fact in stage.said]
    assert kinds == ["JobStarted", "JobExited", "NodeDown"]


def test_a_node_can_be_lost_by_hand() -> None:
    stage = Stage().launch(job("a"), *on(0)).to(10.0)
    stage.world.lose("n0")
    stage.to(10.0).stop("a").to(10.0)
    assert stage.outcomes("a") == [(10.0, "lost")]
    stage.world.return_("n0")
    assert stage.to(20.0).said[-1][1] == ev.NodeUp(nodes(4)[0])
    assert len(stage.world.nodes()) == 2


def test_failures_by_chance_are_a_function_of_the_seed() -> None:
    def downs(seed: int) -> list[tuple[float, ev.Fact]]:
        stage = Stage(node_mtbf_s=500.0, node_repair_s=50.0, seed=seed)
        return stage.to(5000.0).said

    assert downs(1) == downs(1)
    assert downs(1) != downs(2)
    assert 10 < sum(isinstance(fact, ev.NodeDown) for _, fact in downs(1)) < 40
    assert all(isinstance(fact, ev.NodeUp) for at, fact in downs(1) if at == downs(1)[0][0] + 50.0)


HALF = 0.5


@pytest.mark.parametrize(
    ("utilization", "cost", "end"),
    [
        (0.4, 0.0, 100.0),  # together they do not fill the device
        (0.4, 0.05, 105.0),
        (0.6, 0.0, 120.0),  # 20 % too much for one device
        (1.0, 0.1, 220.0),
    ],
)
def test_jobs_on_one_device_slow_each_other_down(
    utilization: float, cost: float, end: float
) -> None:
    stage = Stage(speed=SpeedModel(sharing_cost=cost))
    for name in "ab":
        stage.launch(job(name, gpus=HALF), *on(0))
        stage.world.tasks[name].utilization = utilization
    stage.world.resize(ev.Resize("a", 1, on(0)))  # makes it look again at its neighbours
    stage.world.resize(ev.Resize("b", 1, on(0)))
    assert stage.ends() == pytest.approx({"a": end, "b": end})


def test_a_neighbour_that_leaves_gives_its_speed_back() -> None:
    stage = Stage(speed=SpeedModel(sharing_cost=0.0))
    stage.launch(job("a", gpus=HALF), *on(0)).launch(job("b", gpus=HALF), *on(0), duration=50.0)
    # Both at 1 / 1.2 until b has done 50 s of work at 60 s; a has 50 s left then.
    assert stage.ends() == {"b": 60.0, "a": 110.0}


def test_jobs_on_other_devices_are_no_neighbours() -> None:
    stage = Stage()
    stage.launch(job("a", gpus=HALF), *on(0)).launch(job("b", gpus=HALF), *on(1))
    assert stage.ends() == {"a": 100.0, "b": 100.0}


@pytest.mark.parametrize(
    ("sync", "cost", "end"),
    [
        (0.0, 0.0, 70.0),  # 40 s with two workers, the other 60 s of work at twice the speed
        (0.0, 10.0, 75.0),
        (0.1, 0.0, 40.0 + 60.0 / ((4 / 1.3) / (2 / 1.1))),
    ],
)
def test_more_workers_are_faster(sync: float, cost: float, end: float) -> None:
    spec = job("a", workers=2, most=4)
    stage = Stage(speed=SpeedModel(sync_share=sync), resize_cost_s=cost)
    stage.launch(spec, *on(0, 1)).to(40.0).resize("a", *on(0, 1, 2, 3))
    assert stage.ends() == pytest.approx({"a": end}, abs=1e-3)
    assert ev.JobResized("a", 1) in [fact for _, fact in stage.said]


@pytest.mark.parametrize(
    ("workers", "end"),
    [
        (on(0, node="new"), 100.0),
        (on(0, node="old"), 200.0),
        (
            (Worker(0, 0, "new", (0,)), Worker(0, 1, "old", (0,))),
            200.0,
        ),  # the slowest sets the pace
    ],
)
def test_mixed_gpus(workers: tuple[Worker, ...], end: float) -> None:
    cluster = [Node("new", (Device("a100"),)), Node("old", (Device("v100", speed=0.5),))]
    stage = Stage(*cluster).launch(job("a", workers=len(workers)), *workers)
    assert stage.ends() == {"a": end}


def test_workers_that_wait_for_the_rest_hold_their_gpus_and_do_nothing() -> None:
    world = Stage().launch(job("a", gpus=2, workers=3), Worker(0, 0, "n0", (0, 1)))
    assert (world.world.used_milli, world.world.held_milli) == (2000, 2000)
    world.to(10.0)
    world.world.launch(ev.Launch("a", 1, (Worker(0, 1, "n0", (2, 3)),)))
    world.to(30.0)
    assert world.said == []
    world.world.launch(ev.Launch("a", 1, (Worker(0, 2, "n1", (0, 1)),)))
    assert (world.world.used_milli, world.world.held_milli) == (6000, 0)
    assert world.ends() == {"a": 130.0}
    assert world.world.held_gpu_seconds == 10 * 2 + 20 * 4
    assert world.world.gpu_seconds == 10 * 2 + 20 * 4 + 100 * 6
    assert world.world.finished[0].waited_s == 30.0


def test_held_gpus_are_given_back_by_a_stop() -> None:
    stage = Stage().launch(job("a", workers=2), *on(0)).to(10.0).stop("a").to(20.0)
    assert (stage.world.used_milli, stage.world.held_milli) == (0, 0)
    assert stage.world.held_gpu_seconds == 10.0


def test_decisions_may_be_sent_twice() -> None:
    stage = Stage().launch(job("a"), *on(0)).launch(job("a"), *on(0))
    stage.to(30.0)
    for attempt in (1, 1, 9):
        stage.world.stop(ev.Stop("a", attempt, StopIntent.REQUEUE, REASON))
    stage.to(40.0)
    stage.world.launch(ev.Launch("a", 1, on(0)))  # that attempt is over
    assert stage.world.used_milli == 0
    stage.world.launch(ev.Launch("a", 2, on(0)))
    stage.world.resize(ev.Resize("a", 1, on(1)))
    assert stage.ends() == {"a": 110.0}
    assert len(stage.outcomes("a")) == 2


def test_a_job_that_runs_out_of_memory_is_retried_without_sharing() -> None:
    role = Role("worker", Resources(gpu_milli=500))
    specs = [JobSpec(name, (role,), max_retries=1) for name in "ab"]
    world = World([Node("n0", (Device(memory_mib=16_000),) * 2)])
    engine = Engine(build(PolicyConfig()), StablePredictor(), check_every=1)
    store = MemoryStore()
    step(engine, world, store, 0.0, [ev.NodeUp(node) for node in world.nodes()])
    for spec in specs:
        world.expect(task_for(spec, 100.0, peak_memory_mib=12_000), 0.0)
    step(engine, world, store, 0.0, [ev.JobSubmitted(spec) for spec in specs])
    devices = []
    while world.tasks:
        step(engine, world, store, world.next_event())
        devices.append([task.workers[0].devices for task in world.tasks.values() if task.workers])
    exits = [(e.job, e.outcome.value) for _, e in store.read() if isinstance(e, ev.JobExited)]
    assert exits == [("b", "out_of_memory"), ("a", "succeeded"), ("b", "succeeded")]
    assert [(0,), (1,)] in devices
    assert world.now == 100.0
