"""Relays between a client and what it attached to: a command, a worker's console, a port.

Every buffer is bounded. Output is read only when the client has taken what was read before; input
is taken as long as it stays within what was agreed (`frames.MOST_AHEAD`), so that a signal and
the end of the client are always seen. Each runs in a process of its own (`attach`). Standard
library only.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from presage.executors.node import frames
from presage.executors.node import messages as msg
from presage.executors.node.console import set_window
from presage.executors.node.frames import FrameError, Frames, frame
from presage.executors.node.inotify import watch
from presage.executors.node.processes import all_pids, descendants, environment
from presage.executors.node.worker import WorkerProcess

__all__ = ["CommandRelay", "ConsoleRelay", "start_command", "tunnel"]

_HUP_S = 2.0
"""What a command has to end after its client went away."""
_SENDABLE = frozenset(
    getattr(signal, f"SIG{name}")
    for name in ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "KILL", "CONT", "TSTP")
)
_IN, _OUT = select.POLLIN | select.POLLHUP | select.POLLERR, select.POLLOUT


class _Relay:
    """What the relays of frames share."""

    def __init__(self, link: socket.socket, heard: Frames, sink: int) -> None:
        self._link, self._heard, self._sink = link, heard, sink
        self._unsent = b""
        self._input = bytearray()
        self._input_ends = False
        self._gone = False
        """Whether the client is."""
        link.setblocking(False)

    def run(self) -> None:
        """Until it is over, one way or the other."""
        for kind, body in self._heard.feed(b""):
            self._take(kind, body)
        while not self._gone and not self._over():
            self._turn()
        self._finish()

    # -- what a kind of relay brings ----------------------------------------------------------

    def _sources(self) -> list[int]:
        """What is read while the client keeps up."""
        raise NotImplementedError

    def _read(self, fd: int) -> bytes:
        """Something to send, from one of the sources that is ready."""
        raise NotImplementedError

    def _over(self) -> bool:
        raise NotImplementedError

    def _finish(self) -> None:
        raise NotImplementedError

    def _signal(self, number: int) -> None:
        raise NotImplementedError

    def _end_input(self) -> None:
        raise NotImplementedError

    # -- relaying -----------------------------------------------------------------------------

    def _turn(self, timeout_ms: int | None = None) -> None:
        link, sources = self._link.fileno(), [] if self._unsent else self._sources()
        wanted = {link: _IN | (_OUT if self._unsent else 0), **dict.fromkeys(sources, _IN)}
        if self._input and self._sink >= 0:
            wanted[self._sink] = wanted.get(self._sink, 0) | _OUT
        poll = select.poll()
        for fd, mask in wanted.items():
            poll.register(fd, mask)
        for fd, event in poll.poll(timeout_ms):
            if fd == link:
                if event & _IN:
                    self._hear()
                if event & _OUT:
                    self._flush()
                continue
            if fd == self._sink and self._input:
                self._type()
            if fd in sources and event & _IN and not self._unsent:
                self._send(self._read(fd))

    def _hear(self) -> None:
        try:
            data = self._link.recv(frames.LARGEST)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._gone = True
            return
        try:
            for kind, body in self._heard.feed(data):
                self._take(kind, body)
        except FrameError:
            self._gone = True

    def _take(self, kind: bytes, body: bytes) -> None:
        if kind == frames.STDIN and not self._input_ends:
            self._input += body
            if len(self._input) > frames.MOST_AHEAD:
                raise FrameError("more input than was agreed")
            if self._sink < 0:  # nobody reads it any more
                self._drop_input()
        elif kind == frames.EOF:
            self._input_ends = True
            if not self._input:
                self._end_input()
        elif kind == frames.WINDOW and len(body) == 4:
            self._resize(int.from_bytes(body[:2], "big"), int.from_bytes(body[2:], "big"))
        elif kind == frames.SIGNAL and len(body) == 1 and body[0] in _SENDABLE:
            self._signal(body[0])

    def _resize(self, rows: int, columns: int) -> None:
        set_window(self._sink, rows, columns)

    def _type(self) -> None:
        """Pass input on, as much as is taken."""
        try:
            taken = os.write(self._sink, self._input[: frames.LARGEST])
        except BlockingIOError:
            return
        except OSError:  # nobody reads it
            self._sink = -1
            self._drop_input()
            return
        del self._input[:taken]
        self._passed(taken)
        self._send(frame(frames.TAKEN, taken.to_bytes(4, "big")))
        if self._input_ends and not self._input:
            self._end_input()

    def _passed(self, taken: int) -> None:
        """Input was passed on."""

    def _drop_input(self) -> None:
        dropped, self._input = len(self._input), bytearray()
        if dropped:
            self._send(frame(frames.TAKEN, dropped.to_bytes(4, "big")))

    def _send(self, data: bytes) -> None:
        self._unsent += data
        self._flush()

    def _flush(self) -> None:
        if not self._unsent:
            return
        try:
            sent = self._link.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            self._gone = True
            return
        self._unsent = self._unsent[sent:]

    def _drain(self) -> None:
        """Send what is left, at the client's pace."""
        while self._unsent and not self._gone:
            poll = select.poll()
            poll.register(self._link, _OUT)
            poll.poll()
            self._flush()


class CommandRelay(_Relay):
    """A command beside a worker, which was just started."""

    def __init__(
        self,
        link: socket.socket,
        heard: Frames,
        pid: int,
        streams: dict[int, bytes],
        sink: int,
        mark: str | None,
    ) -> None:
        super().__init__(link, heard, sink)
        self.pid = pid
        self._streams = streams
        """What it writes to, each with the kind of frame."""
        self._mark = mark
        """By this its processes are found, where they do not descend from it (in a container)."""
        self._tty = sink in streams
        self._status: int | None = None
        self._ended = os.pidfd_open(pid)

    def _sources(self) -> list[int]:
        return [*self._streams, *([self._ended] if self._status is None else [])]

    def _read(self, fd: int) -> bytes:
        if fd == self._ended:
            self._status = os.waitpid(self.pid, 0)[1]
            return b""
        try:
            data = os.read(fd, frames.LARGEST)
        except BlockingIOError:
            return b""
        except OSError:  # a terminal that nobody has open any more
            data = b""
        if data:
            return frame(self._streams[fd], data)
        del self._streams[fd]
        if fd != self._sink:
            os.close(fd)
        return b""

    def _over(self) -> bool:
        """Once it has ended, what it wrote is read; a process that it left behind may still have
        the streams open, and is not waited for."""
        if self._status is None or self._unsent:
            return False
        ready = select.poll()
        for fd in self._streams:
            ready.register(fd, select.POLLIN)
        return not any(event & select.POLLIN for _, event in ready.poll(0))

    def _finish(self) -> None:
        if self._status is not None and not self._gone:
            code = os.waitstatus_to_exitcode(self._status)
            self._send(frame(frames.EXIT, {"code": code if code >= 0 else 128 - code}))
            self._drain()
        self._end_all()

    def _end_all(self) -> None:
        """End what is left of it: gently if its client went away, since it may want to save."""
        until = time.monotonic() + (_HUP_S if self._status is None else 0.0)
        if self._status is None:
            self._signal(signal.SIGHUP)
            self._signal(signal.SIGCONT)
        while self._processes():
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if time.monotonic() >= until:
                for pid in self._processes():
                    with suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def _processes(self) -> list[int]:
        below = descendants(os.getpid())
        if self._mark is not None:
            sign = f"\0{self._mark}\0".encode()
            below += [pid for pid in all_pids() if sign in environment(pid) + b"\0"]
        return below

    def _signal(self, number: int) -> None:
        """To the foreground of its terminal, or to its process group; in a container, to all."""
        with suppress(OSError):
            if self._mark is not None and not self._tty:
                for pid in self._processes():
                    if pid != self.pid:
                        os.kill(pid, number)
            else:
                os.killpg(os.tcgetpgrp(self._sink) if self._tty else self.pid, number)

    def _end_input(self) -> None:
        if self._sink < 0:
            return
        if self._tty:
            self._input += b"\x04"
            self._input_ends = False
        else:
            os.close(self._sink)
            self._sink = -1


class ConsoleRelay(_Relay):
    """What a worker writes, from its log, and what it reads. Over when the guardian says so, by
    ending this process: how the run ends is told elsewhere."""

    def __init__(
        self,
        link: socket.socket,
        heard: Frames,
        worker: WorkerProcess,
        order: msg.AttachOrder,
        ended: Callable[[], None],
    ) -> None:
        console = worker.console
        assert console is not None
        super().__init__(link, heard, console.outer)
        self._worker, self._tell_end, self._tty = worker, ended, console.tty
        self._console = console
        self._log = os.open(worker.plan.log, os.O_RDONLY | os.O_CLOEXEC)
        self._changes = watch(worker.plan.log)
        self._offset = order.offset
        if console.tty:
            set_window(console.outer, order.rows, order.columns)
        self._send(self._more())

    def _sources(self) -> list[int]:
        return [self._changes]

    def _read(self, fd: int) -> bytes:
        """The changes are taken before the log is read, so that none is missed."""
        more = self._more()
        if not more:
            os.read(fd, 4096)
            more = self._more()
        return more

    def _more(self) -> bytes:
        """What the log has beyond what was sent; from its beginning if it was cut since."""
        if os.fstat(self._log).st_size < self._offset:
            self._offset = 0
        data = os.pread(self._log, frames.LARGEST, self._offset)
        self._offset += len(data)
        return frame(frames.STDOUT, data) if data else b""

    def _turn(self, timeout_ms: int | None = None) -> None:
        if not self._unsent:
            self._send(self._more())
        super()._turn(timeout_ms)

    def _passed(self, taken: int) -> None:
        self._console.count(taken)

    def _over(self) -> bool:
        return False

    def _finish(self) -> None:
        return

    def _signal(self, number: int) -> None:
        with suppress(OSError):
            os.killpg(self._worker.pid, number)

    def _end_input(self) -> None:
        if self._tty:
            self._input, self._input_ends = bytearray(b"\x04"), False
        elif self._sink >= 0:
            os.close(self._sink)
            self._sink = -1
            self._tell_end()


def start_command(
    link: socket.socket,
    heard: Frames,
    worker: WorkerProcess,
    plan: msg.RunPlan,
    secrets: dict[str, str],
    order: msg.AttachOrder,
) -> CommandRelay | str:
    """Start a command as the worker's; why not, if it cannot be."""
    argv, mark, env = order.argv, None, {"TERM": order.term} if order.tty else {}
    if plan.engine and worker.container:
        from presage.executors.node.containers import beside

        mark = f"PRESAGE_ATTACHED={worker.container}-{os.getpid()}"
        env["PRESAGE_ATTACHED"] = mark.partition("=")[2]
        names = [*worker.plan.env, *secrets, *env]
        argv = beside(plan.engine, worker.container, plan.work, names, argv, tty=order.tty)
    errors_read, errors_write = os.pipe()
    inner, outer = _terminal(order) if order.tty else _pipes()
    pid = os.fork()
    if pid == 0:
        try:
            worker.enter(plan.work, inner, tty=order.tty)
        except OSError as error:
            os.write(errors_write, f"it cannot be set up: {error}".encode())
            os._exit(127)
        worker.execute(argv, plan.work, secrets, errors_write, **env)
    for fd in (errors_write, *set(inner)):
        os.close(fd)
    said = b""
    while part := os.read(errors_read, 4096):
        said += part
    os.close(errors_read)
    if said:
        os.waitpid(pid, 0)
        return said.decode("utf-8", "replace").strip().removeprefix(f"{worker.name}: ")
    sink, out, err = outer
    streams = {out: frames.STDOUT} if order.tty else {out: frames.STDOUT, err: frames.STDERR}
    for fd in set(outer):
        os.set_blocking(fd, False)
    return CommandRelay(link, heard, pid, streams, sink, mark)


def _terminal(order: msg.AttachOrder) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    outer, inner = os.openpty()
    set_window(outer, order.rows, order.columns)
    return (inner, inner, inner), (outer, outer, outer)


def _pipes() -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    (in_read, in_write), (out_read, out_write), (err_read, err_write) = (
        os.pipe(),
        os.pipe(),
        os.pipe(),
    )
    return (in_read, out_write, err_write), (in_write, out_read, err_read)


def tunnel(one: socket.socket, other: socket.socket) -> None:
    """Relay bytes both ways, until both sides have said all they had to."""
    for link in (one, other):
        link.setblocking(False)
    peers = {one: other, other: one}
    held = {one: b"", other: b""}
    """What was read from each and is not written to its peer yet."""
    open_ = {one, other}
    while open_ or any(held.values()):
        poll = select.poll()
        for link, peer in peers.items():
            wanted = (select.POLLIN if link in open_ and not held[link] else 0) | (
                select.POLLOUT if held[peer] else 0
            )
            if wanted or link is one:
                poll.register(link, wanted)
        by_fd = {link.fileno(): link for link in peers}
        for fd, event in poll.poll():
            link, peer = by_fd[fd], peers[by_fd[fd]]
            if link is one and event & select.POLLHUP and not event & select.POLLIN:
                return  # the client is gone, not only silent
            try:
                if event & ~select.POLLOUT and link in open_ and not held[link]:
                    held[link] = link.recv(frames.LARGEST)
                    if not held[link]:
                        open_.discard(link)
                        peer.shutdown(socket.SHUT_WR)
                if event & select.POLLOUT and held[peer]:
                    sent = link.send(held[peer])
                    held[peer] = held[peer][sent:]
            except BlockingIOError:
                continue
            except OSError:
                return
