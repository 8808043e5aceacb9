"""The table of allowed job states moves; the only place that knows it."""

from __future__ import annotations

from presage.model.errors import IllegalTransition
from presage.model.job import Job, JobState

__all__ = ["ALLOWED", "ensure"]

_S = JobState

ALLOWED: dict[JobState, frozenset[JobState]] = {
    # HALTED and CANCELLED straight from PENDING: nothing runs, so nothing must stop first.
    _S.PENDING: frozenset({_S.STARTING, _S.HALTED, _S.CANCELLED, _S.FAILED}),
    # PENDING: the launch failed or the run was lost. SUCCEEDED: it was never seen running.
    _S.STARTING: frozenset({_S.RUNNING, _S.STOPPING, _S.PENDING, _S.SUCCEEDED, _S.FAILED}),
    # PENDING: the run was lost, or failed and is retried.
    _S.RUNNING: frozenset({_S.STOPPING, _S.PENDING, _S.SUCCEEDED, _S.FAILED}),
    # SUCCEEDED or FAILED: it ended by itself before the stop reached it.
    _S.STOPPING: frozenset({_S.PENDING, _S.HALTED, _S.CANCELLED, _S.SUCCEEDED, _S.FAILED}),
    # CANCELLED also when it can never start: what it waits for ended otherwise.
    _S.BLOCKED: frozenset({_S.PENDING, _S.HALTED, _S.CANCELLED}),
    _S.HALTED: frozenset({_S.PENDING, _S.BLOCKED, _S.CANCELLED}),
    _S.SUCCEEDED: frozenset(),
    _S.FAILED: frozenset(),
    _S.CANCELLED: frozenset(),
}


def ensure(job: Job, to: JobState) -> None:
    """Raise IllegalTransition, with the job's story, unless the job may move to that state."""
    if to not in ALLOWED[job.state]:
        raise IllegalTransition(
            f"job {job.id} cannot go from {job.state} to {to} (attempt {job.attempt}, "
            f"in {job.state} since {job.since:g} s, {len(job.allocation)} workers, "
            f"reason {job.reason})"
        )
