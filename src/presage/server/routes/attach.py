"""Working with a job while it runs: commands beside it, its console, its ports; by WebSocket.

A client that may not is refused before the WebSocket opens, with the answer that any route gives.
What only the run can say (no such program) comes as a frame.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, WebSocket
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocketDisconnect

from presage.control.attaching import attach, check_port, running
from presage.control.forwarding import PortDoor
from presage.control.site.service import Service
from presage.executors.node import frames
from presage.model.errors import Conflict, PresageError
from presage.server.attach import refusal, relay_bytes, relay_frames
from presage.server.problems import refusal_of
from presage.server.routes.common import Me, Parts, clean, user_of
from presage.store.records import JobRow, User

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["attach"])

_ORDER_S = 30.0
Size = Annotated[int, Field(ge=1, le=10_000)]


class ExecBody(BaseModel):
    """A command to run beside a worker."""

    model_config = ConfigDict(extra="forbid", strict=True)

    argv: Annotated[list[Annotated[str, Field(max_length=1 << 17)]], Field(min_length=1)]
    worker: Annotated[str, Field(max_length=80)] = "0"
    tty: bool = False
    rows: Size = 24
    columns: Size = 80
    term: Annotated[str, Field(pattern=r"^[A-Za-z0-9._+-]{1,40}$")] = "xterm"


class ConsoleBody(BaseModel):
    """To type to a worker, and read what it writes."""

    model_config = ConfigDict(extra="forbid", strict=True)

    offset: Annotated[int, Field(ge=0, le=2**53)] = 0
    rows: Size = 24
    columns: Size = 80


@router.websocket("/jobs/{job_id}/exec")
async def execute(ws: WebSocket, job_id: str) -> None:
    """Run a command beside a worker; the first message is what to run, as JSON."""
    await _framed(ws, job_id, "exec", ExecBody)


@router.websocket("/jobs/{job_id}/console")
async def console(ws: WebSocket, job_id: str) -> None:
    """Type to the worker of a job that has a console."""
    await _framed(ws, job_id, "console", ConsoleBody)


@router.websocket("/jobs/{job_id}/ports/{port}")
async def forward(ws: WebSocket, job_id: str, port: int, worker: str = "0") -> None:
    """A connection to a port of a job, as bytes both ways."""
    try:
        service, user, row = await _find(ws, job_id)
        check_port(row, port)
        run = await attach(service, row, user.name, "forward", worker, {"port": port})
    except PresageError as error:
        await _deny(ws, error)
        return
    await ws.accept()
    with service.attendance.attached(row.id):
        await relay_bytes(ws, run)


@router.post("/jobs/{job_id}/ports/{port}", status_code=201)
async def open_port(
    job_id: str, port: int, service: Parts, me: Me, absolute: bool = False
) -> JSONResponse:
    """An address under which a browser reaches a port of a job; it works for some minutes, and
    leaves a cookie for that port alone."""
    row = await asyncio.to_thread(running, service, clean(job_id), me)
    check_port(row, port)
    if not service.settings.proxy_port:
        raise Conflict("this server has no --proxy-port; use presage forward")

    def address() -> tuple[str, float]:
        return PortDoor(service).address(me, row, port, absolute=absolute)

    url, expires_at = await asyncio.to_thread(address)
    answer = {"id": row.id, "port": port, "url": url, "expires_at": expires_at}
    return JSONResponse(answer, 201, {"Cache-Control": "no-store"})


@router.post("/jobs/{job_id}/heartbeat", status_code=202)
async def heartbeat(job_id: str, service: Parts, me: Me) -> JSONResponse:
    """Say that whoever submitted a job with a `heartbeat` is still there."""
    row = await asyncio.to_thread(service.changeable, clean(job_id), me)
    service.attendance.beat(row.id)
    return JSONResponse({"id": row.id, "status": row.status}, 202)


async def _find(connection: HTTPConnection, job_id: str) -> tuple[Service, User, JobRow]:
    """Who asks, and the job that runs."""
    service: Service = connection.app.state.service
    user = await user_of(connection)
    row = await asyncio.to_thread(running, service, job_id, user)
    return service, user, row


async def _framed(ws: WebSocket, job_id: str, what: str, kind: type[BaseModel]) -> None:
    try:
        service, user, row = await _find(ws, job_id)
    except PresageError as error:
        await _deny(ws, error)
        return
    await ws.accept()
    try:
        text = await asyncio.wait_for(ws.receive_text(), _ORDER_S)
        order: dict[str, Any] = kind.model_validate_json(text).model_dump()
        worker = order.pop("worker", "0")
        if what == "console":
            order["console"] = True
        run = await attach(service, row, user.name, what, worker, order)
    except (WebSocketDisconnect, TimeoutError, KeyError):
        return
    except (PresageError, ValidationError) as error:
        with suppress(RuntimeError, WebSocketDisconnect):
            await ws.send_bytes(frames.REFUSED + json.dumps(refusal(error)).encode())
            await ws.close()
        return
    with service.attendance.attached(row.id):
        await relay_frames(ws, run)


async def _deny(ws: WebSocket, error: PresageError) -> None:
    """Answer as any route does, instead of opening the WebSocket."""
    await ws.send_denial_response(refusal_of(error))
