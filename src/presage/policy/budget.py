"""Budgets of GPU hours: what a queue, each of its users and each of their teams may spend in a
period.

A period is a day, a week (from Monday) or a month of the calendar, in UTC. What counts is GPU time
that was held: `State.spent`, what running jobs have held since, and, of jobs with a time limit,
what they may still hold before the period ends. A job without a limit counts as it runs, so a
budget may be passed by what runs when it is reached; nothing is stopped for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from presage.core.spent import Spender, spender
from presage.core.state import State
from presage.core.workers import least_milli, milli_of
from presage.model.cluster import WHOLE_GPU
from presage.model.job import Job, Reason, ReasonCode

__all__ = ["Budget", "Period", "Spending"]

_HOUR_S = 3600.0


class Period(StrEnum):
    """How long a budget lasts."""

    DAY = "day"
    """From midnight to midnight."""
    WEEK = "week"
    """From Monday to Monday."""
    MONTH = "month"
    """From the first to the first."""

    def bounds(self, now: float) -> tuple[float, float]:
        """When the period of a time began, and when the next one begins."""
        at = datetime.fromtimestamp(max(0.0, now), UTC)
        day = at.replace(hour=0, minute=0, second=0, microsecond=0)
        if self is Period.DAY:
            first, last = day, day + timedelta(days=1)
        elif self is Period.WEEK:
            first = day - timedelta(days=day.weekday())
            last = first + timedelta(days=7)
        else:
            first = day.replace(day=1)
            last = (first + timedelta(days=32)).replace(day=1)
        return first.timestamp(), last.timestamp()

    @property
    def shortest_s(self) -> float:
        """How long such a period lasts at the very least."""
        return {Period.DAY: 1, Period.WEEK: 7, Period.MONTH: 28}[self] * 86_400.0


@dataclass(frozen=True, slots=True)
class Budget:
    """GPU hours of one queue in a period; None has no bound."""

    queue: str
    period: Period
    hours: float | None = None
    user_hours: float | None = None
    """For each user."""
    team_hours: float | None = None
    """For each team."""

    def shares(self, who: Spender) -> Iterator[tuple[str, float, Spender]]:
        """The bounds that a job of somebody is under: in words, in hours, and for whom."""
        queue = f"queue {self.queue}"
        if self.hours is not None:
            yield queue, self.hours, Spender(self.queue, "", "")
        if self.user_hours is not None and who.owner:
            yield f"{who.owner} in {queue}", self.user_hours, Spender(self.queue, who.owner, "")
        if self.team_hours is not None and who.team:
            name = f"team {who.team} in {queue}"
            yield name, self.team_hours, Spender(self.queue, "", who.team)

    def admit(self, job: Job, milli: int, spending: Spending) -> Reason | None:
        """Why a job may not begin to hold so much more, or None."""
        _, end = self.period.bounds(spending.now)
        need = _may_hold_s(job, milli, spending.now, end) / _HOUR_S
        for name, most, whom in self.shares(spender(job)):
            used = spending.of(whom) / _HOUR_S
            if used < most and used + need <= most:
                continue
            text = f"{name} has {_h(used)} of the {_h(most)} GPU hours of this {self.period} spent"
            if used < most:
                text += f" or promised; this job may take {_h(need)}"
            when = datetime.fromtimestamp(end, UTC).strftime("%Y-%m-%d %H:%M")
            return Reason(
                ReasonCode.OVER_QUOTA, f"{text}; the next {self.period} begins {when} UTC"
            )
        return None

    def never(self, job: Job) -> Reason | None:
        """Why a job can never run on this budget, or None."""
        span = self.period.shortest_s
        need = _may_hold_s(job, least_milli(job), 0.0, span) / _HOUR_S
        for name, most, _ in self.shares(spender(job)):
            if least_milli(job) and (most <= 0 or need > most):
                takes = f"it may take {_h(need)} GPU hours" if most > 0 else "it needs GPUs"
                text = f"{takes}; {name} may spend {_h(most)} in a {self.period}"
                return Reason(ReasonCode.NEVER_FITS, f"{text}: give it a shorter time limit")
        return None


class Spending:
    """What was spent and promised in the present period, at one moment of a state."""

    def __init__(self, state: State, period: Period) -> None:
        self.now = state.now
        self._sums: dict[Spender, float] = {}
        start, end = period.bounds(state.now)
        for who, gpu_s in state.spent.since(start):
            self._add(who, gpu_s)
        for job in state.active.values():
            if milli := milli_of(job):
                since = max(job.held_since, start) if state.counts else self.now
                held_s = max(0.0, self.now - since) * milli / WHOLE_GPU
                self._add(spender(job), held_s + _may_hold_s(job, milli, self.now, end))

    def of(self, whom: Spender) -> float:
        """GPU-seconds of a queue, of a user or a team there."""
        return self._sums.get(whom, 0.0)

    def _add(self, who: Spender, gpu_s: float) -> None:
        queue, owner, team = who
        wholes = {Spender(queue, "", ""), Spender(queue, owner, ""), Spender(queue, "", team)}
        for whole in wholes:
            self._sums[whole] = self._sums.get(whole, 0.0) + gpu_s


def _may_hold_s(job: Job, milli: int, now: float, end: float) -> float:
    """GPU-seconds that a job may hold until then, if it says how long it runs at most."""
    limit = job.spec.time_limit_s
    if limit is None:
        return 0.0
    return max(0.0, min(limit - job.ran(now), end - now)) * milli / WHOLE_GPU


def _h(hours: float) -> str:
    return f"{hours:,.1f}".removesuffix(".0")
