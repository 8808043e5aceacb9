"""Who of a guarded policy and its fallback decides on this server: judged before the policy first
decides, and every so often since, by `sim.trial` on a copy of the present state.

It reads the journal to learn what comes and how long it runs, works in short spells with rests
between them, and answers with a fact where the judgement changes who decides. What the candidate
cost in the last days is known since this server leads; nobody else has decided since then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from presage.control.advisors import StateReader, Telemetry
from presage.core.guard import GuardedPolicy
from presage.model.event import Fact
from presage.sim.ahead import TimeBox
from presage.sim.past import RunLearner
from presage.sim.trial import Trial

if TYPE_CHECKING:
    from presage.control.deciding import Decider
    from presage.store.sql import SqlStore

__all__ = ["Judging"]

log = logging.getLogger("presage.guard")

_MOST_CPU_S = 20.0
"""CPU time of one judgement: fewer pairs of runs, or shorter ones, where that is not enough."""
_SPELL_S, _REST = 0.005, 4.0
"""It works for so long, and rests so many times as long."""


class Judging:
    """The judge of one server."""

    name = "guard"
    every_s = 1.0
    """How often it looks whether a judgement is due."""

    def __init__(self, store: SqlStore, decides: Callable[[], Decider]) -> None:
        """`decides` says by what it is decided now."""
        self._store, self._decides = store, decides
        self._decider: Decider | None = None
        self._trial: Trial | None = None
        self._position = 0
        """Up to where the journal was read."""
        self._stopping = threading.Event()

    def close(self) -> None:
        """End what is under way soon."""
        self._stopping.set()

    def not_leading(self) -> None:
        """Another server decides, and judges."""
        self._decider = self._trial = None

    def look(self, now: float, ask: StateReader, telemetry: Telemetry) -> Iterable[Fact]:
        """Judge, if a guarded policy decides and it is time to."""
        decider = self._decides()
        if decider is not self._decider:
            self._begin(decider)
        trial = self._trial
        if trial is None:
            return ()
        jobs, waiting = ask(lambda state: (len(state.jobs), len(state.pending)))
        if not jobs or not trial.is_due(now, waiting):
            return ()
        state = ask(lambda state: state.copy())
        self._read(trial, state.now)
        fact = trial.look(max(now, state.now), state)
        if fact is None:
            return ()
        who = fact.candidate if fact.trusted else fact.fallback
        log.log(
            logging.INFO if fact.trusted else logging.WARNING,
            *("%s decides from now on: %s", who, fact.text),
        )
        return (fact,)

    def _begin(self, decider: Decider) -> None:
        """Another policy decides: forget what was known of the one before."""
        self._decider, self._trial = decider, None
        policy = decider.make()
        if isinstance(policy, GuardedPolicy):
            self._trial = Trial(policy, predict=lambda: decider.predict, time_box=self._box)
            self._position = RunLearner.since(self._store.position())

    def _read(self, trial: Trial, until: float) -> None:
        """What the journal has up to the time of a state."""
        for at, event in self._store.read(self._position):
            if at > until:
                break
            trial.heard(at, event)
            self._position += 1

    def _box(self) -> TimeBox:
        mark = time.thread_time()

        def rest() -> None:
            nonlocal mark
            worked = time.thread_time() - mark
            if worked >= _SPELL_S:
                self._stopping.wait(min(_REST * worked, 1.0))
                mark = time.thread_time()

        most_s = 0.0 if self._stopping.is_set() else _MOST_CPU_S
        return TimeBox(time.thread_time, most_s, rest)
