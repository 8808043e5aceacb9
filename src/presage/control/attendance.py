"""Who is with a job: clients that are attached, and when those that keep a job alive were last
heard of.

In memory alone. A server that starts anew gives every client the whole grace period to be heard
of again. Any thread may use it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["HEARTBEAT", "INTERACTIVE", "Attendance"]

HEARTBEAT = "presage/heartbeat"
"""The label of a job that ends when nobody keeps it alive, with its grace period in seconds."""
INTERACTIVE = "presage/interactive"
"""The label of a job that people work with while it runs; such a one can be idle."""


class Attendance:
    """Clients by job; times are those of `clock`."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._attached: Counter[str] = Counter()
        self._used: dict[str, float] = {}
        self._beats: dict[str, float] = {}

    def beat(self, job: str) -> None:
        """The client that keeps a job alive was heard of."""
        with self._lock:
            self._beats[job] = self._clock()

    def used(self, job: str) -> None:
        """Somebody did something with a job."""
        with self._lock:
            self._used[job] = self._clock()

    @contextmanager
    def attached(self, job: str) -> Iterator[None]:
        """A client is with a job while this lasts."""
        with self._lock:
            self._attached[job] += 1
        try:
            yield
        finally:
            with self._lock:
                self._attached[job] -= 1
                self._used[job] = self._clock()

    def last_beat(self, job: str, since: float) -> float:
        """When a client was last heard of; `since`, if that is later or it never was."""
        with self._lock:
            return max(since, self._beats.get(job, since))

    def last_use(self, job: str, since: float) -> float:
        """When somebody last did something with a job; now, while a client is attached."""
        with self._lock:
            if self._attached[job]:
                return self._clock()
            return max(since, self._used.get(job, since))

    def forget(self, jobs: set[str]) -> None:
        """Keep nothing of jobs but of these."""
        with self._lock:
            for kept in (self._used, self._beats):
                for job in kept.keys() - jobs:
                    del kept[job]
            for job in [job for job, count in self._attached.items() if not count]:
                del self._attached[job]
