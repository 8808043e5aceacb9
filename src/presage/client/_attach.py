"""Attached to a job: a WebSocket to the server, and what passes between it and local streams.

The terminal's own settings, and what signals mean to a command, are the caller's business.
"""

from __future__ import annotations

import json
import os
import select
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from presage.client._http import Connection
from presage.executors.node import frames
from presage.model.errors import ApiError, Unreachable

__all__ = ["Attached", "Input", "open_socket"]

_OPEN_S = 30.0
_TAKEN = 0
"""Written to the pump's pipe, where else the numbers of signals come in: more may be sent."""


@contextmanager
def open_socket(server: Connection, path: str) -> Iterator[ClientConnection]:
    """A WebSocket at `/api/v1{path}`; raises what the server says."""
    url = f"ws{server.url.removeprefix('http')}/api/v1{path}"
    token = server.authorization
    try:
        link = connect(
            url,
            additional_headers={"Authorization": token} if token else {},
            compression=None,
            max_size=1 << 20,
            open_timeout=_OPEN_S,
            proxy=None,
        )
    except InvalidStatus as refused:
        raise _error(refused) from None
    except (OSError, InvalidHandshake) as error:
        raise Unreachable(f"no server answers at {server.url} ({error})") from None
    with link:
        yield link


def _error(refused: InvalidStatus) -> ApiError:
    status = refused.response.status_code
    try:
        said: Mapping[str, Any] = json.loads(refused.response.body or b"")["error"]
        return ApiError(status, str(said["code"]), str(said["text"]))
    except (ValueError, KeyError, TypeError):
        return ApiError(status, "error", f"the server answered {status}")


class Input:
    """What is read here and typed there; over several connections nothing is lost or doubled."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.ended = False
        self.pending = bytearray()
        """What was read and is not known to have been taken."""
        self._taken = 0

    def taken(self, count: int) -> None:
        """So much more was taken."""
        del self.pending[:count]
        self._taken += count

    def resume(self, total: int) -> None:
        """So much was taken in all, as the other side says."""
        self.taken(min(max(0, total - self._taken), len(self.pending)))


class Attached:
    """Something that was attached: `run` relays until it is over."""

    def __init__(self, link: ClientConnection, order: Mapping[str, Any]) -> None:
        self._link = link
        self.received = 0
        """Bytes of standard output so far."""
        self._over = False
        self._lock = threading.Lock()
        self.wake_read, self.wake_write = os.pipe()
        """Bytes that are written here are taken for numbers of signals."""
        os.set_blocking(self.wake_write, False)
        try:
            link.send(json.dumps(order))
            kind, body = self._next() or (b"", b"")
        except ConnectionClosed:
            kind, body = b"", b""
        if kind == frames.REFUSED:
            said = json.loads(body)
            raise ApiError(400, str(said.get("code", "refused")), str(said.get("text", "refused")))
        if kind != frames.STARTED:
            raise Unreachable("the server closed the connection before anything began")
        self._typed = int(json.loads(body).get("typed", 0))

    def run(
        self,
        write: Callable[[bytes, bytes], None],
        stdin: Input,
        on_signal: Callable[[int], None],
    ) -> int | None:
        """Relay until it is over; its exit code, or None if the connection ended before. `write`
        gets the kind of each piece of output; `on_signal` is called in another thread."""
        stdin.resume(self._typed)
        pump = threading.Thread(target=self._pump, args=(stdin, on_signal), daemon=True)
        pump.start()
        try:
            return self._relay(write, stdin)
        finally:
            self._over = True
            self.wake(_TAKEN)
            pump.join()
            os.close(self.wake_read)

    def _relay(self, write: Callable[[bytes, bytes], None], stdin: Input) -> int | None:
        while (message := self._next()) is not None:
            kind, body = message
            if kind in (frames.STDOUT, frames.STDERR):
                self.received += len(body) if kind == frames.STDOUT else 0
                write(kind, body)
            elif kind == frames.TAKEN:
                with self._lock:
                    stdin.taken(int.from_bytes(body, "big"))
                self.wake(_TAKEN)
            elif kind == frames.EXIT:
                return int(json.loads(body)["code"])
        return None

    def send(self, kind: bytes, body: bytes = b"") -> None:
        """Send a frame; nothing happens if the connection is gone."""
        with suppress(ConnectionClosed):
            self._link.send(kind + body)

    def resize(self, rows: int, columns: int) -> None:
        """Tell the size of the terminal."""
        self.send(frames.WINDOW, rows.to_bytes(2, "big") + columns.to_bytes(2, "big"))

    def signal(self, number: int) -> None:
        """Send a signal to what is attached."""
        self.send(frames.SIGNAL, bytes([number]))

    def leave(self) -> None:
        """End the connection."""
        self._link.close()

    def wake(self, number: int) -> None:
        """Have the pump look; a number that is not 0 is a signal."""
        with suppress(BlockingIOError):
            os.write(self.wake_write, bytes([number]))

    def _next(self) -> tuple[bytes, bytes] | None:
        try:
            message = self._link.recv()
        except ConnectionClosed:
            return None
        data = message if isinstance(message, bytes) else message.encode()
        return data[:1], data[1:]

    def _pump(self, stdin: Input, on_signal: Callable[[int], None]) -> None:
        """Send input, as much as may be on the way, and signals."""
        for start in range(0, len(stdin.pending), frames.LARGEST):
            self.send(frames.STDIN, bytes(stdin.pending[start : start + frames.LARGEST]))
        if stdin.ended:
            self.send(frames.EOF)
        while True:
            room = frames.MOST_AHEAD - len(stdin.pending)
            wanted = [self.wake_read, *([stdin.fd] if not stdin.ended and room > 0 else [])]
            ready = select.select(wanted, [], [])[0]
            if self._over:
                return
            if self.wake_read in ready:
                for number in os.read(self.wake_read, 4096):
                    if number != _TAKEN:
                        on_signal(number)
                continue
            try:
                data = os.read(stdin.fd, min(frames.LARGEST, room))
            except OSError:
                data = b""
            with self._lock:
                stdin.pending += data
                stdin.ended = not data
            self.send(frames.STDIN if data else frames.EOF, data)
