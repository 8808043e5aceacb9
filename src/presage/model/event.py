"""Facts that come in from the world and decisions that go out to it: two closed unions, JSON in
and out.

A journal is a sequence of (time, event). Facts about a run name (job, attempt). Adding an event
type means adding it to a union below, a handler to `core.state`, and a line to
docs/reference/events.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from hashlib import sha256
from typing import Any, TypeAlias

from presage.model.cluster import Node, Resources, Worker
from presage.model.codec import decode, encode
from presage.model.estimate import Estimates
from presage.model.job import JobSpec, OomRetry, Reason, StopIntent
from presage.model.speed import SpeedPoint
from presage.model.value import value

__all__ = [
    "DECISIONS",
    "FACTS",
    "AlertCleared",
    "AlertRaised",
    "CancelRequested",
    "Decision",
    "Event",
    "Fact",
    "HaltRequested",
    "JobChanged",
    "JobExited",
    "JobResized",
    "JobStarted",
    "JobSubmitted",
    "Launch",
    "LaunchFailed",
    "Limit",
    "LimitsAdvised",
    "NodeChanged",
    "NodeDown",
    "NodeDraining",
    "NodeUp",
    "Outcome",
    "PhaseChanged",
    "PolicyJudged",
    "Progress",
    "Reject",
    "Remedy",
    "RemedyAdvised",
    "Reserve",
    "Resize",
    "ResumeRequested",
    "RulesChanged",
    "ScaleRequested",
    "SpeedMeasured",
    "StageChanged",
    "Stop",
    "WakeAt",
    "Woke",
    "event_from_json",
    "event_to_json",
]


class Outcome(StrEnum):
    """How a run ended, as the executor saw it."""

    SUCCEEDED = "succeeded"
    """Every worker ended well."""
    FAILED = "failed"
    """A worker ended with an error; the job is retried if its spec allows."""
    OUT_OF_MEMORY = "out_of_memory"
    """It asked for more memory than there was; retried without sharing if its spec allows."""
    STOPPED = "stopped"
    """It was told to stop, and did."""
    LOST = "lost"
    """The run vanished through no fault of its own (a node went away); it is always retried."""


class Remedy(StrEnum):
    """What can be done about a run in trouble; `core.remedies` does it."""

    CHECKPOINT = "checkpoint"
    """It stops with a checkpoint and goes on from there, wherever there is room."""
    RESTART = "restart"
    """The same, and not on the nodes it is to avoid."""
    MEMORY = "memory"
    """It goes on; should it run out of memory, it is started again with more."""


@value
class JobSubmitted:
    """Somebody submitted a job."""

    spec: JobSpec
    estimates: Estimates | None = None
    """What was foreseen of it then."""


@value
class JobChanged:
    """A job that waits asks for something else now: its owner changed it, or a scheduler that is
    watched settled what the job had left open."""

    spec: JobSpec
    """As it is from now on."""


@value
class CancelRequested:
    """Somebody wants a job to end."""

    job: str
    reason: Reason | None = None
    """Why, if not because its owner asked for it."""


@value
class HaltRequested:
    """Somebody wants a job to stop with a checkpoint and wait."""

    job: str


@value
class ResumeRequested:
    """Somebody wants a halted job to go on."""

    job: str


@value
class ScaleRequested:
    """Somebody wants an elastic job to have this many workers of a role."""

    job: str
    workers: int
    role: int = 0
    """Its place among the roles of the job."""


@value
class JobStarted:
    """All workers a job needs are up."""

    job: str
    attempt: int
    at: float | None = None
    """When the executor saw it, if that was before it could say so."""


@value
class JobResized:
    """A resize is complete: workers that left have given back their devices."""

    job: str
    attempt: int


@value
class JobExited:
    """A run is over and holds nothing any more."""

    job: str
    attempt: int
    outcome: Outcome
    reason: Reason | None = None
    exit_code: int | None = None
    """Of the worker that decided the outcome."""
    at: float | None = None
    """When it was over, if that was before anybody could say so."""


@value
class LaunchFailed:
    """The executor could not start a run; nothing of it is left."""

    job: str
    attempt: int
    reason: Reason


@value
class Progress:
    """A run says how much of the job's work is done, 0 to 1."""

    job: str
    attempt: int
    done: float
    detail: Mapping[str, float] = field(default_factory=dict, hash=False)
    """What the run says besides: epoch, step, loss …"""
    not_finite: tuple[str, ...] = ()
    """Metrics that are NaN or infinite."""


@value
class StageChanged:
    """A run entered a finer stage (downloading, storing …)."""

    job: str
    attempt: int
    stage: str


@value
class PhaseChanged:
    """A run's telemetry entered another phase."""

    job: str
    attempt: int
    phase: int


@value
class SpeedMeasured:
    """A run told how fast it is at the size it has."""

    job: str
    attempt: int
    point: SpeedPoint


@value
class RulesChanged:
    """From now on it is decided by these rules."""

    policy: str
    """Its configuration, as JSON."""
    predictor: str
    """The version of what foresees."""
    lacks: tuple[str, ...] = ()
    """Decisions that the executor cannot carry out, by name; nothing of that kind is decided."""
    counts: bool = False
    """Whether GPU time is counted by queue, user and team: the policy has budgets of GPU hours."""
    chosen: str = ""
    """The policy's name where an admin chose it while the server ran; empty: the server was
    started with it."""

    @property
    def digest(self) -> str:
        """Stands for the configuration; empty where there is none."""
        return sha256(self.policy.encode()).hexdigest()[:16] if self.policy else ""


@value
class PolicyJudged:
    """The present was run ahead under a guarded policy and under its fallback: which of the two
    decides from now on."""

    candidate: str
    fallback: str
    trusted: bool
    """Whether the candidate decides; else the fallback does."""
    text: str
    """Why, for people."""
    rules: str = ""
    """The digest of the rules that were judged; under others it means nothing."""


@value
class LimitsAdvised:
    """A run needs no more than these limits on CPU and memory for each worker, as things are; of
    GPUs, what enforced shares of them are to be held to, 0 as before."""

    job: str
    attempt: int
    limits: Resources
    reason: Reason


@value
class AlertRaised:
    """Whoever watches the health of jobs and nodes sees trouble. What speaks for it is kept apart
    from the journal, under the alert's id."""

    alert: str
    """Its id; trouble that comes back soon has the id it had."""
    kind: str
    subject: str
    """`job J`, `worker J/W`, `node N` or `gpu N/D`."""
    probability: float
    text: str
    job: str = ""
    """The job that it is about, or that is on the node."""


@value
class AlertCleared:
    """The trouble of an alert is over."""

    alert: str
    text: str
    job: str = ""


@value
class RemedyAdvised:
    """Something is to be done about a run that is in trouble, as its queue allows."""

    job: str
    attempt: int
    remedy: Remedy
    reason: Reason
    avoid: tuple[str, ...] = ()
    """Nodes that the job is kept off from now on."""
    oom: OomRetry | None = None
    """What follows when it runs out of memory, where its owner did not say."""


@value
class NodeUp:
    """A node joined, came back, or is no longer drained."""

    node: Node


@value
class NodeChanged:
    """A node has the devices it had, and other labels, taints, or room that others hold."""

    node: Node


@value
class NodeDown:
    """A node went away; the executor reports the runs on it as lost."""

    node: str


@value
class NodeDraining:
    """A node takes no new work, and what runs there should move."""

    node: str


@value
class Woke:
    """The time that a WakeAt asked for has come."""


@value
class Launch:
    """Start these workers: all of a gang at once, or any part when a policy switches gang off."""

    job: str
    attempt: int
    workers: tuple[Worker, ...]


@value
class Stop:
    """Stop a run, after a checkpoint where it can take one."""

    job: str
    attempt: int
    intent: StopIntent
    reason: Reason


@value
class Resize:
    """Change a running job to exactly these workers."""

    job: str
    attempt: int
    workers: tuple[Worker, ...]


@value
class Limit:
    """Hold each worker of a run's first role to this CPU and memory, never more than it asked
    for; and its enforced share of a GPU to `gpu_milli` of its time and `gpu_memory_mib`, 0 for
    what it asked for."""

    job: str
    attempt: int
    limits: Resources
    reason: Reason


@value
class Reserve:
    """Hold this room, part of it still being released, for a job; no workers drops the hold.

    The executor has nothing to do for it.
    """

    job: str
    workers: tuple[Worker, ...]


@value
class WakeAt:
    """Call the engine again at this time even if nothing happens."""

    at: float


@value
class Reject:
    """A job can never run here; it ends as FAILED with this reason."""

    job: str
    reason: Reason


Fact: TypeAlias = (
    JobSubmitted
    | JobChanged
    | CancelRequested
    | HaltRequested
    | ResumeRequested
    | ScaleRequested
    | JobStarted
    | JobResized
    | JobExited
    | LaunchFailed
    | Progress
    | StageChanged
    | PhaseChanged
    | SpeedMeasured
    | RulesChanged
    | PolicyJudged
    | LimitsAdvised
    | AlertRaised
    | AlertCleared
    | RemedyAdvised
    | NodeUp
    | NodeChanged
    | NodeDown
    | NodeDraining
    | Woke
)
Decision: TypeAlias = Launch | Stop | Resize | Limit | Reserve | WakeAt | Reject
Event: TypeAlias = Fact | Decision

FACTS: tuple[type[Any], ...] = Fact.__args__
DECISIONS: tuple[type[Any], ...] = Decision.__args__
_BY_NAME = {kind.__name__: kind for kind in (*FACTS, *DECISIONS)}


def event_to_json(event: Event) -> dict[str, Any]:
    """An event as JSON values, its type under `type`."""
    body = encode(event)
    assert isinstance(body, dict)
    return {"type": type(event).__name__, **body}


def event_from_json(data: dict[str, Any]) -> Event:
    """The event that `event_to_json` wrote; raises ValueError for anything else."""
    body = dict(data)
    kind = _BY_NAME.get(str(body.pop("type", None)))
    if kind is None:
        raise ValueError(f"unknown event type {data.get('type')!r}")
    event: Event = decode(kind, body)
    return event
