"""What a server answers about itself: nodes, queues, use, users, secrets, replays of its journal.

What it answers about jobs is in `answers.py`. Frozen values; standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "AlertStatus",
    "Audit",
    "Diagnosis",
    "EvidenceSeries",
    "ExportedTrace",
    "NewUser",
    "NodeStatus",
    "Overview",
    "PolicyStatus",
    "QueueStatus",
    "SecretInfo",
    "ShareStatus",
    "SignInOffer",
    "SignInStart",
    "UsageReport",
    "UsageSums",
    "UserInfo",
    "WhatIf",
]


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node and what is free on it; null is not counted."""

    name: str
    state: str
    gpus: int
    gpu_types: tuple[str, ...]
    free_gpus: float
    cpus: float | None
    free_cpus: float | None
    memory_mib: int | None
    free_memory_mib: int | None
    jobs: tuple[str, ...]
    labels: Mapping[str, str]
    memory_limits: str = ""
    """What holds workers to their memory: `cgroup`, `systemd`, or `watched`, which is looked at
    some times a second and so can be passed for a moment; empty where it is not known."""


@dataclass(frozen=True, slots=True)
class ShareStatus:
    """The enforced share of a GPU that a worker has; null is not known."""

    job: str
    worker: str
    at: float
    """When it was measured."""
    request: float
    limit: float
    got: float | None = None
    """The part of the GPU it had of late."""
    waited: float | None = None
    """Seconds that its threads waited for their turns, in each second."""
    memory_mib: float | None = None
    memory_limit_mib: float | None = None


@dataclass(frozen=True, slots=True)
class EvidenceSeries:
    """Something that speaks for an alert, to look at."""

    series: str
    text: str
    at: tuple[float, ...] = ()
    values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class AlertStatus:
    """Trouble of a job, a worker, a node or a GPU."""

    id: str
    kind: str
    subject: str
    """`job J`, `worker J/W`, `node N` or `gpu N/D`."""
    probability: float
    text: str
    action: str
    """What a person should do."""
    evidence: tuple[EvidenceSeries, ...]
    job: str = ""
    attempt: int = 0
    node: str = ""
    raised_at: float | None = None
    """When it was told first; null for what is only suspected."""
    seen_at: float | None = None
    cleared_at: float | None = None
    cleared: str = ""
    done: tuple[str, ...] = ()
    """What was done about it by itself."""


@dataclass(frozen=True, slots=True)
class FailureChanceTold:
    """How likely a job that is not over fails, learned from jobs that ended."""

    chance: float
    low: float
    high: float
    moment: str
    """`submission`, or `first_minute` once it has run so long."""
    version: int
    """Of the model; 0 is how often like jobs failed."""
    reasons: tuple[str, ...]
    """What speaks for it, each with what it adds to the chance of a usual job."""
    text: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong with a job, a node or the cluster."""

    subject: str
    runs: int
    """Runs that were looked at."""
    alerts: tuple[AlertStatus, ...]
    suspected: tuple[AlertStatus, ...] = ()
    """Seen, and not likely enough to be told."""
    over: tuple[AlertStatus, ...] = ()
    failure: FailureChanceTold | None = None
    """Of a job; null while too few have ended here."""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue: what it may have and what it has."""

    name: str
    quota_gpus: float | None
    limit_gpus: float | None
    weight: float
    used_gpus: float
    pending: int
    running: int
    limit_cpus: float | None = None
    gpu_hours: float | None = None
    """What it may spend in a period."""
    user_gpu_hours: float | None = None
    team_gpu_hours: float | None = None
    period: str = "month"
    spent_gpu_hours: float | None = None
    """What it has spent in the present period, or promised; null without a budget."""


@dataclass(frozen=True, slots=True)
class UsageSums:
    """What one user, team or queue used; hours of GPUs and of cores."""

    key: str
    """The user, team or queue; empty for a team says: without one."""
    asked_gpu_h: float
    held_gpu_h: float
    measured_gpu_h: float
    """That part of what was held of which telemetry says how busy it was."""
    used_gpu_h: float
    idle_gpu_h: float
    """Measured, and not used."""
    lost_gpu_h: float
    """Held by attempts that came to nothing."""
    cpu_h: float
    used_cpu_h: float
    cost_usd: float
    unpriced_gpu_h: float
    """Held of GPUs without a price."""
    runs: int
    day: str | None = None
    """Such as 2026-11-18, in UTC; null for a sum over days."""


@dataclass(frozen=True, slots=True)
class UsageReport:
    """What was used in some days: sums, and the same for each day."""

    by: str
    since: str
    until: str
    """The last day, which is in it."""
    prices: str
    """Where the prices are from."""
    total: UsageSums
    sums: tuple[UsageSums, ...]
    days: tuple[UsageSums, ...]


@dataclass(frozen=True, slots=True)
class Overview:
    """The cluster at a glance. Figures are of everything, lists of jobs that you may see."""

    at: float
    nodes: Mapping[str, int]
    """How many are `up`, `draining` and `down`."""
    gpus: Mapping[str, float]
    """`all`, `held`, `free`; of those held, how many are `measured`, and of these `idle`."""
    cpus: Mapping[str, float | None]
    """`all`, `held`, `free`, `used`; null where they are not counted or measured."""
    jobs: Mapping[str, int]
    """How many are `running` and `waiting`."""
    running: tuple[Mapping[str, Any], ...]
    """The largest first."""
    idle: tuple[Mapping[str, Any], ...]
    """Those with idle GPUs, the worst first."""
    waiting: tuple[Mapping[str, Any], ...]
    """Who waits longest first, with the reason and `eta_s`; the `jobs` of an `array` are one."""
    today: Mapping[str, Any]
    """Hours of this day (UTC) that were held, measured idle and lost."""
    any_job: bool
    """Whether there is a job that you may see, over or not."""


@dataclass(frozen=True, slots=True)
class PolicyStatus:
    """The policy that decides."""

    name: str
    chosen: bool
    """Whether an admin chose it while the server ran; it stays then, also after a restart."""
    by: str
    """Who did; empty where nobody chose."""
    at: float | None
    """When."""
    started_with: str
    """The policy of the server's command line or configuration."""
    config: Mapping[str, Any] | None
    """The pipeline, without its queues; null for a policy of somebody's own."""
    origin: str
    """The file or package of a policy of somebody's own."""
    choices: tuple[str, ...]
    """Names that can be chosen."""
    guard: str = ""
    """Of a guarded policy: whether it decides or its fallback does, and why."""


@dataclass(frozen=True, slots=True)
class UserInfo:
    """Somebody who may use this server."""

    name: str
    role: str
    team: str
    created_at: float


@dataclass(frozen=True, slots=True)
class NewUser:
    """A user who was just made, or got a new token: it is shown this once."""

    name: str
    role: str
    team: str
    token: str


@dataclass(frozen=True, slots=True)
class SignInOffer:
    """How one signs in to a server: with an identity provider, or else with a token."""

    oidc: bool
    issuer: str


@dataclass(frozen=True, slots=True)
class SignInStart:
    """A sign-in that was begun: the page to open, and the ticket that ends it."""

    url: str
    ticket: str


@dataclass(frozen=True, slots=True)
class SecretInfo:
    """A secret, without its content: whose it is; everybody's when it is nobody's."""

    name: str
    user: str
    team: str


@dataclass(frozen=True, slots=True)
class Audit:
    """The journal's facts, decided again by the policy that the server had at each time."""

    same: bool
    """Whether every decision came out as recorded."""
    decisions: int
    """Decisions that did, up to the first that did not."""
    first_difference_at: float | None
    """When the first other decision was made."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What happened, and what would have happened."""

    since: float
    until: float
    recorded: Mapping[str, float | None]
    """The figures of what really happened."""
    policies: Mapping[str, Mapping[str, float | None]]
    """The same jobs simulated under each policy, with the run times they turned out to have."""
    audit: Audit
    notes: tuple[str, ...]
    """What was left out or assumed."""
    own: tuple[str, ...] = ()
    """Those of the policies that are what the server decides by."""


@dataclass(frozen=True, slots=True)
class ExportedTrace:
    """The journal as something to simulate."""

    jobs: Mapping[str, list[Any]]
    """A native trace, by column."""
    nodes: tuple[Mapping[str, Any], ...]
    """The nodes, as a cluster file has them."""
    notes: tuple[str, ...]
    journal: Mapping[str, Any] | None = None
    """What a trace has no columns for, for a simulation that is to be as close as can be."""
