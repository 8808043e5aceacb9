"""A state as JSON values and back, so that a start does not have to fold the whole journal.

Equal states give equal snapshots. What can be derived (free capacity, indexes) is written for
comparison and made anew when a snapshot is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from presage.model.cluster import Node, Worker
from presage.model.codec import decode, encode
from presage.model.event import RulesChanged
from presage.model.job import Job, Role
from presage.model.speed import SpeedBook

if TYPE_CHECKING:
    from presage.core.state import State

__all__ = ["fill_state", "take_snapshot"]


def take_snapshot(state: State) -> dict[str, Any]:
    """Everything that defines a state."""
    capacity = state.capacity
    return {
        "now": state.now,
        "seed": state.seed,
        "nodes": [
            {
                "node": encode(capacity.nodes[i]),
                "open": bool(capacity.open >> i & 1),
                "free": [
                    capacity.free_cpu[i],
                    capacity.free_memory[i],
                    list(capacity.free_gpu[i]),
                    list(capacity.free_gpu_memory[i]),
                    list(capacity.sharers[i]),
                ],
            }
            for i in sorted(capacity.index.values())
        ],
        "down": sorted(state.down),
        "draining": sorted(state.draining),
        "jobs": [encode(job) for job in sorted(state.jobs.values(), key=lambda job: job.seq)],
        "active": list(state.active),
        "reservations": {job: encode(hold) for job, hold in state.reservations.items()},
        "usage": {queue: milli for queue, milli in sorted(state.usage.items()) if milli},
        "wake_at": state.wake_at,
        "submitted": state.submitted,
        "shapes": [[encode(roles), count] for roles, count in state.shapes.items()],
        "scaling": sorted(state.scaling),
        "speeds": encode(state.speeds),
        "rules": encode(state.rules),
    }


def fill_state(state: State, data: dict[str, Any]) -> None:
    """Bring a new state to what a snapshot says; raises ValueError for anything else."""
    state.now = decode(float, data["now"])
    for row in data["nodes"]:
        i = state.capacity.add(decode(Node, row["node"]))
        state.capacity.set_open(i, row["open"])
    state.down, state.draining = set(data["down"]), set(data["draining"])
    for row in data["jobs"]:
        job: Job = decode(Job, row)
        state.adopt(job)
    state.active = {job_id: state.active[job_id] for job_id in data["active"]}
    for job_id, hold in data["reservations"].items():
        state.hold_for(job_id, decode(tuple[Worker, ...], hold))
    for roles, count in data["shapes"]:
        state.shapes[decode(tuple[Role, ...], roles)] = count
    state.wake_at = data["wake_at"]
    state.submitted = data["submitted"]
    state.scaling = set(data["scaling"])
    state.speeds = decode(SpeedBook, data.get("speeds", {}))  # older ones have neither
    state.rules = decode(RulesChanged | None, data.get("rules"))
