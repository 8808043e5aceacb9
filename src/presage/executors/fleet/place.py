"""The nodes of a cluster, and what a gang asks of them: pure functions.

The core has chosen a node for each worker. So a gang asks for one bundle for each of its nodes,
pinned by the node's id, all of them at once and each on a node of its own: packed or spread
exactly as decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from presage.executors.node.runspec import RunSpec
from presage.model.cluster import ANY_GPU, UNLIMITED, Device, Node, Worker, gpu_count

__all__ = ["FleetNode", "bundles", "what_is_missing"]

_MIB = 1 << 20
_TYPE_LABEL = "ray.io/accelerator-type"
_TYPE_RESOURCE = "accelerator_type:"
_GPU_MEMORY_LABEL = "presage.gpu-memory-mib"


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A node that is alive, as its cluster describes it, in the words of Ray."""

    id: str
    name: str
    address: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]

    @property
    def works(self) -> bool:
        """Whether it takes jobs; a head without CPUs and GPUs does not."""
        return self.resources.get("CPU", 0) > 0 or self.resources.get("GPU", 0) > 0

    def as_node(self) -> Node:
        """The node as the core sees it."""
        kind = self.labels.get(_TYPE_LABEL) or next(
            (name[len(_TYPE_RESOURCE) :] for name in self.resources if _TYPE_RESOURCE in name),
            ANY_GPU,
        )
        memory = self.labels.get(_GPU_MEMORY_LABEL, "")
        device = Device(kind.lower(), int(memory) if memory.isdecimal() else UNLIMITED)
        return Node(
            self.name,
            (device,) * int(self.resources.get("GPU", 0)),
            round(self.resources.get("CPU", 0) * 1000),
            int(self.resources.get("memory", 0)) // _MIB or UNLIMITED,
            {k: v for k, v in self.labels.items() if not k.startswith("ray.io/")},
        )


def bundles(spec: RunSpec, workers: Iterable[Worker]) -> dict[str, dict[str, float]]:
    """What the workers ask of the cluster, by node."""
    asked: dict[str, dict[str, float]] = {}
    for worker in workers:
        role = spec.roles[worker.role]
        amounts = {
            "CPU": role.cpus,
            "GPU": role.gpus if 0 < role.gpus < 1 else float(len(worker.devices)),
            "memory": float(role.memory_mib * _MIB),
        }
        bundle = asked.setdefault(worker.node, {})
        for name, amount in amounts.items():
            if amount:
                bundle[name] = round(bundle.get(name, 0.0) + amount, 4)
    return asked


def what_is_missing(
    asked: Mapping[str, Mapping[str, float]], nodes: Mapping[str, FleetNode]
) -> str | None:
    """Why no state of these nodes can hold what is asked, or None. A cluster would let
    them wait for ever."""
    for name, bundle in asked.items():
        for what, amount in bundle.items():
            have = nodes[name].resources.get(what, 0.0)
            if amount > have:
                return f"node {name} has {_amount(what, have)}; {_amount(what, amount)} are needed"
    return None


def _amount(what: str, amount: float) -> str:
    if what == "memory":
        return f"{amount / _MIB:.0f} MiB of memory"
    return f"{gpu_count(round(amount * 1000))} {what}s"
