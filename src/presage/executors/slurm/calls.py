"""A call to an agent on a node: one connection, one question, one answer, each signed.

JSON, with bytes in base64. The agent begins with a random number, and both sides sign what they
say together with it and the agent's token: nobody else can ask or answer, and nothing can be
repeated. It is not encrypted, as what `srun` carries is not: secrets go another way
(`slurm.handed`).
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import socket
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

__all__ = ["CallError", "answer", "ask"]

_NONCE = 32
_MAC = 32
_MOST = 64 << 20
"""Bytes of a question or an answer; files travel in chunks of 8 MiB."""
_HEAR_S = 30.0


class CallError(Exception):
    """What the agent says went wrong, or an answer that is none of the agent's."""


async def ask(host: str, port: int, token: str, method: str, *arguments: Any) -> Any:
    """Ask an agent; raises OSError when nobody is there, CallError for a bad answer."""
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
    try:
        nonce = await reader.readexactly(_NONCE)
        body = _dumps([method, *arguments])
        writer.write(_sign(token, nonce, b"ask", body) + len(body).to_bytes(8) + body)
        await writer.drain()
        mac = await reader.readexactly(_MAC)
        size = int.from_bytes(await reader.readexactly(8))
        if size > _MOST:
            raise CallError(f"an answer of {size} bytes")
        said = await reader.readexactly(size)
    except asyncio.IncompleteReadError:
        raise ConnectionResetError("the agent hung up") from None
    finally:
        writer.close()
    if not hmac.compare_digest(mac, _sign(token, nonce, b"answer", said)):
        raise CallError("an answer that is not signed as the agent's")
    error, value = _loads(said)
    if error is not None:
        raise CallError(str(error))
    return value


def answer(peer: socket.socket, token: str, reply: Callable[[str, list[Any]], Any]) -> None:
    """Answer one question; whoever does not know the token is not heard."""
    with peer:
        peer.settimeout(_HEAR_S)
        nonce = os.urandom(_NONCE)
        peer.sendall(nonce)
        mac = _exactly(peer, _MAC)
        size = int.from_bytes(_exactly(peer, 8))
        if size > _MOST:
            return
        body = _exactly(peer, size)
        if not hmac.compare_digest(mac, _sign(token, nonce, b"ask", body)):
            return
        method, *arguments = _loads(body)
        try:
            said = _dumps([None, reply(method, arguments)])
        except Exception as error:  # the one who asked is told; an agent must go on
            said = _dumps([f"{type(error).__name__}: {error}", None])
        peer.sendall(_sign(token, nonce, b"answer", said) + len(said).to_bytes(8) + said)


def _exactly(peer: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        chunk = peer.recv(min(1 << 20, size - len(parts)))
        if not chunk:
            raise ConnectionResetError("hung up")
        parts += chunk
    return bytes(parts)


def _sign(token: str, nonce: bytes, what: bytes, body: bytes) -> bytes:
    return hmac.digest(token.encode(), nonce + what + body, "sha256")


def _dumps(value: Any) -> bytes:
    return json.dumps(value, default=lambda data: {"b64": b64encode(data).decode()}).encode()


def _loads(text: bytes) -> Any:
    def plain(value: dict[str, Any]) -> Any:
        return b64decode(value["b64"]) if value.keys() == {"b64"} else value

    return json.loads(text, object_hook=plain)
