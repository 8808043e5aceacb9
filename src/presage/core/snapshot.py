"""A state as JSON values and back, so that a start does not have to fold the whole journal.

Equal states give equal snapshots. What can be derived (free capacity, indexes) is written for
comparison and made anew when a snapshot is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from presage.core.spent import Spent
from presage.model.cluster import Node, Worker
from presage.model.codec import decode, encode
from presage.model.event import PolicyJudged, RulesChanged
from presage.model.job import Job, Role
from presage.model.speed import SpeedBook

if TYPE_CHECKING:
    from presage.core.state import State

__all__ = ["SnapshotContent", "read_snapshot", "take_snapshot"]


def take_snapshot(state: State) -> dict[str, Any]:
    """Everything that defines a state."""
    capacity = state.capacity
    failed = sorted(name for name, array in state.gates.arrays.items() if array.failed)
    return {
        **({"failed_arrays": failed} if failed else {}),
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
        **({"judged": encode(state.judged)} if state.judged is not None else {}),
        **({"spent": spent} if (spent := state.spent.rows()) else {}),
    }


@dataclass(slots=True, eq=False)
class SnapshotContent:
    """What a snapshot says, for the state that is made of it."""

    now: float
    seed: int
    nodes: list[tuple[Node, bool]]
    """Each with whether it takes new work."""
    down: set[str]
    draining: set[str]
    jobs: list[Job]
    active: list[str]
    reservations: dict[str, tuple[Worker, ...]]
    wake_at: float | None
    submitted: int
    shapes: dict[tuple[Role, ...], int]
    scaling: set[str]
    speeds: SpeedBook
    rules: RulesChanged | None
    judged: PolicyJudged | None
    spent: Spent
    failed_arrays: list[str]
    """Arrays that a member of failed, and that are not over."""


def read_snapshot(data: dict[str, Any]) -> SnapshotContent:
    """What a snapshot says; raises ValueError for anything else."""
    return SnapshotContent(
        now=decode(float, data["now"]),
        seed=data["seed"],
        nodes=[(decode(Node, row["node"]), row["open"]) for row in data["nodes"]],
        down=set(data["down"]),
        draining=set(data["draining"]),
        jobs=[decode(Job, row) for row in data["jobs"]],
        active=data["active"],
        reservations={
            job: decode(tuple[Worker, ...], hold) for job, hold in data["reservations"].items()
        },
        wake_at=data["wake_at"],
        submitted=data["submitted"],
        shapes={decode(tuple[Role, ...], roles): count for roles, count in data["shapes"]},
        scaling=set(data["scaling"]),
        speeds=decode(SpeedBook, data.get("speeds", {})),  # older ones have neither
        rules=decode(RulesChanged | None, data.get("rules")),
        judged=decode(PolicyJudged | None, data.get("judged")),
        spent=Spent.of(data.get("spent", ())),
        failed_arrays=data.get("failed_arrays", []),
    )
