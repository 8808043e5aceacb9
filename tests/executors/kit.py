"""The kit that runs the conformance suite on the executor `local`."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from presage.core.ports import Executor
from presage.executors.local.executor import LocalExecutor
from presage.executors.node.processes import all_pids, environment, read_stat
from presage.model.cluster import Device, Node, Worker
from presage.testing.executors import RoleWork
from tests.waiting import PATIENCE_S

NODES = tuple(Node(f"n{i}", (Device(),) * 4) for i in range(2))
ROLES = ("worker", "ps")


class LocalKit:
    """Jobs are files under the data directory; workers are processes of this machine."""

    timeout_s = PATIENCE_S

    def __init__(self, data: Path, **options: Any) -> None:
        self.data = data
        self._options = options
        self._executors: list[LocalExecutor] = []

    def executor(self) -> LocalExecutor:
        """A new executor; one before it just stops being used."""
        executor = LocalExecutor(self.data, NODES, **self._options)
        self._executors.append(executor)
        return executor

    def add_job(
        self,
        job: str,
        *roles: RoleWork,
        time_limit_s: float | None = None,
        grace_s: float = 60.0,
        env: dict[str, str] | None = None,
        **manifest: Any,
    ) -> tuple[Worker, ...]:
        """Write the file of a job."""
        named = dict(zip(ROLES, roles, strict=False))
        self.write_job(
            job,
            roles={name: _role(role) for name, role in named.items()},
            time_limit=time_limit_s,
            grace=grace_s,
            env=env or {},
            **manifest,
        )
        workers: list[Worker] = []
        free = [(node.name, d) for node in NODES for d in range(len(node.devices))]
        for number, role in enumerate(roles):
            for index in range(max(role.workers, role.most)):
                held, free = free[: role.gpus], free[role.gpus :]
                devices = tuple(device for _, device in held)
                workers.append(Worker(number, index, NODES[0].name, devices))
        return tuple(workers)

    def write_job(self, job: str, *, folder: str | None = None, **manifest: Any) -> None:
        """Write the file of a job from its manifest."""
        home = self.data / "jobs" / job
        home.mkdir(parents=True, exist_ok=True)
        body = {"manifest": {"name": job, **manifest}, "folder": folder, "owner": "ada"}
        (home / "job.json").write_text(json.dumps(body))

    def wait(self, executor: Executor, timeout_s: float) -> None:
        """Until a guardian calls."""
        assert isinstance(executor, LocalExecutor)
        executor.wait(timeout_s)

    def log(self, job: str, attempt: int, worker: str) -> str:
        """The log file of a worker."""
        path = self.data / "jobs" / job / "logs" / str(attempt) / f"{worker}.log"
        return path.read_text() if path.exists() else ""

    def kill_worker(self, job: str, attempt: int, rank: int) -> None:
        """SIGKILL to its first process."""
        os.kill(self.worker_pids(job, attempt)[rank], signal.SIGKILL)

    def worker_pids(self, job: str, attempt: int = 1) -> list[int]:
        """The first processes of the workers, by rank."""
        recorded = (self.data / "runs" / job / str(attempt) / "processes.json").read_text()
        return [pid for pid, _ in json.loads(recorded)]

    def guardian_pid(self, job: str, attempt: int = 1) -> int:
        """The guardian of a run."""
        return int((self.data / "runs" / job / str(attempt) / "lock").read_text().split()[0])

    def processes(self, job: str) -> list[int]:
        """Everything that runs for a job, the guardian included."""
        mark = f"PRESAGE_RUN={self.data / 'runs' / job}/".encode()
        return [
            pid
            for pid in all_pids()
            if mark in environment(pid) and (stat := read_stat(pid)) and stat.state != "Z"
        ]

    def leftovers(self, job: str) -> list[str]:
        """Processes of the job, and what is left in the directory of runs."""
        runs = self.data / "runs"
        files = [str(path) for path in runs.glob("*") if path.name == job or path.name[0] == "."]
        return [*map(str, self.processes(job)), *files]

    def close(self) -> None:
        """Let go of every executor, and end what a failed test left running."""
        for executor in self._executors:
            executor.close()
        mark = f"PRESAGE_RUN={self.data}/".encode()
        for pid in all_pids():
            if mark in environment(pid):
                os.kill(pid, signal.SIGKILL)


def _role(role: RoleWork) -> dict[str, Any]:
    command = list(role.program) or [sys.executable, "-c", role.script]
    resources: dict[str, Any] = {"gpus": role.gpus}
    if role.memory_mib:
        resources["memory"] = f"{role.memory_mib}Mi"
    workers = f"{role.workers}..{role.most}" if role.most else role.workers
    return {"workers": workers, "command": command, "resources": resources}
