"""A Ray cluster of one node on this machine, for those who have none.

It outlives the server, as jobs do. Whoever comes next on the same data directory finds it again;
if it died, it is started again at the same port.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from presage.executors.node.guardian import free_port
from presage.executors.node.messages import HeadNote
from presage.executors.node.processes import read_stat
from presage.executors.node.wire import MessageError, find, write
from presage.layout import Layout
from presage.model.errors import UserError

__all__ = ["BARE", "HEALTH", "RayHead"]

log = logging.getLogger("presage.ray")

HEALTH = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 3,
    "health_check_timeout_ms": 1000,
}
"""Settings of a head with which a lost node is noticed in two or three seconds."""
BARE = {"prestart_worker_first_driver": False}
"""Settings without workers in advance: an agent is the only one that a node ever runs."""
_START_S = 180.0
"""Far longer than it takes: a head that cannot start ends, and that is noticed at once."""


class RayHead:
    """The cluster that belongs to a data directory. Ray listens on all interfaces, so a token
    guards it."""

    def __init__(self, data: Path) -> None:
        self._layout = Layout(data)
        self.log = self._layout.ray_head_log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Variables that let a process of Ray take part."""
        token = self._layout.ray_token
        with suppress(FileExistsError):
            fd = os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w") as file:
                file.write(secrets.token_hex(32))
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}

    @property
    def pid(self) -> int | None:
        """The process to end for the cluster to end; None if it does not run."""
        if self._process is not None:
            self._process.poll()
        note = self._note()
        stat = read_stat(note.pid) if note else None
        if note and stat and stat.start == note.start and stat.state != "Z":
            return note.pid
        return None

    def address(self) -> str:
        """Where the cluster answers; it is started unless it runs."""
        port = self._port()
        if self.pid is None:
            self._start(port)
        return f"127.0.0.1:{port}"

    def _port(self) -> int:
        """The port it had before, if there is one."""
        note = self._note()
        return note.port if note else free_port("127.0.0.1")

    def _note(self) -> HeadNote | None:
        with suppress(MessageError):
            return find(HeadNote, self._layout.data)
        return None

    def _start(self, port: int) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
        command += [f"--port={port}", f"--node-name={os.uname().nodename}"]
        command += ["--include-dashboard=false", "--disable-usage-stats"]
        command += ["--no-monitor", "--include-log-monitor=false"]  # nobody asks them
        command += [f"--system-config={json.dumps(HEALTH | BARE)}"]
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )
        stat = read_stat(self._process.pid)
        note = HeadNote(pid=self._process.pid, port=port, start=stat.start if stat else 0)
        write(self._layout.data, note)
        self._wait(port)
        log.info("started a Ray cluster here, process %d, port %d", note.pid, port)

    def _wait(self, port: int) -> None:
        """Until it answers."""
        assert self._process is not None
        end = time.monotonic() + _START_S
        while time.monotonic() < end and self._process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                return
            time.sleep(0.1)
        self._process.terminate()
        raise UserError(f"no Ray cluster could be started here; {self.log} says why")
