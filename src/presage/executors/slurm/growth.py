"""When pilots are added and given back: bounds, pauses, and what follows when Slurm says no. Pure:
time is an argument, and nothing is submitted here.
"""

from __future__ import annotations

__all__ = ["PilotGrowth"]

_AGAIN_S = 10.0
"""How long to wait after a pilot that Slurm did not take; twice as long each further time."""
_LONGEST_S = 600.0
_LONGEST_USELESS_S = 3600.0


class PilotGrowth:
    """How many pilots to add or to give back at a moment."""

    def __init__(self, least: int, most: int, *, idle_s: float, pause_s: float) -> None:
        self._least, self._most = least, max(least, most)
        self._idle_s = idle_s if self._most > self._least else 0.0
        self._pause_s = pause_s
        self._useless = 0
        """Pilots in a row that were given back before anything had run on them."""
        self._refused = 0
        """How often in a row Slurm did not take one."""
        self._wanted: int | None = None
        self._add_at = 0.0
        self._grow_at = 0.0
        self._surplus_since: float | None = None

    def want(self, nodes: int) -> None:
        """What the jobs need, as the server says it."""
        self._wanted = nodes

    @property
    def follows(self) -> bool:
        """Whether there may be more pilots at some times than at others."""
        return self._most > self._least

    def missing(self, now: float, there: int, *, limited: bool) -> int:
        """How many pilots to submit now, besides those that run or wait. While one waits because
        of a limit of Slurm's (`limited`), none is added beyond the smallest number."""
        if now < self._add_at:
            return 0
        if there < self._least:
            self._add_at = now + _AGAIN_S
            return self._least - there
        more = self._goal(there) - there
        if more <= 0 or limited or now < self._grow_at:
            return 0
        self._grow_at = now + min(self._pause_s * 2**self._useless, _LONGEST_USELESS_S)
        return more

    def surplus(self, now: float, there: int) -> int:
        """How many pilots too many there have been for long enough."""
        more = there - self._goal(there)
        if more <= 0:
            self._surplus_since = None
            return 0
        if self._surplus_since is None:
            self._surplus_since = now
        return more if now - self._surplus_since >= self._idle_s else 0

    def refused(self, now: float) -> None:
        """Slurm did not take a pilot."""
        self._add_at = now + min(_AGAIN_S * 2**self._refused, _LONGEST_S)
        self._refused += 1

    def taken(self) -> None:
        """Slurm took one."""
        self._refused = 0

    def given_back(self, *, was_used: bool) -> None:
        """A pilot that had nothing to do is gone. Jobs may wait for something else than room: one
        that nobody used makes the next pause longer."""
        self._useless = 0 if was_used else min(self._useless + 1, 16)

    def _goal(self, there: int) -> int:
        """How many there should be; as many as there are until the server has said what it needs,
        within the bounds."""
        wanted = there if self._wanted is None else self._wanted
        if not self.follows:
            wanted = self._least
        return max(self._least, min(wanted, self._most))
