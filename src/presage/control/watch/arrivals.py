"""Jobs that are yet to be submitted: drawn by replaying what was submitted before.

Where nothing is kept free for those who wait, whoever comes later and is smaller goes past them:
without these, a large job is foreseen far too early. Each draw replays one stretch of what was
watched, so bursts stay bursts and draws differ as much as stretches did. It goes on for as long
as was watched, a day at most: beyond that nobody is taken to come.

Values only: the caller says what the time is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from presage.model.job import JobSpec

__all__ = ["PastArrivals"]

_KEPT = 5_000
_MOST = 1_000
"""Of one draw: more take longer than a forecast may."""
_DAY_S = 86_400.0
_PAST_S = 14 * _DAY_S


class PastArrivals:
    """What was submitted, the latest of it."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, JobSpec]] = deque(maxlen=_KEPT)

    def add(self, at: float, spec: JobSpec) -> None:
        """A job was submitted."""
        self._seen.append((at, spec))

    def draw(
        self, now: float, since: float, rng: np.random.Generator
    ) -> Sequence[tuple[float, JobSpec]]:
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
            (now + wait_s, replace(spec, id=f"{spec.id}+", after=()))
            for when, spec in self._seen
            if began < when <= now and (wait_s := (when - at) % span_s) < ahead_s
        ]
        return sorted(coming, key=lambda one: one[0])[:_MOST]
