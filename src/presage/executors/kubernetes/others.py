"""Nodes, and what of them is held by pods that our core did not place. No I/O.

Kubernetes gives GPUs of a node by number, not by name: which of our devices stands for one that
another pod holds is chosen here, among those that no job of ours holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from presage.executors.kubernetes.reading import (
    GPU_RESOURCE,
    HAMI,
    Json,
    ask_of_pod,
    is_over,
    node_of,
)
from presage.executors.taken import devices_of_others
from presage.model.cluster import WHOLE_GPU, Node, Resources, Taken
from presage.model.job import Job

__all__ = ["OtherPods", "held_devices"]


class OtherPods:
    """What is known of nodes and of who else is there."""

    def __init__(self) -> None:
        self.described = 0
        """Rises whenever a node is another than before."""
        self._offered: dict[str, Node] = {}
        """What each node offers."""
        self._nodes: dict[str, Node] = {}
        """The same with what others hold, as it was last told."""
        self._on: dict[str, dict[str, Resources]] = {}
        """What each pod of others holds, by node and uid."""
        self._where: dict[str, str] = {}
        self._changed: dict[str, None] = {}
        self._gone: dict[str, None] = {}

    def node(self, item: Json, *, gone: bool) -> None:
        """A node came, went or changed."""
        node = node_of(item)
        if HAMI in (item["metadata"].get("annotations") or {}):
            # Its kubelet refuses GPUs to pods that HAMi's scheduler has not placed.
            node = replace(node, labels={**node.labels, GPU_RESOURCE: "of HAMi"})
        if gone or item["metadata"].get("deletionTimestamp"):
            self._nodes.pop(node.name, None)
            self._offered.pop(node.name, None)
            self._changed.pop(node.name, None)
            self._gone[node.name] = None
            self.described += 1
            return
        known = self._offered.get(node.name)
        if known != node:
            self._offered[node.name] = node
            self._changed[node.name] = None
            self.described += 1

    def pod(self, pod: Json, *, ours: bool, gone: bool) -> None:
        """A pod is somewhere, or is no more."""
        uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName")
        before = self._where.pop(uid, None)
        if before is not None:
            del self._on[before][uid]
            self._changed[before] = None
        if node and not (ours or gone or is_over(pod)):
            self._where[uid] = node
            self._on.setdefault(node, {})[uid] = ask_of_pod(pod)
            self._changed[node] = None

    def gone(self) -> list[str]:
        """Nodes that went away since the last call."""
        taken, self._gone = list(self._gone), {}
        return taken

    @property
    def has_news(self) -> bool:
        """Whether a node may be different."""
        return bool(self._changed)

    def changed(self, held: Mapping[str, set[int]]) -> list[Node]:
        """Nodes that may be different since the last call; `held` are the devices of our jobs."""
        names, self._changed = list(self._changed), {}
        return [self._with_others(name, held) for name in names if name in self._offered]

    def nodes(self, held: Mapping[str, set[int]]) -> list[Node]:
        """All nodes."""
        self._changed = dict.fromkeys(self._offered)
        return self.changed(held)

    def _with_others(self, name: str, held: Mapping[str, set[int]]) -> Node:
        node = self._offered[name]
        others = self._on.get(name, {}).values()
        count = -(-sum(ask.gpu_milli for ask in others) // WHOLE_GPU)
        before, ours = self._nodes.get(name), held.get(name, set())
        if before is not None and name in held and len(before.devices) != len(node.devices):
            # While a job of ours is there, GPUs that went away count as taken (a device plugin
            # that restarts offers none for a while), and new ones wait.
            count += max(0, len(before.devices) - len(node.devices))
            node = replace(node, devices=before.devices)
            self._changed[name] = None
        had = before.taken.devices if before is not None else ()
        taken = Taken(
            sum(ask.cpu_milli for ask in others),
            sum(ask.memory_mib for ask in others),
            devices_of_others(len(node.devices), count, had, ours),
        )
        node = self._nodes[name] = replace(node, taken=taken)
        return node


def held_devices(jobs: Iterable[Job]) -> dict[str, set[int]]:
    """Devices that jobs of ours hold, by node; a node is there for workers without any as well."""
    held: dict[str, set[int]] = {}
    for job in jobs:
        for worker in (*job.allocation, *(job.resizing or ())):
            held.setdefault(worker.node, set()).update(worker.devices)
    return held
