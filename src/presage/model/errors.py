"""The exception tree. Raise these for anything a person can act on; never for control flow.

PresageError                 anything Presage says on purpose; has a machine code and an exit
code
├── UserError                the input is wrong; the message says what to do        (exit 2)
│   ├── TraceError           a trace that cannot be read or simulated
│   ├── ClusterError         a cluster description that makes no sense
│   └── ConfigError          a policy or queue configuration that makes no sense
├── StoreUnavailable         the journal cannot be written just now; try again       (exit 75)
├── MissingExtra             an optional dependency is not installed                (exit 2)
└── InternalError            Presage broke one of its own rules; please report it   (exit 70)
    ├── IllegalTransition    an event asked for a job state that the lifecycle forbids
    ├── InvariantBroken      State.check() found a contradiction
    └── StaleLease           a former leader tried to write to the journal
"""

from __future__ import annotations

__all__ = [
    "ClusterError",
    "ConfigError",
    "IllegalTransition",
    "InternalError",
    "InvariantBroken",
    "MissingExtra",
    "PresageError",
    "StaleLease",
    "StoreUnavailable",
    "TraceError",
    "UserError",
]


class PresageError(Exception):
    """Anything Presage says on purpose. `code` is stable for machines; the text is for people."""

    code = "error"
    exit_code = 1


class UserError(PresageError):
    """The input is wrong, and the message says what to do about it."""

    code = "user_error"
    exit_code = 2


class TraceError(UserError):
    """A trace cannot be read, or a row of it makes no sense."""

    code = "bad_trace"


class ClusterError(UserError):
    """A cluster description cannot be read or makes no sense."""

    code = "bad_cluster"


class ConfigError(UserError):
    """A policy, queue or placement configuration cannot be read or makes no sense."""

    code = "bad_config"


class MissingExtra(PresageError):
    """An optional dependency is needed; the message carries the install command."""

    code = "missing_extra"
    exit_code = 2

    def __init__(self, extra: str, what: str) -> None:
        super().__init__(f"{what} needs the extra '{extra}': pip install 'presage[{extra}]'")


class StoreUnavailable(PresageError):
    """The database cannot be reached or written just now; trying again later is right."""

    code = "store_unavailable"
    exit_code = 75


class InternalError(PresageError):
    """Presage broke one of its own rules."""

    code = "internal_error"
    exit_code = 70


class IllegalTransition(InternalError):
    """An event asked for a job state that the lifecycle forbids; the text tells the job's
    story."""

    code = "illegal_transition"


class InvariantBroken(InternalError):
    """`State.check()` found a contradiction; the text names it."""

    code = "invariant_broken"


class StaleLease(InternalError):
    """A deciding loop wrote to the journal with a lease that another loop has taken over."""

    code = "stale_lease"
