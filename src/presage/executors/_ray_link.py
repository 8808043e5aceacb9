"""The server's end of the driver: a child process that is started again whenever it ends."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import presage
from presage.model.cluster import Node
from presage.model.codec import decode
from presage.model.errors import MissingExtra, UserError

__all__ = ["RayLink", "RayUnreachable"]

_BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from presage.executors._ray_driver import main; main()"
)
_SOURCE = str(Path(presage.__file__).parent.parent)
_CONNECT_S = 3.0
_AGAIN_S = 1.0


class RayUnreachable(UserError):
    """There is no Ray cluster at the address, or it cannot be used from here."""

    code = "ray_unreachable"


class RayLink:
    """A connection to a Ray cluster that outlives the cluster: it comes back when that does.

    The first connection must succeed; RayUnreachable says why it did not. `root` is where nodes
    keep what runs there (a directory of theirs); `log` is where Ray's complaints go.
    """

    def __init__(
        self,
        address: str = "auto",
        *,
        root: str | None = None,
        log: Path | None = None,
        patience_s: float = 45.0,
    ) -> None:
        self.address = address
        self.nodes: tuple[tuple[str, Node], ...] = ()
        """Those that take jobs, each with the id Ray has for it."""
        self._root = root or ""
        self._log = log
        self._lock = threading.Lock()
        self._listeners: dict[Callable[[], None], None] = {}
        self._served: dict[str, None] = {}
        self._trouble = ""
        self._away_since: float | None = time.monotonic()
        self._first = threading.Event()
        self._closing = threading.Event()
        _probe(address)
        self._process = self._spawn()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()
        if not self._first.wait(patience_s) or self._trouble:
            trouble = self._trouble or f"no answer as from Ray in {patience_s:g} s"
            self.close()
            raise RayUnreachable(f"Ray at {address} cannot be used: {trouble}")

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
            self._served[str(data)] = None
            self._listeners[listener] = None
            self._send({"serve": str(data), "look": str(data)})

    def leave(self, listener: Callable[[], None]) -> None:
        """Call no more."""
        with self._lock:
            self._listeners.pop(listener, None)

    def look(self, data: Path) -> None:
        """Say that there is something new in a data directory."""
        with self._lock:
            self._send({"look": str(data)})

    def close(self) -> None:
        """Let go of the cluster; jobs go on."""
        self._closing.set()
        with self._lock:
            self._process.kill()
        self._thread.join()

    # -- helpers --------------------------------------------------------------------------------

    def _spawn(self) -> subprocess.Popen[bytes]:
        target = os.open(self._log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            return subprocess.Popen(
                [sys.executable, "-c", _BOOT, _SOURCE, self.address, self._root],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=target,
                start_new_session=True,  # Ctrl-C is for the server
            )
        finally:
            os.close(target)

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it just ended; the next one is told all
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def _keep(self) -> None:
        """Read what the driver says; when it ends, start another."""
        while True:
            process = self._process
            assert process.stdout is not None
            assert process.stdin is not None
            for line in process.stdout:
                self._hear(json.loads(line))
            process.stdout.close()
            with suppress(OSError):
                process.stdin.close()
            process.wait()
            if self._away_since is None:
                self._away_since = time.monotonic()
            if not self._first.is_set():
                self._trouble = self._trouble or "its driver ended at once"
                self._first.set()
            if self._closing.wait(_AGAIN_S):
                return
            with self._lock:
                if self._closing.is_set():
                    return
                self._process = self._spawn()
                for data in self._served:
                    self._send({"serve": data})

    def _hear(self, message: dict[str, Any]) -> None:
        if "error" in message:
            self._trouble = message["error"]
            return
        self._trouble = ""
        self.nodes = tuple((id, decode(Node, body)) for id, body in message["nodes"])
        self._away_since = None
        self._first.set()
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()


def _probe(address: str) -> None:
    """Refuse at once what cannot work; Ray itself would try for a long time."""
    if find_spec("ray") is None:
        raise MissingExtra("ray", "the executor ray")
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal():
        raise RayUnreachable(
            f"{address!r} is not the address of a Ray cluster: give HOST:PORT of its head (6379 "
            "unless changed), from a machine that joined it with 'ray start --address=HOST:PORT'"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise RayUnreachable(
            f"no Ray cluster answers at {address} ({why.lower()}): check the address, or start "
            "one with 'ray start --head'"
        ) from None
