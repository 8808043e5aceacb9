"""One executor for a cluster where pods of others are scheduled beside jobs of our own.

Nodes are as the drop-in scheduler reads them, with what others hold there; each launch and stop
goes to whoever knows the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from presage.executors.kubernetes.adopted import AdoptedPods
from presage.executors.kubernetes.executor import KubernetesExecutor
from presage.model.cluster import Node
from presage.model.event import Fact, Launch, NodeDown, NodeDraining, NodeUp, Stop

__all__ = ["DropInExecutor"]


class DropInExecutor:
    """Jobs of our own (`own`) and pods of others (`adopted`), whose news must wake `own`."""

    def __init__(self, own: KubernetesExecutor, adopted: AdoptedPods) -> None:
        self._own, self._adopted = own, adopted
        # Those of others have the size and the limits that their controller gave them.
        self.resize, self.limit, self.attach = own.resize, own.limit, own.attach

    def __getattr__(self, name: str) -> Any:
        """What the executor of our own jobs can do besides."""
        return getattr(self._own, name)

    def nodes(self) -> Sequence[Node]:
        """All nodes, with what others hold there."""
        return self._adopted.nodes()

    def launch(self, decision: Launch) -> None:
        """Bind the pods of a job, or start one of our own."""
        if self._adopted.knows(decision.job):
            self._adopted.launch(decision)
        else:
            self._own.launch(decision)

    def stop(self, decision: Stop) -> None:
        """Delete the pods of a job, or stop one of our own."""
        if self._adopted.knows(decision.job):
            self._adopted.stop(decision)
        else:
            self._own.stop(decision)

    def poll(self, now: float) -> list[Fact]:
        """What happened."""
        mine = self._own.poll(now)
        facts = [fact for fact in mine if not isinstance(fact, NodeUp | NodeDown | NodeDraining)]
        return self._adopted.poll(now) + facts

    def wait(self, timeout_s: float) -> bool:
        """Until something happened to either, or the time has passed."""
        return self._own.wait(timeout_s)

    def wake(self) -> None:
        """End a `wait`."""
        self._own.wake()

    def note(self, job: str, text: str) -> None:
        """Let the owner of a waiting job know, where its pods are others'."""
        self._adopted.note(job, text)

    def close(self) -> None:
        """Let go; jobs and pods go on."""
        self._adopted.close()
        self._own.close()
