"""What goes into and comes out of the tables beside the journal: plain frozen values.

Times are seconds since 1970. No database here, so whoever only passes them on can import them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = [
    "ArrayRow",
    "AuditEntry",
    "Delivery",
    "JobChange",
    "JobRow",
    "Leader",
    "Notification",
    "Token",
    "Transition",
    "User",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job as its users see it."""

    id: str
    name: str
    owner: str
    submitted_at: float
    manifest: Mapping[str, Any] | None
    """What was submitted, with secrets by reference only; a listing leaves it out."""
    team: str = ""
    queue: str = "default"
    status: str = "QUEUED"
    stage: str = ""
    reason_code: str = "ok"
    reason_text: str = ""
    attempt: int = 0
    workers: int = 0
    """How many it has now."""
    nodes: tuple[str, ...] = ()
    """Where they are."""
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    progress: Mapping[str, Any] | None = None
    folder: str | None = None
    """SHA-256 of the work folder that was uploaded with it."""
    estimates: Mapping[str, Any] | None = None
    """What was foreseen of it when it was submitted."""
    array: str | None = None
    """The array it is a member of."""
    params: Mapping[str, Any] | None = None
    """Its values of the array's parameters."""
    metric: float | None = None
    """What it last reported of the array's metric."""
    removed_at: float | None = None
    """When its files were removed; it is no longer listed then."""
    seq: int = 0
    """Its place in the order of submission, from 1; the store gives it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """What became different about a job; None leaves a column as it is."""

    job: str
    at: float
    status: str | None = None
    """Its new status; every change that has one is kept as a transition, with the reason."""
    reason_code: str | None = None
    reason_text: str | None = None
    stage: str | None = None
    attempt: int | None = None
    workers: int | None = None
    nodes: tuple[str, ...] | None = None
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    progress: Mapping[str, Any] | None = None
    metric: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayRow:
    """Jobs that were submitted as one."""

    id: str
    name: str
    owner: str
    team: str
    queue: str
    submitted_at: float
    size: int
    """How many jobs it has."""
    at_once: int
    """How many of them may go at once; 0 for any number."""
    metric: str
    """What makes one better than another; empty when nothing was said."""
    mode: str
    """`min` or `max`."""
    manifest: Mapping[str, Any]
    """What was submitted, with its sweep."""
    folder: str | None
    seq: int = 0
    """The `seq` of its first job; the store gives it."""


@dataclass(frozen=True, slots=True)
class Transition:
    """A job entered a status."""

    number: int
    """Rises with every transition of any job, in the order of the journal."""
    job: str
    at: float
    status: str
    reason_code: str
    reason_text: str


class Leader(NamedTuple):
    """Who decides now."""

    holder: str
    url: str
    number: int


@dataclass(frozen=True, slots=True)
class Notification:
    """Something to tell an address; it is sent until it arrives."""

    job: str
    url: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message on its way."""

    id: int
    message: Notification
    attempts: int
    """How often it was tried so far."""


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who may do something."""

    name: str
    role: str
    team: str
    created_at: float
    subject: str | None = None
    """Issuer and subject, if an identity provider vouches for them; else this server's own."""


@dataclass(frozen=True, slots=True)
class Token:
    """What a user proves to be one with; only the SHA-256 of it is kept."""

    digest: str
    user: str
    created_at: float
    revoked_at: float | None = None
    expires_at: float | None = None


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Who did what, and when."""

    at: float
    who: str
    what: str
    job: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)
    number: int = 0
    """Rises with every entry; the store gives it."""
