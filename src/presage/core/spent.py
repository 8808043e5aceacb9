"""GPU time that was spent, by day: what budgets of GPU hours are held against.

Counted when a run ends or was resized, so only facts change it; what a run has held since then is
the reader's to add. A day is 86,400 seconds from midnight UTC. Part of what a journal folds to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Self

from presage.core.workers import milli_of
from presage.model.cluster import WHOLE_GPU
from presage.model.job import Job

__all__ = ["DAYS_KEPT", "DAY_S", "Spender", "Spent", "spender"]

DAY_S = 86_400.0
DAYS_KEPT = 32
"""A month and a day; to change it, journal it."""


class Spender(NamedTuple):
    """Whose GPU time it is."""

    queue: str
    owner: str
    team: str


def spender(job: Job) -> Spender:
    """Whose GPU time a job spends."""
    return Spender(job.spec.queue, job.spec.owner, job.spec.team)


class Spent:
    """GPU-seconds by day and by who spent them."""

    def __init__(self) -> None:
        self._days: dict[int, dict[Spender, float]] = {}

    def count(self, now: float, job: Job) -> None:
        """Add what a job held since it was last counted."""
        self.add(spender(job), milli_of(job), job.held_since, now)

    def add(self, who: Spender, milli: int, since: float, until: float) -> None:
        """Somebody held so many milli-GPUs from one time to another."""
        while since < until and milli:
            day = int(since // DAY_S)
            end = min(until, (day + 1) * DAY_S)
            if day not in self._days:
                self._days[day] = {}
                for old in [known for known in self._days if known <= day - DAYS_KEPT]:
                    del self._days[old]
            of_day = self._days[day]
            of_day[who] = of_day.get(who, 0.0) + (end - since) * milli / WHOLE_GPU
            since = end

    def since(self, at: float) -> Iterator[tuple[Spender, float]]:
        """What was spent from midnight of a time on."""
        first = int(at // DAY_S)
        for day, of_day in self._days.items():
            if day >= first:
                yield from of_day.items()

    def copy(self) -> Self:
        """One of its own."""
        copy = type(self)()
        copy._days = {day: dict(of_day) for day, of_day in self._days.items()}
        return copy

    def rows(self) -> list[list[int | str | float]]:
        """As JSON values, oldest first."""
        return [
            [day, *who, gpu_s]
            for day, of_day in sorted(self._days.items())
            for who, gpu_s in sorted(of_day.items())
        ]

    @classmethod
    def of(cls, rows: Iterable[tuple[int, str, str, str, float]]) -> Self:
        """What `rows` wrote."""
        made = cls()
        for day, queue, owner, team, gpu_s in rows:
            made._days.setdefault(day, {})[Spender(queue, owner, team)] = float(gpu_s)
        return made
