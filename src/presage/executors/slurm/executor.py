"""The executor `slurm`: runs jobs under a Slurm that exists, in one of two modes.

`jobs`: every run is a Slurm job; Presage chooses the nodes, Slurm says when. `pilot`: Slurm jobs
hold nodes, and Presage places inside. This side makes run directories and reads what happened; a
child process, the driver, talks to Slurm (`slurm.driver`), agents on the nodes run the workers
(`slurm.agent`). ADR 0029 says why.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from presage.executors.fleet.executor import LinkedExecutor
from presage.executors.fleet.link import DriverLink
from presage.executors.node import wire
from presage.executors.node.messages import SlurmSetup
from presage.executors.node.plan import LOG_CAP
from presage.executors.slurm.commands import SlurmCommands
from presage.layout import Layout
from presage.model.errors import SlurmUnreachable

__all__ = ["SlurmExecutor", "SlurmJobsExecutor", "SlurmLink", "SlurmMode", "SlurmPilotExecutor"]

SlurmMode = Literal["jobs", "pilot"]
_PATIENCE_S = 60.0


class SlurmLink(DriverLink):
    """A connection to the Slurm of this machine, for one data directory. The first connection must
    succeed; SlurmUnreachable or SlurmRefused says why it did not."""

    cluster = "Slurm"
    unreachable = SlurmUnreachable

    def __init__(
        self,
        setup: SlurmSetup,
        *,
        env: Mapping[str, str] | None = None,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self.setup = setup
        self._env = dict(os.environ if env is None else env)
        layout = Layout(Path(setup.data))
        layout.slurm.mkdir(parents=True, exist_ok=True, mode=0o700)
        commands = SlurmCommands(env=self._env)
        commands.version()
        commands.partition(setup.partition)
        super().__init__(log=layout.slurm_driver_log, patience_s=patience_s)

    def _environment(self) -> dict[str, str]:
        return self._env

    def _program(self) -> tuple[str, str]:
        return "slurm.driver", json.dumps(wire.pack(self.setup))


class _OnSharedFiles(LinkedExecutor):
    """Checkpoints are where they belong at once: every node sees the data directory."""

    def __init__(self, data: Path, link: SlurmLink, *, log_cap: int = LOG_CAP) -> None:
        shared = Layout(Path(data).absolute()).checkpoints("{job}")
        super().__init__(data, link, shared=shared, log_cap=log_cap)


class SlurmPilotExecutor(_OnSharedFiles):
    """Runs jobs on nodes that pilots hold: exact placement, sharing, resizing."""


class SlurmJobsExecutor(_OnSharedFiles):
    """Runs each job as a Slurm job. Its size is fixed: Slurm lets no running job grow."""

    resize = None  # type: ignore[assignment]  # a job of another size is stopped and started anew


SlurmExecutor = SlurmPilotExecutor | SlurmJobsExecutor
