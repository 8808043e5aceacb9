"""What a server answers to pages: lists, the cluster device by device, and things over time.

A job or a server alone is in `answers.py` and `server_answers.py`. Frozen values; standard library
only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from presage.model.answers import ArraySummary, AtRisk, JobSummary, WaitingJob
from presage.model.server_answers import (
    AlertStatus,
    NodeStatus,
    QueueStatus,
    SecretInfo,
    ShareStatus,
    UserInfo,
)

__all__ = [
    "ArrayList",
    "AuditList",
    "AuditView",
    "ClusterMap",
    "DrainOutlook",
    "ForeseenList",
    "ForeseenQuantity",
    "JobComparison",
    "JobList",
    "JobTelemetry",
    "Limits",
    "LogFile",
    "LogFiles",
    "MapJob",
    "MapNode",
    "MetricCurve",
    "MovedJob",
    "NodeList",
    "OpenAlerts",
    "Parameter",
    "PolicyList",
    "ProgressSeries",
    "QueueList",
    "SecretList",
    "ShareList",
    "UserList",
    "Utilization",
    "WaitingList",
    "WorkerSeries",
]


@dataclass(frozen=True, slots=True)
class JobList:
    """A page of jobs, newest first."""

    jobs: tuple[JobSummary, ...]
    next: int | None
    """Give it as `after` for the next page; null on the last one."""


@dataclass(frozen=True, slots=True)
class OpenAlerts:
    """Trouble that is there, the latest first, and trouble that is over."""

    open: tuple[AlertStatus, ...]
    over: tuple[AlertStatus, ...]


@dataclass(frozen=True, slots=True)
class ArrayList:
    """A page of arrays, newest first."""

    arrays: tuple[ArraySummary, ...]
    next: int | None
    """Give it as `after` for the next page; null on the last one."""


@dataclass(frozen=True, slots=True)
class NodeList:
    """The nodes of the cluster."""

    nodes: tuple[NodeStatus, ...]


@dataclass(frozen=True, slots=True)
class ShareList:
    """Enforced shares of GPUs."""

    shares: tuple[ShareStatus, ...]


@dataclass(frozen=True, slots=True)
class QueueList:
    """The queues."""

    queues: tuple[QueueStatus, ...]


@dataclass(frozen=True, slots=True)
class UserList:
    """The users."""

    users: tuple[UserInfo, ...]


@dataclass(frozen=True, slots=True)
class SecretList:
    """Secrets, without their content."""

    secrets: tuple[SecretInfo, ...]


@dataclass(frozen=True, slots=True)
class AuditView:
    """Who did what."""

    number: int
    at: float
    who: str
    what: str
    job: str
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AuditList:
    """Entries of the audit log, newest first."""

    entries: tuple[AuditView, ...]


@dataclass(frozen=True, slots=True)
class MapJob:
    """A job that holds something; its number never changes."""

    number: int
    id: str
    owner: str
    queue: str


@dataclass(frozen=True, slots=True)
class MapNode:
    """A node. Each device has the share that is held and the numbers of the jobs on it; -1 is a
    job that you may not know of."""

    name: str
    state: str
    gpu_type: str
    devices: tuple[tuple[float, tuple[int, ...]], ...]
    cpus_held: float | None
    """Share of the cores that is held; null when they are not counted."""
    jobs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """Who is where."""

    jobs: tuple[MapJob, ...]
    nodes: tuple[MapNode, ...]


@dataclass(frozen=True, slots=True)
class Utilization:
    """The cluster over time: one value of each list is one moment."""

    at: tuple[float, ...]
    nodes: tuple[float, ...]
    gpus: tuple[float, ...]
    gpus_held: tuple[float, ...]
    pending: tuple[float, ...]
    running: tuple[float, ...]
    cpus_asked: tuple[float, ...]
    cpus_used: tuple[float, ...]
    memory_asked_mib: tuple[float, ...]
    memory_used_mib: tuple[float, ...]
    gpus_busy: tuple[float, ...]
    """By the driver, where it could be asked; the busy share of each GPU that a job has, added
    up."""


@dataclass(frozen=True, slots=True)
class WorkerSeries:
    """What one worker of one attempt used."""

    attempt: int
    worker: str
    at: tuple[float, ...]
    cpu_cores: tuple[float, ...]
    rss_mib: tuple[float, ...]
    threads: tuple[float, ...]
    read_bytes: tuple[float, ...]
    write_bytes: tuple[float, ...]
    gpu_util_pct: tuple[float, ...]
    gpu_memory_mib: tuple[float, ...]
    """On the fullest of its GPUs; 0 where the driver could not be asked."""
    gpu_request: tuple[float, ...]
    """Of an enforced share, like the next three; 0 without one."""
    gpu_limit: tuple[float, ...]
    gpu_got: tuple[float, ...]
    gpu_waited: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """What each worker of the first role was held to from a time on, and why."""

    at: tuple[float, ...]
    cpu_cores: tuple[float, ...]
    memory_mib: tuple[float, ...]
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobTelemetry:
    """What the workers of a job used; `left_out` more workers are not in the list."""

    series: tuple[WorkerSeries, ...]
    left_out: int
    limits: Limits
    """Empty when nobody right-sized the job."""


@dataclass(frozen=True, slots=True)
class ProgressSeries:
    """A job over time: how many workers it had and what it reported."""

    at: tuple[float, ...]
    attempt: tuple[int, ...]
    workers: tuple[int, ...]
    metrics: Mapping[str, tuple[float | None, ...]]


@dataclass(frozen=True, slots=True)
class WaitingList:
    """Those of the jobs asked for that wait."""

    waiting: tuple[WaitingJob, ...]


@dataclass(frozen=True, slots=True)
class LogFile:
    """The output of a worker."""

    attempt: int
    worker: str
    bytes: int


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The outputs of a job, the newest attempt first."""

    files: tuple[LogFile, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A key of manifests that is not the same in all; null where a manifest lacks it."""

    key: str
    values: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class MetricCurve:
    """A metric of one job; `step` is null where it reported none."""

    job: str
    seconds: tuple[float, ...]
    """Since the job started."""
    step: tuple[float | None, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class JobComparison:
    """Jobs beside each other."""

    jobs: tuple[JobSummary, ...]
    parameters: tuple[Parameter, ...]
    """In the order of the jobs."""
    metrics: Mapping[str, tuple[MetricCurve, ...]]


@dataclass(frozen=True, slots=True)
class ForeseenQuantity:
    """What was foreseen, and what it turned out to be; null when it is not known (yet)."""

    name: str
    unit: str
    p10: float
    p50: float
    p90: float
    origin: str
    measured: float | None


@dataclass(frozen=True, slots=True)
class ForeseenList:
    """Of one job."""

    quantities: tuple[ForeseenQuantity, ...]


@dataclass(frozen=True, slots=True)
class MovedJob:
    """A job that would be stopped and start elsewhere."""

    id: str
    owner: str
    workers_here: int
    workers: int
    at_risk: AtRisk | None
    """What it would lose at most; null when it does not run yet."""


@dataclass(frozen=True, slots=True)
class DrainOutlook:
    """What a drain would move."""

    node: str
    state: str
    jobs: tuple[MovedJob, ...]


@dataclass(frozen=True, slots=True)
class PolicyList:
    """Policies by name."""

    policies: tuple[str, ...]
    own: tuple[str, ...]
    """Names of the one that decides here; empty when it has none of these names."""
