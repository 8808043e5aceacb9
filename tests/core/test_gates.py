"""Jobs that wait for other jobs: when they go on, when they never can, and what is said of it."""

from __future__ import annotations

import json

import pytest

from presage.core.engine import Engine
from presage.core.state import State
from presage.model import event as ev
from presage.model.cluster import Device, Node, Resources
from presage.model.job import Dependency, DependsOn, JobSpec, JobState, ReasonCode, Role
from presage.policy.config import PolicyConfig
from presage.policy.registry import build
from presage.testing.machine import StablePredictor

ONE_GPU = (Role("worker", Resources(gpu_milli=1000)),)
OK, ANY, FAILED = DependsOn.OK, DependsOn.ANY, DependsOn.FAILED


def spec(name: str, *after: Dependency, array: str = "", at_once: int = 0) -> JobSpec:
    return JobSpec(name, ONE_GPU, after=after, array=array, at_once=at_once)


class Cluster:
    """Eight GPUs, and what is decided on them."""

    def __init__(self, gpus: int = 8) -> None:
        self.engine = Engine(build(PolicyConfig()), StablePredictor(), check_every=1)
        self.now = 0.0
        self.say(ev.NodeUp(Node("n0", (Device(),) * gpus)))

    @property
    def state(self) -> State:
        return self.engine.state

    def say(self, *facts: ev.Fact) -> list[ev.Decision]:
        self.now += 1.0
        return self.engine.handle(self.now, facts)

    def submit(self, *specs: JobSpec) -> list[str]:
        """Submit, and who is launched."""
        return launched(self.say(*map(ev.JobSubmitted, specs)))

    def end(self, *jobs: str, outcome: ev.Outcome = ev.Outcome.SUCCEEDED) -> list[str]:
        """Let runs end, and who is launched then."""
        return launched(self.say(*(ev.JobExited(job, 1, outcome) for job in jobs)))

    def ended(self) -> dict[str, JobState]:
        return {job.id: job.state for job in self.state.ended}


def launched(decisions: list[ev.Decision]) -> list[str]:
    return [one.job for one in decisions if isinstance(one, ev.Launch)]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.mark.parametrize(
    ("on", "outcome", "starts"),
    [
        (OK, ev.Outcome.SUCCEEDED, True),
        (OK, ev.Outcome.FAILED, False),
        (ANY, ev.Outcome.SUCCEEDED, True),
        (ANY, ev.Outcome.FAILED, True),
        (FAILED, ev.Outcome.SUCCEEDED, False),
        (FAILED, ev.Outcome.FAILED, True),
    ],
)
def test_a_job_starts_after_another_ended_as_asked_or_is_cancelled(
    cluster: Cluster, on: DependsOn, outcome: ev.Outcome, starts: bool
) -> None:
    assert cluster.submit(spec("a"), spec("b", Dependency("a", on))) == ["a"]
    assert cluster.state.jobs["b"].state is JobState.BLOCKED
    assert "b" not in cluster.state.pending
    assert cluster.end("a", outcome=outcome) == (["b"] if starts else [])
    if not starts:
        assert cluster.ended()["b"] is JobState.CANCELLED
        reason = next(job.reason for job in cluster.state.ended if job.id == "b")
        assert reason is not None
        assert reason.code is ReasonCode.DEPENDENCY
        assert reason.text.startswith("a ")


def test_what_it_waits_for_is_said(cluster: Cluster) -> None:
    cluster.submit(spec("a"), spec("b", Dependency("a")))
    reason = cluster.engine.explain("b")
    assert reason is not None
    assert reason.text == "waits for a (starting) to end well"


def test_a_long_chain_of_cancellations_does_not_recurse(cluster: Cluster) -> None:
    chain = [spec("j0"), *(spec(f"j{k}", Dependency(f"j{k - 1}")) for k in range(1, 3000))]
    cluster.submit(*chain)
    cluster.say(ev.CancelRequested("j0"))
    cluster.end("j0", outcome=ev.Outcome.STOPPED)
    assert not cluster.state.jobs
    assert len(cluster.ended()) == 3000


def test_nobody_waits_for_what_is_not_known(cluster: Cluster) -> None:
    cluster.submit(spec("b", Dependency("nobody")), spec("c", Dependency("c")))
    assert cluster.ended() == {"b": JobState.CANCELLED, "c": JobState.CANCELLED}


def test_what_ended_in_the_same_step_still_counts(cluster: Cluster) -> None:
    cluster.submit(spec("a"), spec("x"))
    done = ev.JobExited("a", 1, ev.Outcome.SUCCEEDED)
    lost = ev.JobExited("x", 1, ev.Outcome.FAILED)
    good, bad = spec("b", Dependency("a")), spec("c", Dependency("x"))
    decisions = cluster.say(done, lost, ev.JobSubmitted(good), ev.JobSubmitted(bad))
    assert launched(decisions) == ["b"]
    assert cluster.ended()["c"] is JobState.CANCELLED


def test_at_most_so_many_of_an_array_go_at_once(cluster: Cluster) -> None:
    members = [spec(f"m{k}", array="arr", at_once=2) for k in range(5)]
    assert cluster.submit(*members) == ["m0", "m1"]
    reason = cluster.engine.explain("m2")
    assert reason is not None
    assert reason.text == "at most 2 of its array go at once, and 2 do"
    assert cluster.end("m1") == ["m2"]
    assert cluster.end("m0", "m2") == ["m3", "m4"]


def test_a_halted_member_makes_room_and_waits_for_its_turn_again(cluster: Cluster) -> None:
    cluster.submit(*(spec(f"m{k}", array="arr", at_once=1) for k in range(3)))
    cluster.say(ev.HaltRequested("m0"))
    assert cluster.end("m0", outcome=ev.Outcome.STOPPED) == ["m1"]
    cluster.say(ev.ResumeRequested("m0"))
    assert cluster.state.jobs["m0"].state is JobState.BLOCKED
    assert cluster.end("m1") == ["m0"]  # in the order of submission


def test_a_job_waits_for_a_whole_array(cluster: Cluster) -> None:
    members = [spec(f"m{k}", array="arr") for k in range(3)]
    after = [spec("all", Dependency("arr")), spec("one", Dependency("arr", FAILED))]
    cluster.submit(*members)
    cluster.submit(*after, spec("end", Dependency("arr", ANY)))
    assert cluster.end("m0") == []
    assert cluster.end("m1", outcome=ev.Outcome.FAILED) == ["one"]
    assert cluster.ended()["all"] is JobState.CANCELLED
    assert cluster.submit(spec("late", Dependency("arr"))) == []  # one has failed already
    assert cluster.ended() == {"late": JobState.CANCELLED}
    assert cluster.end("m2") == ["end"]


def test_a_halted_job_hears_of_what_it_waited_for(cluster: Cluster) -> None:
    cluster.submit(spec("a"), spec("x"), spec("b", Dependency("a")), spec("c", Dependency("x")))
    cluster.say(ev.HaltRequested("b"), ev.HaltRequested("c"))
    cluster.end("a")
    cluster.end("x", outcome=ev.Outcome.FAILED)
    assert cluster.ended()["c"] is JobState.CANCELLED
    assert launched(cluster.say(ev.ResumeRequested("b"))) == ["b"]


def test_a_job_that_is_rejected_lets_others_through_in_the_same_step(cluster: Cluster) -> None:
    huge = JobSpec("huge", (Role("worker", Resources(gpu_milli=64_000)),))
    assert cluster.submit(huge, spec("b", Dependency("huge", FAILED))) == ["b"]


def test_a_snapshot_and_a_copy_wait_for_the_same(cluster: Cluster) -> None:
    cluster.submit(*(spec(f"m{k}", array="arr", at_once=1) for k in range(3)))
    cluster.submit(spec("b", Dependency("arr", ANY)))
    cluster.end("m0", outcome=ev.Outcome.FAILED)
    state = cluster.state
    for other in (State.restore(json.loads(json.dumps(state.snapshot()))), state.copy()):
        other.check()
        assert other.snapshot() == state.snapshot()
        assert other.gates.arrays["arr"].failed
        assert other.gates.blocked.keys() == {"m2", "b"}


def test_why_a_job_was_cancelled_is_kept(cluster: Cluster) -> None:
    from presage.model.job import Reason

    cluster.submit(spec("a"))
    why = Reason(ReasonCode.STOPPED_EARLY, "stopped early")
    cluster.say(ev.CancelRequested("a", why))
    cluster.end("a", outcome=ev.Outcome.STOPPED)
    assert cluster.state.ended[0].reason == why
