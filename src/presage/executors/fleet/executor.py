"""An executor for the nodes of a cluster that exists, without the cluster's own part.

This side is the port: it makes run directories, leaves word there, and reads what happened. A
child process, the driver, talks to the cluster; agents on the nodes run the workers
(`fleet.agent`). Either side may vanish at any moment and is started again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from socket import socket

from presage.executors.fleet.link import DriverLink
from presage.executors.node.attach import DOOR
from presage.executors.node.base import Key, RunsExecutor
from presage.executors.node.frames import connect
from presage.executors.node.messages import LaunchOrder, ResizeOrder
from presage.executors.node.plan import LOG_CAP, identity
from presage.executors.node.runs import Run, make_run
from presage.executors.node.runspec import RunSpec
from presage.executors.taken import devices_of_others
from presage.model.cluster import Node, Taken
from presage.model.event import (
    Fact,
    JobResized,
    Launch,
    NodeChanged,
    NodeDown,
    NodeDraining,
    NodeUp,
    Resize,
)

__all__ = ["LinkedExecutor"]

_AWAY_S = 20.0
"""A cluster that is out of reach for so long has no nodes; runs there may still go on."""

_Devices = dict[str, set[int]]
"""Devices by node; a node is there for workers without any as well."""


class LinkedExecutor(RunsExecutor):
    """Runs jobs on the nodes of a cluster that a driver talks to.

    `shared` is a directory that every node and this machine see under the same path; checkpoints
    are kept there. Without it they are copied back to the data directory as they are made.
    """

    def __init__(
        self,
        data: Path,
        link: DriverLink,
        *,
        shared: Path | None = None,
        log_cap: int = LOG_CAP,
    ) -> None:
        super().__init__(data)
        self._link = link
        self._shared = str(shared) if shared else None
        self._log_cap = log_cap
        self._held_by: dict[Key, _Devices] = {}
        """What each run has."""
        self._known: dict[str, tuple[str, Node]] = {}
        """Nodes by name as the caller knows them, with the ids that the cluster has for them, and
        without what others hold."""
        self._known = self._there()
        self._before = {name: node for name, (_, node) in self._known.items()}
        """Every node that was ever told, as it was then."""
        self._draining: set[str] = set()
        """Nodes of which it was told that they take nothing new."""
        self._adopt_all()
        self._taken: dict[str, Taken] = {}
        """What others hold, as it was told last."""
        ours = self._ours()
        self._taken = {name: self._taken_by_others(name, ours) for name in self._known}
        link.serve(self._layout.data, self.wake)

    # -- the port -------------------------------------------------------------------------------

    def nodes(self) -> Sequence[Node]:
        """The nodes of the cluster that take jobs."""
        return tuple(self._as_told(name) for name in self._known)

    def poll(self, now: float) -> list[Fact]:
        """Facts since the last poll, in the order they happened, nodes first. Asking again says
        that those of the last poll are safely written down."""
        facts = super().poll(now)
        return [*self._node_changes(), *facts]

    def close(self) -> None:
        """Let go; jobs go on."""
        self._link.leave(self._layout.data, self.wake)
        super().close()

    def attach(self, job: str, attempt: int, worker: str) -> socket:
        """A connection to the driver, which carries it to the worker's node; any thread may
        ask."""
        return connect(self._layout.run(job, attempt), DOOR)

    # -- runs -----------------------------------------------------------------------------------

    def _spawn(self, spec: RunSpec, launch: Launch) -> None:
        """The directory of a run appears whole or not at all; then the driver is woken."""
        key = (launch.job, launch.attempt)
        order = LaunchOrder(
            job=launch.job,
            attempt=launch.attempt,
            workers=tuple(map(identity, launch.workers)),
            shared=self._shared,
            log_cap=self._log_cap,
        )
        make_run(self._layout.runs, self._layout.run(*key), order, guarded=False)
        self._adopt(key)
        self._left_word()

    def _ask_to_resize(self, run: Run, decision: Resize) -> None:
        run.ask_to_resize([identity(worker) for worker in decision.workers])
        held = self._held_by[run.job, run.attempt]
        for worker in decision.workers:
            held.setdefault(worker.node, set()).update(worker.devices)
        if run.resized_number == run.resize_number:  # it was done before, and is asked for again
            self._tell(JobResized(run.job, run.attempt))

    def _took_over(self, run: Run) -> None:
        launch, resize = run.find(LaunchOrder), run.find(ResizeOrder)
        workers = (launch.workers if launch else ()) + (resize.target if resize else ())
        held = self._held_by[run.job, run.attempt] = {}
        for _, _, node, devices in workers:
            held.setdefault(node, set()).update(devices)

    def _left_word(self) -> None:
        self._link.look(self._layout.data)

    def _forget(self, run: Run) -> None:
        super()._forget(run)
        self._held_by.pop((run.job, run.attempt), None)

    # -- nodes ----------------------------------------------------------------------------------

    def _there(self) -> dict[str, tuple[str, Node]]:
        """The nodes that there are, unless the cluster has been out of reach for long. One that is
        drained is not there for who did not know it before."""
        if self._link.away_s() > _AWAY_S:
            return {}
        hidden = self._link.draining - self._known.keys()
        return {node.name: (id, node) for id, node in self._link.nodes if node.name not in hidden}

    def _node_changes(self) -> list[Fact]:
        """Nodes that came, went or changed. One that came back with other hardware is told when no
        run is left that was on it."""
        there, ours = self._there(), self._ours()
        facts: list[Fact] = []
        for name in [n for n, node in self._known.items() if there.get(n) != node]:
            del self._known[name]
            self._draining.discard(name)
            facts.append(NodeDown(name))
        for name, (id, node) in there.items():
            if name in self._known or (name in ours and self._before.get(name) != node):
                continue
            self._known[name] = (id, node)
            self._before[name] = node
            facts.append(NodeUp(self._as_told(name)))
        for name in self._draining - self._link.draining:
            self._draining.discard(name)
            facts.append(NodeUp(self._as_told(name)))
        for name in self._known:
            taken = self._taken_by_others(name, ours)
            if taken != self._taken.get(name, Taken()):
                self._taken[name] = taken
                facts.append(NodeChanged(self._as_told(name)))
        for name in sorted((self._link.draining & self._known.keys()) - self._draining):
            self._draining.add(name)
            facts.append(NodeDraining(name))
        return facts

    def _as_told(self, name: str) -> Node:
        """A node as the caller knows it."""
        return replace(self._known[name][1], taken=self._taken.get(name, Taken()))

    def _ours(self) -> _Devices:
        """What runs have, and such as wait for their turn."""
        ours: _Devices = {}
        for held in self._held_by.values():
            for node, devices in held.items():
                ours.setdefault(node, set()).update(devices)
        for launch in self._waiting.values():
            for worker in launch.workers:
                ours.setdefault(worker.node, set()).update(worker.devices)
        return ours

    def _taken_by_others(self, name: str, ours: _Devices) -> Taken:
        """What others hold on a node that is known."""
        cpu_milli, memory_mib, gpus = self._link.held.get(name, (0, 0, 0))
        had = self._taken[name].devices if name in self._taken else ()
        there = len(self._known[name][1].devices)
        devices = devices_of_others(there, gpus, had, ours.get(name, set()))
        return Taken(cpu_milli, memory_mib, devices)
