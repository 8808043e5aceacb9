"""Every Protocol of the system on one screen: what can be plugged in, and what it must keep.

Policies and predictors are pure: same inputs, same answers; no clock, no I/O, no random stream.
Executors and stores touch the world. All calls come from one deciding loop, so none of them needs
to be thread-safe towards itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from presage.model.cluster import Node, Worker
from presage.model.estimate import Estimate
from presage.model.event import Decision, Event, Fact, Launch, Limit, Resize, Stop
from presage.model.job import Job, Reason
from presage.model.speed import SpeedBook
from presage.model.watched import SeenCluster

if TYPE_CHECKING:
    from socket import socket

    from presage.core.plan import Plan
    from presage.core.state import State

__all__ = [
    "CanAttach",
    "CanLimit",
    "CanNote",
    "CanResize",
    "ClusterSource",
    "CountsHours",
    "Entry",
    "Executor",
    "Foreknows",
    "HasRemarks",
    "KeepsSnapshots",
    "Knowledge",
    "LearnsSpeeds",
    "Policy",
    "Predictor",
    "SortKey",
    "Store",
    "lacks",
]

SortKey: TypeAlias = tuple[Any, ...]
"""Total: it ends with the submission sequence."""


class Policy(Protocol):
    """How to choose. Gets a plan, changes it, and that is the decision."""

    def schedule(self, plan: Plan, predict: Predictor) -> None:
        """Place, stop, resize, reserve and reject through the plan."""
        ...

    def explain(self, job: Job, plan: Plan, predict: Predictor) -> Reason:
        """Why a pending job waits, in words its owner understands."""
        ...


@runtime_checkable
class CountsHours(Protocol):
    """A policy that may go by GPU time that was spent: the state counts it from the moment that
    `RulesChanged` says so."""

    @property
    def counts_hours(self) -> bool:
        """Whether it does."""
        ...


@runtime_checkable
class Foreknows(Protocol):
    """A policy that can tell beforehand what it would reject."""

    def never(self, job: Job, plan: Plan, predict: Predictor) -> Reason | None:
        """Why no state of this cluster could hold a job, which need not be submitted; None when
        one could."""
        ...


@runtime_checkable
class HasRemarks(Protocol):
    """A policy that can tell when it is not of much use for the jobs there are."""

    def remarks(self, state: State) -> Sequence[str]:
        """A sentence each, for whoever chose the policy."""
        ...


class Predictor(Protocol):
    """What is foreseen of a job."""

    @property
    def version(self) -> str:
        """Another one whenever something else is foreseen, so that answers may be remembered."""
        ...

    def runtime(self, job: Job, workers: Sequence[Worker] = ()) -> Estimate:
        """Seconds of running it needs in all, on these workers or as it asked. The same number for
        any workers says that nobody knows how the job scales."""
        ...

    def utilization(self, job: Job) -> Estimate:
        """Share of a device's compute it keeps busy, 0 to 1."""
        ...

    def memory(self, job: Job) -> Estimate:
        """MiB it needs on each device."""
        ...

    def slowdown(self, job: Job, neighbours: Sequence[Job]) -> Estimate:
        """How many times longer it takes when it shares its devices with these jobs."""
        ...


@runtime_checkable
class LearnsSpeeds(Protocol):
    """A predictor that goes by how fast runs of the cluster were; the engine shows it the book of
    its state, so that it knows what the journal says and no more."""

    def with_speeds(self, speeds: SpeedBook) -> Predictor:
        """One like it that reads this book; it must not write there."""
        ...


class Executor(Protocol):
    """A world that runs jobs. Every call is idempotent per (job, attempt) and returns at once."""

    def nodes(self) -> Sequence[Node]:
        """The nodes that exist now."""
        ...

    def launch(self, decision: Launch) -> None:
        """Start these workers; JobStarted or LaunchFailed follows."""
        ...

    def stop(self, decision: Stop) -> None:
        """Stop a run; JobExited follows, also when its node is gone or it was never seen."""
        ...

    def poll(self, now: float) -> list[Fact]:
        """Facts since the last poll, in the order they happened; the list is the caller's."""
        ...


@runtime_checkable
class CanResize(Protocol):
    """An executor that can change a running job's workers; JobResized follows. Under one that
    cannot, no job grows, and one that would shrink is stopped and waits again."""

    def resize(self, decision: Resize) -> None:
        """Change a run to exactly these workers."""
        ...


@runtime_checkable
class CanLimit(Protocol):
    """An executor that can hold running workers to less CPU and memory."""

    def limit(self, decision: Limit) -> None:
        """Hold each worker of the first role to these limits; never below what it uses now."""
        ...


@runtime_checkable
class CanAttach(Protocol):
    """An executor that lets clients come to a worker that runs. Any thread may ask."""

    def attach(self, job: str, attempt: int, worker: str) -> socket:
        """A connection to whoever guards a worker (by name), who takes it from there; raises
        OSError when nobody does."""
        ...


@runtime_checkable
class CanNote(Protocol):
    """An executor whose world has its own place to tell owners of jobs. Any thread may ask."""

    def note(self, job: str, text: str) -> None:
        """Say something about a job that waits; nothing happens for one that is not known."""
        ...


def lacks(executor: Executor) -> tuple[str, ...]:
    """The names of decisions that an executor cannot carry out: what `RulesChanged` tells."""
    return tuple(
        kind.__name__
        for kind, ability in ((Limit, CanLimit), (Resize, CanResize))
        if not isinstance(executor, ability)
    )


class ClusterSource(Protocol):
    """A cluster that somebody else schedules, to look at; nothing is changed there."""

    kind: str
    """Which scheduler it has: `slurm`, `kubernetes`."""
    name: str
    """What tells it from others of its kind."""

    def look(self, since: float, alive: Collection[str]) -> SeenCluster:
        """Everything that waits and runs now, and what became of the jobs that ended since then
        or that were thought `alive`; raises WatchError while the cluster does not answer."""
        ...

    def annotate(self, job: str, text: str) -> None:
        """Write a note to a job that waits: the one thing that may be written there, and only when
        somebody asked for it. Raises WatchError where that is not allowed."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class Store(Protocol):
    """The journal. An append is durable when it returns; `lease` fences off a former leader."""

    def append(
        self, now: float, facts: Sequence[Fact], decisions: Sequence[Decision], *, lease: int = 0
    ) -> None:
        """Add facts and the decisions that followed from them at the end."""
        ...

    def read(self, since: int = 0) -> Iterable[tuple[float, Event]]:
        """Events from position `since` on, oldest first."""
        ...


@runtime_checkable
class KeepsSnapshots(Protocol):
    """A store that a start need not read from the beginning."""

    def position(self) -> int:
        """How many events the journal has."""
        ...

    def save_snapshot(
        self, position: int, now: float, body: Mapping[str, Any], *, lease: int = 0
    ) -> None:
        """Keep the state that the first `position` events lead to, instead of an older one."""
        ...

    def load_snapshot(self) -> tuple[int, dict[str, Any]] | None:
        """The newest snapshot, and the position from which on to fold the journal."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """Something to keep under a name, as its newest; of that name, the newest `keep` stay, one at
    least."""

    name: str
    body: bytes
    keep: int = 1


class Knowledge(Protocol):
    """What was learned: entries by name, documents (one entry) as well as logs (many). Any thread
    may use it. A former leader is fenced off: its writes raise `StaleLease`."""

    @property
    def epoch(self) -> int:
        """Another one whenever somebody else may have written: what was read under one is of no
        use under another."""
        ...

    def get(self, name: str) -> bytes | None:
        """The newest entry of a name."""
        ...

    def tail(self, name: str, most: int) -> list[bytes]:
        """The newest entries of a name, oldest first."""
        ...

    def write(self, *entries: Entry) -> None:
        """Add these, all or none; durable when it returns."""
        ...
