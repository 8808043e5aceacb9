"""Plans of manifests, "at epoch 30: 4 workers": turned into requests as jobs reach the epochs.

An epoch counts as reached when progress reports pass it. What was reached before a restart of the
server is in the job's row, written in the same commit as the request, so no request is lost and
none overrides what the owner asked for later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from presage.model import event as ev
from presage.store.records import JobRow

__all__ = ["ElasticPlans"]

Steps = tuple[tuple[int, int], ...]
"""Epochs and workers, by epoch."""


class ElasticPlans:
    """The plans of the jobs that run. `row` finds a job's row; it is asked once for each job."""

    def __init__(self, row: Callable[[str], JobRow | None]) -> None:
        self._row = row
        self._plans: dict[str, Steps] = {}
        self._reached: dict[str, float] = {}

    def requests(self, facts: Sequence[ev.Fact]) -> list[ev.Fact]:
        """What these facts of the executor make due."""
        scalings: list[ev.Fact] = []
        for fact in facts:
            if isinstance(fact, ev.Progress) and "epoch" in fact.detail:
                workers = self._due(fact.job, fact.detail["epoch"])
                if workers is not None:
                    scalings.append(ev.ScaleRequested(fact.job, workers))
            elif isinstance(fact, ev.JobExited):
                self._plans.pop(fact.job, None)
                self._reached.pop(fact.job, None)
        return scalings

    def _due(self, job: str, epoch: float) -> int | None:
        """The latest step of the plan between the epoch before and this one."""
        if job not in self._plans:
            row = self._row(job)
            plan = ((row.manifest or {}).get("elastic") or ()) if row is not None else ()
            self._plans[job] = tuple(sorted((step["epoch"], step["workers"]) for step in plan))
            before = (row.progress or {}).get("epoch", 0) if row is not None else 0
            self._reached[job] = float(before)
        before = self._reached[job]
        self._reached[job] = epoch
        due = [workers for at, workers in self._plans[job] if before < at <= epoch]
        return due[-1] if due else None
