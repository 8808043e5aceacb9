"""Nodes and queues: what there is, and who has it."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from presage.control.board import nodes_of
from presage.control.orders import order_node
from presage.control.people.accounts import UserRole
from presage.control.views.cluster import node_view, queue_views
from presage.control.views.shares import share_views
from presage.model.page_answers import NodeList, QueueList, ShareList
from presage.model.server_answers import NodeStatus
from presage.server.routes.common import Me, Parts

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["cluster"])


@router.get("/nodes", response_model=NodeList)
async def nodes(service: Parts, me: Me) -> JSONResponse:
    """The nodes, what is free on them, and which jobs run there."""
    listed = await service.ask(nodes_of)
    hidden, held = me.role == UserRole.USER, service.memory_limits
    return JSONResponse({"nodes": [node_view(*one, hidden=hidden, held=held) for one in listed]})


@router.post("/nodes/{name}/drain", status_code=202, response_model=NodeStatus)
async def drain(name: str, service: Parts, me: Me) -> JSONResponse:
    """Give a node no new work, and move what runs there."""
    return JSONResponse(await order_node(service, me, name, "drain"), 202)


@router.post("/nodes/{name}/undrain", status_code=202, response_model=NodeStatus)
async def undrain(name: str, service: Parts, me: Me) -> JSONResponse:
    """Let a node take work again."""
    return JSONResponse(await order_node(service, me, name, "undrain"), 202)


@router.get("/shares", response_model=ShareList)
async def shares(service: Parts, me: Me) -> JSONResponse:
    """Enforced shares of GPUs: what each worker asked for, got and waited for."""
    return JSONResponse({"shares": await share_views(service, me)})


@router.get("/queues", response_model=QueueList)
async def queues(service: Parts, me: Me) -> JSONResponse:
    """The queues: what each may have, and what it has."""
    return JSONResponse({"queues": await queue_views(service)})
