"""What a detector answers with: a finding, its subject and what speaks for it.

Values alone; nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["PRECISION", "Evidence", "Subject", "SubjectKind", "Trouble", "TroubleKind"]


class TroubleKind(StrEnum):
    """What is wrong."""

    STUCK = "stuck"
    """No progress, and it uses nothing; or its processes were stopped by a signal."""
    SPINNING = "spinning"
    """No progress, though it keeps cores or GPUs busy."""
    LEAK = "leak"
    """Its memory grows and will pass the limit."""
    GPU_MEMORY = "gpu_memory"
    """What it holds on a GPU grows and will pass what the card has."""
    HOST_MEMORY = "host_memory"
    """The workers of a node will need more memory than the node has."""
    STRAGGLER = "straggler"
    """One worker is slower than the others of its gang."""
    BAD_NODE = "bad_node"
    """Jobs fail on the node that do not fail elsewhere."""
    NOT_FINITE = "not_finite"
    """A metric is NaN or infinite."""
    DIVERGED = "diverged"
    """A loss rises far above where it began."""
    DISK = "disk"
    """The disk is full, or will be."""
    CLOCK = "clock"
    """The clock of the node is wrong."""
    NETWORK = "network"
    """Packets get lost."""
    GPU_ERROR = "gpu_error"
    """The driver reported an error of a GPU (Xid, ECC)."""
    GPU_IDLE = "gpu_idle"
    """It holds GPUs and uses none of them."""
    CROWDED = "crowded"
    """Others use the cores it was given."""
    KILLED = "killed"
    """Somebody outside killed a worker."""


PRECISION: Mapping[TroubleKind, float] = {
    TroubleKind.STUCK: 0.95,
    TroubleKind.SPINNING: 0.9,
    TroubleKind.LEAK: 0.95,
    TroubleKind.GPU_MEMORY: 0.95,
    TroubleKind.HOST_MEMORY: 0.9,
    TroubleKind.STRAGGLER: 0.95,
    TroubleKind.BAD_NODE: 0.95,
    TroubleKind.NOT_FINITE: 0.99,
    TroubleKind.DIVERGED: 0.9,
    TroubleKind.DISK: 0.95,
    TroubleKind.CLOCK: 0.95,
    TroubleKind.NETWORK: 0.95,
    TroubleKind.GPU_ERROR: 0.95,
    TroubleKind.GPU_IDLE: 0.9,
    TroubleKind.CROWDED: 0.9,
    TroubleKind.KILLED: 0.99,
}
"""The share of its alerts that should be right: a finding below it is not told."""


class SubjectKind(StrEnum):
    """What a finding is about."""

    JOB = "job"
    """A run as a whole."""
    WORKER = "worker"
    """One worker of a run."""
    NODE = "node"
    """A machine."""
    GPU = "gpu"
    """One GPU of a machine."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Who is in trouble."""

    kind: SubjectKind
    name: str
    """`JOB`, `JOB/WORKER`, `NODE` or `NODE/NUMBER`."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Evidence:
    """A series that one can look at, or a count."""

    series: str
    """The name it has in telemetry, with its unit: `rss_mib`, `cpu_cores`, `step`."""
    text: str
    at: tuple[float, ...] = ()
    values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Trouble:
    """Trouble as a detector sees it at one look."""

    kind: TroubleKind
    subject: Subject
    probability: float
    text: str
    action: str
    """What a person should do."""
    evidence: tuple[Evidence, ...] = ()
    job: str = ""
    attempt: int = 0
    node: str = ""
    """The node that is to blame or that it is on, where there is one."""
    due_at: float | None = None
    """When what is foreseen happens."""
    avoidable: bool = False
    """Whether another node would help."""

    @property
    def key(self) -> tuple[TroubleKind, Subject]:
        """The same for the same trouble at another look."""
        return self.kind, self.subject
