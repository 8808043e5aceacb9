"""Jobs that hold devices, kept sorted between passes: by when they end, or by how they rank.

Where a run stands is worked out when it begins, when something about it changes, and when what was
said of it no longer holds; a pass that looks at a few runs costs as much as those. It is only a
cache: a fresh one says the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf

from presage.core.changes import Reader
from presage.core.plan import Plan
from presage.core.ports import Predictor
from presage.model.job import Job

__all__ = ["Run", "Runs", "Standing"]

Standing = Callable[[Job, float, Predictor], tuple[float, float]]
"""Where a run stands at a time, and until when it will stand there unless the job changes."""
Run = tuple[float, int, Job]
"""Where a run stands, the submission sequence of its job, and the job."""


class Runs:
    """All jobs that hold devices, in the order in which they stand."""

    def __init__(self, standing: Standing) -> None:
        self.line: list[Run] = []
        self.untouched = inf
        """How many of the last in line are as they were when the reader last set it to inf."""
        self._standing = standing
        self._reader = Reader()
        self._predict: tuple[Predictor, str] | None = None
        self._known: dict[Job, tuple[float, float]] = {}
        self._due: list[Run] = []
        """A heap: until when runs stand where they do. Some entries are out of date."""

    def look(self, plan: Plan, predict: Predictor) -> list[Run]:
        """Bring it up to date. The list is not the caller's."""
        changed = self._reader.read(plan.state.changes)
        source = predict, predict.version
        if changed is None or source != self._predict:
            self._predict = source
            self._known, self._due, self.line, self.untouched = {}, [], [], 0
            changed = list(plan.state.active.values())
        due, now = self._due, plan.now
        while due and due[0][0] < now:
            until, _, job = heappop(due)
            if job in self._known and self._known[job][1] == until:
                changed.append(job)
        known, active = self._known, plan.state.active
        for job in dict.fromkeys(changed) if len(changed) > 1 else changed:
            if job in known or job.spec.id in active:
                self._place(job, plan, predict)
        return self.line

    def next_change(
        self, plan: Plan, predict: Predictor, change: Callable[[Job, float], float | None]
    ) -> float:
        """The soonest of what `change` says of the runs; it is never before a run's `until`. Runs
        that changed since the last look stay where they are until the next."""
        changed = self._reader.peek(plan.state.changes)
        if changed is None:
            self.look(plan, predict)
        fresh, active, now, soonest = set(changed or ()), plan.state.active, plan.now, inf
        for job in fresh:
            if job.allocation and active.get(job.spec.id) is job:
                at = change(job, now)
                if at is not None and at < soonest:
                    soonest = at
        due, known, looked = self._due, self._known, list[Run]()
        while due and due[0][0] < soonest:
            entry = heappop(due)
            job = entry[2]
            if job in known and known[job][1] == entry[0]:
                looked.append(entry)
                at = None if job in fresh else change(job, now)
                if at is not None and at < soonest:
                    soonest = at
        for entry in looked:
            heappush(due, entry)
        return soonest

    def _place(self, job: Job, plan: Plan, predict: Predictor) -> None:
        known, line, seq = self._known, self.line, job.seq
        old = known.pop(job, None)
        if old is not None:
            at = bisect_left(line, (old[0], seq))
            del line[at]
            if len(line) - at < self.untouched:
                self.untouched = len(line) - at
        if job.allocation and plan.state.active.get(job.spec.id) is job:
            where, until = known[job] = self._standing(job, plan.now, predict)
            run = where, seq, job
            at = bisect_left(line, run)
            if len(line) - at < self.untouched:
                self.untouched = len(line) - at
            line.insert(at, run)
            if until < inf:
                heappush(self._due, (until, seq, job))
