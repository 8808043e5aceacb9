"""Running jobs from the last in the order on: who would give way, and how much that brings.

Looked at only as far as a pass needs, and kept between passes as far as nothing changed there: the
jobs at the end of a ranking are those of which the least happens. A cache: a fresh one says the
same.
"""

from __future__ import annotations

from bisect import bisect_left
from math import inf

from presage.core.plan import Plan
from presage.core.ports import Predictor, SortKey
from presage.model.job import Job
from presage.policy.order import HasStanding, Order, Place
from presage.policy.reclaim import can_stop
from presage.policy.runs import Run, Runs

__all__ = ["Last"]


class Last:
    """Running jobs that can be stopped, the last first. Each has a number, from 0."""

    def __init__(self, runs: Runs, order: Order) -> None:
        self._all = runs
        self._order = order
        self._differ, self._edge = _never_differ, _everywhere
        if isinstance(order, HasStanding):
            self._differ, self._edge = order.differ, order.edge
        self._runs: list[Run] = []
        self._milli: list[int] = []
        """What each and all behind it hold."""
        self._depth: list[int] = []
        """How many runs, of whatever kind, were looked at for it."""
        self._firm: int | None = None
        """How many of them are kept when time goes on; None: all. Of those whose standings are
        alike only keys tell the order, and keys are rounded anew every time."""

    def begin(self, plan: Plan, predict: Predictor) -> None:
        """A pass begins: nobody has lost, and what changed is forgotten."""
        self._plan, self._predict = plan, predict
        self._left = -1
        """How many of them have not lost and are behind those that did; -1: nobody lost."""
        self._line = self._all.look(plan, predict)
        self._asked: SortKey | None = None
        runs, kept = self._runs, bisect_left(self._depth, self._all.untouched)
        self._all.untouched = inf
        if self._firm is not None:
            kept, self._firm = min(kept, self._firm), None
        if kept and not self._differ(-inf, runs[kept - 1][0], plan.now):
            kept = 0
        if kept < len(runs):
            del runs[kept:], self._milli[kept:], self._depth[kept:]

    def is_behind(self, number: int, key: SortKey) -> bool:
        """Whether one of them comes after a waiting job with that key."""
        if key is not self._asked:  # the same is asked for several times in a row
            self._asked, self._ends = key, self._edge(key, self._plan.now)
        low, high = self._ends
        run = self._runs[number]
        place = run[:2]
        return place > high or (place >= low and self._key(run) > key)

    def hold(self, key: SortKey, enough: int) -> bool:
        """Whether jobs behind a key hold so many milli-GPUs."""
        milli = self._milli
        while not milli or milli[-1] < enough:
            if milli and not self.is_behind(len(milli) - 1, key):
                return False
            if not self._look():
                return False
        return self.is_behind(bisect_left(milli, enough), key)

    def loser(self, over: int) -> int:
        """The first who has to go when so much is held too much; -1 when nobody is left."""
        milli, left = self._milli, self._left
        if left < 0:
            while (not milli or milli[-1] < over) and self._look():
                pass
            left = len(milli)
        at = bisect_left(milli, over, 0, left)
        return at if at < left else left - 1

    def drop(self, number: int) -> Job:
        """This one lost."""
        self._left = number
        return self._runs[number][2]

    def _look(self) -> bool:
        """Take more of them into account; False when there are none."""
        line, now, depth = self._line, self._plan.now, self._depth
        size = len(line)
        end = size - depth[-1] if depth else size
        while end:
            begin = end - 1
            run = line[begin]
            if not begin or self._differ(line[begin - 1][0], run[0], now):
                if can_stop(run[2]):
                    self._add(run, size - begin)
                    return True
            else:
                begin = self._first_alike(begin)
                if self._look_at_alike(begin, end):
                    return True
            end = begin
        return False

    def _first_alike(self, begin: int) -> int:
        """From which one on all stand alike."""
        line, now = self._line, self._plan.now
        while begin and not self._differ(line[begin - 1][0], line[begin][0], now):
            begin -= 1
        return begin

    def _look_at_alike(self, begin: int, end: int) -> bool:
        """The same for some of whom only keys tell the order."""
        stoppable = [run for run in self._line[begin:end] if can_stop(run[2])]
        if len(stoppable) > 1:
            self._firm = len(self._runs) if self._firm is None else self._firm
            stoppable.sort(key=self._key, reverse=True)
        for run in stoppable:
            self._add(run, len(self._line) - begin)
        return bool(stoppable)

    def _add(self, run: Run, depth: int) -> None:
        milli, held = self._milli, run[2].held_milli
        milli.append(milli[-1] + held if milli else held)
        self._runs.append(run)
        self._depth.append(depth)

    def _key(self, run: Run) -> SortKey:
        return self._order(run[2], self._plan, self._predict)


def _never_differ(lower: float, higher: float, now: float) -> bool:
    return False


def _everywhere(key: SortKey, now: float) -> tuple[Place, Place]:
    return (-inf, -inf), (inf, inf)
