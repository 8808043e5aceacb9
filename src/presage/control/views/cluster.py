"""Nodes and queues: what there is, who has it, and what a drain would move. It drains nothing."""

from __future__ import annotations

import asyncio
from difflib import get_close_matches
from typing import Any

from presage.control.board import nodes_of
from presage.control.site.service import Service
from presage.core.engine import Engine
from presage.core.spent import Spender
from presage.model.cluster import UNLIMITED, WHOLE_GPU
from presage.model.errors import Ambiguous, NotFound
from presage.policy.budget import Spending
from presage.policy.config import QueueConfig

__all__ = ["drain_view", "find_node", "node_view", "queue_views"]


async def find_node(service: Service, name: str) -> Any:
    """A node by its name, or by the beginning of exactly one name."""
    known = {item[0].name: item for item in await service.ask(nodes_of)}
    if name in known:
        return known[name]
    begun = [full for full in known if name and full.startswith(name)]
    if len(begun) > 1:
        listed = ", ".join(sorted(begun)[:5])
        raise Ambiguous(f"{len(begun)} nodes begin with {name[:80]}: {listed}; give more of it")
    if not begun:
        near = get_close_matches(name[:80], known, n=2, cutoff=0.6)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise NotFound(f"there is no node {name[:80]}{hint}")
    return known[begun[0]]


def node_view(node: Any, where: str, free: Any, *, hidden: bool, held: str) -> dict[str, Any]:
    limited_cpu, limited_memory = node.cpu_milli < UNLIMITED, node.memory_mib < UNLIMITED
    return {
        "name": node.name,
        "state": where,
        "gpus": len(node.devices),
        "gpu_types": sorted({device.type for device in node.devices}),
        "free_gpus": free["gpu_milli"] / WHOLE_GPU,
        "cpus": node.cpu_milli / 1000 if limited_cpu else None,
        "free_cpus": max(0, free["cpu_milli"]) / 1000 if limited_cpu else None,
        "memory_mib": node.memory_mib if limited_memory else None,
        "free_memory_mib": max(0, free["memory_mib"]) if limited_memory else None,
        "jobs": [] if hidden else free["jobs"],
        "labels": dict(node.labels),
        "memory_limits": held,
    }


async def queue_views(service: Service) -> list[dict[str, Any]]:
    """The queues: what each may have, and what it has."""
    known = dict(service.settings.queues)

    def question(engine: Engine) -> dict[str, Any]:
        state = engine.state
        counts: dict[str, list[int]] = {}
        for job in state.jobs.values():
            pending = job.id in state.pending
            counts.setdefault(job.spec.queue, [0, 0])[0 if pending else 1] += 1
        hours = {
            name: Spending(state, queue.period).of(Spender(name, "", "")) / 3600
            for name, queue in known.items()
            if budget(queue)
        }
        return {"used": dict(state.usage), "counts": counts, "hours": hours}

    def budget(queue: QueueConfig) -> bool:
        return {queue.gpu_hours, queue.user_gpu_hours, queue.team_gpu_hours} != {None}

    totals = await service.ask(question)
    names = sorted({*known, "default", *totals["used"], *totals["counts"]})
    free = QueueConfig()
    return [
        {
            "name": name,
            "quota_gpus": known.get(name, free).quota_gpus,
            "limit_gpus": known.get(name, free).limit_gpus,
            "weight": known.get(name, free).weight,
            "used_gpus": totals["used"].get(name, 0) / WHOLE_GPU,
            "pending": totals["counts"].get(name, [0, 0])[0],
            "running": totals["counts"].get(name, [0, 0])[1],
            "limit_cpus": known.get(name, free).limit_cpus,
            "gpu_hours": known.get(name, free).gpu_hours,
            "user_gpu_hours": known.get(name, free).user_gpu_hours,
            "team_gpu_hours": known.get(name, free).team_gpu_hours,
            "period": known.get(name, free).period,
            "spent_gpu_hours": totals["hours"].get(name),
        }
        for name in names
    ]


async def drain_view(service: Service, name: str) -> dict[str, Any]:
    """The jobs that a drain of a node would move, and what each would lose at most."""
    node, where, _ = await find_node(service, name)

    def question(engine: Engine) -> list[tuple[str, int, int]]:
        affected = []
        for job in engine.state.active.values():
            here = sum(worker.node == node.name for worker in job.allocation)
            if here:
                affected.append((job.id, here, len(job.allocation)))
        return affected

    on_it = await service.ask(question)
    jobs = await asyncio.to_thread(_moved, service, on_it)
    return {"node": node.name, "state": where, "jobs": jobs}


def _moved(service: Service, on_it: list[tuple[str, int, int]]) -> list[dict[str, Any]]:
    moved = []
    for job, here, workers in on_it:
        row = service.store.jobs.get(job)
        if row is not None:
            about = {"workers_here": here, "workers": workers, "at_risk": service.risks.of(row)}
            moved.append({"id": row.id, "owner": row.owner, **about})
    return moved
