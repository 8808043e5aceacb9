"""What is seen of a foreign cluster becomes the journal it would have had."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.control.watch.follow import GONE_S, Follower, Step
from presage.core.loop import fold
from presage.core.state import State
from presage.model import event as ev
from presage.model.cluster import Device, Node, Resources
from presage.model.event import Outcome
from presage.model.job import JobState, Reason, ReasonCode, Role
from presage.model.watched import (
    NodeState,
    SeenCluster,
    SeenEnd,
    SeenJob,
    SeenNode,
    SeenRun,
    SeenWorker,
)

GPU = Resources(cpu_milli=1000, gpu_milli=1000)
NODES = tuple(SeenNode(Node(f"n{i}", (Device("a100"),) * 4, 16_000, 65_536)) for i in range(2))
LATE = Reason(ReasonCode.TIME_LIMIT, "it ran longer than it may")


def waiting(job_id: str = "1", at: float = 10.0, count: int = 1) -> SeenJob:
    return SeenJob(job_id, "train", "ann", "gpu", at, Role(resources=GPU, min=count, max=count))


def run(started_at: float, *nodes: str, attempt: int = 1, end: SeenEnd | None = None) -> SeenRun:
    return SeenRun(attempt, started_at, tuple(SeenWorker(node, GPU) for node in nodes), end)


class Watched:
    """A follower with its journal."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.ended: dict[str, float] = {}
        self.follower = Follower(State(), self.ended.get)

    def see(self, now: float, *jobs: SeenJob, nodes: tuple[SeenNode, ...] = NODES) -> list[str]:
        """The names of the events that follow."""
        names = []
        for at, facts, decisions in self.follower.follow(SeenCluster(now, jobs, nodes)):
            state = self.follower.state
            self.ended |= {job.id: at for job in state.ended}
            state.check()
            self.steps.append((at, facts, decisions))
            names += [f"{at:g} {type(event).__name__}" for event in (*facts, *decisions)]
        return names

    def restart(self) -> None:
        """All that is left is the journal."""
        journal = [(now, e) for now, facts, made in self.steps for e in (*facts, *made)]
        before = self.follower.state.snapshot()
        self.follower = Follower(fold(journal), self.ended.get)
        assert self.follower.state.snapshot() == before


@pytest.fixture
def watched() -> Watched:
    made = Watched()
    assert made.see(5.0) == ["5 NodeUp", "5 NodeUp"]
    return made


def test_a_job_seen_at_every_moment(watched: Watched) -> None:
    job = waiting()
    assert watched.see(11.0, job) == ["10 JobSubmitted"]
    assert watched.see(12.0, job) == []
    job = replace(job, runs=(run(13.0, "n0"),))
    assert watched.see(14.0, job) == ["13 Launch", "13 JobStarted"]
    assert watched.see(15.0, job) == []
    ended = replace(job, runs=(run(13.0, "n0", end=SeenEnd(20.0, Outcome.SUCCEEDED)),))
    assert watched.see(21.0, ended) == ["20 JobExited"]
    assert watched.see(22.0, ended) == []
    assert not watched.follower.state.jobs


def test_a_job_that_came_and_went_between_two_looks(watched: Watched) -> None:
    end = SeenEnd(20.0, Outcome.FAILED, LATE, exit_code=1)
    seen = replace(waiting(), runs=(run(13.0, "n0", "n1", end=end),))
    events = watched.see(60.0, seen)
    assert events == [
        *("10 JobSubmitted", "13 JobChanged", "13 Launch", "13 JobStarted", "20 JobExited")
    ]
    exited = watched.steps[-1][1][0]
    assert isinstance(exited, ev.JobExited)
    assert (exited.outcome, exited.reason, exited.exit_code) == (Outcome.FAILED, LATE, 1)


def test_an_end_that_is_told_late_keeps_its_time(watched: Watched) -> None:
    job = replace(waiting(), runs=(run(13.0, "n0"),))
    watched.see(14.0, job)
    watched.see(25.0, job, waiting("2", 24.0))  # the journal goes on
    (alive,) = [one for one in watched.follower.state.jobs.values() if one.id == "1"]
    ended = replace(job, runs=(run(13.0, "n0", end=SeenEnd(20.0, Outcome.SUCCEEDED)),))
    assert watched.see(26.0, ended, waiting("2", 24.0)) == ["24 JobExited"]
    exited = watched.steps[-1][1][0]
    assert isinstance(exited, ev.JobExited)
    assert exited.at == 20.0
    assert alive.ran_s == 7.0, "what went by until it was told is no run time"
    watched.restart()


def test_a_restart_forgets_nothing_and_tells_nothing_twice(watched: Watched) -> None:
    job = replace(waiting(), runs=(run(13.0, "n0"),))
    watched.see(14.0, job)
    watched.restart()
    assert watched.see(15.0, job) == []
    ended = replace(job, runs=(run(13.0, "n0", end=SeenEnd(20.0, Outcome.SUCCEEDED)),))
    assert watched.see(3000.0, ended, waiting("2", 17.0)) == ["17 JobSubmitted", "20 JobExited"]
    watched.restart()
    assert watched.see(3001.0, ended, waiting("2", 17.0)) == []


def test_a_requeued_job_has_another_attempt(watched: Watched) -> None:
    job = replace(waiting(), runs=(run(13.0, "n0"),))
    watched.see(14.0, job)
    assert watched.see(21.0, replace(job, runs=(), submitted_at=20.0)) == ["20 JobExited"]
    assert watched.follower.state.jobs["1"].state is JobState.PENDING
    again = replace(job, submitted_at=20.0, runs=(run(25.0, "n1", attempt=2),))
    assert watched.see(26.0, again) == ["25 Launch", "25 JobStarted"]
    # Requeued and started again in between:
    third = replace(job, submitted_at=30.0, runs=(run(31.0, "n0", attempt=3),))
    assert watched.see(35.0, third) == ["30 JobExited", "31 Launch", "31 JobStarted"]
    assert watched.follower.state.jobs["1"].attempt == 3


def test_every_run_that_is_told_of_is_written_down(watched: Watched) -> None:
    again = SeenEnd(20.0, Outcome.LOST, again=True)
    runs = (run(13.0, "n0", end=again), run(25.0, "n1", attempt=2))
    assert watched.see(40.0, replace(waiting(), runs=runs)) == [
        *("10 JobSubmitted", "13 Launch", "13 JobStarted", "20 JobExited"),
        *("25 Launch", "25 JobStarted"),
    ]


def test_cancelled_while_it_waits_and_while_it_runs(watched: Watched) -> None:
    watched.see(12.0, waiting(), replace(waiting("2"), runs=(run(11.0, "n0"),)))
    end = SeenEnd(20.0, Outcome.STOPPED)
    seen = replace(waiting(), end=end), replace(waiting("2"), runs=(run(11.0, "n0", end=end),))
    assert watched.see(21.0, *seen) == [
        *("20 CancelRequested", "20 Stop", "20 JobExited", "20 CancelRequested")
    ]
    assert {job.state for job in watched.follower.state.ended} <= {JobState.CANCELLED}


def test_a_job_that_can_never_run_is_rejected(watched: Watched) -> None:
    seen = replace(waiting(), end=SeenEnd(20.0, Outcome.FAILED, LATE))
    assert watched.see(21.0, seen) == ["10 JobSubmitted", "20 Reject"]


def test_a_job_that_is_changed_while_it_waits(watched: Watched) -> None:
    watched.see(12.0, waiting())
    longer = replace(waiting(), time_limit_s=60.0, priority=7)
    assert watched.see(13.0, longer) == ["13 JobChanged"]
    assert watched.see(14.0, replace(longer, priority=9)) == []


def test_uneven_workers_are_roles_of_their_own(watched: Watched) -> None:
    watched.see(12.0, waiting(count=3))
    two = SeenWorker("n1", Resources(cpu_milli=2000, gpu_milli=2000), (1, 3))
    seen = replace(waiting(count=3), runs=(SeenRun(1, 13.0, (SeenWorker("n0", GPU), two)),))
    assert watched.see(14.0, seen) == ["13 JobChanged", "13 Launch", "13 JobStarted"]
    job = watched.follower.state.jobs["1"]
    assert [role.resources.gpu_milli for role in job.spec.roles] == [1000, 2000]
    assert [(worker.node, worker.devices) for worker in job.allocation] == [
        *(("n0", (0,)), ("n1", (1, 3)))
    ]


def test_a_job_nobody_knows_any_more_ends_after_a_while(watched: Watched) -> None:
    watched.see(12.0, waiting(), replace(waiting("2"), runs=(run(11.0, "n0"),)))
    assert watched.see(20.0) == []
    assert watched.see(20.0 + GONE_S - 1) == []
    assert watched.see(20.0 + GONE_S) == [
        *("20 CancelRequested", "20 Stop", "20 JobExited", "20 CancelRequested")
    ]


def test_a_number_that_is_used_again_is_another_job(watched: Watched) -> None:
    end = SeenEnd(20.0, Outcome.SUCCEEDED)
    first = replace(waiting(), runs=(run(13.0, "n0", end=end),))
    watched.see(21.0, first)
    other = waiting(at=500.0)
    assert watched.see(501.0, other) == ["500 JobSubmitted"]
    assert list(watched.follower.state.jobs) == ["1@500"]
    ran = replace(other, runs=(run(510.0, "n0", end=SeenEnd(520.0, Outcome.SUCCEEDED)),))
    assert watched.see(530.0, ran) == ["510 Launch", "510 JobStarted", "520 JobExited"]
    assert watched.see(540.0, ran) == []


def test_a_controller_that_forgot_what_it_told(watched: Watched) -> None:
    """It was killed, and came up with what it had written last."""
    end = SeenEnd(20.0, Outcome.SUCCEEDED)
    ended = replace(waiting("1", 6.0), runs=(run(10.0, "n0", end=end),))
    running, young = replace(waiting("2", 6.0), runs=(run(15.0, "n0"),)), waiting("3", 16.0)
    watched.see(21.0, ended, running, young)
    # The first one runs again, the second was not started yet, the third is another.
    back = replace(ended, runs=(run(10.0, "n0"),))
    assert watched.see(25.0, back, waiting("2", 6.0), waiting("3", 24.0)) == [
        *("20 JobSubmitted", "20 Launch", "20 JobStarted"),
        *("24 JobSubmitted", "25 JobExited"),
    ]
    state = watched.follower.state
    assert {name: job.state for name, job in state.jobs.items()} == {
        "2": JobState.PENDING,
        "3": JobState.PENDING,
        "3@24": JobState.PENDING,
        "1@6": JobState.RUNNING,
    }
    assert state.jobs["1@6"].mark == 10.0
    again = replace(waiting("2", 6.0), runs=(run(30.0, "n1"),))
    assert watched.see(31.0, back, again, waiting("3", 24.0)) == ["30 Launch", "30 JobStarted"]
    assert state.jobs["2"].attempt == 2
    watched.restart()
    assert watched.see(32.0, back, again, waiting("3", 24.0)) == []
    events = watched.see(32.0 + GONE_S, back, again, waiting("3", 24.0))
    assert [event.partition(" ")[2] for event in events] == ["CancelRequested"]


def test_two_runs_that_began_in_one_second_are_told_apart(watched: Watched) -> None:
    first = run(7.0, "n0", end=SeenEnd(7.0, Outcome.STOPPED, again=True))
    job = replace(waiting(at=6.0), runs=(first, run(7.0, "n0", attempt=2)))
    watched.see(7.0, job)
    over = run(7.0, "n0", attempt=2, end=SeenEnd(9.0, Outcome.SUCCEEDED))
    assert watched.see(10.0, replace(job, runs=(first, over))) == ["9 JobExited"]


def test_nodes_come_go_and_change(watched: Watched) -> None:
    first, second = NODES
    down = replace(first, state=NodeState.DOWN)
    assert watched.see(6.0, nodes=(down, second)) == ["6 NodeDown"]
    assert watched.see(7.0, nodes=(down, second)) == []
    drains = replace(first, state=NodeState.DRAINING)
    assert watched.see(8.0, nodes=(drains, second)) == ["8 NodeUp", "8 NodeDraining"]
    assert watched.see(9.0, nodes=(first, second)) == ["9 NodeUp"]
    assert watched.see(10.0, nodes=(second,)) == ["10 NodeDown"]
    assert watched.see(11.0, nodes=(second,)) == []
    assert watched.see(12.0, nodes=NODES) == ["12 NodeUp"]


def test_new_hardware_waits_until_nothing_runs_there(watched: Watched) -> None:
    job = replace(waiting(at=6.0), runs=(run(7.0, "n0"),))
    bigger = (SeenNode(Node("n0", (Device("a100"),) * 8, 16_000, 65_536)), NODES[1])
    assert watched.see(8.0, job, nodes=bigger) == ["6 JobSubmitted", "7 Launch", "7 JobStarted"]
    ended = replace(job, runs=(run(7.0, "n0", end=SeenEnd(9.0, Outcome.SUCCEEDED)),))
    assert watched.see(10.0, ended, nodes=bigger) == ["9 JobExited", "10 NodeUp"]
    assert watched.follower.state.capacity.total_milli == 12_000


def test_a_past_that_is_read_at_the_first_look() -> None:
    watched = Watched()
    end = SeenEnd(200.0, Outcome.SUCCEEDED)
    old = replace(waiting("1", 100.0), runs=(run(150.0, "gone", end=end),))
    events = watched.see(1000.0, old, waiting("2", 900.0))
    assert events[:3] == ["100 NodeUp", "100 NodeUp", "100 JobSubmitted"]
    assert events[-2:] == ["200 JobExited", "900 JobSubmitted"]
    assert watched.follower.state.down == {"gone"}


@st.composite
def stories(draw: st.DrawFn) -> list[SeenJob]:
    """What truly happened: jobs with one to three runs, in whole seconds."""
    jobs = []
    for number in range(draw(st.integers(1, 4))):
        submitted = at = float(draw(st.integers(1, 20)))
        runs = []
        count = draw(st.integers(0, 3))
        for attempt in range(1, count + 1):
            at = started = at + draw(st.integers(0, 4))
            at = ended = started + draw(st.integers(0, 6))
            again = attempt < count
            outcome = draw(st.sampled_from([Outcome.SUCCEEDED, Outcome.FAILED, Outcome.STOPPED]))
            end = SeenEnd(ended, Outcome.STOPPED if again else outcome, again=again)
            runs.append(run(started, f"n{draw(st.integers(0, 1))}", attempt=attempt, end=end))
        never = None if runs else SeenEnd(at + 3, Outcome.STOPPED)
        jobs.append(replace(waiting(str(number), submitted), runs=tuple(runs), end=never))
    return jobs


def as_seen(job: SeenJob, now: float) -> SeenJob | None:
    """What a look at that moment shows of a story."""
    if job.submitted_at > now:
        return None
    runs = []
    for one in job.runs:
        if one.started_at <= now:
            end = one.end if one.end is not None and one.end.at <= now else None
            runs.append(replace(one, end=end))
    end = job.end if job.end is not None and job.end.at <= now else None
    return replace(job, runs=tuple(runs), end=end)


@given(stories(), st.lists(st.integers(1, 60), max_size=8), st.data())
def test_whenever_somebody_looks_the_journal_is_the_same(
    truth: list[SeenJob], looks: list[int], data: st.DataObject
) -> None:
    watched = Watched()
    for now in sorted({*map(float, looks), 100.0}):
        seen = [one for job in truth if (one := as_seen(job, now)) is not None]
        watched.see(now, *seen)
        if data.draw(st.booleans()):
            watched.restart()
    told: dict[str, list[tuple[str, float]]] = {}
    for now, facts, decisions in watched.steps:
        for event in (*facts, *decisions):
            if isinstance(event, ev.JobSubmitted):
                told.setdefault(event.spec.id, []).append(("submitted", now))
            elif isinstance(event, ev.JobStarted):
                told[event.job].append((f"started {event.attempt}", now))
            elif isinstance(event, ev.JobExited):
                told[event.job].append((f"{event.outcome} {event.attempt}", now))
            elif isinstance(event, ev.CancelRequested) and not told[event.job][1:]:
                told[event.job].append(("cancelled", now))
    for job in truth:
        expected = [("submitted", job.submitted_at)]
        for ran in job.runs:
            expected.append((f"started {ran.attempt}", ran.started_at))
            assert ran.end is not None
            expected.append((f"{ran.end.outcome} {ran.attempt}", ran.end.at))
        if job.end is not None:
            expected.append(("cancelled", job.end.at))
        assert told[job.id] == expected
