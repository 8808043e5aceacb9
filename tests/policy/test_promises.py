"""What a configuration promises holds in the corners that the state machine found, too."""

from __future__ import annotations

import json

import pytest

from presage.core.engine import Engine
from presage.core.state import State
from presage.model import event as ev
from presage.model.cluster import Resources
from presage.model.job import JobSpec, Role
from presage.policy.config import PolicyConfig, QueueConfig
from presage.policy.registry import build
from tests.scenario import Known, Scenario, job, nodes


def share(name: str, milli: int = 500, workers: int = 1, **spec: object) -> JobSpec:
    role = Role("worker", Resources(gpu_milli=milli), workers, workers)
    return JobSpec(name, (role,), **spec)  # type: ignore[arg-type]


def held(s: Scenario) -> dict[str, int]:
    return {queue: milli for queue, milli in s.engine.state.usage.items() if milli}


LIMIT = {"q": QueueConfig(limit_gpus=2)}


@pytest.mark.parametrize("gang", [True, False])
def test_a_job_that_will_not_share_counts_as_it_is_served(gang: bool) -> None:
    s = Scenario(nodes(4), PolicyConfig(queues=LIMIT, gang=gang))
    s.submit(*(share(f"j{i}", queue="q", shareable=False) for i in range(3)))
    assert held(s) == {"q": 2000}
    s.submit(share("all", workers=3, queue="q", shareable=False))
    assert "all" not in s.engine.state.jobs  # it can never run in this queue


def test_room_that_is_being_made_counts_for_the_queue() -> None:
    s = Scenario(nodes(4), PolicyConfig(order="priority", preempt="priority", queues=LIMIT))
    s.submit(job("low", gpus=4))
    s.submit(*(job(name, gpus=2, priority=1, queue="q") for name in "ab"))
    assert list(s.engine.state.reservations) == ["a"]
    s.settle()
    assert held(s) == {"q": 2000}


def test_a_job_that_waits_for_the_rest_of_its_workers_counts_whole() -> None:
    s = Scenario(nodes(2), PolicyConfig(gang=False, mode="greedy", queues=LIMIT))
    s.submit(job("other"))
    s.submit(job("a", workers=2, queue="q"))
    s.end("other")
    s.submit(job("b", queue="q"))
    assert held(s) == {"q": 2000}
    assert s.waiting == ["b"]


def test_a_job_that_was_halted_and_resumed_while_it_waited_is_launched_once() -> None:
    s = Scenario(nodes(2), PolicyConfig(preempt="rank"))
    s.submit(job("first", gpus=2))
    s.submit(job("second"))
    s.go(ev.HaltRequested("second"))
    s.go(ev.ResumeRequested("second"))
    decisions = s.end("first")
    assert [d.job for d in decisions if isinstance(d, ev.Launch)] == ["second"]


@pytest.mark.parametrize("preempt", ["priority", "rank"])
def test_a_device_is_not_shared_by_too_many_while_one_leaves(preempt: str) -> None:
    config = PolicyConfig.model_validate(
        {"order": "priority", "preempt": preempt, "max_jobs_per_gpu": 1}
    )
    s = Scenario(nodes(1), config)
    s.submit(share("low", 800))
    s.submit(share("mid", 100, priority=1), share("high", 200, priority=2))
    assert [j.id for j in s.engine.state.active.values()] == ["low"]  # high would fit beside it
    s.settle()
    assert s.running == ["high"]


def test_without_gang_nobody_starts_in_part_behind_one_that_did() -> None:
    s = Scenario(nodes(8), PolicyConfig(gang=False))
    s.submit(job("small"), job("a", gpus=2, workers=4), job("b", workers=2))
    assert s.where("b") == []  # a GPU is free, but `a` could not finish if `b` took it
    s.end("small")
    assert s.running == ["a"]


def test_half_started_jobs_that_block_each_other_do_not_keep_the_scheduler_awake() -> None:
    s = Scenario(nodes(4), PolicyConfig(order="tiresias", gang=False, mode="greedy"))
    s.submit(job("hole"))
    s.submit(job("a", gpus=2, workers=2), job("b", workers=3), job("c"))
    s.end("hole", at=60.0)
    assert list(s.engine.state.incomplete) == ["a", "b"]  # they hold two GPUs each
    assert s.waiting == ["c"]
    s.go(ev.Woke(), at=18_060.0)  # what was asked for when `hole` still ran
    assert s.engine.state.wake_at is None


def test_who_takes_over_from_a_snapshot_decides_the_same() -> None:
    s = Scenario(nodes(4), PolicyConfig(order="sjf"), {"a": 9.0, "b": 5.0, "c": 7.0})
    s.submit(job("a"), job("b"), job("c"))
    kept = json.loads(json.dumps(s.engine.state.snapshot()))
    successor = Engine(build(PolicyConfig(order="sjf")), Known(), State.restore(kept))
    down = ev.NodeDown("n0")
    assert successor.handle(1.0, [down]) == s.go(down, at=1.0)
    assert len(s.decisions) == 3
