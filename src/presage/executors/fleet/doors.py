"""The way into a run on a cluster: the server's connection is carried to the guardian's door
on the worker's node, in calls to the agent there.

The run has a door here, in its directory on the server, as a run on this machine has one
(`node.attach`). Whoever comes in says what is wanted, which names the worker and so the node; from
then on bytes go both ways. Each side takes the next ones when those before are gone
(backpressure), and the end of either is passed on. Nothing here understands what it carries.
Standard library only.
"""

from __future__ import annotations

import asyncio
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from presage.executors.fleet.cluster import AgentGone, AgentSilent
from presage.executors.fleet.files import AgentCall
from presage.executors.node import frames, wire
from presage.executors.node import messages as msg
from presage.executors.node.attach import DOOR, Refusal
from presage.executors.node.frames import FrameError, Frames, frame

__all__ = ["NodeDoors", "RunDoor"]

MOST = 16
"""Clients on one node: each takes up to two of the calls that an agent answers at once."""
_CHUNK = 256 << 10
_WAIT_S = 5.0
"""How long a call waits for bytes, or for room for them."""
_FORGOTTEN_S = 60.0
"""A connection that nobody has asked about for so long is closed: its server is gone."""
_ORDER_S = 30.0
_GONE = (AgentGone, AgentSilent, OSError, EOFError)


class _DoorLink:
    """A client at the door of a guardian."""

    def __init__(self, key: str, link: socket.socket) -> None:
        self.key, self.link = key, link
        self.asked = time.monotonic()


class NodeDoors:
    """The agent's end: connections to guardians on this node, by number. Several calls may come
    at the same time, for one of them at most one that sends and one that receives."""

    def __init__(self) -> None:
        self._links: dict[str, _DoorLink] = {}
        self._lock = threading.Lock()

    def open(self, key: str, run: Path) -> str | None:
        """Connect to who guards this run; "" when nobody does, None when too many are
        connected."""
        with self._lock:
            for number, each in list(self._links.items()):
                if time.monotonic() - each.asked > _FORGOTTEN_S:
                    self._links.pop(number).link.close()
            if len(self._links) >= MOST:
                return None
            try:
                link = frames.connect(run, DOOR)
            except OSError:
                return ""
            link.setblocking(False)
            number = secrets.token_hex(8)
            self._links[number] = _DoorLink(key, link)
            return number

    def send(self, key: str, number: str, data: bytes) -> int | None:
        """Pass bytes on, none for their end; how many were taken, or None when the other side is
        gone."""
        link = self._link(key, number)
        if link is None:
            return None
        try:
            if not data:
                link.shutdown(socket.SHUT_WR)
            elif select.select([], [link], [], _WAIT_S)[1]:
                return link.send(data)
        except (OSError, ValueError):
            return None
        return 0

    def receive(self, key: str, number: str) -> bytes | None:
        """The next bytes; none when there are none yet, None at their end."""
        link = self._link(key, number)
        try:
            if link is None:
                return None
            if select.select([link], [], [], _WAIT_S)[0]:
                return link.recv(_CHUNK) or None
        except (OSError, ValueError):
            return None
        return b""

    def close(self, key: str, number: str = "") -> None:
        """Let go of a connection, or of all of a run."""
        with self._lock:
            for each in [number] if number else list(self._links):
                if each in self._links and self._links[each].key == key:
                    self._links.pop(each).link.close()

    def _link(self, key: str, number: str) -> socket.socket | None:
        known = self._links.get(number)
        if known is None or known.key != key:
            return None
        known.asked = time.monotonic()
        return known.link


class RunDoor:
    """The server's end: the door of one run, in its directory. `agent` says how to ask the agent
    that has a worker; it raises Refusal."""

    def __init__(self, run: Path, agent: Callable[[str], AgentCall]) -> None:
        self._run, self._agent = run, agent
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Let clients in."""
        if self._server is None:
            door = frames.listen(self._run, DOOR)
            self._server = await asyncio.start_unix_server(self._come, sock=door)

    def close(self) -> None:
        """Let nobody in any more, and go no further with those who are."""
        if self._server is not None:
            self._server.close()
        for client in self._clients:
            client.cancel()

    async def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            with suppress(*_GONE):
                try:
                    await self._serve(reader, writer)
                except (Refusal, FrameError, wire.MessageError) as error:
                    writer.write(frame(frames.REFUSED, {"text": str(error)}))
                    await writer.drain()
        except asyncio.CancelledError:
            pass  # the run is over; nobody else waits for this
        finally:
            self._clients.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_ORDER_S):
            heard, order = await _order(reader)
            ask = self._agent(order.worker)
            number = await ask("attach")
        if number is None:
            raise Refusal(f"{MOST} clients are attached on this node; close one of them")
        if not number:
            raise Refusal(f"{order.worker} does not run at the moment")
        try:
            await _carry(_Carried(ask, number), heard, reader, writer)
        finally:
            await asyncio.shield(_detach(ask, number))


class _Carried:
    """A connection on another node."""

    def __init__(self, ask: AgentCall, number: str) -> None:
        self._ask, self._number = ask, number

    async def send(self, data: bytes) -> bool:
        """Pass on all of it, or its end; whether anybody takes it."""
        while True:
            taken = await self._ask("send", self._number, data)
            data = data[taken or 0 :]
            if taken is None or not data:
                return taken is not None

    async def receive(self) -> Any:
        """As `NodeDoors.receive`."""
        return await self._ask("receive", self._number)


async def _carry(
    there: _Carried, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Bytes both ways, until nothing more comes from there."""

    async def inwards() -> None:
        data = first
        while await there.send(data) and data:
            data = await reader.read(_CHUNK)

    sending = asyncio.create_task(inwards())
    try:
        while (data := await there.receive()) is not None:
            if data:
                writer.write(data)
                await writer.drain()
            elif sending.done() and _hung_up(writer):
                break
    finally:
        sending.cancel()
        await asyncio.wait([sending])
        with suppress(asyncio.CancelledError, *_GONE):
            sending.result()


def _hung_up(writer: asyncio.StreamWriter) -> bool:
    """Whether a client that says nothing more does not listen any more either."""
    look = select.poll()
    look.register(writer.get_extra_info("socket").fileno(), 0)
    return bool(look.poll(0))


async def _order(reader: asyncio.StreamReader) -> tuple[bytes, msg.AttachOrder]:
    """What a client wants; with it, all that came so far."""
    heard, came = Frames(), b""
    while data := await reader.read(_CHUNK):
        came += data
        for kind, body in heard.feed(data):
            if kind != frames.ORDER:
                raise FrameError("an order comes first")
            return came, wire.loads(msg.AttachOrder, body)
    raise EOFError


async def _detach(ask: AgentCall, number: str) -> None:
    with suppress(*_GONE):
        await ask("detach", number)
