"""Whether the room that is held for a job has come free. Reads a state, changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from presage.core.workers import ask_of, being_left, devices_of

if TYPE_CHECKING:
    from presage.core.state import State

__all__ = ["is_ready"]


def is_ready(state: State, job_id: str) -> bool:
    """Whether the room reserved for a job is no longer held by a run that is leaving."""
    capacity, job, hold = state.capacity, state.jobs[job_id], state.reservations[job_id]
    shares = False
    for worker in hold:
        i = capacity.index[worker.node]
        free, memory = capacity.free_gpu[i], capacity.free_gpu_memory[i]
        if capacity.free_cpu[i] < 0 or capacity.free_memory[i] < 0:
            return False
        for d in worker.devices:
            if free[d] < 0 or memory[d] < 0:
                return False
        shares = shares or ask_of(job, worker.role).shared
    # A share may fit beside one that leaves, where a policy allows fewer jobs on a device.
    return not (shares and being_left(state.active.values()) & devices_of(hold))
