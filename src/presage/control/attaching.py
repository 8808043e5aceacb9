"""Attaching to a run: who may, to which worker, and the connection once the run took the order.

How bytes are passed on to a client is not decided here.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from socket import socket
from typing import Any

from presage.control.people.accounts import may_change
from presage.control.site.service import Service
from presage.control.views.ahead import why
from presage.core.state import State
from presage.executors.node import frames
from presage.executors.node.frames import FrameError, frame, said
from presage.model.errors import Conflict, Denied, NotFound, UserError
from presage.store.records import AuditEntry, JobRow, User

__all__ = ["Attachment", "attach", "check_port", "next_frame", "running"]


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
    row = service.seen(job_id, user)
    if not may_change(user, row):
        raise Denied(f"job {row.id} is {row.owner}'s; {user.name} may look at it only")
    if row.status != "PROCESSING" or row.stage == "stopping":
        reason = why(service, row)["text"] if row.status == "QUEUED" else row.reason_text
        because = f": {reason}" if reason else ""
        stopping = " and is being stopped" if row.stage == "stopping" else ""
        raise Conflict(f"job {row.id} does not run: it is {row.status}{stopping}{because}")
    return row


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


async def next_frame(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Kind and body of the next frame that a run sends."""
    kind, size = _HEAD.unpack(await reader.readexactly(_HEAD.size))
    if size > frames.LARGEST:
        raise FrameError("too large")
    return kind, await reader.readexactly(size)


def check_port(row: JobRow, port: int) -> None:
    """Raises for a port that the manifest of a job does not name."""
    ports = (row.manifest or {}).get("ports") or ()
    if port not in ports:
        there = f"it has {', '.join(map(str, ports))}" if ports else "it has none"
        raise UserError(f"port {port} is not among the ports of the job's manifest: {there}")
