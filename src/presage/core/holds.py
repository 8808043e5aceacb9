"""Whether the room that is held for a job has come free. Reads a state, changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from presage.core.workers import ask_of, devices_of
from presage.model.job import JobState

if TYPE_CHECKING:
    from presage.core.state import State

__all__ = ["is_ready"]

_STOPPING = JobState.STOPPING


def is_ready(state: State, job_id: str) -> bool:
    """Whether the room reserved for a job is no longer held by a run that is leaving."""
    capacity, job, hold = state.capacity, state.jobs[job_id], state.reservations[job_id]
    for worker in hold:
        i = capacity.index[worker.node]
        free, memory = capacity.free_gpu[i], capacity.free_gpu_memory[i]
        if capacity.free_cpu[i] < 0 or capacity.free_memory[i] < 0:
            return False
        for d in worker.devices:
            if free[d] < 0 or memory[d] < 0:
                return False
    # A share may fit beside one that leaves, where a policy allows fewer jobs on a device.
    shares = [worker for worker in hold if ask_of(job, worker.role).shared]
    return not (shares and _being_left(state) & devices_of(hold))


def _being_left(state: State) -> set[tuple[str, int]]:
    """Devices of workers that were told to go and have not gone yet."""
    found: set[tuple[str, int]] = set()
    for job in state.active.values():
        if job.state is _STOPPING:
            found |= devices_of(job.allocation + (job.resizing or ()))
        elif job.resizing is not None:
            kept = job.resizing
            found |= devices_of(tuple(w for w in job.allocation if w not in kept))
    return found
