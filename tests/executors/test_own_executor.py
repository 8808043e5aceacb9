"""The executor of examples/own_executor.py keeps what the deciding loop relies on."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.own_executor import ChildExecutor, Work
from presage.core.ports import Executor
from presage.model.cluster import Node, Worker
from presage.testing.executors import ExecutorKit, PortSuite, RoleWork
from tests.waiting import PATIENCE_S


class ChildKit:
    """Jobs are entries of a dictionary."""

    timeout_s = PATIENCE_S

    def __init__(self, home: Path) -> None:
        self._home = home
        self._work: dict[str, Work] = {}
        self._executors: list[ChildExecutor] = []

    def executor(self) -> ChildExecutor:
        self._executors.append(ChildExecutor(self._work, (Node("here"),), self._home))
        return self._executors[-1]

    def add_job(
        self, job: str, *roles: RoleWork, grace_s: float = 60.0, **_: Any
    ) -> tuple[Worker, ...]:
        (role,) = roles
        promised = ["env", "PYTHONUNBUFFERED=1", f"PRESAGE_CHECKPOINT_DIR={self._home}"]
        argv = role.program or (*promised, sys.executable, "-c", role.script)
        self._work[job] = Work(argv, grace_s)
        return (Worker(0, 0, "here"),)

    def wait(self, executor: Executor, timeout_s: float) -> None:
        time.sleep(0.01)  # nobody calls: its children are looked at

    def log(self, job: str, attempt: int, worker: str) -> str:
        path = self._executors[-1].log(job, attempt)
        return path.read_text() if path.exists() else ""

    def kill_worker(self, job: str, attempt: int, rank: int) -> None:
        os.kill(self._executors[-1]._runs[job, attempt].pid, signal.SIGKILL)

    def leftovers(self, job: str) -> list[str]:
        runs = self._executors[-1]._runs
        return [str(process.pid) for (name, _), process in runs.items() if name == job]

    def close(self) -> None:
        """End what a failed test left running."""
        for executor in self._executors:
            for process in executor._runs.values():
                process.kill()
                process.wait()


class TestChildExecutor(PortSuite):
    @pytest.fixture
    def kit(self, tmp_path: Path) -> Iterator[ExecutorKit]:
        kit = ChildKit(tmp_path)
        yield kit
        kit.close()
