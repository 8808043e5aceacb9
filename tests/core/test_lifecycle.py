"""The table of job states: every pair."""

from __future__ import annotations

from itertools import product

import pytest

from presage.core.lifecycle import ALLOWED, ensure
from presage.model.errors import IllegalTransition
from presage.model.job import Job, JobSpec, JobState, Reason, ReasonCode, Role

MOVES = {
    "pending": "starting halted cancelled failed",
    "starting": "running stopping pending succeeded failed",
    "running": "stopping pending succeeded failed",
    "stopping": "pending halted cancelled succeeded failed",
    "blocked": "pending halted cancelled",
    "halted": "pending blocked cancelled",
    "succeeded": "",
    "failed": "",
    "cancelled": "",
}


@pytest.mark.parametrize(("state", "to"), [*product(JobState, JobState)])
def test_every_pair(state: JobState, to: JobState) -> None:
    job = Job(JobSpec("train", (Role(),)), 0, 0.0, 12.0, state)
    if to.value in MOVES[state.value].split():
        ensure(job, to)
    else:
        with pytest.raises(IllegalTransition, match=f"from {state} to {to}"):
            ensure(job, to)


def test_an_illegal_move_tells_the_story_of_the_job() -> None:
    job = Job(JobSpec("train", (Role(),)), 0, 0.0, 12.0, attempt=3)
    job.reason = Reason(ReasonCode.NODE_LOST, "node n7 went away")
    with pytest.raises(IllegalTransition) as error:
        ensure(job, JobState.RUNNING)
    for part in ("train", "attempt 3", "since 12 s", "node n7 went away"):
        assert part in str(error.value)


def test_states_that_end_a_job_are_those_without_a_way_out() -> None:
    assert {state for state in JobState if state.ended} == {
        s for s, to in ALLOWED.items() if not to
    }
