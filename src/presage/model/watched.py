"""What is seen of a cluster that somebody else schedules: its jobs, their runs, its nodes.

Frozen values between those who look (`executors.*.watching`) and those who write it down
(`control.watch`). Times are seconds since 1970, as the cluster tells them. Nothing here knows one
scheduler from another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from presage.model.cluster import Node, Resources
from presage.model.event import Outcome
from presage.model.job import Dependency, Reason, Role

__all__ = ["NodeState", "SeenCluster", "SeenEnd", "SeenJob", "SeenNode", "SeenRun", "SeenWorker"]


class NodeState(StrEnum):
    """Whether a node takes work."""

    UP = "up"
    """It takes work."""
    DRAINING = "draining"
    """It takes no new work; what runs there goes on."""
    DOWN = "down"
    """It does not answer, or is switched off."""


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A node, and whether it takes work."""

    node: Node
    state: NodeState = NodeState.UP


@dataclass(frozen=True, slots=True)
class SeenWorker:
    """What a run holds on one node."""

    node: str
    resources: Resources
    devices: tuple[int, ...] = ()
    """Which GPUs; empty when the cluster does not say, whatever `resources` ask for."""


@dataclass(frozen=True, slots=True)
class SeenEnd:
    """How a run ended, or a job that never ran."""

    at: float
    outcome: Outcome
    reason: Reason | None = None
    exit_code: int | None = None
    again: bool = False
    """Whether the job waits again after it."""


@dataclass(frozen=True, slots=True)
class SeenRun:
    """One run of a job."""

    attempt: int
    """From 1; each start of a job has its own."""
    started_at: float
    workers: tuple[SeenWorker, ...]
    end: SeenEnd | None = None


@dataclass(frozen=True, slots=True)
class SeenJob:
    """A job as it is now: it waits unless its latest run goes on, or it ended."""

    id: str
    name: str
    owner: str
    queue: str
    submitted_at: float
    role: Role
    """What it asks for: `min` workers that are alike, as far as the cluster says."""
    runs: tuple[SeenRun, ...] = ()
    """Those that are known, by attempt; the latest is among them."""
    end: SeenEnd | None = None
    """Of a job that ended without a run."""
    time_limit_s: float | None = None
    priority: int = 0
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    # -- about a job that waits
    why: str = ""
    """What the scheduler there says that it waits for, in words."""
    held: str = ""
    """Why it does not take part at all, whatever is free: somebody holds it, say."""
    not_before: float | None = None
    """When it takes part, at the earliest."""
    after: tuple[Dependency, ...] = ()
    """Jobs that it waits for."""
    array: str = ""
    at_once: int = 0
    """How many jobs of its array may run at once; 0 for any number."""
    expected_at: float | None = None
    """When the scheduler there says that it will start."""

    @property
    def running(self) -> bool:
        """Whether its latest run goes on."""
        return bool(self.runs) and self.runs[-1].end is None

    @property
    def ended_at(self) -> float | None:
        """When it ended for good."""
        last = self.runs[-1].end if self.runs else self.end
        return last.at if last is not None and not last.again else None


@dataclass(frozen=True, slots=True)
class SeenCluster:
    """All that was seen at one moment."""

    now: float
    """No finer than the times of jobs are."""
    jobs: tuple[SeenJob, ...]
    """All that wait or run, and those that ended since the time that was asked for. Of those that
    wait, who is first stands first."""
    nodes: tuple[SeenNode, ...]
    notes: tuple[str, ...] = ()
    """What could not be seen, in words."""
