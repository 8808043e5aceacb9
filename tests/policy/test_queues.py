"""Quotas, borrowing, weights: fair share by queue."""

from __future__ import annotations

from presage.model import event as ev
from presage.policy.config import PolicyConfig
from tests.scenario import Scenario, job, nodes


def config(**queues: dict[str, object]) -> PolicyConfig:
    data = {"order": "fair_share", "preempt": "quota", "mode": "greedy", "queues": queues}
    return PolicyConfig.model_validate(data)


def test_the_queue_that_holds_least_for_its_weight_goes_first() -> None:
    s = Scenario(nodes(6), config(a={"weight": 2}, b={"weight": 1}))
    s.submit(*(job(f"a{k}", queue="a") for k in range(6)))
    s.end(*(f"a{k}" for k in range(6)))
    both = [job(f"a{k}", queue="a") for k in range(6, 14)]
    s.submit(*both, *(job(f"b{k}", queue="b") for k in range(8)))
    held = s.engine.state.usage
    assert (held["a"], held["b"]) == (4000, 2000)


def test_a_queue_may_borrow_and_gives_back_when_the_owner_comes() -> None:
    s = Scenario(nodes(4), config(a={"quota_gpus": 2}, b={"quota_gpus": 2}))
    s.submit(*(job(f"a{k}", queue="a") for k in range(4)))
    assert len(s.running) == 4
    decisions = s.submit(*(job(f"b{k}", queue="b") for k in range(3)))
    # b gets its two, from the youngest borrowers; the third would be borrowed by itself.
    assert [d.job for d in decisions if isinstance(d, ev.Stop)] == ["a3", "a2"]
    s.settle()
    assert s.running == ["a0", "a1", "b0", "b1"]


def test_a_queue_that_may_not_borrow_waits_and_does_not_block_others() -> None:
    s = Scenario(nodes(4), config(a={"quota_gpus": 1, "borrow": False}))
    s.submit(job("a0", queue="a"), job("a1", queue="a"), job("b0", queue="b"))
    assert s.running == ["a0", "b0"]
    assert "holds 1 of the 1 GPUs it may hold" in s.why("a1")


def test_a_limit_is_a_ceiling_for_what_is_borrowed_too() -> None:
    s = Scenario(nodes(8), config(a={"quota_gpus": 1, "limit_gpus": 3}))
    s.submit(*(job(f"a{k}", queue="a") for k in range(5)))
    assert len(s.running) == 3


def test_a_job_above_its_queue_limit_is_rejected() -> None:
    s = Scenario(nodes(8), config(a={"limit_gpus": 3}))
    (decision,) = s.submit(job("big", gpus=4, queue="a"))
    assert isinstance(decision, ev.Reject)
    assert "may hold at most 3" in decision.reason.text


def test_a_borrower_never_loses_what_is_within_its_quota() -> None:
    s = Scenario(nodes(4), config(a={"quota_gpus": 3}, b={"quota_gpus": 3}))
    s.submit(*(job(f"a{k}", queue="a") for k in range(4)))
    s.submit(*(job(f"b{k}", queue="b") for k in range(3)))
    s.settle()
    assert s.engine.state.usage["a"] == 3000
