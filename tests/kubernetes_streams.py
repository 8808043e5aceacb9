"""The streams of a kubelet, for tests without one: commands and ports of pods, on this machine.

The API server in between is real and passes a client's WebSocket on to the node's kubelet, which
is this. A command is a process here, a port one of this machine's; the messages are those of a
kubelet (`v4.channel.k8s.io`) or, as API servers since 1.30 have them, `v5.channel.k8s.io`.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import socket
import ssl
import struct
import subprocess
import termios
import threading
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

from presage.executors.node import frames
from presage.executors.node.frames import Frames, frame
from presage.executors.node.guardian import free_port
from tests.kubernetes_plane import Plane
from tests.waiting import PATIENCE_S

__all__ = ["AttachedClient", "StreamingNode"]

_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")


class AttachedClient:
    """What speaks frames at the other end."""

    def __init__(self, link: socket.socket, **order: Any) -> None:
        self._link, self._heard = link, Frames()
        self._found = self._heard.feed(b"")
        link.settimeout(PATIENCE_S)
        self.say(frames.ORDER, json.dumps({"worker": "worker-0", **order}).encode())

    def say(self, kind: bytes, body: bytes = b"") -> None:
        """Send a frame."""
        self._link.sendall(frame(kind, body))

    def next(self) -> tuple[bytes, bytes]:
        """The next frame; raises EOFError."""
        while (one := next(self._found, None)) is None:
            data = self._link.recv(65536)
            if not data:
                raise EOFError
            self._found = self._heard.feed(data)
        return one

    def begin(self) -> dict[str, Any]:
        """Wait until it has; what is said then."""
        kind, body = self.next()
        assert kind == frames.STARTED, body
        return dict(json.loads(body))

    def until(self, text: bytes) -> bytes:
        """What is printed, until a text was."""
        said = b""
        while text not in said:
            kind, body = self.next()
            said += body if kind == frames.STDOUT else b""
        return said

    def rest(self) -> tuple[int, bytes, bytes]:
        """Exit code, and what was printed on both streams."""
        out = {frames.STDOUT: b"", frames.STDERR: b"", frames.TAKEN: b""}
        while True:
            kind, body = self.next()
            if kind == frames.EXIT:
                return json.loads(body)["code"], out[frames.STDOUT], out[frames.STDERR]
            out[kind] += body

    def leave(self) -> None:
        """Go away."""
        self._link.close()


class StreamingNode:
    """A node of a plane whose kubelet has streams and nothing else."""

    def __init__(self, plane: Plane, name: str = "localhost", *, gpus: int = 4) -> None:
        self.name = name
        self.asked: list[tuple[str, dict[str, list[str]]]] = []
        """What came in: path and query."""
        self.running: list[subprocess.Popen[bytes]] = []
        port = free_port("127.0.0.1")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        certs = plane.home / "certs"
        context.load_cert_chain(certs / "apiserver.crt", certs / "apiserver.key")
        self._server: Server = serve(
            self._serve,
            "127.0.0.1",
            port,
            ssl=context,
            subprotocols=list(_PROTOCOLS),  # type: ignore[arg-type]
            compression=None,
        )
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        plane.add_node(name, gpus)
        status = {
            "addresses": [{"type": "Hostname", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        plane.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": status})

    def close(self) -> None:
        """End every command."""
        for process in self.running:
            process.kill()
            process.wait()
        self._server.shutdown()

    def _serve(self, link: ServerConnection) -> None:
        assert link.request is not None
        parts = urlsplit(link.request.path)
        query = parse_qs(parts.query)
        self.asked.append((parts.path, query))
        with suppress(ConnectionClosed, OSError):
            if parts.path.startswith("/exec/"):
                self._command(link, query)
            elif parts.path.startswith("/portForward/"):
                _forward(link, int(query["port"][0]))

    def _command(self, link: ServerConnection, query: dict[str, list[str]]) -> None:
        tty = "tty" in query
        outer, inner = pty.openpty() if tty else (-1, -1)
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            query["command"],
            stdin=inner if tty else pipe if "input" in query else subprocess.DEVNULL,
            stdout=inner if tty else pipe,
            stderr=inner if tty else pipe,
            start_new_session=True,
            preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if tty else None,
        )
        self.running.append(process)
        if tty:
            os.close(inner)
        link.send(b"\x01")
        outs = [(1, outer)] if tty else [(n, s.fileno()) for n, s in _streams(process)]
        readers = [threading.Thread(target=_read, args=(link, *one)) for one in outs]
        sink = outer if tty else process.stdin.fileno() if process.stdin else -1
        typing = threading.Thread(target=_type, args=(link, process, sink, tty), daemon=True)
        for thread in (*readers, typing):
            thread.start()
        code = process.wait()
        for thread in readers:
            thread.join()
        with suppress(ConnectionClosed):
            link.send(b"\x03" + json.dumps(_status(code)).encode())
        link.close()
        typing.join()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        if tty:
            os.close(outer)


def _streams(process: subprocess.Popen[bytes]) -> list[tuple[int, Any]]:
    return [(1, process.stdout), (2, process.stderr)]


def _read(link: ServerConnection, number: int, fd: int) -> None:
    with suppress(OSError, ConnectionClosed):  # a terminal ends with an error
        while data := os.read(fd, 4096):
            link.send(bytes([number]) + data)


def _type(link: ServerConnection, process: subprocess.Popen[bytes], sink: int, tty: bool) -> None:
    with suppress(ConnectionClosed, OSError):
        for message in link:
            assert isinstance(message, bytes)
            if message[0] == 0 and sink >= 0:
                os.write(sink, message[1:])
            elif message[0] == 4 and tty:
                size = json.loads(message[1:])
                window = struct.pack("HHHH", size["Height"], size["Width"], 0, 0)
                fcntl.ioctl(sink, termios.TIOCSWINSZ, window)
            elif message == b"\xff\x00" and link.subprotocol == _PROTOCOLS[0]:
                assert process.stdin is not None
                process.stdin.close()


def _status(code: int) -> dict[str, Any]:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    cause = {"reason": "ExitCode", "message": str(code if code > 0 else 128 - code)}
    words = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [cause]}}
    return {"metadata": {}, **words}


def _forward(link: ServerConnection, port: int) -> None:
    head = struct.pack("<H", port)
    link.send(b"\x00" + head)
    link.send(b"\x01" + head)
    try:
        inner = socket.create_connection(("127.0.0.1", port))
    except OSError as error:
        link.send(b"\x01" + f"error forwarding port {port}: {error}".encode())
        return
    with inner:

        def outwards() -> None:
            with suppress(OSError, ConnectionClosed):
                while data := inner.recv(4096):
                    link.send(b"\x00" + data)
                link.close()

        thread = threading.Thread(target=outwards, daemon=True)
        thread.start()
        with suppress(ConnectionClosed):
            for message in link:
                assert isinstance(message, bytes)
                inner.sendall(message[1:])
        with suppress(OSError):
            inner.shutdown(socket.SHUT_RDWR)
        thread.join()
