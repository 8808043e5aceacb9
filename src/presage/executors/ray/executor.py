"""The executor `ray`: runs jobs on the nodes of a Ray cluster that exists.

This side is the port: it makes run directories, leaves word there, and reads what happened. A
child process, the driver, talks to Ray (`ray.driver`); agents on the nodes run the workers
(`ray.agent`). Either side may vanish at any moment and is started again. Ray is not imported
here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from socket import socket

from presage.executors.node.attach import DOOR
from presage.executors.node.base import Key, RunsExecutor
from presage.executors.node.frames import connect
from presage.executors.node.messages import LaunchOrder, ResizeOrder
from presage.executors.node.plan import LOG_CAP, identity
from presage.executors.node.runs import Run, make_run
from presage.executors.node.runspec import RunSpec
from presage.executors.ray.head import RayHead
from presage.executors.ray.link import DriverLink, RayLink
from presage.model.cluster import Node
from presage.model.event import Fact, JobResized, Launch, NodeDown, NodeUp, Resize

__all__ = ["LinkedExecutor", "RayExecutor", "RayHead", "RayLink"]

_AWAY_S = 20.0
"""A cluster that is out of reach for so long has no nodes; runs there may still go on."""


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
        self._nodes_of: dict[Key, set[str]] = {}
        self._known = self._there()
        """Nodes by name as the caller knows them, with the ids Ray has for them."""
        self._before = {name: node for name, (_, node) in self._known.items()}
        """Every node that was ever told, as it was then."""
        self._adopt_all()
        link.serve(self._layout.data, self.wake)

    # -- the port -------------------------------------------------------------------------------

    def nodes(self) -> Sequence[Node]:
        """The nodes of the cluster that take jobs."""
        return tuple(node for _, node in self._known.values())

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
        self._nodes_of[run.job, run.attempt] |= {worker.node for worker in decision.workers}
        if run.resized_number == run.resize_number:  # it was done before, and is asked for again
            self._tell(JobResized(run.job, run.attempt))

    def _took_over(self, run: Run) -> None:
        launch, resize = run.find(LaunchOrder), run.find(ResizeOrder)
        workers = (launch.workers if launch else ()) + (resize.target if resize else ())
        self._nodes_of[run.job, run.attempt] = {node for _, _, node, _ in workers}

    def _left_word(self) -> None:
        self._link.look(self._layout.data)

    def _forget(self, run: Run) -> None:
        super()._forget(run)
        self._nodes_of.pop((run.job, run.attempt), None)

    # -- nodes ----------------------------------------------------------------------------------

    def _there(self) -> dict[str, tuple[str, Node]]:
        """The nodes that there are, unless the cluster has been out of reach for long."""
        if self._link.away_s() > _AWAY_S:
            return {}
        return {node.name: (id, node) for id, node in self._link.nodes}

    def _node_changes(self) -> list[Fact]:
        """Nodes that came or went. One that came back with other hardware is told when no run is
        left that was on it."""
        there = self._there()
        facts: list[Fact] = []
        for name in [n for n, node in self._known.items() if there.get(n) != node]:
            del self._known[name]
            facts.append(NodeDown(name))
        busy = set().union(*self._nodes_of.values()) if self._nodes_of else set()
        for launch in self._waiting.values():
            busy |= {worker.node for worker in launch.workers}
        for name, (id, node) in there.items():
            if name in self._known or (name in busy and self._before.get(name) != node):
                continue
            self._known[name] = (id, node)
            self._before[name] = node
            facts.append(NodeUp(node))
        return facts


class RayExecutor(LinkedExecutor):
    """Runs jobs on a Ray cluster."""
