"""What passes between a client and a command that was attached to a run: frames, and the sockets
they come through.

A frame is a kind (one byte) and a body. On a socket its size stands between them; as a message of
a WebSocket it needs none. A client may have at most MOST_AHEAD bytes of standard input on the way:
it is told how many were taken, so nobody in between ever has to keep more, and a signal is never
stuck behind input that nobody reads. Standard library only; nothing here starts a process.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = [
    "EOF",
    "EXIT",
    "LARGEST",
    "MOST_AHEAD",
    "ORDER",
    "REFUSED",
    "SIGNAL",
    "STARTED",
    "STDERR",
    "STDIN",
    "STDOUT",
    "TAKEN",
    "WINDOW",
    "FrameError",
    "Frames",
    "connect",
    "frame",
    "listen",
    "said",
]

ORDER, STDIN, EOF, WINDOW, SIGNAL = b"a", b"i", b"e", b"w", b"s"
"""From the client: what is wanted (JSON, once), input and its end, rows and columns, a signal."""
STARTED, STDOUT, STDERR, TAKEN, EXIT, REFUSED = b"k", b"o", b"r", b"t", b"x", b"f"
"""To the client: it began (JSON), output, how much input was taken, how it ended (JSON), or why
it did not begin (JSON)."""

LARGEST = 64 << 10
"""Bytes of a frame, but for an order."""
LARGEST_ORDER = 1 << 20
MOST_AHEAD = 256 << 10
"""Bytes of standard input that a client may have on the way."""
_HEAD = struct.Struct(">cI")


class FrameError(ValueError):
    """What came is no frame, or more than was agreed."""


def frame(kind: bytes, body: bytes | dict[str, Any] = b"") -> bytes:
    """A frame as it passes through a socket."""
    body = json.dumps(body).encode() if isinstance(body, dict) else body
    return _HEAD.pack(kind, len(body)) + body


def said(body: bytes) -> dict[str, Any]:
    """The JSON in a frame; raises FrameError."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise FrameError("not a JSON object")
    return message


class Frames:
    """Frames out of the bytes of a socket, however they were cut."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The frames that are complete now, each with its kind; raises FrameError."""
        self._rest += data
        while len(self._rest) >= _HEAD.size:
            kind, size = _HEAD.unpack_from(self._rest)
            if size > (LARGEST_ORDER if kind == ORDER else LARGEST):
                raise FrameError(f"a frame of {size} bytes is too large")
            end = _HEAD.size + size
            if len(self._rest) < end:
                return
            body = bytes(self._rest[_HEAD.size : end])
            del self._rest[:end]
            yield kind, body


# -- sockets in a directory ---------------------------------------------------------------------


def listen(directory: Path, name: str) -> socket.socket:
    """A socket that whoever may enter the directory can connect to; it takes the place of one
    that somebody before left."""
    with suppress(FileNotFoundError):
        (directory / name).unlink()
    door = socket.socket(socket.AF_UNIX)
    with _short(directory) as place:
        door.bind(f"{place}/{name}")
    door.listen(64)
    return door


def connect(directory: Path, name: str) -> socket.socket:
    """A connection to who listens there; raises OSError."""
    link = socket.socket(socket.AF_UNIX)
    try:
        with _short(directory) as place:
            link.connect(f"{place}/{name}")
    except OSError:
        link.close()
        raise
    return link


class _short:
    """A directory under a path that fits into the address of a socket (108 bytes)."""

    def __init__(self, directory: Path) -> None:
        self._fd = os.open(directory, os.O_PATH | os.O_CLOEXEC)

    def __enter__(self) -> str:
        return f"/proc/self/fd/{self._fd}"

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
