"""Elastic jobs shrink before anyone is stopped, and grow into idle GPUs."""

from __future__ import annotations

from presage.model import event as ev
from presage.policy.config import PolicyConfig, QueueConfig
from tests.scenario import Scenario, job, nodes


def size(s: Scenario, name: str) -> int:
    return len(s.where(name))


def test_a_lone_job_starts_as_large_as_it_may() -> None:
    s = Scenario(nodes(4, 4), "elastic")
    s.submit(job("a", workers=2, most=6))
    assert size(s, "a") == 6


def test_without_elastic_rules_a_job_starts_with_what_fits_between_its_bounds() -> None:
    s = Scenario(nodes(4))
    s.submit(job("fixed"), job("a", workers=1, most=8))
    assert size(s, "a") == 3


def test_it_shrinks_for_a_waiting_job_and_nobody_is_stopped() -> None:
    s = Scenario(nodes(8), "elastic")
    s.submit(job("a", workers=2, most=8))
    decisions = s.submit(job("b", workers=3))
    assert not [d for d in decisions if isinstance(d, ev.Stop)]
    s.settle()
    assert s.running == ["a", "b"]
    assert (size(s, "a"), size(s, "b")) == (5, 3)


def test_it_grows_back_when_room_appears() -> None:
    s = Scenario(nodes(8), "elastic")
    s.submit(job("a", workers=2, most=8))
    s.submit(job("b", workers=6))
    s.settle()
    assert size(s, "a") == 2
    s.end("b")
    s.settle()
    assert size(s, "a") == 8


def test_growth_is_shared_by_those_with_the_fewest_workers() -> None:
    s = Scenario(nodes(8), "elastic")
    s.submit(job("a", workers=1, most=8), job("b", workers=1, most=8))
    s.settle()
    assert (size(s, "a"), size(s, "b")) == (4, 4)


def test_growth_keeps_to_the_queue_limit() -> None:
    config = PolicyConfig(elastic=True, queues={"default": QueueConfig(limit_gpus=5)})
    s = Scenario(nodes(8), config)
    s.submit(job("a", workers=1, most=8), job("b", workers=1, most=8))
    s.settle()
    assert size(s, "a") + size(s, "b") == 5


def test_the_owner_scales_within_the_bounds() -> None:
    s = Scenario(nodes(8))
    s.submit(job("a", workers=2, most=6))
    s.go(ev.ScaleRequested("a", 3))
    s.settle()
    assert size(s, "a") == 3
    s.go(ev.ScaleRequested("a", 100))
    s.settle()
    assert size(s, "a") == 6
    s.go(ev.ScaleRequested("a", 0))
    s.settle()
    assert size(s, "a") == 2


def test_a_shrinking_job_that_ends_leaves_nothing_behind() -> None:
    s = Scenario(nodes(8), "elastic")
    s.submit(job("a", workers=2, most=8))
    s.submit(job("b", workers=3))
    s.end("a")
    assert s.running == ["b"]
    s.end("b")
    assert s.engine.state.capacity.free_milli == 8000
