"""The executor `slurm`: runs jobs under a Slurm that exists, in one of two modes.

`jobs`: every run is a Slurm job; Presage chooses the nodes, Slurm says when. `pilot`: Slurm jobs
hold nodes, and Presage places inside. This side makes run directories and reads what happened; a
child process, the driver, talks to Slurm (`slurm.driver`), agents on the nodes run the workers
(`slurm.agent`). ADR 0029 says why.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from presage.executors.fleet.executor import LinkedExecutor
from presage.executors.fleet.link import DriverLink
from presage.executors.node import wire
from presage.executors.node.messages import LinkLine, SlurmSetup
from presage.executors.node.plan import LOG_CAP
from presage.executors.slurm.commands import SlurmCommands
from presage.executors.slurm.demand import nodes_wanted
from presage.layout import Layout
from presage.model.errors import SlurmUnreachable
from presage.model.event import Fact, NodeDown, NodeUp
from presage.model.job import Job

__all__ = ["SlurmExecutor", "SlurmJobsExecutor", "SlurmLink", "SlurmMode", "SlurmPilotExecutor"]

SlurmMode = Literal["jobs", "pilot"]
_PATIENCE_S = 60.0
_COUNT_S = 1.0
"""How often it is counted what jobs need."""
_SAY_AGAIN_S = 10.0


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
        self._wanted, self._said_at = -1, 0.0
        self._env = dict(os.environ if env is None else env)
        layout = Layout(Path(setup.data))
        layout.slurm.mkdir(parents=True, exist_ok=True, mode=0o700)
        commands = SlurmCommands(env=self._env)
        commands.version()
        commands.partition(setup.partition)
        super().__init__(log=layout.slurm_driver_log, patience_s=patience_s)

    def want(self, nodes: int) -> None:
        """How many nodes pilots should hold; said again, since drivers forget what they heard."""
        now = time.monotonic()
        if nodes != self._wanted or now - self._said_at > _SAY_AGAIN_S:
            self._wanted, self._said_at = nodes, now
            with self._lock:
                self._send(LinkLine(pilots=nodes))

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
    """Runs jobs on nodes that pilots hold: exact placement, sharing, resizing. Nodes that pilots
    could hold are told as down, so that a job which needs them is not refused. With `jobs`, all
    that are not over, there are as many pilots as those need, within the bounds of
    `SlurmSetup`."""

    def __init__(
        self,
        data: Path,
        link: SlurmLink,
        *,
        jobs: Callable[[], Mapping[str, Job]] | None = None,
        log_cap: int = LOG_CAP,
    ) -> None:
        self._pilots, self._jobs = link, jobs
        self._count_at = 0.0
        super().__init__(data, link, log_cap=log_cap)

    def poll(self, now: float) -> list[Fact]:
        """As ever; what the jobs need is passed on."""
        facts = super().poll(now)
        self._count()
        return facts

    def _count(self) -> None:
        setup = self._pilots.setup
        if self._jobs is None or setup.pilot_most <= setup.pilot_nodes:
            return
        if time.monotonic() >= self._count_at:
            self._count_at = time.monotonic() + _COUNT_S
            held = {node.name: node for _, node in self._pilots.nodes}
            jobs, further = self._jobs().values(), self._pilots.further
            self._pilots.want(nodes_wanted(jobs, held, further, setup.pilot_most))

    def _node_changes(self) -> list[Fact]:
        facts, ours = super()._node_changes(), self._ours()
        for node in self._pilots.further:
            if node.name not in self._known and node.name not in self._before | ours:
                self._before[node.name] = node
                facts += [NodeUp(node), NodeDown(node.name)]
        return facts


class SlurmJobsExecutor(_OnSharedFiles):
    """Runs each job as a Slurm job. Slurm lets no running job grow: a run that gets other workers
    gives its Slurm job back and goes on from its checkpoint in another one, in the same
    attempt."""


SlurmExecutor = SlurmPilotExecutor | SlurmJobsExecutor
