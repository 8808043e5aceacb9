"""The door of a run: clients come in here to run a command beside a worker, to type to it, or to
reach one of its ports.

The guardian only accepts. Each client gets a process of its own, an attendant, which relays with
bounded buffers: a slow client slows down what it reads from, and nothing here grows. An attendant
ends with its client and with the guardian, and ends the command it started. Who may come is
settled before (`presage.server`): whoever reaches this socket may. Standard library only.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from presage.executors.node import frames, wire
from presage.executors.node import messages as msg
from presage.executors.node.frames import FrameError, Frames, frame
from presage.executors.node.limits import become_subreaper, die_with_parent
from presage.executors.node.relay import ConsoleRelay, start_command, tunnel
from presage.executors.node.worker import WorkerProcess

__all__ = ["DOOR", "INPUT_ENDED", "Door", "Refusal"]

DOOR = "door"
"""The socket, in the directory of a run."""
INPUT_ENDED = "input-ended"
"""A file there: whoever typed to the worker has nothing more to say."""
_MOST_CLIENTS = 64
_MOST_REFUSED = 8
_ORDER_S = 30.0
_ADOPTED = struct.Struct(">II")
_PEER = struct.Struct("3i")


class Refusal(Exception):
    """What a client wants cannot be done; the text is one line for people."""


class Door:
    """Where clients come in; the plan and the workers are asked for when one does."""

    def __init__(
        self,
        run: Path,
        plan: Callable[[], msg.RunPlan],
        workers: Callable[[], Sequence[WorkerProcess]],
        token: str,
    ) -> None:
        self._run, self._plan, self._workers, self._token = run, plan, workers, token
        self._door = frames.listen(run, DOOR)
        self._door.setblocking(False)
        self._adopt_read, self._adopt_write = os.pipe()
        for fd in (self._adopt_read, self._adopt_write):
            os.set_blocking(fd, False)
        self._attendants: set[int] = set()
        self._refused: list[socket.socket] = []
        """Clients that were sent away, and may not have read why."""
        self.fds = (self._door.fileno(), self._adopt_read)

    def answer(self, fd: int, secrets: Mapping[str, str]) -> None:
        """One of `fds` is ready."""
        if fd == self._adopt_read:
            self._adopt()
            return
        try:
            link, _ = self._door.accept()
        except OSError:  # whoever it was is gone, or no more files can be opened
            return
        if _ours(link) and len(self._attendants) >= _MOST_CLIENTS:
            self._send_away(link)
            return
        with link:
            if not _ours(link):
                return
            guardian = os.getpid()
            pid = os.fork()
            if pid == 0:
                self._attend(link, guardian, dict(secrets))
            self._attendants.add(pid)

    def _send_away(self, link: socket.socket) -> None:
        text = f"{_MOST_CLIENTS} clients are attached to this run; close one of them"
        link.setblocking(False)
        with suppress(OSError):
            link.send(frame(frames.REFUSED, {"text": text}))
            link.shutdown(socket.SHUT_WR)
        self._refused.append(link)
        if len(self._refused) > _MOST_REFUSED:
            self._refused.pop(0).close()

    def reaped(self, pid: int) -> None:
        """A child of the guardian has ended."""
        self._attendants.discard(pid)

    def _adopt(self) -> None:
        """What clients run counts as their worker's: for its memory, and in telemetry."""
        with suppress(OSError):
            for pid, rank in _ADOPTED.iter_unpack(os.read(self._adopt_read, 64 * _ADOPTED.size)):
                workers = self._workers()
                if rank < len(workers) and (tree := workers[rank].tree) is not None:
                    tree.adopt(pid)

    # -- the attendant ------------------------------------------------------------------------

    def _attend(self, link: socket.socket, guardian: int, secrets: dict[str, str]) -> NoReturn:
        """Serve one client, and end."""
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            kept = {0, 1, 2, link.fileno(), self._adopt_write}
            kept |= {worker.console.outer for worker in self._workers() if worker.console}
            _close_all_but(kept - {-1})
            die_with_parent(guardian)
            become_subreaper()
            try:
                self._serve(link, *_order(link), secrets)
            except (Refusal, FrameError, wire.MessageError) as error:
                link.setblocking(True)
                link.settimeout(_ORDER_S)
                link.sendall(frame(frames.REFUSED, {"text": str(error)}))
        except (OSError, EOFError):
            pass  # the client is gone, and nobody else wants to know
        except Exception:
            sys.excepthook(*sys.exc_info())  # in the guardian's log
        finally:
            os._exit(0)

    def _serve(
        self,
        link: socket.socket,
        order: msg.AttachOrder,
        heard: Frames,
        secrets: dict[str, str],
    ) -> None:
        plan, workers = self._plan(), list(self._workers())
        rank, worker = _worker(workers, order.worker)
        if not order.console:  # else the worker would not see when its input ends
            for other in workers:
                if other.console and other.console.takes_input:
                    os.close(other.console.outer)
        if order.port:
            if order.port not in plan.ports:
                raise Refusal(_undeclared(order.port, plan.ports))
            self._tunnel(link, order.port, worker, bool(plan.engine))
        elif order.console:
            if worker.console is None:
                raise Refusal(f"{worker.name} has no console; give console: in its manifest")
            link.sendall(frame(frames.STARTED, {"typed": worker.console.typed}))
            ConsoleRelay(link, heard, worker, order, self._end_input).run()
        elif order.argv:
            relay = start_command(link, heard, worker, plan, secrets, order)
            if isinstance(relay, str):
                raise Refusal(relay)
            with suppress(OSError):
                os.write(self._adopt_write, _ADOPTED.pack(relay.pid, rank))
            link.sendall(frame(frames.STARTED, {}))
            relay.run()
        else:
            raise Refusal("nothing to run: name a command")

    def _tunnel(
        self, link: socket.socket, port: int, worker: WorkerProcess, contained: bool
    ) -> None:
        try:
            inner = socket.create_connection(("127.0.0.1", port), _ORDER_S)
        except OSError as error:
            why = "nothing listens there yet" if error.errno == errno.ECONNREFUSED else str(error)
            raise Refusal(f"port {port} of {worker.name}: {why}") from None
        from presage.executors.node.listeners import listens

        if not contained and not listens(port, os.getppid()):
            raise Refusal(f"port {port} of {worker.name} is used by a program of somebody else")
        link.sendall(frame(frames.STARTED, {"token": self._token}))
        tunnel(link, inner)

    def _end_input(self) -> None:
        """Tell the guardian, who has the other end of what the worker reads."""
        (self._run / INPUT_ENDED).touch()
        with suppress(OSError):
            fd = os.open(self._run / "control", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.write(fd, b"e")
            os.close(fd)


def _order(link: socket.socket) -> tuple[msg.AttachOrder, Frames]:
    """What the client wants, and the frames that come after; raises EOFError if it goes away."""
    link.settimeout(_ORDER_S)
    heard = Frames()
    while True:
        data = link.recv(frames.LARGEST)
        if not data:
            raise EOFError
        for kind, body in heard.feed(data):
            if kind != frames.ORDER:
                raise FrameError("an order comes first")
            return wire.loads(msg.AttachOrder, body), heard


def _worker(workers: Sequence[WorkerProcess], wanted: str) -> tuple[int, WorkerProcess]:
    """A worker that runs, by name or rank."""
    there = ", ".join(worker.name for worker in workers)
    for rank, worker in enumerate(workers):
        if wanted in (worker.name, worker.plan.env.get("PRESAGE_RANK", str(rank))):
            if worker.ended or not worker.pid:
                raise Refusal(f"{worker.name} has ended")
            return rank, worker
    if not workers:
        raise Refusal("no worker has started yet")
    raise Refusal(f"there is no worker {wanted[:80]!r}; there are {there}")


def _undeclared(port: int, ports: Sequence[int]) -> str:
    there = f"it has {', '.join(map(str, ports))}" if ports else "it has none"
    return f"port {port} is not among the ports of the job's manifest: {there}"


def _ours(link: socket.socket) -> bool:
    """Whether it is who runs the guardian, or root."""
    peer = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    _, uid, _ = _PEER.unpack(peer)
    return uid in (0, os.geteuid())


def _close_all_but(kept: set[int]) -> None:
    """Among the others is the lock of the run, which must be the guardian's alone."""
    low = 0
    for fd in sorted(kept):
        if low < fd:  # an empty range would be taken for all
            os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 1 << 16)
