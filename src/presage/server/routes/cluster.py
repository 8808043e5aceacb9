"""Nodes and queues: what there is, and who has it."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from presage.control.accounts import UserRole, require
from presage.control.board import nodes_of
from presage.core.engine import Engine
from presage.core.spent import Spender
from presage.model import event as ev
from presage.model.cluster import UNLIMITED, WHOLE_GPU
from presage.model.errors import Ambiguous, Conflict, NotFound
from presage.model.server_answers import NodeStatus
from presage.policy.budget import Spending
from presage.policy.config import QueueConfig
from presage.server.routes.common import Me, Parts
from presage.server.views import NodeList, QueueList

__all__ = ["find_node", "router"]

router = APIRouter(prefix="/api/v1", tags=["cluster"])


@router.get("/nodes", response_model=NodeList)
async def nodes(service: Parts, me: Me) -> JSONResponse:
    """The nodes, what is free on them, and which jobs run there."""
    listed = await service.ask(nodes_of)
    hidden = me.role == UserRole.USER
    return JSONResponse(
        {"nodes": [_node(*item, hidden=hidden, held=service.memory_limits) for item in listed]}
    )


@router.post("/nodes/{name}/drain", status_code=202, response_model=NodeStatus)
async def drain(name: str, service: Parts, me: Me) -> JSONResponse:
    """Give a node no new work, and move what runs there."""
    require(me, UserRole.OPERATOR)
    node, where, free = await find_node(service, name)
    if where == "down":
        raise Conflict(f"node {node.name} is down")
    await service.requests.request(ev.NodeDraining(node.name), me, "drain", node=node.name)
    return JSONResponse(
        _node(node, "draining", free, hidden=False, held=service.memory_limits), 202
    )


@router.post("/nodes/{name}/undrain", status_code=202, response_model=NodeStatus)
async def undrain(name: str, service: Parts, me: Me) -> JSONResponse:
    """Let a node take work again."""
    require(me, UserRole.OPERATOR)
    node, where, free = await find_node(service, name)
    if where == "down":
        raise Conflict(f"node {node.name} is down")
    await service.requests.request(ev.NodeUp(node), me, "undrain", node=node.name)
    return JSONResponse(_node(node, "up", free, hidden=False, held=service.memory_limits), 202)


@router.get("/queues", response_model=QueueList)
async def queues(service: Parts, me: Me) -> JSONResponse:
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
    return JSONResponse(
        {
            "queues": [
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
        }
    )


async def find_node(service: Any, name: str) -> Any:
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


def _node(node: Any, where: str, free: Any, *, hidden: bool, held: str) -> dict[str, Any]:
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
