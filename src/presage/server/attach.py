"""Bytes between a client that is attached and the run, by WebSocket.

The server only relays. It keeps no more than one message in each direction: a client that does
not read stops what it reads from. The user's token never goes further than here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from presage.control.attaching import Attachment, next_frame
from presage.executors.node import frames
from presage.executors.node.frames import FrameError, frame
from presage.model.errors import PresageError

__all__ = [
    "close_quietly",
    "refusal",
    "relay_bytes",
    "relay_frames",
    "until_one_ends",
]

_FROM_CLIENT = (frames.STDIN, frames.EOF, frames.WINDOW, frames.SIGNAL)


async def relay_frames(ws: WebSocket, run: Attachment) -> None:
    """Pass frames on, a message for each, until one side ends."""

    async with run.streams() as (reader, writer):

        async def outwards() -> None:
            await ws.send_bytes(frames.STARTED + json.dumps(run.started).encode())
            while True:
                kind, body = await next_frame(reader)
                await ws.send_bytes(kind + body)

        async def inwards() -> None:
            while True:
                message = await ws.receive_bytes()
                kind, body = message[:1], message[1:]
                if kind not in _FROM_CLIENT or len(body) > frames.LARGEST:
                    raise FrameError("not a frame of a client")
                writer.write(frame(kind, body))
                await writer.drain()

        await until_one_ends(outwards(), inwards())
    await close_quietly(ws)


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

        await until_one_ends(outwards(), inwards())
    await close_quietly(ws)


async def until_one_ends(*ways: Coroutine[Any, Any, None]) -> None:
    """Pass on in each of these ways until one side goes, or says what it must not; then in
    none."""
    from websockets.exceptions import WebSocketException

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
                WebSocketException,
            ):
                await task


async def close_quietly(ws: WebSocket, code: int = 1000) -> None:
    """Close it, unless the client went first."""
    with suppress(OSError, RuntimeError, WebSocketDisconnect):
        await ws.close(code)


def refusal(error: Exception) -> dict[str, Any]:
    """An error as a client gets it."""
    code = error.code if isinstance(error, PresageError) else "bad_request"
    return {"code": code, "text": " ".join(str(error).split())}
