"""The cluster device by device, and who is where: what a map of it shows.

Reads a state; it decides nothing and knows no HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from presage.core.engine import Engine
from presage.model.cluster import UNLIMITED, WHOLE_GPU

__all__ = ["hide_others", "map_of"]


def map_of(engine: Engine) -> dict[str, Any]:
    """Every device of every node, and who is on it."""
    state, capacity = engine.state, engine.state.capacity
    jobs, on = [], dict[str, list[tuple[int, tuple[int, ...]]]]()
    for job in state.active.values():
        spec = job.spec
        jobs.append({"number": job.seq, "id": job.id, "owner": spec.owner, "queue": spec.queue})
        for worker in job.allocation + (job.resizing or ()):
            on.setdefault(worker.node, []).append((job.seq, worker.devices))
    nodes = []
    for name, i in capacity.index.items():
        node = capacity.nodes[i]
        here = on.get(name, ())
        held = [1 - max(0, free) / WHOLE_GPU for free in capacity.free_gpu[i]]
        devices: list[list[Any]] = [[round(share, 3), []] for share in held]
        for number, used in here:
            for device in used:
                if number not in devices[device][1]:
                    devices[device][1].append(number)
        limited = 0 < node.cpu_milli < UNLIMITED
        cpus = round(1 - max(0, capacity.free_cpu[i]) / node.cpu_milli, 3) if limited else None
        where = "down" if name in state.down else "draining" if name in state.draining else "up"
        nodes.append(
            {
                "name": name,
                "state": where,
                "gpu_type": ", ".join(sorted({device.type for device in node.devices})),
                "devices": devices,
                "cpus_held": cpus,
                "jobs": list(dict.fromkeys(number for number, _ in here)),
            }
        )
    return {"jobs": jobs, "nodes": nodes}


def hide_others(picture: dict[str, Any], known: set[str]) -> None:
    """Leave out the jobs that are not known; where they are, they become -1."""
    picture["jobs"] = [job for job in picture["jobs"] if job["id"] in known]
    numbers = {job["number"] for job in picture["jobs"]}
    for node in picture["nodes"]:
        node["jobs"] = _known_ones(node["jobs"], numbers)
        for device in node["devices"]:
            device[1] = _known_ones(device[1], numbers)


def _known_ones(here: Iterable[int], numbers: set[int]) -> list[int]:
    return list(dict.fromkeys(number if number in numbers else -1 for number in here))
