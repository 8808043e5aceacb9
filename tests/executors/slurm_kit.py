"""The kit that runs the conformance suite on the executor `slurm`, and Slurms to run it on."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from presage.core.ports import Executor
from presage.executors.fleet.executor import LinkedExecutor
from presage.executors.node.messages import SlurmSetup
from presage.executors.slurm.commands import SlurmCommands
from presage.executors.slurm.executor import SlurmJobsExecutor, SlurmLink, SlurmPilotExecutor
from tests.executors.ray_kit import RayKit
from tests.slurm_cluster import SlurmCluster, missing_engine
from tests.waiting import PATIENCE_S, eventually

__all__ = ["SlurmKit", "SlurmWorld", "Wiretap", "need_slurm"]


def need_slurm(version: str) -> None:
    """Skip where there is no such Slurm; fail where nothing may be skipped."""
    if reason := missing_engine(version):
        if os.environ.get("CI") == "true":
            pytest.fail(f"{reason} (CI=true: nothing is skipped)", pytrace=False)
        pytest.skip(reason)


class SlurmWorld:
    """A Slurm, and a data directory with a driver: for many tests, since pilots take seconds."""

    def __init__(
        self,
        version: str,
        mode: str,
        *,
        nodes: int = 3,
        pilots: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """`pilots` says how many of the nodes pilots hold; all of them, if it is not given."""
        # A path that leaves room for the names of sockets.
        self.place = Path(tempfile.mkdtemp(prefix="presage-slurm-"))
        self.data = self.place / "data"
        self.data.mkdir()
        self.mode = mode
        self.slurm = SlurmCluster(version, self.place / "slurm", nodes=nodes, gpus=4, **options)
        self.slurm.start()
        held = {"pilot_nodes": nodes} if pilots is None else dict(pilots)
        self.setup = SlurmSetup(data=str(self.data), mode=mode, time_limit_s=3600.0, **held)
        self.commands = SlurmCommands(env=self.slurm.env)
        self.link = self.connect()
        self._first = self.executor()
        if mode == "pilot":
            eventually(lambda: len(self.link.nodes) == self.setup.pilot_nodes)

    def connect(self) -> SlurmLink:
        """A driver, or another one."""
        return SlurmLink(self.setup, env=self.slurm.env)

    def executor(self, **options: Any) -> LinkedExecutor:
        """An executor."""
        kind = SlurmJobsExecutor if self.mode == "jobs" else SlurmPilotExecutor
        return kind(self.data, self.link, **options)

    def close(self) -> None:
        """End all of it."""
        self._first.close()
        self.link.close()
        self.slurm.stop()
        shutil.rmtree(self.place, ignore_errors=True)


class Wiretap:
    """Stands between a driver and an agent, and keeps every byte that either says."""

    def __init__(self, note: Path) -> None:
        """`note` is the file in which the agent says where it answers."""
        self.heard = bytearray()
        self._note, self._before = note, note.read_bytes()
        said = json.loads(self._before)
        self._agent = ("127.0.0.1", said["port"])
        self._server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._listen, daemon=True).start()
        self._write(json.dumps({**said, "port": self._server.getsockname()[1]}).encode())

    def close(self) -> None:
        """Let them talk directly again."""
        self._write(self._before)
        self._server.close()

    def _write(self, content: bytes) -> None:
        draft = self._note.with_suffix(".tap")
        draft.write_bytes(content)
        draft.replace(self._note)

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                asker, _ = self._server.accept()
                agent = socket.create_connection(self._agent)
                for ends in ((asker, agent), (agent, asker)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError), source:
            while chunk := source.recv(1 << 16):
                self.heard += chunk
                target.sendall(chunk)
            target.shutdown(socket.SHUT_WR)


class SlurmKit(RayKit):
    """Jobs are files under the data directory; workers are processes below the nodes' agents."""

    timeout_s = PATIENCE_S

    def __init__(self, world: SlurmWorld, **options: Any) -> None:
        super().__init__(world.data, world.slurm, world.link)  # type: ignore[arg-type]
        self.world = world
        self._slurm_options = options
        self._linked: list[LinkedExecutor] = []

    def executor(self) -> LinkedExecutor:  # type: ignore[override]  # another kind of executor
        """A new executor; one before it just stops being used."""
        self._linked.append(self.world.executor(**self._slurm_options))
        return self._linked[-1]

    def wait(self, executor: Executor, timeout_s: float) -> None:
        """Until the driver calls."""
        assert isinstance(executor, LinkedExecutor)
        executor.wait(timeout_s)

    def leftovers(self, job: str) -> list[str]:
        """Processes and files on the server and on the nodes, and Slurm jobs of the run."""
        left = super().leftovers(job)
        prefix = f"presage.{self.owner}.{job}."
        for known in self.world.commands.jobs():
            if known.name.startswith(prefix) and not known.over:
                left.append(f"Slurm job {known.id} {known.state}")
        return left + [str(path) for path in (self.data / "slurm").glob(f"{prefix}*")]

    def close(self) -> None:
        """Let go of every executor, and forget the jobs of this test."""
        for executor in self._linked:
            executor.close()
        super().close()
        for place in (*(self.data / "jobs").iterdir(), *(self.data / "runs").iterdir()):
            shutil.rmtree(place, ignore_errors=True)
