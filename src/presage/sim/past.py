"""What the past of a cluster tells of what is to come: how long jobs run, and who is yet to be
submitted, learned from the events of its journal.

Jobs to come are drawn by replaying what was submitted before. Where nothing is kept free for those
who wait, whoever comes later and is smaller goes past them: without these, a large job is foreseen
far too early. Each draw replays one stretch of what was watched, so bursts stay bursts and draws
differ as much as stretches did. It goes on for as long as was watched, a day at most: beyond that
nobody is taken to come.

Values only: the caller says what the time is. Nothing is foreseen here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from presage.model import event as ev
from presage.model.job import JobSpec
from presage.sim.history import RuntimeHistory

__all__ = ["PastArrivals", "RunLearner"]

_KEPT = 5_000
_MOST = 1_000
"""Of one draw: more take longer than a forecast may."""
_DAY_S = 86_400.0
_PAST_S = 14 * _DAY_S
_LEARNED_EVENTS = 100_000
"""The end of a journal that a start learns from."""


class PastArrivals:
    """What was submitted, the latest of it."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, ev.JobSubmitted]] = deque(maxlen=_KEPT)

    def add(self, at: float, fact: ev.JobSubmitted) -> None:
        """A job was submitted."""
        self._seen.append((at, fact))

    def draw(
        self, now: float, since: float, rng: np.random.Generator
    ) -> Sequence[tuple[float, ev.JobSubmitted]]:
        """Jobs to come, the next first. Everything submitted after `since` was seen: before it,
        only what was still there."""
        began = max(since, now - _PAST_S)
        if len(self._seen) == _KEPT:
            began = max(began, self._seen[0][0])
        span_s, days = now - began, int((now - began) // _DAY_S)
        if span_s <= 0:
            return []
        # From the second day on, at the same time of another day: nights are quiet.
        at = now - _DAY_S * rng.integers(1, days + 1) if days > 1 else rng.uniform(began, now)
        ahead_s = min(span_s, _DAY_S)
        coming = [
            (now + wait_s, replace(one, spec=replace(one.spec, id=f"{one.spec.id}+", after=())))
            for when, one in self._seen
            if began < when <= now and (wait_s := (when - at) % span_s) < ahead_s
        ]
        return sorted(coming, key=lambda one: one[0])[:_MOST]


class RunLearner:
    """How long jobs run and which are submitted, from the events of a journal."""

    def __init__(self) -> None:
        self.history = RuntimeHistory()
        self.arrivals = PastArrivals()
        self._specs: dict[str, JobSpec] = {}
        self._started: dict[str, float] = {}
        self._ran_s: dict[str, float] = {}
        """Seconds of runs that were stopped, to go on later."""
        self.ended: dict[str, tuple[float, float]] = {}
        """Jobs that ended by themselves, when, and after how many seconds of running: for a
        caller that empties it."""

    def heard(self, now: float, *events: ev.Event) -> None:
        """The next events of the journal."""
        for event in events:
            if isinstance(event, ev.JobSubmitted | ev.JobChanged):
                self._specs[event.spec.id] = event.spec
                if isinstance(event, ev.JobSubmitted):
                    self.arrivals.add(now, event)
            elif isinstance(event, ev.JobStarted):
                self._started[event.job] = now if event.at is None else event.at
            elif isinstance(event, ev.JobExited):
                self._exited(now, event)
            elif isinstance(event, ev.CancelRequested | ev.Reject):
                self._specs.pop(event.job, None)
                self._ran_s.pop(event.job, None)

    def _exited(self, now: float, event: ev.JobExited) -> None:
        began = self._started.pop(event.job, None)
        spec = self._specs.get(event.job)
        ended = now if event.at is None else event.at
        ran_s = self._ran_s.pop(event.job, 0.0)
        if began is not None and spec is not None:
            ran_s += max(0.0, ended - began)
            if event.outcome is not ev.Outcome.STOPPED:
                self.history.add(spec, ran_s, ended)
                self.ended[event.job] = ended, ran_s
            elif spec.checkpointable:
                self._ran_s[event.job] = ran_s
        if event.outcome is not ev.Outcome.STOPPED:
            self._specs.pop(event.job, None)

    def read(self, journal: Iterator[tuple[float, ev.Event]]) -> None:
        """The end of a journal, at a start."""
        for now, event in journal:
            self.heard(now, event)

    @staticmethod
    def since(position: int) -> int:
        """Where to begin to read a journal that has so many events."""
        return max(0, position - _LEARNED_EVENTS)
