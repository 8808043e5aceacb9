"""What-if: whatever was not kept is as if it had never been."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from presage.core.loop import fold
from presage.core.plan import Plan
from presage.core.state import State
from presage.model import event as ev
from presage.model.cluster import Device, Node, Resources, Worker
from presage.model.job import Job, JobSpec, JobState, Reason, ReasonCode, Role, StopIntent

REASON = Reason(ReasonCode.PREEMPTED, "made room")


def worker(index: int, *devices: int, role: int = 0) -> Worker:
    return Worker(role, index, "n0", devices)


def spec(name: str, milli: int, least: int = 1, most: int = 1) -> JobSpec:
    return JobSpec(name, (Role("worker", Resources(1000, 10, milli, 5), least, most),))


JOURNAL: list[ev.Event] = [
    ev.NodeUp(Node("n0", (Device(memory_mib=100),) * 6, 32_000, 1000)),
    ev.JobSubmitted(spec("elastic", 1000, 1, 3)),
    ev.Launch("elastic", 1, (worker(0, 0), worker(1, 1))),
    ev.JobStarted("elastic", 1),
    ev.JobSubmitted(spec("half", 1000, 2, 2)),
    ev.Launch("half", 1, (worker(0, 2),)),
    ev.JobSubmitted(spec("starting", 500)),
    ev.Launch("starting", 1, (worker(0, 3),)),
    ev.JobSubmitted(spec("waiting", 500)),
    ev.JobSubmitted(spec("promised", 500)),
    ev.Reserve("promised", (worker(0, 3),)),
    ev.WakeAt(100.0),
]


def begin() -> Plan:
    return Plan(fold((float(k), event) for k, event in enumerate(JOURNAL)))


def job(plan: Plan, name: str) -> Job:
    return plan.state.jobs[name]


CHOICES: dict[str, Callable[[Plan], None]] = {
    "launch": lambda p: p.place(job(p, "waiting"), (worker(0, 4),)),
    "launch what was promised": lambda p: p.place(job(p, "promised"), (worker(0, 3),)),
    "launch the rest": lambda p: p.place(job(p, "half"), (worker(1, 4),)),
    "stop a run": lambda p: p.stop(job(p, "elastic"), StopIntent.REQUEUE, REASON),
    "stop a start": lambda p: p.stop(job(p, "starting"), StopIntent.CANCEL, REASON),
    "stop half a start": lambda p: p.stop(job(p, "half"), StopIntent.HALT, REASON),
    "grow": lambda p: p.resize(job(p, "elastic"), (worker(0, 0), worker(1, 1), worker(2, 4))),
    "shrink": lambda p: p.resize(job(p, "elastic"), (worker(0, 0),)),
    "move": lambda p: p.resize(job(p, "elastic"), (worker(0, 4), worker(1, 5))),
    "reserve": lambda p: p.reserve(job(p, "waiting"), (worker(0, 4),)),
    "reserve elsewhere": lambda p: p.reserve(job(p, "promised"), (worker(0, 5),)),
    "drop a reservation": lambda p: p.reserve(job(p, "promised"), ()),
    "wake": lambda p: p.wake_at(50.0),
    "reject": lambda p: p.reject(job(p, "waiting"), REASON),
    "reject what was promised": lambda p: p.reject(job(p, "promised"), REASON),
}


def picture(state: State) -> tuple[object, ...]:
    """Everything there is, derived or not."""
    capacity = state.capacity
    return (
        state.snapshot(),
        list(state.pending),
        sorted(state.active),
        sorted(state.incomplete),
        list(capacity.by_whole),
        capacity.free_milli,
        [{ask: count for ask, count in held.items() if count} for held in capacity.tenants],
        capacity.arrays().gpu.tolist(),
    )


@pytest.mark.parametrize("choice", CHOICES)
def test_what_is_not_kept_never_was(choice: str) -> None:
    plan = begin()
    before = picture(plan.state)
    with plan.attempt():
        CHOICES[choice](plan)
        assert plan.state.snapshot() != before[0]
        assert len(plan.decisions) == 1
        plan.state.check()
    assert plan.decisions == []
    after = picture(plan.state)
    assert (after[0], *after[2:]) == (before[0], *before[2:])
    assert sorted(plan.state.pending) == sorted(fold_names(JobState.PENDING))
    plan.state.check()


def fold_names(state: JobState) -> list[str]:
    return [job.id for job in begin().state.jobs.values() if job.state is state]


def test_many_choices_are_taken_back_in_turn() -> None:
    plan = begin()
    before = plan.state.snapshot()
    with plan.attempt():
        CHOICES["stop a run"](plan)
        CHOICES["reserve"](plan)
        CHOICES["launch the rest"](plan)
        CHOICES["wake"](plan)
        CHOICES["launch what was promised"](plan)
        plan.state.check()
    assert plan.state.snapshot() == before


def test_what_is_kept_is_what_a_journal_folds_to() -> None:
    plan = begin()
    with plan.attempt() as keep:
        CHOICES["stop a run"](plan)
        CHOICES["reserve"](plan)
        keep()
    assert [type(d) for d in plan.decisions] == [ev.Stop, ev.Reserve]
    journal = [(float(k), event) for k, event in enumerate(JOURNAL)]
    journal += [(plan.now, decision) for decision in plan.decisions]
    assert fold(journal).snapshot() == plan.state.snapshot()


def test_an_outer_attempt_takes_back_what_an_inner_one_kept() -> None:
    plan = begin()
    before = plan.state.snapshot()
    with plan.attempt():
        with plan.attempt() as keep:
            CHOICES["launch"](plan)
            keep()
        assert len(plan.decisions) == 1
    assert plan.decisions == []
    assert plan.state.snapshot() == before


def test_an_inner_attempt_takes_back_only_its_own() -> None:
    plan = begin()
    with plan.attempt() as keep:
        CHOICES["launch"](plan)
        with plan.attempt():
            CHOICES["grow"](plan)
        keep()
    assert [type(d) for d in plan.decisions] == [ev.Launch]
    plan.state.check()


def test_an_error_takes_everything_back() -> None:
    plan = begin()
    before = plan.state.snapshot()

    def give_up() -> None:
        with plan.attempt() as keep:
            CHOICES["launch"](plan)
            if plan.decisions:
                raise ValueError("a policy with a mistake")
            keep()

    with pytest.raises(ValueError, match="mistake"):
        give_up()
    assert plan.state.snapshot() == before


def test_nobody_is_told_of_a_rejection_that_was_taken_back() -> None:
    plan = begin()
    with plan.attempt():
        plan.reject(job(plan, "waiting"), REASON)
        assert [ended.id for ended in plan.state.ended] == ["waiting"]
    assert (plan.state.ended, plan.state.moves) == ([], [])
    plan.reject(job(plan, "waiting"), REASON)
    assert [ended.id for ended in plan.state.ended] == ["waiting"]


@pytest.mark.parametrize(
    ("due", "asked", "expected"),
    [(None, 50.0, 50.0), (100.0, 50.0, 50.0), (100.0, 150.0, 100.0), (3.0, 150.0, 150.0)],
)
def test_the_earliest_wake_up_wins_unless_it_is_over(
    due: float | None, asked: float, expected: float
) -> None:
    plan = begin()
    plan.state.wake_at = due
    plan.wake_at(asked)
    assert plan.state.wake_at == expected


def test_a_pending_job_gets_a_new_attempt_and_a_half_started_one_keeps_its() -> None:
    plan = begin()
    CHOICES["launch"](plan)
    CHOICES["launch the rest"](plan)
    assert [d.attempt for d in plan.decisions if isinstance(d, ev.Launch)] == [1, 1]
    assert not plan.state.incomplete
