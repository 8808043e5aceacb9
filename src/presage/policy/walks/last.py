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
        self._ranks: list[Place] = []
        """Where they stand and their sequence, both negated, so that they rise."""
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
        ranks, kept = self._ranks, bisect_left(self._depth, self._all.untouched)
        self._all.untouched = inf
        if self._firm is not None:
            kept, self._firm = min(kept, self._firm), None
        if kept and not self._differ(-inf, -ranks[kept - 1][0], plan.now):
            kept = 0
        if kept < len(ranks):
            del self._runs[kept:], ranks[kept:], self._milli[kept:], self._depth[kept:]

    def is_behind(self, number: int, key: SortKey) -> bool:
        """Whether one of them comes after a waiting job with that key."""
        low, high = self._ends_of(key)
        run = self._runs[number]
        place = run[:2]
        return place > high or (place >= low and self._key(run) > key)

    def behind(self, key: SortKey, enough: int) -> int:
        """Milli-GPUs that jobs behind a key hold, counted up to what is enough."""
        low, high = self._ends_of(key)
        ranks, milli, sure = self._ranks, self._milli, (-high[0], -high[1])
        while (not ranks or (ranks[-1] < sure and milli[-1] < enough)) and self._look():
            pass
        count = bisect_left(ranks, sure)
        held = milli[count - 1] if count else 0
        while held < enough and (count < len(ranks) or self._look()):
            run = self._runs[count]
            if run[:2] < low or self._key(run) < key:
                break
            held = milli[count]
            count += 1
        return held

    def _ends_of(self, key: SortKey) -> tuple[Place, Place]:
        """The edge of a key; the same one is asked for several times in a row."""
        if key is not self._asked:
            self._asked, self._ends = key, self._edge(key, self._plan.now)
        return self._ends

    def loser(self, over: int) -> int:
        """The first who has to go when so much is held too much; -1 when nobody is left."""
        milli, left = self._milli, self._left
        if left < 0:
            while (not milli or milli[-1] < over) and self._look():
                pass
            left = len(milli)
        found = bisect_left(milli, over, 0, left)
        return found if found < left else left - 1

    def drop(self, number: int) -> Job:
        """This one lost."""
        self._left = number
        return self._runs[number][2]

    def _look(self) -> bool:
        """Take more of them into account; False when there are none."""
        line, now, differ = self._line, self._plan.now, self._differ
        size = len(line)
        end = size - (self._depth[-1] if self._depth else 0)
        while end:
            begin = end - 1
            while begin and not differ(line[begin - 1][0], line[begin][0], now):
                begin -= 1
            if end - begin == 1:
                if can_stop(line[begin][2]):
                    self._add(line[begin], size - begin)
                    return True
            else:
                found = [run for run in line[begin:end] if can_stop(run[2])]
                if len(found) > 1:
                    self._firm = len(self._runs) if self._firm is None else self._firm
                    found.sort(key=self._key, reverse=True)
                for run in found:
                    self._add(run, size - begin)
                if found:
                    return True
            end = begin
        return False

    def _add(self, run: Run, depth: int) -> None:
        where, seq, job = run
        milli = self._milli
        milli.append(milli[-1] + job.held_milli if milli else job.held_milli)
        self._runs.append(run)
        self._ranks.append((-where, -seq))
        self._depth.append(depth)

    def _key(self, run: Run) -> SortKey:
        return self._order(run[2], self._plan, self._predict)


def _never_differ(lower: float, higher: float, now: float) -> bool:
    return False


def _everywhere(key: SortKey, now: float) -> tuple[Place, Place]:
    return (-inf, -inf), (inf, inf)
