"""The way into a pod: commands beside the job's program, and its ports, through the API server.

A client has one end of a pair of sockets and speaks the frames of `node.frames` there, as with a
guardian; here they become the streams of `pods/exec` and `pods/portforward`. A command is started
by the shell of the image, which says its number first: the API knows no signals, so another
command sends them, and ends one whose client went away. Who may come is settled before. Nothing
is kept: bytes wait where they are until the other side takes them.
"""

from __future__ import annotations

import asyncio
import json
import select
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from socket import socket, socketpair
from typing import TYPE_CHECKING, Any

from presage.executors.kubernetes.api import Json, KubeApi
from presage.executors.kubernetes.pods import MAIN, PORT_TOKEN
from presage.executors.node import frames, wire
from presage.executors.node import messages as msg
from presage.executors.node.attach import Refusal
from presage.executors.node.frames import FrameError, Frames, frame
from presage.model.errors import KubernetesError

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

__all__ = ["PodDoors"]

_IN, _OUT, _ERR, _STATUS, _SIZE, _CLOSE = 0, 1, 2, 3, 4, 255
"""Streams of a command, by number; the last says that another is at its end."""
_STREAMS, _STREAMS_THAT_END = "v4.channel.k8s.io", "v5.channel.k8s.io"
_END_SINCE = (1, 30)
"""Older API servers cannot tell a command that its input is at its end."""
_NO_END = (
    b"[presage: this Kubernetes cannot tell a command that its input has ended (1.30 can); "
    b"it may wait for more]\n"
)
_FIRST_S = 0.5
"""How long a client of such a server has to say that there is no input at all."""
_ORDER_S = 30.0
_BEGIN = 'echo "$$"; export TERM="$0"; exec "$@"'
_SIGNAL = 'kill -"$0" -"$1" 2>/dev/null || kill -"$0" "$1"'
_LEAVE = 'for s in 1 9; do kill -$s -"$0" || kill -$s "$0" || exit 0; sleep 2; done 2>/dev/null'
_SENDABLE = frozenset(
    getattr(signal, f"SIG{name}")
    for name in ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "KILL", "CONT", "TSTP")
)


class PodDoors:
    """Clients of pods; any thread may ask. All of them are served by one thread."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def open(self, pod: Json, name: str, ports: Sequence[int]) -> socket:
        """A connection to a worker's pod, which says what is wanted there."""
        theirs, ours = socketpair()
        client = _PodAttachment(self._api, pod, name, ports).serve(ours)
        asyncio.run_coroutine_threadsafe(client, self._running())
        return theirs

    def close(self) -> None:
        """Let go of every client."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run, args=(self._loop,), name="kubernetes-attach", daemon=True
                )
                self._thread.start()
            return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Serve until the loop is stopped; then end whoever is left."""
    loop.run_forever()
    while left := asyncio.all_tasks(loop):
        loop.run_until_complete(_ended(*left))
    loop.run_until_complete(asyncio.sleep(0))  # sockets are closed one turn later
    loop.close()


class _PodAttachment:
    """One client of a pod."""

    def __init__(self, api: KubeApi, pod: Json, name: str, ports: Sequence[int]) -> None:
        self._api, self._pod, self._name, self._ports = api, pod, name, ports
        self._ends = api.version >= _END_SINCE

    async def serve(self, link: socket) -> None:
        """Do what it wants until it has that, or goes away."""
        from websockets.exceptions import ConnectionClosed

        reader, writer = await asyncio.open_unix_connection(sock=link)
        try:
            with suppress(OSError, EOFError, ConnectionClosed):
                try:
                    said = _ClientFrames(reader)
                    async with asyncio.timeout(_ORDER_S):
                        order = await said.order()
                    if order.port:
                        await self._forward(reader, writer, order.port)
                    elif order.argv:
                        await self._command(said, writer, order)
                    else:
                        raise Refusal("a console cannot be offered on Kubernetes")
                except (Refusal, FrameError, wire.MessageError, KubernetesError) as error:
                    writer.write(frame(frames.REFUSED, {"text": str(error)}))
                    await writer.drain()
        finally:
            writer.close()

    # -- commands -------------------------------------------------------------------------------

    async def _command(
        self, said: _ClientFrames, writer: asyncio.StreamWriter, order: msg.AttachOrder
    ) -> None:
        late = not (self._ends or order.tty)
        typed = not late or await said.next_kind(_FIRST_S) != frames.EOF
        argv = ["/bin/sh", "-c", _BEGIN, order.term, *order.argv]
        run = await self._exec(argv, typed=typed, tty=order.tty)
        pid = ""
        try:
            pid, rest = await _number(run)
            writer.write(frame(frames.STARTED, {}))
            if rest:
                writer.write(frame(frames.STDOUT, rest))
            if order.tty:
                await _resize(run, order.rows, order.columns)
            typing = asyncio.create_task(self._pass_in(said, writer, run, pid, typed=typed))
            printing = asyncio.create_task(_pass_out(run, writer))
            try:
                await asyncio.wait([typing, printing], return_when=asyncio.FIRST_COMPLETED)
                if printing.done():
                    writer.write(frame(frames.EXIT, {"code": printing.result()}))
                    pid = ""
                    await writer.drain()
            finally:
                await _ended(typing, printing)
        finally:
            await _close(run)
            if pid:
                await asyncio.shield(self._shoot(_LEAVE, pid))

    async def _pass_in(
        self,
        said: _ClientFrames,
        writer: asyncio.StreamWriter,
        run: ClientConnection,
        pid: str,
        *,
        typed: bool,
    ) -> None:
        """What the client says, until it goes. Input that is not taken yet keeps no signal
        waiting."""
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        typing = asyncio.create_task(_type(queue, run, writer))
        try:
            while (one := await said.next()) is not None:
                kind, body = one
                if kind == frames.STDIN and typed:
                    queue.put_nowait(body)
                elif kind == frames.EOF and self._ends:
                    queue.put_nowait(b"")
                elif kind == frames.EOF and typed:
                    writer.write(frame(frames.STDERR, _NO_END))
                elif kind == frames.WINDOW and len(body) == 4:
                    await _resize(run, *(int.from_bytes(body[n : n + 2], "big") for n in (0, 2)))
                elif kind == frames.SIGNAL and len(body) == 1 and body[0] in _SENDABLE:
                    await self._shoot(_SIGNAL, str(body[0]), pid)
        finally:
            await _ended(typing)

    async def _exec(
        self, argv: Sequence[str], *, typed: bool = False, tty: bool = False
    ) -> ClientConnection:
        wanted = {"container": MAIN, "stdout": "true"}
        wanted |= {"tty": "true"} if tty else {"stderr": "true"}
        wanted |= {"stdin": "true"} if typed else {}
        query = [*wanted.items(), *(("command", word) for word in argv)]
        return await self._stream("exec", query, _STREAMS_THAT_END if self._ends else _STREAMS)

    async def _stream(
        self, sub: str, query: Sequence[tuple[str, str]], protocol: str
    ) -> ClientConnection:
        meta = self._pod["metadata"]
        return await self._api.stream(meta["name"], meta["namespace"], sub, query, protocol)

    async def _shoot(self, script: str, *words: str) -> None:
        """Have something done to a command, and wait until it is."""
        with suppress(KubernetesError, OSError):
            other = await self._exec(["/bin/sh", "-c", script, *words])
            try:
                async for _ in other:
                    pass
            finally:
                await _close(other)

    # -- ports ----------------------------------------------------------------------------------

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int
    ) -> None:
        if port not in self._ports:
            there = ", ".join(map(str, self._ports)) or "none"
            raise Refusal(f"port {port} is not among the ports of the job's manifest: {there}")
        run = await self._stream("portforward", [("ports", str(port))], _STREAMS)
        try:
            for _ in range(2):
                await run.recv()  # each stream says first which port it is of
            writer.write(frame(frames.STARTED, {"token": _token(self._pod)}))
            typing = asyncio.create_task(_pour(reader, run, writer))
            try:
                async for message in run:
                    data = _bytes(message)
                    if data[0] != 0:  # words about what is wrong
                        break
                    writer.write(data[1:])
                    await writer.drain()
            finally:
                await _ended(typing)
        finally:
            await _close(run)


# -- parts --------------------------------------------------------------------------------------


class _ClientFrames:
    """What a client says."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader, self._heard = reader, Frames()
        self._found = self._heard.feed(b"")
        self._kept: tuple[bytes, bytes] | None = None

    async def next(self) -> tuple[bytes, bytes] | None:
        """The next frame; None when it has gone."""
        if self._kept is not None:
            kept, self._kept = self._kept, None
            return kept
        while (one := next(self._found, None)) is None:
            data = await self._reader.read(frames.LARGEST)
            if not data:
                return None
            self._found = self._heard.feed(data)
        return one

    async def next_kind(self, wait_s: float) -> bytes:
        """Of which kind the next frame is, which stays; none when none comes in this time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                self._kept = await self.next()
        return self._kept[0] if self._kept else b""

    async def order(self) -> msg.AttachOrder:
        """What is wanted; that comes first."""
        one = await self.next()
        if one is None:
            raise EOFError
        if one[0] != frames.ORDER:
            raise FrameError("an order comes first")
        return wire.loads(msg.AttachOrder, one[1])


async def _number(run: ClientConnection) -> tuple[str, bytes]:
    """The process that a command is, as the shell says first, and what was printed after that;
    raises Refusal when it was not started."""
    said = b""
    async for message in run:
        data = _bytes(message)
        if data[0] == _STATUS:
            raise Refusal(f"it cannot be started: {_words(data[1:])}")
        if data[0] == _OUT:
            said += data[1:]
        pid, line, rest = said.partition(b"\n")
        if line:
            return pid.strip().decode("ascii", "replace"), rest
    raise Refusal("it cannot be started: the connection to the pod ended")


async def _pass_out(run: ClientConnection, writer: asyncio.StreamWriter) -> int:
    """What a command prints, until it has ended; its exit code."""
    kinds = {_OUT: frames.STDOUT, _ERR: frames.STDERR}
    async for message in run:
        data = _bytes(message)
        if data[0] == _STATUS:
            return _exit_code(data[1:])
        if (kind := kinds.get(data[0])) is not None and len(data) > 1:
            for start in range(1, len(data), frames.LARGEST):
                writer.write(frame(kind, data[start : start + frames.LARGEST]))
            await writer.drain()
    raise EOFError


async def _type(
    typed: asyncio.Queue[bytes], run: ClientConnection, writer: asyncio.StreamWriter
) -> None:
    """Pass input on, and say how much was taken; none is its end."""
    while data := await typed.get():
        await run.send(bytes([_IN]) + data)
        writer.write(frame(frames.TAKEN, len(data).to_bytes(4, "big")))
    await run.send(bytes([_CLOSE, _IN]))


async def _resize(run: ClientConnection, rows: int, columns: int) -> None:
    await run.send(bytes([_SIZE]) + json.dumps({"Width": columns, "Height": rows}).encode())


async def _pour(
    reader: asyncio.StreamReader, run: ClientConnection, writer: asyncio.StreamWriter
) -> None:
    """Bytes of a client to a port. That there are no more cannot be said; a client that does not
    listen any more either ends it."""
    while data := await reader.read(frames.LARGEST):
        await run.send(b"\0" + data)
    look = select.poll()
    look.register(writer.get_extra_info("socket").fileno(), 0)
    while not look.poll(0):
        await asyncio.sleep(1)
    await run.close()


async def _close(run: ClientConnection) -> None:
    """Take leave of a pod, or let go of it at once when there is no time for that."""
    try:
        await run.close()
    finally:
        run.transport.abort()


async def _ended(*tasks: asyncio.Future[Any]) -> None:
    """Have these end, however far they are."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _bytes(message: str | bytes) -> bytes:
    data = message if isinstance(message, bytes) else message.encode()
    return data or b"\xff"


def _exit_code(said: bytes) -> int:
    """The exit code in the last word about a command."""
    status = _status(said)
    if status.get("status") == "Success":
        return 0
    causes = (status.get("details") or {}).get("causes") or ()
    codes = [cause["message"] for cause in causes if cause.get("reason") == "ExitCode"]
    return int(codes[0]) if codes and codes[0].isdecimal() else 255


def _words(said: bytes) -> str:
    """Why a command was not started."""
    text = str(_status(said).get("message") or "")
    if "/bin/sh" in text and ("no such file" in text or "not found" in text):
        return "the image has no /bin/sh"
    return " ".join(text.split())[:300] or "no reason is given"


def _status(said: bytes) -> Json:
    with suppress(ValueError):
        status = json.loads(said)
        if isinstance(status, dict):
            return status
    return {"message": said.decode("utf-8", "replace")}


def _token(pod: Json) -> str:
    """What the job's server on a port expects, as its environment has it."""
    for container in pod["spec"]["containers"]:
        for one in (container.get("env") or ()) if container["name"] == MAIN else ():
            if one["name"] == PORT_TOKEN:
                return str(one.get("value") or "")
    return ""
