"""The kit that runs the conformance suite on the executor `slurm`, and Slurms to run it on."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from presage.core.ports import Executor
from presage.executors.node.messages import SlurmSetup
from presage.executors.ray.executor import LinkedExecutor
from presage.executors.slurm.commands import SlurmCommands
from presage.executors.slurm.executor import SlurmJobsExecutor, SlurmLink, SlurmPilotExecutor
from tests.executors.ray_kit import RayKit
from tests.slurm_cluster import SlurmCluster, missing_engine
from tests.waiting import PATIENCE_S

__all__ = ["SlurmKit", "need_slurm", "short_directory"]

NODES = 3


def need_slurm(version: str) -> None:
    """Skip where there is no such Slurm; fail where nothing may be skipped."""
    if reason := missing_engine(version):
        if os.environ.get("CI") == "true":
            pytest.fail(f"{reason} (CI=true: nothing is skipped)", pytrace=False)
        pytest.skip(reason)


def short_directory() -> Path:
    """A directory whose path leaves room for the names of sockets."""
    return Path(tempfile.mkdtemp(prefix="slurm-"))


class SlurmKit(RayKit):
    """Jobs are files under the data directory; workers are processes below the nodes' agents."""

    timeout_s = PATIENCE_S

    def __init__(self, data: Path, slurm: SlurmCluster, mode: str, **options: Any) -> None:
        self.slurm = slurm
        self.mode = mode
        self._options = {name: options.pop(name) for name in ("log_cap",) if name in options}
        setup = SlurmSetup(
            data=str(data), mode=mode, pilot_nodes=len(slurm.nodes), time_limit_s=3600.0, **options
        )
        data.mkdir(parents=True, exist_ok=True)
        super().__init__(data, slurm, SlurmLink(setup, env=slurm.env))  # type: ignore[arg-type]
        self.commands = SlurmCommands(env=slurm.env)
        self._linked: list[LinkedExecutor] = []

    def executor(self) -> LinkedExecutor:  # type: ignore[override]  # another kind of executor
        """A new executor; one before it just stops being used."""
        kind = SlurmJobsExecutor if self.mode == "jobs" else SlurmPilotExecutor
        executor = kind(self.data, self.link, **self._options)
        self._linked.append(executor)
        return executor

    def wait(self, executor: Executor, timeout_s: float) -> None:
        """Until the driver calls."""
        assert isinstance(executor, LinkedExecutor)
        executor.wait(timeout_s)

    def leftovers(self, job: str) -> list[str]:
        """Processes and files on the server and on the nodes, and Slurm jobs of the run."""
        left = super().leftovers(job)
        left += [
            f"Slurm job {known.id} {known.state}"
            for known in self.commands.jobs()
            if known.name.startswith(f"presage.{self.owner}.{job}.")
            and not known.over
        ]
        return left + [str(path) for path in (self.data / "slurm").glob(f"*.{job}.*")]

    def close(self) -> None:
        """Let go of every executor and of Slurm."""
        self._ray_executors = []
        for executor in self._linked:
            executor.close()
        super().close()
        self.link.close()
