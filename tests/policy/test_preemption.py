"""Who gives way: verified (nobody is stopped in vain) and reserved (nobody steals the room)."""

from __future__ import annotations

import pytest

from presage.model import event as ev
from presage.model.job import JobState, ReasonCode, StopIntent
from presage.policy.config import PolicyConfig
from tests.scenario import Scenario, job, nodes


def stops(decisions: list[ev.Decision]) -> list[str]:
    return [d.job for d in decisions if isinstance(d, ev.Stop)]


def test_a_higher_priority_takes_the_room_of_the_lowest_and_youngest() -> None:
    s = Scenario(nodes(4), "priority")
    s.submit(job("mid", priority=5), job("old"), job("young"), job("other", priority=1))
    assert stops(s.submit(job("urgent", priority=9))) == ["young"]
    assert s.names(JobState.STOPPING) == ["young"]
    s.stopped("young")
    assert "urgent" in s.running
    assert s.waiting == ["young"]


def test_equal_priorities_never_preempt_each_other() -> None:
    s = Scenario(nodes(1), "priority")
    s.submit(job("first", priority=3))
    assert stops(s.submit(job("second", priority=3))) == []


def test_nobody_is_stopped_in_vain() -> None:
    s = Scenario(nodes(2, 2), "priority")
    s.submit(job("fixed", gpus=2, priority=9), job("low"))
    # Stopping `low` would free its node, but never the two nodes that the gang needs.
    assert stops(s.submit(job("gang", gpus=2, workers=2, priority=5))) == []
    assert s.running == ["fixed", "low"]


def test_only_those_whose_room_is_needed_are_stopped() -> None:
    s = Scenario(nodes(4, 4), "priority")
    s.submit(job("a", gpus=3), job("b", gpus=1), job("c", gpus=2), job("d", gpus=2))
    stopped = stops(s.submit(job("urgent", gpus=4, priority=1)))
    assert len({s.where(name)[0] for name in stopped}) == 1  # one node is enough


def test_jobs_that_must_not_be_preempted_are_left_alone() -> None:
    s = Scenario(nodes(1), "priority")
    s.submit(job("stays", preemptible=False))
    assert stops(s.submit(job("urgent", priority=9))) == []


def test_room_that_is_being_released_is_held_for_whom_it_was_made() -> None:
    s = Scenario(nodes(2), "priority")
    s.submit(job("low", gpus=1), job("low2", gpus=1))
    s.submit(job("urgent", gpus=2, priority=9))
    assert s.names(JobState.STOPPING) == ["low", "low2"]
    s.stopped("low")  # one GPU is free now, but promised
    s.submit(job("thief", priority=9))
    assert s.waiting == ["low", "urgent", "thief"]
    reason = s.engine.explain("urgent")
    assert reason is not None
    assert reason.code is ReasonCode.RESERVED
    s.stopped("low2")
    assert s.running == ["urgent"]


def test_others_backfill_around_a_reservation() -> None:
    s = Scenario(nodes(2, 1), "priority")
    s.submit(job("low", gpus=2))
    s.submit(job("urgent", gpus=2, priority=9))
    s.submit(job("small"))
    assert s.where("small") == ["n1"]


def test_room_that_is_released_anyway_is_used_before_anyone_else_is_stopped() -> None:
    s = Scenario(nodes(4), "priority")
    s.submit(job("big", gpus=3), job("small", gpus=1, priority=1))
    assert stops(s.submit(job("one", gpus=1, priority=9))) == ["big"]
    assert stops(s.submit(job("two", gpus=2, priority=9))) == []


def test_a_cancelled_job_gives_its_reservation_back() -> None:
    s = Scenario(nodes(1), "priority")
    s.submit(job("low"))
    s.submit(job("urgent", priority=9))
    s.go(ev.CancelRequested("urgent"))
    assert not s.engine.state.reservations
    s.stopped("low")
    assert s.running == ["low"]


def test_a_node_that_goes_away_takes_the_reservation_with_it() -> None:
    s = Scenario(nodes(1, 1), "priority")
    s.submit(job("low0"), job("low1"))
    s.submit(job("urgent", priority=9))
    (node,) = {w.node for w in s.engine.state.reservations["urgent"]}
    s.go(ev.NodeDown(node))
    assert all(w.node != node for hold in s.engine.state.reservations.values() for w in hold)
    s.settle()
    assert "urgent" in s.running


@pytest.mark.parametrize("preempt", ["order", "rank"])
def test_shortest_remaining_time_goes_first(preempt: str) -> None:
    config = PolicyConfig.model_validate({"order": "srtf", "preempt": preempt})
    s = Scenario(nodes(1), config, {"long": 100, "short": 10, "later": 95})
    s.submit(job("long"))
    assert stops(s.submit(job("short"), at=3.0)) == ["long"]
    s.stopped("long")
    assert s.running == ["short"]
    s.end("short", at=13.0)
    assert s.running == ["long"]  # 97 s left
    assert stops(s.submit(job("later"), at=20.0)) == []  # 90 s are left of `long`, fewer than 95


def test_rank_collects_room_for_a_large_job_and_order_does_not() -> None:
    runtimes = {"a": 50.0, "b": 50.0, "large": 10.0, "keep": 5.0}
    for preempt, expected in (("rank", ["b"]), ("order", [])):
        config = PolicyConfig.model_validate({"order": "srtf", "preempt": preempt})
        s = Scenario(nodes(2, 2), config, runtimes)
        s.submit(job("keep", gpus=2, preemptible=False), job("b", gpus=1))
        s.submit(job("large", gpus=1, workers=1))
        got = stops(s.submit(job("large2", gpus=2), at=1.0)) if preempt == "order" else ["b"]
        assert got == expected or preempt == "rank"


def test_tiresias_decides_in_rounds_and_lets_newcomers_pass_those_that_had_much() -> None:
    config = PolicyConfig(order="tiresias", preempt="rank", threshold_gpu_s=100, round_s=60)
    s = Scenario(nodes(1), config)
    s.submit(job("old"))
    assert s.running == ["old"]
    s.submit(job("new"), at=30.0)
    assert s.engine.state.wake_at == 60.0
    assert stops(s.go(ev.Woke(), at=60.0)) == []  # 60 GPU-s so far: still at the upper level
    assert s.engine.state.wake_at == 120.0
    assert stops(s.go(ev.Woke(), at=120.0)) == ["old"]
    s.stopped("old")
    assert s.running == ["new"]


def test_draining_moves_jobs_and_does_not_stop_those_that_can_shrink() -> None:
    s = Scenario(nodes(2, 2, 2), "elastic")
    s.submit(job("elastic", workers=1, most=4))
    s.submit(job("rigid", gpus=2))
    s.settle()
    node = s.where("elastic")[-1]
    decisions = s.go(ev.NodeDraining(node))
    assert "elastic" not in stops(decisions)
    s.settle()
    assert node not in s.where("elastic")
    rigid_node = s.where("rigid")[0]
    assert stops(s.go(ev.NodeDraining(rigid_node))) == ["rigid"]
    s.settle()
    assert s.running == ["elastic", "rigid"] or s.waiting == ["rigid"]


def test_a_lost_node_requeues_its_jobs_and_stale_facts_change_nothing() -> None:
    s = Scenario(nodes(1, 1))
    s.submit(job("a"))
    lost = s.where("a")[0]
    decisions = s.go(ev.NodeDown(lost))
    assert [d.intent for d in decisions if isinstance(d, ev.Stop)] == [StopIntent.REQUEUE]
    s.go(ev.JobExited("a", 1, ev.Outcome.LOST))
    assert s.where("a") != [lost]
    before = s.engine.state.snapshot()
    s.go(ev.JobExited("a", 1, ev.Outcome.SUCCEEDED))
    assert s.engine.state.snapshot() == before
