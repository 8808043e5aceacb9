"""One step of the deciding loop, shared by simulated and real time: poll, handle, append, act.

Time is an argument: waiting for the next step (jumping or sleeping) is the caller's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from presage.core.engine import Engine
from presage.core.ports import CanLimit, CanResize, Executor, Store
from presage.core.state import State
from presage.model.event import Decision, Event, Fact, Launch, Limit, Resize, Stop, Woke
from presage.model.job import Reason, ReasonCode, StopIntent

__all__ = ["act", "fold", "step"]


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
    store.append(now, facts, decisions, lease=lease)
    if decisions:
        act(executor, decisions)
    return decisions


def act(executor: Executor, decisions: Iterable[Decision]) -> None:
    """Send decisions to the world. Sending one twice does no harm."""
    for decision in decisions:
        if isinstance(decision, Launch):
            executor.launch(decision)
        elif isinstance(decision, Stop):
            executor.stop(decision)
        elif isinstance(decision, Resize):
            if isinstance(executor, CanResize):
                executor.resize(decision)
            else:  # it goes on from its checkpoint when it is placed again
                why = Reason(ReasonCode.REQUESTED, "stopped to be resized")
                executor.stop(Stop(decision.job, decision.attempt, StopIntent.REQUEUE, why))
        elif isinstance(decision, Limit) and isinstance(executor, CanLimit):
            executor.limit(decision)


def fold(journal: Iterable[tuple[float, Event]], state: State | None = None) -> State:
    """The state that a journal leads to; no policy is asked."""
    state = state if state is not None else State()
    for now, event in journal:
        state.apply(now, event)
    state.ended.clear()
    return state
