"""One step of the deciding loop, shared by simulated and real time: poll, handle, append, act.

Time is an argument: waiting for the next step (jumping or sleeping) is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from presage.core.engine import Engine
from presage.core.ports import Executor, KeepsSnapshots, Store
from presage.core.state import State
from presage.model.errors import InternalError
from presage.model.event import Decision, Event, Fact, Launch, Limit, Resize, Stop, Woke
from presage.model.job import JobState, Reason, ReasonCode, StopIntent

__all__ = ["act", "fold", "recover", "step", "unconfirmed"]


def step(
    engine: Engine,
    executor: Executor,
    store: Store,
    now: float,
    requests: Sequence[Fact] = (),
    *,
    lease: int = 0,
) -> list[Decision]:
    """Take in what the world and its users say, decide, write both down, and only then act."""
    facts = executor.poll(now)
    if requests:
        facts += requests
    wake_at = engine.state.wake_at
    if wake_at is not None and wake_at <= now:
        facts.append(Woke())
    if not facts:
        return []
    decisions = engine.handle(now, facts)
    orders = _orders(executor, decisions) if decisions else ()  # before anything is written down
    store.append(now, facts, decisions, lease=lease)
    for send, decision in orders:
        send(decision)
    return decisions


def act(executor: Executor, decisions: Iterable[Decision]) -> None:
    """Send decisions to the world. Sending one twice does no harm."""
    for send, decision in _orders(executor, decisions):
        send(decision)


_SENT = {Launch: "launch", Stop: "stop", Resize: "resize", Limit: "limit"}
"""The method of an executor for each decision that it has something to do for."""


def _orders(
    executor: Executor, decisions: Iterable[Decision]
) -> list[tuple[Callable[[Any], None], Decision]]:
    """What to call; raises InternalError for what the executor cannot do."""
    sent = _SENT.get
    try:
        return [
            (getattr(executor, name), decision)
            for decision in decisions
            if (name := sent(type(decision))) is not None
        ]
    except AttributeError as lacks:
        raise InternalError(f"{type(executor).__name__} cannot {lacks.name}") from None


def fold(journal: Iterable[tuple[float, Event]], state: State | None = None) -> State:
    """The state that a journal leads to; no policy is asked."""
    state = state if state is not None else State()
    for now, events in groupby(journal, itemgetter(0)):
        state.apply_all(now, map(itemgetter(1), events))
    state.apply_all(state.now, ())  # what ended then is no news
    return state


def unconfirmed(state: State) -> Iterable[Decision]:
    """Decisions that the world may not have heard of: sending them again does no harm."""
    for job in state.active.values():
        if job.state is JobState.STOPPING:
            reason = job.reason or Reason(ReasonCode.REQUESTED, "stopped")
            yield Stop(job.id, job.attempt, job.intent or StopIntent.REQUEUE, reason)
        else:
            yield Launch(job.id, job.attempt, job.allocation)
            if job.resizing is not None:
                yield Resize(job.id, job.attempt, job.resizing)
            if job.limits is not None:
                reason = Reason(ReasonCode.OK, "limits it had")
                yield Limit(job.id, job.attempt, job.limits, reason)


def recover(store: Store) -> tuple[State, int]:
    """The state that a stored journal leads to, from its newest snapshot on, and how many events
    it has."""
    state, position = State(), 0
    if isinstance(store, KeepsSnapshots) and (snapshot := store.load_snapshot()) is not None:
        position, state = snapshot[0], State.restore(snapshot[1])

    def counted() -> Iterable[tuple[float, Event]]:
        nonlocal position
        for item in store.read(position):
            position += 1
            yield item

    fold(counted(), state)
    return state, position
