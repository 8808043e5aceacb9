"""The exception tree, whole. Raise these for anything a person can act on; never for control flow.

PresageError                  anything Presage says on purpose: a machine code, an exit code (1)
├── UserError                 the input is wrong; the message says what to do         (exit 2)
│   ├── TraceError            a trace that cannot be read or simulated
│   ├── ClusterError          a cluster description that makes no sense
│   ├── ConfigError           a policy or queue configuration that makes no sense
│   ├── ManifestError         a manifest that cannot be read or makes no sense
│   ├── GraphError            a model whose graph cannot be made
│   ├── TelemetryError        telemetry that cannot be read or makes no sense
│   ├── JournalError          a journal that holds nothing to simulate
│   ├── BundleError           a file that is no bundle of a fitted model
│   ├── NotFitted             a prediction of a model that has learned nothing
│   ├── ProvisionError        a question about sizes that has no answer
│   ├── PackError             a folder that cannot be sent
│   ├── BackupError           a backup that cannot be made, read or restored
│   ├── RunSpecError          a job that an executor cannot read
│   ├── RayUnreachable        no Ray cluster at the address
│   ├── KubernetesError       a Kubernetes cluster does not answer, or said no
│   ├── SlurmUnreachable      no Slurm here, or its controller does not answer
│   ├── SlurmRefused          Slurm does not take what was asked of it
│   └── WatchError            a cluster of somebody else's that cannot be watched
├── MissingExtra              an optional dependency is not installed                 (exit 2)
├── BadRequest                a part of a request is not what it must be
├── TooLarge                  more was sent than is taken
├── Unauthorized              no token, or none that is known
├── Denied                    the role does not allow it
├── NotFound                  there is no such thing, or none that one may know of
├── Conflict                  it cannot be done in the state that things are in
│   ├── Ambiguous             a name or the beginning of an id stands for several
│   └── NeverFits             no state of the cluster could hold the job
├── NotLeading                this server does not decide now
├── NoSpace                   the disk of the server is full
├── StoreUnavailable          the journal cannot be written just now; try again       (exit 75)
├── ApiError                  a client's: the server said no                          (exit 2)
├── Unreachable               a client's: no server answers                           (exit 3)
└── InternalError             Presage broke one of its own rules; please report it    (exit 70)
    ├── IllegalTransition     an event asked for a job state that the lifecycle forbids
    ├── InvariantBroken       State.check() found a contradiction
    └── StaleLease            a former leader tried to write to the journal

`presage.server.problems` maps them to HTTP; docs/reference/errors.md says what to do about each.
"""

from __future__ import annotations

__all__ = [
    "Ambiguous",
    "ApiError",
    "BackupError",
    "BadRequest",
    "BundleError",
    "ClusterError",
    "ConfigError",
    "Conflict",
    "Denied",
    "GraphError",
    "IllegalTransition",
    "InternalError",
    "InvariantBroken",
    "JournalError",
    "KubernetesError",
    "ManifestError",
    "MissingExtra",
    "NeverFits",
    "NoSpace",
    "NotFitted",
    "NotFound",
    "NotLeading",
    "PackError",
    "PresageError",
    "ProvisionError",
    "RayUnreachable",
    "RunSpecError",
    "SlurmRefused",
    "SlurmUnreachable",
    "StaleLease",
    "StoreUnavailable",
    "TelemetryError",
    "TooLarge",
    "TraceError",
    "Unauthorized",
    "Unreachable",
    "UserError",
    "WatchError",
]


class PresageError(Exception):
    """Anything Presage says on purpose. `code` is stable for machines; the text is for people."""

    code = "error"
    exit_code = 1


# -- the input is wrong ---------------------------------------------------------------------------


class UserError(PresageError):
    """The input is wrong, and the message says what to do about it."""

    code = "user_error"
    exit_code = 2
    mistakes: tuple[str, ...] = ()
    """All that is wrong with a file, a line each, where more than the first was found."""


class TraceError(UserError):
    """A trace cannot be read, or a row of it makes no sense."""

    code = "bad_trace"


class ClusterError(UserError):
    """A cluster description cannot be read or makes no sense."""

    code = "bad_cluster"


class ConfigError(UserError):
    """A policy, queue or placement configuration cannot be read or makes no sense."""

    code = "bad_config"


class ManifestError(UserError):
    """A manifest cannot be read or makes no sense."""

    code = "bad_manifest"


class GraphError(UserError):
    """A model whose graph cannot be made or read."""

    code = "bad_model"


class TelemetryError(UserError):
    """Telemetry cannot be read, or makes no sense; the message names the place."""

    code = "bad_telemetry"


class JournalError(UserError):
    """A journal holds nothing that could be simulated."""

    code = "bad_journal"


class BundleError(UserError):
    """A file is no bundle, is damaged, or is of a version that this program does not know."""

    code = "bad_bundle"


class NotFitted(UserError):
    """A prediction was asked of an estimator that has learned nothing yet."""

    code = "not_fitted"


class ProvisionError(UserError):
    """A question about sizes that has no answer; the message says what to change."""

    code = "bad_provision"


class PackError(UserError):
    """A folder cannot be sent with a job."""

    code = "bad_folder"


class BackupError(UserError):
    """A backup cannot be made, is broken or too new, or would replace something."""

    code = "bad_backup"


class RunSpecError(UserError):
    """A `job.json` is missing, or lacks what it takes to run the job."""

    code = "bad_job"


class RayUnreachable(UserError):
    """There is no Ray cluster at the address, or it cannot be used from here."""

    code = "ray_unreachable"


class WatchError(UserError):
    """A cluster of somebody else's cannot be watched, or nothing is known of it; `down` says that
    it does not answer now and may do so later."""

    code = "cannot_watch"

    def __init__(self, message: str, *, down: bool = False) -> None:
        super().__init__(message)
        self.down = down


class KubernetesError(UserError):
    """A Kubernetes cluster does not answer, or said no; `status` is the HTTP status it said that
    with, 0 when nobody answered, 400 when there is nobody to ask."""

    code = "kubernetes_error"

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class SlurmUnreachable(UserError):
    """There is no Slurm here that can be used, or its controller does not answer now."""

    code = "slurm_unreachable"


class SlurmRefused(UserError):
    """Slurm does not take a command: no such partition, no room on any node, not allowed."""

    code = "slurm_refused"


class MissingExtra(PresageError):
    """An optional dependency is needed; the message carries the install command."""

    code = "missing_extra"
    exit_code = 2

    def __init__(self, extra: str, what: str) -> None:
        super().__init__(f"{what} needs the extra '{extra}': pip install 'presage[{extra}]'")


# -- what a server answers ------------------------------------------------------------------------


class BadRequest(PresageError):
    """A part of the request is not what it must be."""

    code = "bad_request"


class TooLarge(PresageError):
    """More was sent than is taken."""

    code = "too_large"


class Unauthorized(PresageError):
    """No token, or one that is not known (any more)."""

    code = "unauthorized"


class Denied(PresageError):
    """The token is fine, but the role does not allow this."""

    code = "forbidden"


class NotFound(PresageError):
    """There is no such thing, or none that this user may know of."""

    code = "not_found"


class Conflict(PresageError):
    """It cannot be done in the state that things are in."""

    code = "conflict"


class Ambiguous(Conflict):
    """A name, or the beginning of an id, stands for several; the message lists them."""

    code = "ambiguous"


class NeverFits(Conflict):
    """No state of this cluster could hold a job."""

    code = "never_fits"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name} could never start here: {why}")


class NotLeading(PresageError):
    """This server does not decide now; another does, or nobody can."""

    code = "not_leading"


class NoSpace(PresageError):
    """There is no room on the disk of the server."""

    code = "no_space"


class StoreUnavailable(PresageError):
    """The database cannot be reached or written just now; trying again later is right."""

    code = "store_unavailable"
    exit_code = 75


# -- what a client meets --------------------------------------------------------------------------


class ApiError(PresageError):
    """The server said no; `code` and the text of an instance are the server's own."""

    code = "refused"
    exit_code = 2

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status, self.code = status, code


class Unreachable(PresageError):
    """No server answers."""

    code = "unreachable"
    exit_code = 3


# -- Presage is wrong -----------------------------------------------------------------------------


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
