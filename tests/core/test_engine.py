"""Facts in, decisions out: what the engine answers by itself, whatever the policy."""

from __future__ import annotations

import pytest

from presage.core.state import State
from presage.model import event as ev
from presage.model.cluster import Device, Node, Resources
from presage.model.estimate import Estimate, Estimates
from presage.model.job import JobSpec, JobState, Reason, ReasonCode, Role, StopIntent
from presage.policy.config import PolicyConfig
from tests.scenario import Scenario, job, nodes


def brief(decisions: list[ev.Decision]) -> list[str]:
    """Decisions in a few words: 'launch a#1 on n0', 'stop a to halt'."""
    words = []
    for d in decisions:
        if isinstance(d, ev.Launch):
            where = " ".join(sorted({worker.node for worker in d.workers}))
            words.append(f"launch {d.job}#{d.attempt} on {where}")
        elif isinstance(d, ev.Stop):
            words.append(f"stop {d.job}#{d.attempt} to {d.intent}")
        elif isinstance(d, ev.Reserve):
            words.append(f"reserve {d.job}")
        elif isinstance(d, ev.Reject):
            words.append(f"reject {d.job}")
        else:
            words.append(type(d).__name__)
    return words


def exited(name: str, outcome: ev.Outcome, attempt: int = 1) -> ev.JobExited:
    return ev.JobExited(name, attempt, outcome)


FAILED = Reason(ReasonCode.LAUNCH_FAILED, "no image")
AGAIN = ["launch a#2 on n0"]

# On n0 (2 GPUs) runs `a` (2 GPUs, one retry), and `b` (1 GPU) waits behind it.
ONE_STEP: dict[str, tuple[list[ev.Fact], list[str]]] = {
    "an end starts the next": ([exited("a", ev.Outcome.SUCCEEDED)], ["launch b#1 on n0"]),
    "a failure is retried first in line": ([exited("a", ev.Outcome.FAILED)], AGAIN),
    "a lost run is retried": ([exited("a", ev.Outcome.LOST)], AGAIN),
    "a stale end is ignored": ([exited("a", ev.Outcome.SUCCEEDED, attempt=7)], []),
    "a failed launch is retried": ([ev.LaunchFailed("a", 1, FAILED)], AGAIN),
    "a stale launch failure is ignored": ([ev.LaunchFailed("a", 2, FAILED)], []),
    "a second submit is ignored": ([ev.JobSubmitted(job("a", gpus=1))], []),
    "a cancel stops a run": ([ev.CancelRequested("a")], ["stop a#1 to cancel"]),
    "a halt stops a run": ([ev.HaltRequested("a")], ["stop a#1 to halt"]),
    "a cancel outranks a halt": (
        [ev.HaltRequested("a"), ev.CancelRequested("a")],
        ["stop a#1 to halt", "stop a#1 to cancel"],
    ),
    "a halt does not outrank a cancel": (
        [ev.CancelRequested("a"), ev.HaltRequested("a")],
        ["stop a#1 to cancel"],
    ),
    "a cancel ends who waits": ([ev.CancelRequested("b")], []),
    "a resume of a run is ignored": ([ev.ResumeRequested("a")], []),
    "a request for nobody is ignored": ([ev.CancelRequested("x"), ev.HaltRequested("x")], []),
    "a lost node stops its runs": ([ev.NodeDown("n0")], ["stop a#1 to requeue"]),
    "a node that flaps stops its runs": (
        [ev.NodeDown("n0"), ev.NodeUp(nodes(2)[0])],
        ["stop a#1 to requeue"],
    ),
    "a drained node stops its runs": ([ev.NodeDraining("n0")], ["stop a#1 to requeue"]),
    "an unknown node is ignored": ([ev.NodeDown("x"), ev.NodeDraining("x")], []),
    "a new node takes who waits": ([ev.NodeUp(Node("n1", (Device(),)))], ["launch b#1 on n1"]),
    "too large is refused": ([ev.JobSubmitted(job("c", gpus=3))], ["reject c"]),
    "progress asks for nothing": ([ev.Progress("a", 1, 0.5), ev.StageChanged("a", 1, "x")], []),
    "an end and a cancel of it": (
        [exited("a", ev.Outcome.SUCCEEDED), ev.CancelRequested("a")],
        ["launch b#1 on n0"],
    ),
}


def two_jobs(policy: PolicyConfig | str = "fifo") -> Scenario:
    s = Scenario(nodes(2), policy)
    s.submit(job("a", gpus=2, max_retries=1), job("b"))
    return s


@pytest.mark.parametrize("name", ONE_STEP)
def test_one_step(name: str) -> None:
    facts, expected = ONE_STEP[name]
    assert brief(two_jobs().go(*facts)) == expected


STORIES: dict[str, list[tuple[ev.Fact, list[str]]]] = {
    "halt, then resume": [
        (ev.HaltRequested("a"), ["stop a#1 to halt"]),
        (exited("a", ev.Outcome.STOPPED), ["launch b#1 on n0"]),
        (exited("b", ev.Outcome.SUCCEEDED), []),
        (ev.ResumeRequested("a"), ["launch a#2 on n0"]),
    ],
    "halt while it waits": [
        (ev.HaltRequested("b"), []),
        (exited("a", ev.Outcome.SUCCEEDED), []),
        (ev.ResumeRequested("b"), ["launch b#1 on n0"]),
    ],
    "cancel while it stops": [
        (ev.HaltRequested("a"), ["stop a#1 to halt"]),
        (ev.CancelRequested("a"), ["stop a#1 to cancel"]),
        (exited("a", ev.Outcome.STOPPED), ["launch b#1 on n0"]),
        (ev.ResumeRequested("a"), []),
    ],
    "the node goes and comes back": [
        (ev.NodeDown("n0"), ["stop a#1 to requeue"]),
        (exited("a", ev.Outcome.LOST), []),
        (ev.NodeUp(nodes(2)[0]), ["launch a#2 on n0"]),
        (exited("a", ev.Outcome.SUCCEEDED, attempt=1), []),  # the run that was lost, late
        (exited("a", ev.Outcome.SUCCEEDED, attempt=2), ["launch b#1 on n0"]),
    ],
    "drained, then used again": [
        (ev.NodeDraining("n0"), ["stop a#1 to requeue"]),
        (exited("a", ev.Outcome.STOPPED), []),
        (ev.JobSubmitted(job("c")), []),
        (ev.NodeUp(nodes(2)[0]), ["launch a#2 on n0"]),
    ],
    "one retry and no more": [
        (ev.LaunchFailed("a", 1, FAILED), ["launch a#2 on n0"]),
        (ev.LaunchFailed("a", 2, FAILED), ["launch b#1 on n0"]),
        (ev.LaunchFailed("b", 1, FAILED), []),
    ],
    "a name is free again after the end": [
        (exited("a", ev.Outcome.SUCCEEDED), ["launch b#1 on n0"]),
        (ev.JobSubmitted(job("a")), ["launch a#1 on n0"]),
    ],
}


@pytest.mark.parametrize("name", STORIES)
def test_stories(name: str) -> None:
    s = two_jobs()
    for fact, expected in STORIES[name]:
        assert brief(s.go(fact)) == expected, fact


def test_reserved_room_is_used_the_moment_it_is_free() -> None:
    s = two_jobs("priority")
    assert brief(s.submit(job("urgent", gpus=2, priority=1))) == [
        "stop a#1 to requeue",
        "reserve urgent",
    ]
    assert s.why("urgent") == "room is being made for it on n0"
    assert brief(s.go(exited("a", ev.Outcome.STOPPED)))[0] == "launch urgent#1 on n0"


@pytest.mark.parametrize(
    ("fact", "code", "words"),
    [
        (None, ReasonCode.OK, "running"),
        (ev.HaltRequested("a"), ReasonCode.REQUESTED, "halted by request"),
        (ev.NodeDown("n0"), ReasonCode.NODE_LOST, "node n0 went away"),
        (ev.NodeDraining("n0"), ReasonCode.DRAINED, "drained for maintenance"),
    ],
)
def test_a_job_that_does_not_wait_has_a_reason_too(
    fact: ev.Fact | None, code: ReasonCode, words: str
) -> None:
    s = two_jobs()
    if fact is not None:
        s.go(fact)
    reason = s.engine.explain("a")
    assert reason is not None
    assert reason.code is code
    assert words in reason.text
    assert s.engine.explain("nobody") is None


def test_what_ended_in_a_call_is_there_to_look_at() -> None:
    s = two_jobs()
    s.go(exited("a", ev.Outcome.SUCCEEDED), ev.CancelRequested("b"))
    ends = {job.id: job.state for job in s.engine.state.ended}
    assert ends == {"a": JobState.SUCCEEDED, "b": JobState.CANCELLED}
    s.go(ev.Woke())
    assert not s.engine.state.ended


def test_a_stop_keeps_its_reason_for_the_time_after() -> None:
    s = two_jobs("priority")
    stop = s.submit(job("urgent", priority=1))[0]
    assert isinstance(stop, ev.Stop)
    assert stop.intent is StopIntent.REQUEUE
    s.stopped("a")
    reason = s.engine.state.jobs["a"].reason
    assert reason is not None
    assert reason.text == "made room for job urgent"


def test_limits_are_decided_for_a_run_and_go_with_it() -> None:
    s = Scenario([Node("n0", (Device(),), cpu_milli=8000, memory_mib=8192)])
    ask = Resources(cpu_milli=4000, memory_mib=4096, gpu_milli=1000)
    s.submit(JobSpec("a", (Role("worker", ask),)))
    why = Reason(ReasonCode.OK, "phase 2")
    wanted = Resources(cpu_milli=1000, memory_mib=9999)

    (decision,) = s.go(ev.LimitsAdvised("a", 1, wanted, why))
    capped = Resources(cpu_milli=1000, memory_mib=4096)
    assert decision == ev.Limit("a", 1, capped, why)
    assert s.engine.state.jobs["a"].limits == capped
    assert State.restore(s.engine.state.snapshot()).jobs["a"].limits == capped

    assert s.go(ev.LimitsAdvised("a", 1, wanted, why)) == []  # it has them
    assert s.go(ev.LimitsAdvised("a", 7, Resources(cpu_milli=1), why)) == []  # another run
    s.go(exited("a", ev.Outcome.LOST))
    assert s.engine.state.jobs["a"].limits is None


def test_what_was_foreseen_stays_with_the_job() -> None:
    s = Scenario(nodes(1))
    foreseen = Estimates("v1", runtime_s=Estimate.exact(60.0, "s", "test"))
    s.go(ev.JobSubmitted(job("a"), foreseen))
    assert s.engine.state.jobs["a"].estimates == foreseen
    assert State.restore(s.engine.state.snapshot()).jobs["a"].estimates == foreseen
