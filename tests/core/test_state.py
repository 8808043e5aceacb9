"""What a journal folds to: requests, runs, nodes, accounts, and the check that guards them."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from presage.core.changes import Reader
from presage.core.state import State
from presage.model import event as ev
from presage.model.cluster import Device, Node, Resources, Worker
from presage.model.errors import InternalError, InvariantBroken
from presage.model.job import (
    Job,
    JobSpec,
    JobState,
    OomRetry,
    Reason,
    ReasonCode,
    Role,
    StopIntent,
)
from presage.model.speed import SpeedPoint
from presage.model.workload import same_work

REASON = Reason(ReasonCode.PREEMPTED, "made room")
WELL = ev.Outcome.SUCCEEDED
GANG = JobSpec("gang", (Role("worker", Resources(1000, 512, 1000), 2, 4),))
LONE = JobSpec("lone", (Role("worker", Resources(0, 0, 500, 100)),), queue="other")
NODE = Node("n0", (Device(memory_mib=1000),) * 4, 8000, 4096)


def workers(*devices: int, node: str = "n0") -> tuple[Worker, ...]:
    """One worker on each of these devices."""
    return tuple(Worker(0, i, node, (d,)) for i, d in enumerate(devices))


def told(*events: ev.Event, at: float = 0.0) -> State:
    """A node, two jobs, and these events, one second apart."""
    state = State()
    for fact in (ev.NodeUp(NODE), ev.JobSubmitted(GANG), ev.JobSubmitted(LONE)):
        state.apply(at, fact)
    for k, event in enumerate(events, 1):
        state.apply(at + k, event)
    return state


LAUNCH = ev.Launch("gang", 1, workers(0, 1))
STARTED = ev.JobStarted("gang", 1)
GROW = ev.Resize("gang", 1, workers(0, 1, 2))
SHRINK = ev.Resize("gang", 1, (Worker(0, 0, "n0", (0,)), Worker(0, 1, "n0", (1,))))


def stop(intent: StopIntent) -> ev.Stop:
    return ev.Stop("gang", 1, intent, REASON)


def exited(outcome: ev.Outcome, attempt: int = 1) -> ev.JobExited:
    return ev.JobExited("gang", attempt, outcome)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], "pending"),
        ([LAUNCH], "starting"),
        ([LAUNCH, STARTED], "running"),
        ([LAUNCH, STARTED, stop(StopIntent.REQUEUE)], "stopping"),
        ([LAUNCH, exited(ev.Outcome.SUCCEEDED)], "succeeded"),
        ([LAUNCH, STARTED, exited(ev.Outcome.SUCCEEDED)], "succeeded"),
        ([LAUNCH, STARTED, exited(ev.Outcome.FAILED)], "failed"),
        ([LAUNCH, STARTED, exited(ev.Outcome.OUT_OF_MEMORY)], "failed"),
        ([LAUNCH, STARTED, exited(ev.Outcome.LOST)], "pending"),
        ([LAUNCH, ev.LaunchFailed("gang", 1, REASON)], "failed"),
        ([LAUNCH, stop(StopIntent.REQUEUE), exited(ev.Outcome.STOPPED)], "pending"),
        ([LAUNCH, stop(StopIntent.HALT), exited(ev.Outcome.STOPPED)], "halted"),
        ([LAUNCH, stop(StopIntent.HALT), exited(ev.Outcome.LOST)], "halted"),
        ([LAUNCH, stop(StopIntent.HALT), exited(ev.Outcome.SUCCEEDED)], "succeeded"),
        ([LAUNCH, stop(StopIntent.HALT), ev.LaunchFailed("gang", 1, REASON)], "halted"),
        ([LAUNCH, stop(StopIntent.CANCEL), exited(ev.Outcome.FAILED)], "cancelled"),
        ([LAUNCH, stop(StopIntent.CANCEL), ev.LaunchFailed("gang", 1, REASON)], "cancelled"),
        ([LAUNCH, stop(StopIntent.REQUEUE), stop(StopIntent.CANCEL)], "stopping"),
        ([ev.CancelRequested("gang")], "cancelled"),
        ([ev.HaltRequested("gang")], "halted"),
        ([ev.HaltRequested("gang"), ev.ResumeRequested("gang")], "pending"),
        ([ev.HaltRequested("gang"), ev.CancelRequested("gang")], "cancelled"),
        ([ev.Reject("gang", REASON)], "failed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_where_events_lead(events: list[ev.Event], expected: str) -> None:
    state = told(*events)
    state.check()
    ended = {job.id: job for job in state.ended}
    job = state.jobs.get("gang") or ended["gang"]
    assert job.state.value == expected
    assert bool(job.allocation) == (expected in ("starting", "running", "stopping"))


@pytest.mark.parametrize(
    "fact",
    [
        ev.JobSubmitted(JobSpec("gang", (Role(),), priority=7)),
        ev.JobStarted("gang", 0),
        exited(ev.Outcome.SUCCEEDED, attempt=2),
        exited(ev.Outcome.FAILED, attempt=0),
        ev.JobResized("gang", 1),
        ev.JobResized("gang", 9),
        ev.LaunchFailed("gang", 2, REASON),
        ev.Progress("gang", 2, 0.9),
        ev.StageChanged("gang", 0, "storing"),
        ev.PhaseChanged("gang", 0, 4),
        ev.SpeedMeasured("gang", 0, SpeedPoint(2, 1, 9.0, 9.0)),
        ev.JobStarted("nobody", 1),
        ev.CancelRequested("nobody"),
        ev.CancelRequested("gang"),  # it runs: the engine answers with a stop
        ev.HaltRequested("gang"),
        ev.ResumeRequested("gang"),
        ev.ScaleRequested("nobody", 3),
        ev.NodeDown("nowhere"),
        ev.NodeDraining("nowhere"),
        ev.NodeUp(NODE),
        ev.Woke(),
    ],
    ids=lambda fact: type(fact).__name__,
)
def test_facts_that_change_nothing(fact: ev.Fact) -> None:
    state = told(LAUNCH, STARTED)
    state.apply(9.0, ev.Woke())  # so that the time is the same
    before = state.snapshot()
    state.apply(9.0, fact)
    assert state.snapshot() == before


def test_time_does_not_go_back() -> None:
    state = told(at=5.0)
    with pytest.raises(InternalError, match="went back from 5 to 4"):
        state.apply(4.0, ev.Woke())


def test_what_a_run_reports_is_kept() -> None:
    state = told(
        LAUNCH,
        STARTED,
        ev.Progress("gang", 1, 0.25),
        ev.StageChanged("gang", 1, "storing"),
        ev.PhaseChanged("gang", 1, 3),
    )
    job = state.jobs["gang"]
    assert (job.progress, job.stage, job.phase) == (0.25, "storing", 3)


def test_how_fast_a_run_was_outlives_it_and_a_snapshot() -> None:
    point = SpeedPoint(2, 1, 100 / 3, 6.0)
    state = told(LAUNCH, STARTED, ev.SpeedMeasured("gang", 1, point))
    state.apply(9.0, exited(ev.Outcome.SUCCEEDED))
    assert "gang" not in state.jobs
    again = State.restore(json.loads(json.dumps(state.snapshot())))
    assert again.speeds.of(same_work(GANG)) == (point,)
    assert again.snapshot() == state.snapshot()


def test_a_snapshot_from_before_speeds_were_kept_is_read() -> None:
    before = told(LAUNCH, STARTED).snapshot()
    del before["speeds"]
    assert State.restore(before).speeds.count == 0


def test_service_is_what_was_held_while_running() -> None:
    state = told(LAUNCH, STARTED)  # runs from 2 s on with two GPUs
    job = state.jobs["gang"]
    state.apply(12.0, GROW)  # holds three from here
    assert (job.ran(12.0), job.attained(12.0)) == (10.0, 20.0)
    state.apply(14.0, ev.JobResized("gang", 1))
    assert job.attained(14.0) == 26.0
    state.apply(20.0, stop(StopIntent.REQUEUE))
    state.apply(25.0, exited(ev.Outcome.STOPPED))  # stopping is no service
    assert (job.ran(99.0), job.attained(99.0), job.held_milli) == (18.0, 44.0, 0)


def test_a_start_that_was_told_late_counts_from_when_it_was() -> None:
    state = told(LAUNCH)
    state.apply(9.0, ev.JobStarted("gang", 1, at=4.0))
    assert state.jobs["gang"].ran(10.0) == 6.0


def test_a_resize_holds_both_until_it_is_complete() -> None:
    state = told(LAUNCH, STARTED, GROW)
    assert state.capacity.free_gpu[0] == [0, 0, 0, 1000]
    state.apply(9.0, ev.JobResized("gang", 1))
    shrink = ev.Resize("gang", 1, workers(0, 1))
    state.apply(10.0, shrink)
    assert state.capacity.free_gpu[0] == [0, 0, 0, 1000]
    state.apply(11.0, ev.JobResized("gang", 1))
    assert state.capacity.free_gpu[0] == [0, 0, 1000, 1000]
    assert state.usage["default"] == 2000
    state.check()


def test_a_run_that_ends_in_the_middle_of_a_resize_gives_everything_back() -> None:
    state = told(LAUNCH, STARTED, GROW, exited(ev.Outcome.LOST))
    assert state.capacity.free_gpu[0] == [1000] * 4
    assert state.jobs["gang"].resizing is None
    state.check()


def test_a_job_that_ran_out_of_memory_asks_for_a_whole_device() -> None:
    spec = JobSpec("j", (Role("worker", Resources(gpu_milli=300)),), max_retries=1)
    state = told(ev.JobSubmitted(spec), ev.Launch("j", 1, workers(0)))
    state.apply(5.0, ev.JobExited("j", 1, ev.Outcome.OUT_OF_MEMORY))
    state.apply(6.0, ev.Launch("j", 2, workers(0)))
    assert state.capacity.free_gpu[0][0] == 0
    assert not state.jobs["j"].spec.shareable  # what executors are told, too
    state.check()


@pytest.mark.parametrize("outcome", [ev.Outcome.FAILED, ev.Outcome.OUT_OF_MEMORY])
def test_a_failure_is_retried_as_often_as_the_spec_says(outcome: ev.Outcome) -> None:
    state = told(ev.JobSubmitted(JobSpec("j", GANG.roles, max_retries=2)))
    for attempt in (1, 2, 3):
        state.apply(5.0, ev.Launch("j", attempt, workers(0, 1)))
        state.apply(5.0, ev.JobExited("j", attempt, outcome))
        assert ("j" in state.jobs) == (attempt < 3)


def test_a_reservation_is_ready_when_what_it_waits_for_has_gone() -> None:
    hold = (Worker(0, 0, "n0", (1,)),)
    state = told(LAUNCH, STARTED, stop(StopIntent.REQUEUE), ev.Reserve("lone", hold))
    assert state.capacity.free_gpu[0][1] == -500
    assert not state.ready("lone")
    state.check()
    state.apply(9.0, exited(ev.Outcome.STOPPED))
    assert state.ready("lone")
    state.apply(9.0, ev.Launch("lone", 1, hold))
    assert not state.reservations
    state.check()


def test_a_share_waits_until_the_job_beside_it_has_gone() -> None:
    """How many may share a device is the policy's business: leaving is not being gone."""
    other = JobSpec("half", LONE.roles)
    hold = (Worker(0, 0, "n0", (3,)),)
    state = told(ev.JobSubmitted(other), ev.Launch("half", 1, hold), ev.JobStarted("half", 1))
    state.apply(5.0, ev.Stop("half", 1, StopIntent.REQUEUE, REASON))
    state.apply(5.0, ev.Reserve("lone", hold))
    assert not state.ready("lone")
    state.apply(6.0, ev.JobExited("half", 1, ev.Outcome.STOPPED))
    assert state.ready("lone")


def test_room_of_workers_that_a_stopped_job_never_got_can_be_promised() -> None:
    hold = (Worker(0, 0, "n1", (0,)),)
    grow = ev.Resize("gang", 1, (*workers(0, 1), Worker(0, 2, "n1", (0,))))
    state = told(ev.NodeUp(Node("n1", (Device(),))), LAUNCH, STARTED, grow)
    state.apply(9.0, ev.Reserve("lone", hold))
    with pytest.raises(InvariantBroken, match="n1 is oversubscribed"):
        state.check()
    state.apply(9.0, stop(StopIntent.REQUEUE))
    state.check()


@pytest.mark.parametrize(
    "loses", [ev.CancelRequested("lone"), ev.HaltRequested("lone"), ev.NodeDown("n0")], ids=str
)
def test_a_reservation_goes_with_its_job_or_its_node(loses: ev.Fact) -> None:
    state = told(ev.Reserve("lone", (Worker(0, 0, "n0", (1,)),)), loses)
    assert not state.reservations
    assert state.capacity.free_gpu[0] == [1000] * 4
    state.check()


@pytest.mark.parametrize(
    ("facts", "is_open", "down", "draining"),
    [
        ([ev.NodeDown("n0")], False, {"n0"}, set()),
        ([ev.NodeDraining("n0")], False, set(), {"n0"}),
        ([ev.NodeDraining("n0"), ev.NodeDown("n0")], False, {"n0"}, set()),
        ([ev.NodeDown("n0"), ev.NodeDraining("n0")], False, {"n0"}, set()),
        ([ev.NodeDown("n0"), ev.NodeUp(NODE)], True, set(), set()),
        ([ev.NodeDraining("n0"), ev.NodeUp(NODE)], True, set(), set()),
    ],
    ids=str,
)
def test_nodes(facts: list[ev.Fact], is_open: bool, down: set[str], draining: set[str]) -> None:
    state = told(*facts)
    assert (bool(state.capacity.open), state.down, state.draining) == (is_open, down, draining)
    state.check()


def test_a_node_comes_back_with_other_hardware_once_it_is_empty() -> None:
    bigger = Node("n0", (Device("new"),) * 8)
    state = told(LAUNCH, ev.NodeDown("n0"))
    with pytest.raises(InternalError, match="came back as another"):
        state.apply(9.0, ev.NodeUp(bigger))
    state.apply(9.0, exited(ev.Outcome.LOST))
    state.apply(9.0, ev.NodeUp(bigger))
    assert state.capacity.total_milli == state.capacity.free_milli == 8000
    assert state.capacity.accepts(("new",)) == state.capacity.open
    state.check()


FULL_STORY = (
    LAUNCH,
    STARTED,
    GROW,
    ev.ScaleRequested("gang", 9),
    ev.JobSubmitted(JobSpec("third", LONE.roles, labels={"team": "a"})),
    ev.Reserve("lone", (Worker(0, 0, "n0", (2,)),)),
    ev.WakeAt(60.0),
    ev.NodeUp(Node("n1", (Device(),) * 2)),
    ev.NodeDraining("n1"),
)


def test_a_snapshot_survives_paper() -> None:
    state = told(*FULL_STORY)
    kept = json.loads(json.dumps(state.snapshot()))
    again = State.restore(kept)
    again.check()
    assert again.snapshot() == state.snapshot()
    assert list(again.active) == list(state.active)
    assert again.jobs["gang"].wants == GANG.roles[0].max  # clamped to what the spec allows


def _job(state: State) -> Job:
    return state.jobs["gang"]


@pytest.mark.parametrize(
    "break_it",
    [
        lambda s: setattr(_job(s), "state", JobState.PENDING),
        lambda s: setattr(_job(s), "state", JobState.SUCCEEDED),
        lambda s: setattr(_job(s), "allocation", ()),
        lambda s: setattr(_job(s), "allocation", workers(0)),
        lambda s: setattr(_job(s), "allocation", workers(0, 1) + workers(2)),
        lambda s: setattr(_job(s), "intent", StopIntent.HALT),
        lambda s: setattr(_job(s), "held_milli", 1),
        lambda s: s.active.pop("gang"),
        lambda s: s.pending.pop("lone"),
        lambda s: s.jobs.pop("lone"),
        lambda s: s.reservations.update({"gang": workers(3)}),
        lambda s: s.usage.update({"default": 7}),
        lambda s: s.incomplete.update({"gang": _job(s)}),
        lambda s: (s.down.add("n0"), s.draining.add("n0")),
        lambda s: s.scaling.add("nobody"),
        lambda s: s.reservations.update({"nobody": ()}),
        lambda s: s.ended.append(_job(s)),
        lambda s: s.apply_all(9.0, [GROW, ev.RulesChanged("", "", ("Resize",))]),
        lambda s: s.capacity.take(0, Resources(gpu_milli=1000), (3,)),
        lambda s: s.capacity.take(0, Resources(cpu_milli=1), ()),
        lambda s: s.capacity.take(0, Resources(memory_mib=1), ()),
        lambda s: s.capacity.sharers[0].__setitem__(0, 2),
        lambda s: s.capacity.whole.__setitem__(0, 1),
        lambda s: s.capacity.by_whole.__setitem__(0, 1),
    ],
)
def test_the_check_finds_a_contradiction(break_it: Callable[[State], object]) -> None:
    state = told(LAUNCH, STARTED)
    state.check()
    break_it(state)
    with pytest.raises(InvariantBroken):
        state.check()


def test_the_check_finds_two_runs_on_one_device() -> None:
    state = told(LAUNCH, STARTED, ev.Launch("lone", 1, (Worker(0, 0, "n0", (0,)),)))
    with pytest.raises(InvariantBroken, match="oversubscribed"):
        state.check()


def test_a_job_that_ran_out_of_memory_gets_more_up_to_its_ceiling() -> None:
    oom = OomRetry(times=2, factor=1.5, ceiling_mib=1000)
    spec = JobSpec("j", (Role("worker", Resources(1000, 512)),), oom=oom)
    state = told(ev.JobSubmitted(spec))
    asked = []
    for attempt in (1, 2, 3):
        state.apply(10.0 * attempt, ev.Launch("j", attempt, (Worker(0, 0, "n0"),)))
        asked.append(4096 - state.capacity.free_memory[0])
        job = state.jobs["j"]
        state.apply(
            10.0 * attempt + 5, ev.JobExited("j", attempt, ev.Outcome.OUT_OF_MEMORY, REASON)
        )
        state.check()
    assert asked == [512, 768, 1000]
    assert job.state is JobState.FAILED
    assert state.capacity.free_memory[0] == 4096


def test_a_job_that_ran_too_long_is_not_tried_again() -> None:
    state = told(ev.JobSubmitted(JobSpec("j", GANG.roles, max_retries=2)))
    state.apply(4.0, ev.Launch("j", 1, workers(0, 1)))
    late = Reason(ReasonCode.TIME_LIMIT, "it ran longer than 5 s")
    state.apply(5.0, ev.JobExited("j", 1, ev.Outcome.FAILED, late))
    assert "j" not in state.jobs


def test_a_job_whose_runs_vanish_for_ever_fails_in_the_end() -> None:
    state = told()
    for attempt in range(1, 200):
        if "gang" not in state.jobs:
            break
        state.apply(float(attempt + 9), ev.Launch("gang", attempt, workers(0, 1)))
        state.apply(float(attempt + 9), exited(ev.Outcome.LOST, attempt))
    assert attempt == 102
    assert state.ended[-1].state is JobState.FAILED


def test_a_step_tells_what_became_of_jobs_in_it() -> None:
    state = told()
    state.apply_all(9.0, [ev.CancelRequested("gang"), ev.HaltRequested("lone")])
    state.apply(9.0, ev.ResumeRequested("lone"))  # a decision made in it, say
    ended, moves = state.ended, state.moves
    assert [job.id for job in ended] == ["gang"]
    assert [(job.id, to.value) for job, to, _ in moves] == [
        ("gang", "cancelled"),
        ("lone", "halted"),
        ("lone", "pending"),
    ]
    state.apply_all(9.0, [ev.Launch("lone", 1, workers(0)), ev.JobStarted("lone", 1)])
    assert [(job.id, to.value) for job, to, _ in state.moves] == [("lone", "running")]
    assert not state.ended
    assert (len(ended), len(moves)) == (1, 3)  # whoever took them has them


def test_readers_are_told_which_jobs_changed_and_when_to_look_at_all() -> None:
    state, quick, slow = told(), Reader(), Reader()

    def read(reader: Reader) -> list[str] | None:
        changed = reader.read(state.changes)
        return None if changed is None else [job.id for job in changed]

    assert (read(quick), read(slow)) == (None, None)
    state.apply_all(9.0, [ev.HaltRequested("gang"), ev.Launch("lone", 1, workers(0))])
    assert (read(quick), read(quick)) == (["gang", "lone"], [])
    state.MOST_CHANGES = 0
    state.apply_all(9.0, [ev.JobStarted("lone", 1), ev.Progress("lone", 1, 0.5)] * 2)
    assert read(quick) == ["lone"] * 3
    state.apply_all(9.0, ())  # too many: the notes are dropped
    assert (read(quick), read(slow)) == ([], None)
    state = told()
    assert read(quick) is None


def test_events_of_one_moment_are_taken_in_their_order() -> None:
    events = (ev.Launch("gang", 1, workers(0, 1)), ev.JobStarted("gang", 1), exited(WELL))
    one_by_one, together = told(), told()
    for event in events:
        one_by_one.apply(9.0, event)
    together.apply_all(9.0, events)
    assert together.snapshot() == one_by_one.snapshot()
    assert [job.id for job in together.ended] == ["gang"]
    with pytest.raises(InternalError, match="time went back"):
        together.apply_all(8.0, events)


def test_room_appears_when_workers_leave_and_only_then() -> None:
    state = told(ev.Launch("gang", 1, workers(0, 1)), ev.JobStarted("gang", 1))
    before = state.capacity.released
    state.apply(9.0, ev.Resize("gang", 1, workers(0, 1, 2)))
    state.apply(9.0, ev.JobResized("gang", 1))
    assert state.capacity.released == before
    state.apply(9.0, exited(WELL))
    assert state.capacity.released > before
