"""What a cluster is made of: resources, devices, nodes, and the workers a job holds on them.

Frozen values only. Quantities are integers (a GPU is 1000 milli, a core is 1000 milli, memory is
MiB), so sums are exact and a journal folds to the same state on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from presage.model.value import value

__all__ = [
    "ANYWHERE",
    "ANY_GPU",
    "UNLIMITED",
    "WHOLE_GPU",
    "Device",
    "LabelOperator",
    "LabelRule",
    "Node",
    "Resources",
    "Taken",
    "Where",
    "Worker",
    "gpu_count",
]

WHOLE_GPU = 1000
"""Milli-GPUs of one whole device."""

ANY_GPU = "gpu"
"""The type of a device that nobody declared; it serves a request for any type."""

UNLIMITED = 1 << 50
"""The capacity of something that is not limited (CPU or memory that the cluster does not
declare)."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What one worker asks for. Below 1000 milli-GPU it shares one device; above, it takes whole
    ones."""

    cpu_milli: int = 0
    memory_mib: int = 0
    gpu_milli: int = 0
    gpu_memory_mib: int = 0
    """Memory it needs on each device it uses; 0 means it does not say."""

    @property
    def devices(self) -> int:
        """How many devices a worker touches: one for a share, else the number of whole GPUs."""
        return 1 if 0 < self.gpu_milli < WHOLE_GPU else self.gpu_milli // WHOLE_GPU

    @property
    def shared(self) -> bool:
        """Whether it asks for a part of one device."""
        return 0 < self.gpu_milli < WHOLE_GPU


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU of a node."""

    type: str = ANY_GPU
    memory_mib: int = UNLIMITED
    speed: float = 1.0
    """How fast it works relative to the device that durations were measured on."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What others hold on a node: who was not placed there by this scheduler."""

    cpu_milli: int = 0
    memory_mib: int = 0
    devices: tuple[int, ...] = ()

    def covers(self, other: Taken) -> bool:
        """Whether all that is held by `other` is held here as well."""
        return (
            self.cpu_milli >= other.cpu_milli
            and self.memory_mib >= other.memory_mib
            and set(self.devices) >= set(other.devices)
        )


@dataclass(frozen=True, slots=True)
class Node:
    """One machine. Labels such as `rack` and `area` say where it stands."""

    name: str
    devices: tuple[Device, ...] = ()
    cpu_milli: int = UNLIMITED
    memory_mib: int = UNLIMITED
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    taints: tuple[str, ...] = ()
    """`key=value:effect` each: only workers that tolerate all of them go there (`Where`)."""
    taken: Taken = Taken()


class LabelOperator(StrEnum):
    """How a rule looks at a label; the words are those of Kubernetes."""

    IN = "In"
    """It has one of the values."""
    NOT_IN = "NotIn"
    """It has none of them, or is not there."""
    EXISTS = "Exists"
    """It is there."""
    DOES_NOT_EXIST = "DoesNotExist"
    """It is not there."""
    GT = "Gt"
    """It is a whole number above the value."""
    LT = "Lt"
    """It is a whole number below the value."""


@dataclass(frozen=True, slots=True)
class LabelRule:
    """What a label of a node must be."""

    key: str
    operator: LabelOperator = LabelOperator.EXISTS
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels will do."""
        there = labels.get(self.key)
        match self.operator:
            case LabelOperator.IN:
                return there in self.values
            case LabelOperator.NOT_IN:
                return there not in self.values
            case LabelOperator.EXISTS:
                return there is not None
            case LabelOperator.DOES_NOT_EXIST:
                return there is None
        try:
            number, bound = int(there or ""), int(self.values[0])
        except (ValueError, IndexError):
            return False
        return number > bound if self.operator is LabelOperator.GT else number < bound


@dataclass(frozen=True, slots=True)
class Where:
    """On which nodes a worker may be."""

    any_of: tuple[tuple[LabelRule, ...], ...] = ()
    """Sets of rules; all rules of one set must hold. No sets: any node."""
    tolerates: tuple[str, ...] = ()
    """Taints it puts up with, `key=value:effect`; a `*` stands for any key, value or effect."""
    avoid: tuple[str, ...] = ()
    """Names of nodes it is kept off."""

    def accepts(self, node: Node) -> bool:
        """Whether a worker may be on a node."""
        if node.name in self.avoid:
            return False
        if node.taints and not all(map(self._bears, node.taints)):
            return False
        return not self.any_of or any(
            all(rule.holds(node.labels) for rule in rules) for rules in self.any_of
        )

    def _bears(self, taint: str) -> bool:
        return any(
            all(
                wanted in ("*", actual)
                for wanted, actual in zip(_taint(pattern), _taint(taint), strict=True)
            )
            for pattern in self.tolerates
        )


ANYWHERE = Where()
"""Of a worker that does not care; it keeps off tainted nodes."""


def _taint(text: str) -> tuple[str, str, str]:
    """Key, value and effect; neither key nor value holds a colon."""
    rest, _, effect = text.rpartition(":")
    key, _, value_ = rest.partition("=")
    return key, value_, effect


@value
class Worker:
    """One worker of a job on a node: its role and index in the job, and the devices it was
    given."""

    role: int
    """Index into `JobSpec.roles`."""
    index: int
    """Index of the worker inside its role."""
    node: str
    devices: tuple[int, ...] = ()


def gpu_count(gpu_milli: int) -> str:
    """Milli-GPUs as a person writes them: 2000 is '2', 500 is '0.5'."""
    return f"{gpu_milli / WHOLE_GPU:g}"
