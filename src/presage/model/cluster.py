"""What a cluster is made of: resources, devices, nodes, and the workers a job holds on them.

Frozen values only. Quantities are integers (a GPU is 1000 milli, a core is 1000 milli, memory is
MiB), so sums are exact and a journal folds to the same state on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from presage.model.value import value

__all__ = [
    "ANY_GPU",
    "UNLIMITED",
    "WHOLE_GPU",
    "Device",
    "Node",
    "Resources",
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
class Node:
    """One machine. Labels such as `rack` and `area` say where it stands."""

    name: str
    devices: tuple[Device, ...] = ()
    cpu_milli: int = UNLIMITED
    memory_mib: int = UNLIMITED
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)


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
