"""What a job asks for (`JobSpec`), where it stands (`Job`, `JobState`), and why (`Reason`).

Everything here is a frozen value except `Job`, the one record that changes: only
`core.state.State` writes it, everybody else reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from presage.model.cluster import ANYWHERE, WHOLE_GPU, Resources, Where, Worker
from presage.model.estimate import Estimates
from presage.model.value import value

__all__ = [
    "Dependency",
    "DependsOn",
    "Job",
    "JobSpec",
    "JobState",
    "OomRetry",
    "Placement",
    "Reason",
    "ReasonCode",
    "Role",
    "StopIntent",
    "workers_and_servers",
]


class JobState(StrEnum):
    """Where a job stands. `core.lifecycle` says which moves are allowed."""

    __hash__ = (
        str.__hash__
    )  # Enum's own is written in Python, and states are looked up all the time

    PENDING = "pending"
    """It waits for room; `Engine.explain` says what for."""
    STARTING = "starting"
    """Some or all of its workers were launched; the executor has not confirmed that it runs."""
    RUNNING = "running"
    """All workers it needs are up and it makes progress."""
    STOPPING = "stopping"
    """It was told to stop and still holds its devices; `Job.intent` says what comes next."""
    BLOCKED = "blocked"
    """It waits for other jobs, not for room: no policy sees it; `core.gates` says what for."""
    HALTED = "halted"
    """Stopped by its owner with a checkpoint; waits for a resume request."""
    SUCCEEDED = "succeeded"
    """Ended well."""
    FAILED = "failed"
    """Ended badly, or was rejected; the reason says which."""
    CANCELLED = "cancelled"
    """Ended by its owner."""

    @property
    def ended(self) -> bool:
        """Whether nothing can follow."""
        return self in _ENDED


_RUNNING = JobState.RUNNING  # naming a member looks it up through the class, which is slow


_ENDED = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})


class StopIntent(StrEnum):
    """What becomes of a job once it has stopped."""

    REQUEUE = "requeue"
    """It waits again and continues from its checkpoint."""
    HALT = "halt"
    """It stays halted until its owner resumes it."""
    CANCEL = "cancel"
    """It ends."""


class Placement(StrEnum):
    """How a job wants its workers laid out; without one, the policy's own placement decides."""

    PACK = "pack"
    """On as few machines as possible."""
    SPREAD = "spread"
    """On as many machines as possible."""
    TOPOLOGY = "topology"
    """In one rack, else in one network area, else anywhere."""


class ReasonCode(StrEnum):
    """Machine-readable reasons; users see the text beside it."""

    OK = "ok"
    """Nothing to explain."""
    NO_ROOM = "no_room"
    """The job does not fit into what is free now."""
    QUEUED_BEHIND = "queued_behind"
    """It would fit, but the jobs ahead of it come first."""
    OVER_QUOTA = "over_quota"
    """Its queue may not hold more GPUs or CPUs now, or the GPU hours of this period are spent."""
    RESERVED = "reserved"
    """Devices are being released for it."""
    NEVER_FITS = "never_fits"
    """No state of this cluster could hold it."""
    PREEMPTED = "preempted"
    """It made room for a job that comes before it."""
    DRAINED = "drained"
    """Its node is drained for maintenance."""
    NODE_LOST = "node_lost"
    """A node it ran on went away."""
    REQUESTED = "requested"
    """Somebody asked for it."""
    EXITED = "exited"
    """Its workers ended by themselves."""
    ERROR = "error"
    """Its workers ended with an error."""
    OUT_OF_MEMORY = "out_of_memory"
    """It needed more memory than it was given or than the device had."""
    LAUNCH_FAILED = "launch_failed"
    """The executor could not start it."""
    TIME_LIMIT = "time_limit"
    """It ran longer than it may."""
    IDLE = "idle"
    """Nobody was attached to it and it did nothing for longer than its queue allows."""
    CLIENT_GONE = "client_gone"
    """The client that kept it alive was not heard of for longer than its grace period."""
    DEPENDENCY = "dependency"
    """It waits for other jobs; or one of them ended so that it can never start."""
    AT_ONCE = "at_once"
    """As many of its array as may go at once do."""
    TROUBLE = "trouble"
    """It was in trouble, and its queue has something done about that."""
    STOPPED_EARLY = "stopped_early"
    """Other members of its array do better."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something is as it is: a code for machines and a sentence for people."""

    code: ReasonCode
    text: str


@dataclass(frozen=True, slots=True)
class Role:
    """A kind of worker in a job: how many, and what each of them needs."""

    name: str = "worker"
    resources: Resources = field(default_factory=Resources)
    min: int = 1
    max: int = 1
    gpu_types: tuple[str, ...] = ()
    """GPU types it accepts; empty means any."""
    where: Where = ANYWHERE
    """The nodes that it may be on."""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        key = (self.name, self.resources, self.min, self.max, self.gpu_types, self.where)
        object.__setattr__(self, "_hash", hash(key))

    def __hash__(self) -> int:
        """Made once: jobs are grouped by their roles."""
        return self._hash


SERVER_ROLES = ("ps", "server", "servers")


def workers_and_servers(roles: Sequence[Role]) -> tuple[int, int] | None:
    """Which of two roles are workers and which parameter servers, by the names of roles; None
    where there are others, or no servers."""
    servers = [at for at, role in enumerate(roles) if role.name in SERVER_ROLES]
    return (1 - servers[0], servers[0]) if len(roles) == 2 and len(servers) == 1 else None


@dataclass(frozen=True, slots=True)
class OomRetry:
    """A job that ran out of memory is started again with more, so often, up to a ceiling."""

    times: int = 3
    factor: float = 1.5
    ceiling_mib: int = 0
    """The most memory a worker is ever given; 0 means no ceiling."""


class DependsOn(StrEnum):
    """How a job that another waits for must end."""

    OK = "ok"
    """Well; all members of an array."""
    ANY = "any"
    """In whatever way; all members of an array."""
    FAILED = "failed"
    """Not well: failed or cancelled; one member of an array is enough."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """A job, or an array of jobs, that must end before another starts."""

    job: str
    on: DependsOn = DependsOn.OK


@value
class JobSpec:
    """What was submitted. A gang is a job whose roles have min == max; elastic means min < max."""

    id: str
    roles: tuple[Role, ...]
    owner: str = ""
    queue: str = "default"
    priority: int = 0
    placement: Placement | None = None
    preemptible: bool = True
    checkpointable: bool = True
    shareable: bool = True
    """Whether it may share a device with another job."""
    max_retries: int = 0
    """How often it is started again after it failed by itself."""
    max_lost: int = 100
    """How often it is started again after a run vanished through no fault of its own; a job whose
    runs vanish more often is at fault after all."""
    relaunch: bool = True
    """Whether a launch that failed counts as a failure like any other. What is missing then is
    missing the next time, so jobs are now submitted without; journals of old have it."""
    oom: OomRetry | None = None
    """What follows when it runs out of memory; without it, that is a failure like any other."""
    time_limit_s: float | None = None
    model: str | None = None
    """Reference of the model it trains, for prediction."""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    entrypoint: tuple[str, ...] = ()
    after: tuple[Dependency, ...] = ()
    """What it still waits for, beside room."""
    array: str = ""
    """The array it is a member of."""
    at_once: int = 0
    """How many members of that may be in the queue or running; 0 for any number."""
    team: str = ""
    """That its owner was in when it was submitted."""

    @property
    def min_gpu_milli(self) -> int:
        """GPUs of the smallest allocation it can run on."""
        return sum(role.min * role.resources.gpu_milli for role in self.roles)

    @property
    def elastic(self) -> bool:
        """Whether it can run with different numbers of workers."""
        for role in self.roles:  # noqa: SIM110 (a generator costs four times as much)
            if role.min < role.max:
                return True
        return False


@dataclass(slots=True, eq=False)
class Job:
    """A job in the scheduler. Written by `State` alone."""

    spec: JobSpec
    seq: int
    """Submission order; the last word of every sort key."""
    submitted_at: float
    since: float
    """When it entered its present state."""
    state: JobState = JobState.PENDING
    attempt: int = 0
    """Number of the present or latest run; facts about an older one change nothing."""
    allocation: tuple[Worker, ...] = ()
    """The workers it holds; while a resize is under way, still those it had before."""
    resizing: tuple[Worker, ...] | None = None
    """The allocation it is being resized to."""
    intent: StopIntent | None = None
    """What follows when it is STOPPING."""
    wants: int | None = None
    """Workers of its first role that its owner asked for."""
    wants_of: tuple[tuple[int, int], ...] = ()
    """Workers of its other roles that somebody asked for, by role."""
    reason: Reason | None = None
    failures: int = 0
    lost: int = 0
    """How often a run vanished through no fault of the job."""
    out_of_memory: int = 0
    """How often it ran out of memory; such a job no longer shares a device."""
    progress: float = 0.0
    """Share of its work that is done, as last reported."""
    progress_s: float = 0.0
    """Seconds it had run when that was reported."""
    stage: str = ""
    phase: int | None = None
    limits: Resources | None = None
    """CPU and memory that each worker of its first role is held to, when that is less than it
    asked for."""
    limit_asked: int = 0
    """The run whose limit on shares of GPUs somebody asked for: nobody else changes it."""
    estimates: Estimates | None = None
    """What was foreseen of it when it was submitted."""
    ran_s: float = 0.0
    """Seconds it ran, up to `mark`."""
    gpu_s: float = 0.0
    """GPU-seconds it was given while running, up to `mark`."""
    mark: float = 0.0
    held_milli: int = 0
    """Milli-GPUs it holds now."""
    held_since: float = 0.0
    """Until when the GPU time of its run was counted (`State.spent`), where it is counted."""

    @property
    def id(self) -> str:
        """The id of its spec."""
        return self.spec.id

    def want(self, place: int, workers: int) -> None:
        """Somebody asks for so many workers of a role: as many as it may have."""
        role = self.spec.roles[place]
        count = min(max(workers, role.min), role.max)
        if place:
            self.wants_of = tuple(sorted({**dict(self.wants_of), place: count}.items()))
        else:
            self.wants = count

    def asked(self, role: int) -> int | None:
        """Workers of a role that somebody asked for."""
        return self.wants if role == 0 else dict(self.wants_of).get(role)

    def ran(self, now: float) -> float:
        """Seconds it has run until now, over all attempts."""
        return self.ran_s + (now - self.mark) if self.state is _RUNNING else self.ran_s

    def attained(self, now: float) -> float:
        """GPU-seconds of service until now, over all attempts."""
        if self.state is not _RUNNING:
            return self.gpu_s
        return self.gpu_s + (now - self.mark) * self.held_milli / WHOLE_GPU
