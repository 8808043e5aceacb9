"""Six reasons for which the number of workers changes, each on a simulated cluster: a plan, the
owner, an idle cluster, maintenance, a higher priority, and starting small."""

from __future__ import annotations

from presage.model import event as ev
from presage.policy.config import PolicyConfig
from tests.scenario import Scenario, job, nodes


def size(s: Scenario, name: str) -> int:
    """Workers that a job has once all changes are through."""
    s.settle()
    return len(s.where(name))


def stops(decisions: list[ev.Decision]) -> list[str]:
    return [decision.job for decision in decisions if isinstance(decision, ev.Stop)]


def test_planned_by_epoch() -> None:
    s = Scenario(nodes(4), "elastic")
    s.submit(job("planned", workers=1, most=4))
    for epoch, wanted in ((10, 2), (20, 4), (30, 1)):
        done = s.go(
            ev.Progress("planned", 1, epoch / 40, {"epoch": epoch}),
            ev.ScaleRequested("planned", wanted),  # as `server.plans` adds it
        )
        assert not stops(done)
        assert size(s, "planned") == wanted
    assert s.engine.state.jobs["planned"].attempt == 1


def test_live_by_the_owner() -> None:
    s = Scenario(nodes(4))
    s.submit(job("other", workers=2), job("mine", workers=1, most=4))
    assert size(s, "mine") == 2
    s.go(ev.ScaleRequested("mine", 4))
    assert size(s, "mine") == 2, "there is no room yet"
    s.end("other")
    assert size(s, "mine") == 4
    s.go(ev.ScaleRequested("mine", 1))
    assert size(s, "mine") == 1


def test_as_many_as_there_is_room_for() -> None:
    s = Scenario(nodes(4))
    s.submit(job("other"), job("mine", workers=1, most=4))
    s.go(ev.ScaleRequested("mine", 1))
    assert size(s, "mine") == 1
    s.go(ev.ScaleRequested("mine", 4))
    assert size(s, "mine") == 3


def test_an_idle_cluster_is_grown_into() -> None:
    s = Scenario(nodes(4), "elastic")
    s.submit(job("other", workers=3), job("grows", workers=1, most=4))
    assert size(s, "grows") == 1
    s.end("other")
    assert size(s, "grows") == 4


def test_maintenance_takes_only_workers() -> None:
    s = Scenario(nodes(2, 2), "elastic")
    s.submit(job("spread", workers=2, most=4))
    assert size(s, "spread") == 4
    decisions = s.go(ev.NodeDraining("n1"))
    assert not stops(decisions)
    assert size(s, "spread") == 2
    assert set(s.where("spread")) == {"n0"}
    s.go(ev.NodeUp(s.engine.state.capacity.nodes[1]))
    assert size(s, "spread") == 4


def test_a_higher_priority_takes_workers_and_nobody_is_stopped() -> None:
    s = Scenario(nodes(4), "elastic")
    s.submit(job("large", workers=1, most=4))
    decisions = s.submit(job("urgent", workers=3, priority=10))
    assert not stops(decisions)
    assert (size(s, "large"), size(s, "urgent")) == (1, 3)
    decisions = s.submit(job("more urgent", workers=2, priority=20))
    assert stops(decisions), "here shrinking is not enough"


def test_starting_small() -> None:
    s = Scenario(nodes(4), "elastic")
    s.submit(job("first", workers=1, most=4), job("second", workers=1, most=4))
    started = [len(d.workers) for d in s.decisions if isinstance(d, ev.Launch)]
    assert started == [1, 1]
    assert (size(s, "first"), size(s, "second")) == (2, 2)


# -- patience -----------------------------------------------------------------------------------

PATIENT = PolicyConfig(order="priority", elastic=True, shrink_after_s=30.0, grow_after_s=60.0)


def test_a_head_that_waits_too_long_is_made_room_for() -> None:
    s = Scenario(nodes(4), PATIENT)
    s.submit(job("large", workers=1, most=4), at=0.0)
    s.submit(job("head", workers=2), at=5.0)
    assert size(s, "large") == 4
    assert s.engine.state.wake_at == 35.0
    s.go(ev.Woke(), at=35.0)
    assert (size(s, "large"), size(s, "head")) == (2, 2)


def test_a_higher_priority_need_not_wait() -> None:
    s = Scenario(nodes(4), PATIENT)
    s.submit(job("large", workers=1, most=4), at=0.0)
    s.submit(job("urgent", workers=2, priority=1), at=5.0)
    assert (size(s, "large"), size(s, "urgent")) == (2, 2)


def test_a_size_is_kept_for_a_while_before_it_grows() -> None:
    s = Scenario(nodes(4), PATIENT)
    s.submit(job("other", workers=3), job("grows", workers=1, most=4), at=0.0)
    s.end("other", at=10.0)
    assert size(s, "grows") == 1
    assert s.engine.state.wake_at == 60.0
    s.go(ev.Woke(), at=60.0)
    assert size(s, "grows") == 4


def test_a_job_without_checkpoints_is_left_as_it_is() -> None:
    s = Scenario(nodes(4), "elastic")
    s.submit(job("other", workers=2), job("forgetful", workers=1, most=4, checkpointable=False))
    before = size(s, "forgetful")
    s.end("other")
    assert size(s, "forgetful") == before
    decisions = s.submit(job("large", workers=4))
    assert not decisions
