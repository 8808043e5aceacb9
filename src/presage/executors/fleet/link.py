"""The server's end of the driver: a child process that is started again whenever it ends."""

from __future__ import annotations

import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from presage.executors.node.messages import DriverLine, LinkLine
from presage.executors.node.runs import boot
from presage.executors.node.wire import dumps, loads
from presage.model.cluster import Node
from presage.model.codec import decode
from presage.model.errors import UserError

__all__ = ["DriverLink"]

log = logging.getLogger("presage.drivers")

_AGAIN_S = 1.0
_LOOK_S = 3.0
_START_S = 180.0
"""Far longer than a driver takes: one that cannot connect says so and ends."""
_SILENT_S = 12.0
"""A driver that said nothing for so long is stuck, since its cluster is."""


class DriverLink:
    """A driver, the process that talks to a cluster: it outlives the cluster's absence, and is
    started again whenever it ends. The first connection must succeed; `unreachable` says why it
    did not."""

    cluster = ""
    """What it is called in the log."""
    unreachable: type[UserError] = UserError

    def __init__(self, *, log: Path | None, patience_s: float) -> None:
        self.nodes: tuple[tuple[str, Node], ...] = ()
        """Those that take jobs, each with the id the cluster has for it."""
        self.held: dict[str, list[int]] = {}
        """What others hold on them: milli-CPUs, MiB and GPUs, by name."""
        self.draining: frozenset[str] = frozenset()
        self.further: tuple[Node, ...] = ()
        """Nodes that are not there and that could be."""
        self._log = log
        self._lock = threading.Lock()
        self._listeners: dict[Callable[[], None], str] = {}
        """Who is called when nodes come or go, each with the data directory it is for."""
        self._trouble = ""
        self._away_since: float | None = time.monotonic()
        self._first = threading.Event()
        self._closing = threading.Event()
        self._reach()
        self._process = self._spawn()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()
        if not self._first.wait(patience_s) or self._trouble:
            trouble = self._trouble or f"no answer in {patience_s:g} s"
            self.close()
            raise self.unreachable(f"{self.cluster} cannot be used: {trouble}")

    @property
    def pid(self) -> int:
        """The driver that runs now, or ran last."""
        return self._process.pid

    def away_s(self) -> float:
        """For how long the cluster has been out of reach; 0 if it is not."""
        since = self._away_since
        return 0.0 if since is None else time.monotonic() - since

    def serve(self, data: Path, listener: Callable[[], None]) -> None:
        """Keep the runs of a data directory; `listener` is called when nodes come or go."""
        with self._lock:
            self._listeners[listener] = str(data)
            self._send(LinkLine(serve=str(data), look=str(data)))

    def leave(self, data: Path, listener: Callable[[], None]) -> None:
        """Call no more. When nobody is left who listens, another link may keep these runs."""
        with self._lock:
            self._listeners.pop(listener, None)
            if str(data) not in self._listeners.values():
                self._send(LinkLine(leave=str(data)))

    def look(self, data: Path) -> None:
        """Say that there is something new in a data directory."""
        with self._lock:
            self._send(LinkLine(look=str(data)))

    def close(self) -> None:
        """Let go of the cluster; jobs go on."""
        self._closing.set()
        with self._lock:
            self._process.kill()
        self._thread.join()

    # -- the driver -----------------------------------------------------------------------------

    def _spawn(self) -> subprocess.Popen[bytes]:
        target = os.open(self._log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            return subprocess.Popen(
                boot(sys.executable, *self._program()),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=target,
                env=self._environment(),
                start_new_session=True,  # Ctrl-C is for the server
            )
        finally:
            os.close(target)

    def _send(self, line: LinkLine) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # it just ended; the next one is told all
            self._process.stdin.write(dumps(line))
            self._process.stdin.flush()

    def _keep(self) -> None:
        """Read what the driver says; when it ends, start another."""
        while True:
            for line in self._lines():
                self._hear(loads(DriverLine, line))
            self._put_away(self._process)
            self._note_loss()
            while not self._closing.wait(_AGAIN_S):
                with suppress(UserError):
                    self._reach()
                    break
            with self._lock:
                if self._closing.is_set():
                    return
                self._process = self._spawn()
                for data in dict.fromkeys(self._listeners.values()):
                    self._send(LinkLine(serve=data))

    def _lines(self) -> Iterator[bytes]:
        """What the driver says, until it ends. One that falls silent is ended: its cluster is
        gone, or does not answer."""
        process, rest, silent_s, most_s = self._process, b"", 0.0, _START_S
        assert process.stdout is not None
        fd = process.stdout.fileno()
        while silent_s < most_s:
            if select.select([fd], [], [], _LOOK_S)[0]:
                chunk = os.read(fd, 1 << 16)
                if not chunk:
                    return
                *lines, rest = (rest + chunk).split(b"\n")
                yield from lines
                silent_s, most_s = 0.0, _SILENT_S
                continue
            silent_s += _LOOK_S
            if most_s == _SILENT_S and not self._answers():
                break
        process.kill()

    def _put_away(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.close()
        with suppress(OSError):
            process.stdin.close()
        process.wait()

    def _note_loss(self) -> None:
        if not self._first.is_set():
            self._trouble = self._trouble or "its driver ended at once"
            self._first.set()
        elif self._away_since is None and not self._closing.is_set():
            log.warning(
                "%s is out of reach; its jobs are left as they are until it is back",
                self.cluster,
            )
        if self._away_since is None:
            self._away_since = time.monotonic()

    def _hear(self, line: DriverLine) -> None:
        if line.error is not None:
            self._trouble = line.error
            return
        if line.nodes is None:
            return  # all is as before
        self._trouble = ""
        self.held = {name: amounts for name, *amounts in line.held}
        self.draining = frozenset(line.draining)
        self.further = tuple(decode(Node, body) for body in line.further)
        self.nodes = tuple((id, decode(Node, body)) for id, body in line.nodes)
        if self._first.is_set() and self._away_since is not None:
            log.warning("%s is back, nodes: %d", self.cluster, len(self.nodes))
        self._away_since = None
        self._first.set()
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    # -- what a kind of cluster brings ----------------------------------------------------------

    def _program(self) -> tuple[str, str]:
        """The module of the driver, and its argument."""
        raise NotImplementedError

    def _environment(self) -> dict[str, str]:
        """That of the driver."""
        return dict(os.environ)

    def _reach(self) -> None:
        """Refuse at once what cannot work; raises UserError."""

    def _answers(self) -> bool:
        """Whether something listens where the cluster did."""
        return True
