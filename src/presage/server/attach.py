"""Clients that attach to a run: who may, to which worker, and how bytes are passed on.

The server only relays. It keeps no more than one message in each direction: a client that does
not read stops what it reads from. The user's token never goes further than here.
"""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from socket import socket
from typing import Any

from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket, WebSocketDisconnect

from presage.control.accounts import may_change
from presage.core.state import State
from presage.executors.node import frames
from presage.executors.node.frames import FrameError, frame, said
from presage.model.errors import Conflict, Denied, NotFound, PresageError, UserError
from presage.server.routes.common import user_of
from presage.server.routes.jobs import clean, why
from presage.server.service import Service
from presage.store.records import AuditEntry, JobRow, User

__all__ = [
    "Attachment",
    "attach",
    "find",
    "refusal",
    "relay_bytes",
    "relay_frames",
    "running",
]

_FROM_CLIENT = (frames.STDIN, frames.EOF, frames.WINDOW, frames.SIGNAL)
_HEAD = struct.Struct(">cI")
_ANSWER_S = 45.0


@dataclass(frozen=True, slots=True)
class Attachment:
    """A connection to a run that took the order; whoever has it closes it."""

    link: socket
    started: Mapping[str, Any]
    """What the run said when it took it."""

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """The connection as streams; at the end it is closed, and the run hears of it."""
        reader, writer = await asyncio.open_unix_connection(sock=self.link)
        try:
            yield reader, writer
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


def running(service: Service, job_id: str, user: User) -> JobRow:
    """A job that a user may change and that runs now; what is said otherwise tells why not."""
    row = service.seen(clean(job_id), user)
    if not may_change(user, row):
        raise Denied(f"job {row.id} is {row.owner}'s; {user.name} may look at it only")
    if row.status != "PROCESSING" or row.stage == "stopping":
        reason = why(service, row)["text"] if row.status == "QUEUED" else row.reason_text
        because = f": {reason}" if reason else ""
        stopping = " and is being stopped" if row.stage == "stopping" else ""
        raise Conflict(f"job {row.id} does not run: it is {row.status}{stopping}{because}")
    return row


async def find(connection: HTTPConnection, job_id: str) -> tuple[Service, User, JobRow]:
    """Who asks, and the job that runs."""
    service: Service = connection.app.state.service
    user = await user_of(connection)
    row = await asyncio.to_thread(running, service, job_id, user)
    return service, user, row


async def attach(
    service: Service, row: JobRow, who: str, what: str, worker: str, order: dict[str, Any]
) -> Attachment:
    """Have a run take an order; raises what it says if it does not. `what` goes to the audit log
    with the order, before anything is done; "" is not worth a line."""
    name = await asyncio.to_thread(service.live.read, lambda state: _name(state, row, worker))
    if what:
        entry = AuditEntry(time.time(), who, what, row.id, {"worker": name, **order})
        await asyncio.to_thread(service.store.audit.add, entry)
    link = await asyncio.to_thread(service.live.attach, row.id, row.attempt, name)
    link.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_ANSWER_S):
            await loop.sock_sendall(link, frame(frames.ORDER, {"worker": name, **order}))
            kind, size = _HEAD.unpack(await _exactly(link, _HEAD.size))
            answer = said(await _exactly(link, size))
    except (OSError, EOFError, FrameError):  # a TimeoutError is an OSError
        link.close()
        raise Conflict(f"{name} of job {row.id} does not answer; is it still running?") from None
    except BaseException:
        link.close()
        raise
    if kind != frames.STARTED:
        link.close()
        raise UserError(str(answer.get("text", "refused")))
    return Attachment(link, answer)


async def _exactly(link: socket, size: int) -> bytes:
    """So many bytes and no more: what follows is somebody else's to read."""
    data = b""
    while len(data) < size <= frames.LARGEST:
        part = await asyncio.get_running_loop().sock_recv(link, size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def _name(state: State, row: JobRow, worker: str) -> str:
    """The name of a worker that runs, from its name or its rank."""
    job = state.jobs.get(row.id)
    workers = sorted(job.allocation, key=lambda one: (one.role, one.index)) if job else []
    names = [f"{job.spec.roles[one.role].name}-{one.index}" for one in workers] if job else []
    if worker in names:
        return worker
    if worker.isdecimal() and int(worker) < len(names):
        return names[int(worker)]
    raise NotFound(f"job {row.id} has no worker {worker[:80]!r}; it has {', '.join(names)}")


async def _next(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    kind, size = _HEAD.unpack(await reader.readexactly(_HEAD.size))
    if size > frames.LARGEST:
        raise FrameError("too large")
    return kind, await reader.readexactly(size)


async def relay_frames(ws: WebSocket, run: Attachment) -> None:
    """Pass frames on, a message for each, until one side ends."""

    async with run.streams() as (reader, writer):

        async def outwards() -> None:
            await ws.send_bytes(frames.STARTED + json.dumps(run.started).encode())
            while True:
                kind, body = await _next(reader)
                await ws.send_bytes(kind + body)

        async def inwards() -> None:
            while True:
                message = await ws.receive_bytes()
                kind, body = message[:1], message[1:]
                if kind not in _FROM_CLIENT or len(body) > frames.LARGEST:
                    raise FrameError("not a frame of a client")
                writer.write(frame(kind, body))
                await writer.drain()

        await _both(ws, outwards(), inwards())


async def relay_bytes(ws: WebSocket, run: Attachment) -> None:
    """Pass bytes on; an empty message says that there are no more in its direction."""

    async with run.streams() as (reader, writer):

        async def outwards() -> None:
            while data := await reader.read(frames.LARGEST):
                await ws.send_bytes(data)
            await ws.send_bytes(b"")
            await asyncio.Event().wait()

        async def inwards() -> None:
            while data := await ws.receive_bytes():
                writer.write(data)
                await writer.drain()
            writer.write_eof()
            await ws.receive_bytes()  # until the client goes

        await _both(ws, outwards(), inwards())


async def _both(ws: WebSocket, *ways: Any) -> None:
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(
                asyncio.CancelledError,
                EOFError,
                FrameError,
                KeyError,
                OSError,
                RuntimeError,
                WebSocketDisconnect,
            ):
                await task
        with suppress(OSError, RuntimeError, WebSocketDisconnect):  # the client went first
            await ws.close()


def refusal(error: Exception) -> dict[str, Any]:
    """An error as a client gets it."""
    code = error.code if isinstance(error, PresageError) else "bad_request"
    return {"code": code, "text": " ".join(str(error).split())}
