"""What the HTTP API answers with, as values: the server documents them, the client returns them.

Times are seconds since 1970. A field with a default may be left out of an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from presage.model.estimate import Estimates
from presage.model.job import Reason

__all__ = [
    "Accepted",
    "ArrayBest",
    "ArrayExplanation",
    "ArraySummary",
    "ArrayTold",
    "AtRisk",
    "AwaitedJob",
    "BestMember",
    "DryRun",
    "Eta",
    "Explanation",
    "Foreseen",
    "Help",
    "HistoryEntry",
    "JobStatus",
    "JobSummary",
    "LeftOutFile",
    "LogPiece",
    "ReasonCount",
    "Removal",
    "RemovedJob",
    "ResultFile",
    "ResultsPage",
    "ResultsSummary",
    "ScaleAccepted",
    "Status",
    "StatusChange",
    "Submitted",
    "WaitingJob",
]


class Status(StrEnum):
    """Where a job is, as users see it."""

    QUEUED = "QUEUED"
    """It waits for its turn and for room."""
    DOWNLOADING = "DOWNLOADING"
    """It has its devices and is being started: folder, data, containers."""
    PROCESSING = "PROCESSING"
    """Its workers run."""
    STORING = "STORING"
    """They ended well, and its results are being stored."""
    COMPLETED = "COMPLETED"
    """It ended well."""
    FAILED = "FAILED"
    """It ended badly; the reason says how."""
    HALTED = "HALTED"
    """It was stopped with a checkpoint and can be resumed."""
    CANCELLED = "CANCELLED"
    """Somebody ended it."""


@dataclass(frozen=True, slots=True)
class Eta:
    """In how many seconds from now a job starts: the most likely middle, and an interval that
    holds in four of five cases. Null lies beyond what can be foreseen."""

    p10: float | None
    p50: float | None
    p90: float | None
    age_s: float
    """How long ago this was estimated."""


@dataclass(frozen=True, slots=True)
class Foreseen(Estimates):
    """What was foreseen of a job when it was submitted."""

    text: str = ""
    """All of it for people."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A job is on disk, or a request about one."""

    id: str
    status: Status


@dataclass(frozen=True, slots=True)
class Submitted(Accepted):
    """A new job is on disk."""

    eta_s: Eta | None
    """When it starts; null when that is not known yet, which is usual in this moment: ask for the
    job."""
    jobs: int | None = None
    """How many jobs it is; null when it is no array."""


@dataclass(frozen=True, slots=True)
class ScaleAccepted(Accepted):
    """The request is on disk; the job changes its size when there is room."""

    workers: int
    """How many were asked for."""


@dataclass(frozen=True, slots=True)
class JobSummary:
    """A job in a list."""

    id: str
    name: str
    owner: str
    queue: str
    status: Status
    stage: str
    reason: Reason
    attempt: int
    workers: int
    nodes: tuple[str, ...]
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    exit_code: int | None
    progress: Mapping[str, Any] | None
    """What the job last reported: `done` from 0 to 1, `at`, and numbers of its own."""
    eta_s: Eta | None
    """When it starts; null when it does not wait or nothing is known."""
    array: str | None = field(default=None, kw_only=True)
    """The array it is a member of."""
    params: Mapping[str, Any] | None = field(default=None, kw_only=True)
    """Its parameters: of a member, its point of the sweep."""


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A job entered a status."""

    at: float
    status: Status
    reason: Reason


@dataclass(frozen=True, slots=True)
class AtRisk:
    """What stopping, halting or scaling a job now would lose, at most."""

    declared: bool
    """Whether its manifest has `checkpoint`."""
    checkpoint_at: float | None
    """When its newest checkpoint was written."""
    lose_s: float
    """Seconds of work since then, or since this run started."""
    ask: bool
    """Whether there is no checkpoint of this run, so that a person should be asked first."""
    text: str


@dataclass(frozen=True, slots=True)
class JobStatus(JobSummary):
    """Everything about one job."""

    estimates: Foreseen | None
    """What was foreseen when it was submitted; null when nothing was."""
    history: tuple[HistoryEntry, ...]
    results: ResultsSummary | None = None
    """What its runs left so far; null when that is nothing."""
    removed_at: float | None = None
    """When what was kept of it was removed."""
    folder: str | None = None
    """SHA-256 of the work folder that was uploaded with it."""
    at_risk: AtRisk | None = None
    """What stopping it by hand would lose; null when it does not run."""


@dataclass(frozen=True, slots=True)
class ResultsSummary:
    """The results of a job in numbers, as of the end of its latest run."""

    files: int
    bytes: int
    left_out: int
    """Files that it wrote and that are not kept."""
    url: str | None
    """Where they were copied, too."""


@dataclass(frozen=True, slots=True)
class ResultFile:
    """One result."""

    path: str
    bytes: int
    changed_at: float


@dataclass(frozen=True, slots=True)
class LeftOutFile:
    """A file that a job wrote and that is not kept."""

    path: str
    bytes: int
    why: str
    """`limit` for one that is more than the job may keep, else what went wrong."""


@dataclass(frozen=True, slots=True)
class ResultsPage:
    """The results of a job, by path."""

    id: str
    count: int
    """Of all that were asked for; a page may have less."""
    bytes: int
    files: tuple[ResultFile, ...]
    left_out: tuple[LeftOutFile, ...]
    more_left_out: int
    url: str | None
    """Where they were copied, too."""
    next: str | None
    """Give it as `after` for the next page; null on the last one."""
    removed_at: float | None = None
    """When they were removed, since they were too old or too much."""


@dataclass(frozen=True, slots=True)
class RemovedJob:
    """A job whose files are gone, or would be."""

    id: str
    status: Status
    ended_at: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Removal:
    """What was removed, or with `dry_run` would be."""

    removed: tuple[RemovedJob, ...]
    bytes: int
    dry_run: bool


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A part of what a worker wrote; where it ends is nothing special."""

    attempt: int
    worker: str
    offset: int
    """Where it begins in the worker's log, in bytes."""
    at: float | None
    """When it was written, to about a second; null when nobody looked."""
    text: str
    """Bytes that are no UTF-8 are lone surrogates (PEP 383)."""
    workers: int
    """How many workers are being read."""


@dataclass(frozen=True, slots=True)
class StatusChange:
    """News: a job entered a status."""

    job: str
    at: float
    status: Status
    reason: Reason


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job that waits."""

    id: str
    reason: Reason
    ahead: int
    """Jobs of its queue that were submitted before it and still wait."""


@dataclass(frozen=True, slots=True)
class Help:
    """A change, and when the job would start with it."""

    change: str
    eta_s: Eta | None


@dataclass(frozen=True, slots=True)
class AwaitedJob:
    """A job or an array that another one waits for."""

    id: str
    on: str
    """How it must end: `ok`, `any` or `failed`."""
    status: str
    """Of a job, its status; of an array, how many of its jobs are left."""
    ends_s: Eta | None
    """When it is expected to end; null when that is not known."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job is where it is."""

    id: str
    status: Status
    reason: Reason
    ahead: int | None
    """Jobs of its queue that were submitted before it and still wait."""
    ahead_jobs: tuple[str, ...]
    """The first of them that you may know of."""
    eta_s: Eta | None
    helps: tuple[Help, ...] | None
    """Changes with which it would start notably earlier, the best first; null when that was not
    worked out in time."""
    estimates: Foreseen | None
    """What was foreseen when it was submitted; null when nothing was."""
    after: tuple[AwaitedJob, ...] = ()
    """Jobs and arrays that it still waits for."""
    alerts: tuple[str, ...] = ()
    """Trouble that it is in, a sentence each."""
    failure: str = ""
    """How likely it fails, and what speaks for it; empty while too few jobs have ended here."""


@dataclass(frozen=True, slots=True)
class ArraySummary:
    """Jobs that were submitted as one."""

    id: str
    name: str
    owner: str
    queue: str
    submitted_at: float
    ended_at: float | None
    """When the last of them ended; null while one is not over."""
    size: int
    """How many jobs it has."""
    at_once: int | None
    """How many of them may go at once; null for any number."""
    counts: Mapping[str, int]
    """Jobs by status."""
    workers: int
    """How many they have now, together."""
    done: float
    """The share of them that is over, 0 to 1."""
    metric: str | None
    """By which of their metrics they are compared."""
    mode: str
    """`min` or `max`."""
    best: float | None
    """The best that was last reported of it."""


@dataclass(frozen=True, slots=True)
class BestMember:
    """A member of an array, and what it reported."""

    id: str
    status: Status
    value: float
    """Of the metric, as last reported."""
    params: Mapping[str, Any]
    progress: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class ArrayBest:
    """The best members of an array."""

    id: str
    metric: str
    mode: str
    best: tuple[BestMember, ...]
    """The best first; none that failed."""
    reported: tuple[str, ...]
    """Metrics that members reported, where none reported this one."""


@dataclass(frozen=True, slots=True)
class ReasonCount:
    """A reason, and how many jobs have it."""

    reason: Reason
    jobs: int
    example: str
    """One of them."""


@dataclass(frozen=True, slots=True)
class ArrayExplanation:
    """Why the jobs of an array are where they are."""

    id: str
    counts: Mapping[str, int]
    reasons: tuple[ReasonCount, ...]
    """Of those that wait or ended otherwise than well, the most frequent first."""
    next_eta_s: Eta | None
    """When the next of them starts; null when none waits or nothing is known."""
    last_eta_s: Eta | None
    """When the last of them starts."""


@dataclass(frozen=True, slots=True)
class ArrayTold:
    """A request about all jobs of an array is on disk."""

    id: str
    jobs: int
    """How many it concerns."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """What would become of a job if it was submitted now. Nothing is kept."""

    name: str
    queue: str
    starts_now: bool
    nodes: tuple[str, ...]
    """Where it would start, in the most likely case; empty when that cannot be foreseen."""
    eta_s: Eta | None
