"""The agent of Presage on a node that Slurm gave: what every agent does, behind a port of its own.

It is started by a batch job (`slurm.driver`), says in a file where it answers, and ends with the
Slurm job, when it is told to, or when nobody has asked for long. When Slurm warns that the time is
nearly up, or takes the job away, it has its runs save and end. Standard library only.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from presage.executors.fleet.agent import NodeAgent
from presage.executors.node import messages as msg
from presage.executors.node import wire
from presage.executors.slurm.calls import answer
from presage.executors.slurm.handed import take
from presage.layout import Layout

__all__ = ["SlurmAgent", "main"]

_ASKED = {"drop", "forget_request", "go", "hello", "kept", "listens", "listing", "make", "news"}
_ASKED |= {"quit", "read", "release", "runs", "saved", "start", "stop", "tell", "tree", "write"}
"""What may be asked for."""
_PREFIX = "slurm-"
_STALE_S = 60.0


class SlurmAgent(NodeAgent):
    """The agent of one node in one Slurm job."""

    def __init__(self, home: Path, env: dict[str, str]) -> None:
        self.node = env.get("SLURMD_NODENAME") or socket.gethostname()
        job = env.get("SLURM_HET_JOB_ID") or env.get("SLURM_JOB_ID") or "0"
        mark = hashlib.sha256(f"{home}/{self.node}/{job}".encode()).hexdigest()
        super().__init__(f"{_PREFIX}{mark}")
        self._place = home / self.node
        self._secrets = Layout(home.parent.parent).slurm_secrets
        self._pilot = home.name.rpartition(".")[0].endswith(".pilot")
        self._token = secrets.token_hex(32)
        self._server = socket.create_server(("", 0), backlog=64)
        self.note = msg.AgentNote(
            node=self.node,
            port=self._server.getsockname()[1],
            token=self._token,
            slurm_job=int(job),
            cpus=float(env.get("SLURM_CPUS_ON_NODE") or os.cpu_count() or 1),
            memory_mib=_memory(env),
            gpus=tuple(filter(None, env.get("CUDA_VISIBLE_DEVICES", "").split(","))),
        )

    def serve(self) -> None:
        """Say where it answers, and answer."""
        os.umask(0o077)
        self._place.mkdir(parents=True, exist_ok=True)
        wire.write(self._place, self.note, durable=True)
        while True:
            peer, _ = self._server.accept()
            threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def quit(self) -> None:
        """Leave nothing here, and end."""
        threading.Timer(0.05, self.end).start()  # once the answer is out

    def end(self) -> None:
        """The same at once."""
        for key in list(self._parts):
            self.drop(key)
        shutil.rmtree(self._base, ignore_errors=True)
        os._exit(0)

    def cuda_names(self, devices: list[int]) -> list[str]:
        """In a pilot, device n is the n-th that Slurm gave. In a job of its own, a run was given
        as many as it asked for, and Slurm chose which."""
        given = list(self.note.gpus)
        if self._pilot or not given or not devices:
            return given
        names = [str(number) for number in range(max(devices) + 1)]
        for name, number in zip(given, devices, strict=False):
            names[number] = name
        return names

    def on_signal(self, number: int, _: Any) -> None:
        """Slurm warns, or takes the job away."""
        job = self.note.slurm_job
        if number == signal.SIGUSR1:
            words = f"the time limit of Slurm job {job} is near"
        elif self._parts:
            words = f"Slurm is ending job {job}"
        else:
            threading.Thread(target=self.end, daemon=True).start()
            return
        threading.Thread(target=self.leave, args=(words,), daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        with suppress(OSError, ValueError):
            answer(peer, self._token, self._reply)

    def _reply(self, method: str, arguments: list[Any]) -> Any:
        if method not in _ASKED:
            raise ValueError(f"nobody can ask for {method!r}")
        if method == "start":  # its secrets do not travel with the question
            key, name = arguments
            arguments = [key, take(self._secrets, name)]
        return getattr(self, method)(*arguments)


def _memory(env: dict[str, str]) -> int:
    """What Slurm lets a job use here; 0 for any amount."""
    if each := env.get("SLURM_MEM_PER_NODE"):
        return int(each)
    per_cpu, cpus = env.get("SLURM_MEM_PER_CPU"), env.get("SLURM_CPUS_ON_NODE")
    return int(per_cpu) * int(cpus) if per_cpu and cpus else 0


def sweep_stale() -> None:
    """Remove what agents left here that were killed with their Slurm job."""
    root = Path(tempfile.gettempdir()) / f"presage-{os.getuid()}"
    for base in root.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if time.time() - (base / "lock").stat().st_mtime < _STALE_S:
                continue  # its agent may be just about to lock it
            lock = os.open(base / "lock", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(base, ignore_errors=True)
            finally:
                os.close(lock)


def main() -> None:
    """Be the agent of this node; the argument is where agents of the reservation say so."""
    agent = SlurmAgent(Path(sys.argv[1]), dict(os.environ))
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, agent.on_signal)
    sweep_stale()
    agent.serve()
