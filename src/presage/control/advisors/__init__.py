"""Advisors: what looks at the state and at telemetry beside the deciding loop, and answers with
facts. Here is their one port.

An advisor never changes the state, never blocks the loop, and does not know whether the cluster is
real: time is an argument, what it asks of the state is answered between two turns, and the
simulator runs the same advisors on simulated telemetry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from presage.core.state import State
from presage.model.event import Fact
from presage.telemetry.rows import Row

__all__ = ["Advisor", "FollowsLease", "StateReader", "Telemetry"]

T = TypeVar("T")


class StateReader(Protocol):
    """Reads the state."""

    def __call__(self, question: Callable[[State], T], /) -> T:
        """The answer to a question, which must be quick and must not change anything."""
        ...


class Telemetry(Protocol):
    """What runs used, as far as it was measured."""

    def new(self, job: str, attempt: int, mark: int = 0) -> tuple[Sequence[Row], int]:
        """Rows of a run after a mark, oldest first, and the mark to ask with next time."""
        ...

    def of(self, job: str) -> Iterable[Row]:
        """The rows of a job, the oldest attempt first."""
        ...

    def latest(self, job: str, attempt: int, workers: int, since: float) -> Sequence[Row]:
        """The latest row of each worker of a run, of those that were measured since then."""
        ...


class Advisor(Protocol):
    """Looks every so often while this server decides."""

    @property
    def name(self) -> str:
        """For logs and threads."""
        ...

    @property
    def every_s(self) -> float:
        """Seconds until it wants to look again."""
        ...

    def look(self, now: float, ask: StateReader, telemetry: Telemetry) -> Iterable[Fact]:
        """What the deciding loop should know."""
        ...


@runtime_checkable
class FollowsLease(Protocol):
    """An advisor that must know when another server decides."""

    def not_leading(self) -> None:
        """Forget what belongs to this server's turn."""
        ...
