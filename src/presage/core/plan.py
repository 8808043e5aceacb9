"""A plan: decisions being made, each applied to the state at once, and undoable inside an attempt.

What a policy sees in a plan is therefore exactly what a journal will fold to. A what-if is a
transaction:

    with plan.attempt() as keep:
        plan.stop(victim, …)
        if plan_fits(job):
            keep()

Whatever was not kept is taken back when the block ends. A plan never copies the state.

A policy that raises leaves the state in the middle of its pass: nothing of it was journaled, so
fold the journal again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from presage.core.state import State
from presage.model.cluster import Resources, Worker
from presage.model.event import Decision, Launch, Limit, Reject, Reserve, Resize, Stop, WakeAt
from presage.model.job import Job, JobState, Reason, ReasonCode, StopIntent

__all__ = ["Plan"]

_PENDING = JobState.PENDING
_TO_RESIZE = Reason(ReasonCode.REQUESTED, "stopped to be resized")


class Plan:
    """Decisions of one engine call, over the state they change."""

    __slots__ = ("_attempts", "_memos", "decisions", "now", "state")

    def __init__(self, state: State) -> None:
        self.state = state
        self.now = state.now
        self.decisions: list[Decision] = []
        self._memos: list[Any] = []
        self._attempts = 0

    def place(self, job: Job, workers: tuple[Worker, ...]) -> None:
        """Launch these workers; a pending job gets a new attempt."""
        attempt = job.attempt + 1 if job.state is _PENDING else job.attempt
        self._do(Launch(job.spec.id, attempt, workers))

    def stop(self, job: Job, intent: StopIntent, reason: Reason) -> None:
        """Stop a run; its devices are released when the executor says so."""
        self._do(Stop(job.id, job.attempt, intent, reason))

    def resize(self, job: Job, workers: tuple[Worker, ...]) -> None:
        """Change a running job to exactly these workers; where the executor cannot, stop it and
        let it wait: it goes on from its checkpoint."""
        if self.state.can(Resize):
            self._do(Resize(job.id, job.attempt, workers))
        else:
            self.stop(job, StopIntent.REQUEUE, _TO_RESIZE)

    def limit(self, job: Job, limits: Resources, reason: Reason) -> None:
        """Hold a running job's workers to less CPU and memory than they asked for."""
        self._do(Limit(job.id, job.attempt, limits, reason))

    def reserve(self, job: Job, workers: tuple[Worker, ...]) -> None:
        """Hold room for a pending job, part of which is still being released."""
        self._do(Reserve(job.id, workers))

    def reject(self, job: Job, reason: Reason) -> None:
        """End a pending job that can never run here."""
        self._do(Reject(job.id, reason))

    def wake_at(self, at: float) -> None:
        """Ask to be called at this time, unless an earlier call is already asked for."""
        due = self.state.wake_at
        if due is None or at < due or due <= self.now:
            self._do(WakeAt(at))

    @contextmanager
    def attempt(self) -> Iterator[Callable[[], None]]:
        """A transaction: what happens inside is taken back unless the yielded function was
        called."""
        mark = len(self.decisions)
        self._attempts += 1
        kept = False

        def keep() -> None:
            nonlocal kept
            kept = True

        try:
            yield keep
        finally:
            self._attempts -= 1
            if not kept:
                while len(self.decisions) > mark:
                    self.state.undo(self.decisions.pop(), self._memos.pop())
            elif not self._attempts:
                self._memos.clear()

    def _do(self, decision: Decision) -> None:
        if self._attempts:
            self._memos.append(self.state.memo(decision))
        self.state.apply(self.now, decision)
        self.decisions.append(decision)
