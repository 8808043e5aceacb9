"""All detectors over the runs of a cluster, step by step: `TroubleWatch` is told what runs, rows
and reports, and says what is wrong at a moment. It keeps windows and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from presage.observe.health.trouble.findings import PRECISION, Trouble, TroubleKind
from presage.observe.health.trouble.gangs import straggler
from presage.observe.health.trouble.growth import filling_disks, full_hosts, growing_memory
from presage.observe.health.trouble.marks import bad_metric, gpu_errors, idle_gpus
from presage.observe.health.trouble.nodes import RunEnd, RunEnds
from presage.observe.health.trouble.pauses import no_progress, stopped_workers
from presage.observe.health.trouble.runs import LiveRun, WatchedRun
from presage.observe.health.trouble.surroundings import (
    crowded_workers,
    lossy_networks,
    wrong_clocks,
)
from presage.observe.health.trouble.windows import WorkerWindows
from presage.telemetry.rows import Row

__all__ = ["USUAL_RULES", "TroubleRules", "TroubleWatch"]

_LOOK_ROWS = 30
"""Rows of a worker that may come between two looks; more of them are old, and read late."""
_MOST_MOVES = 32
"""Attempts of a job whose straggler is remembered."""
_MOST_MOVED = 1000


@dataclass(frozen=True, slots=True)
class TroubleRules:
    """What can be set."""

    pace: float = 1.0
    """How long healthy jobs take to start using their GPUs, against two minutes."""


USUAL_RULES = TroubleRules()


class TroubleWatch:
    """Detectors, and the windows they look at."""

    def __init__(self, rules: TroubleRules = USUAL_RULES, ends: Iterable[RunEnd] = ()) -> None:
        self._rules = rules
        self._windows = WorkerWindows()
        self.runs: dict[str, WatchedRun] = {}
        self.ends = RunEnds(ends)
        self.suspected: list[Trouble] = []
        """What the latest look saw, however unlikely."""
        self._slow: dict[str, dict[int, tuple[list[tuple[int, str]], int]]] = {}
        """Job -> attempt -> the places of its workers, and which was slow."""

    # -- what happens ---------------------------------------------------------------------------

    def begin(self, view: LiveRun) -> None:
        """A run has started, or its workers have changed."""
        known = self.runs.get(view.job)
        if known is not None and known.view.attempt == view.attempt:
            if known.view != view:
                for name in known.view.workers.keys() - view.workers.keys():
                    self._windows.drop(view.job, view.attempt, name)
                known.view = view
            return
        self.end(view.job)
        self.runs[view.job] = WatchedRun(view)

    def end(self, job: str) -> None:
        """A run is over, or nobody watches it any more."""
        run = self.runs.pop(job, None)
        if run is not None:
            for name in run.view.workers:
                self._windows.drop(job, run.view.attempt, name)

    def rows(self, job: str, rows: Iterable[Row], now: float) -> None:
        """Telemetry of a run, oldest first, read now."""
        run = self.runs.get(job)
        if run is None:
            return
        known, attempt = run.view.workers, run.view.attempt
        newest = {}
        listed = list(rows)
        for k, row in enumerate(listed):
            newest[row.worker] = k
        caught_up = len(listed) <= _LOOK_ROWS * len(known)
        for k, row in enumerate(listed):
            if row.worker in known:
                seen = now if newest[row.worker] == k and caught_up else np.nan
                self._windows.add((job, attempt, row.worker), row, seen)

    def report(
        self,
        job: str,
        at: float,
        done: float,
        detail: Mapping[str, float],
        not_finite: Iterable[str] = (),
    ) -> None:
        """A run said how far it is."""
        if (run := self.runs.get(job)) is not None:
            run.report(at, done, detail, not_finite)

    # -- what is wrong --------------------------------------------------------------------------

    def look(self, now: float) -> list[Trouble]:
        """What is wrong at this moment, as far as it is likely enough to be told."""
        self.suspected = self.suspicions(now)
        likely = [one for one in self.suspected if one.probability >= PRECISION[one.kind]]
        for one in likely:
            if one.kind is TroubleKind.STRAGGLER:
                self._remember(one)
        return likely

    def suspicions(self, now: float) -> list[Trouble]:
        """Everything that detectors see, however unlikely."""
        windows, runs = self._windows, self.runs
        stopped = stopped_workers(windows, runs, now)
        suspected: list[Trouble | None] = [*stopped, *self.ends.look(now)]
        frozen = {one.job for one in stopped}
        for job, run in runs.items():
            if job not in frozen:
                suspected.append(no_progress(windows, run, now))
            suspected.append(bad_metric(run, now))
            if len(run.view.workers) > 1 and job not in frozen:
                suspected.append(straggler(windows, run, self._moves(run)))
            if any(place.devices for place in run.view.workers.values()):
                suspected.append(idle_gpus(windows, run, now, self._rules.pace))
        leaks = growing_memory(windows, runs, now)
        suspected += leaks
        suspected += full_hosts(windows, runs, leaks, now)
        suspected += filling_disks(windows, runs, now)
        suspected += gpu_errors(windows, runs)
        suspected += lossy_networks(windows, runs)
        suspected += wrong_clocks(windows, runs)
        suspected += crowded_workers(windows, runs)
        return [one for one in suspected if one is not None]

    def _moves(self, run: WatchedRun) -> list[tuple[list[tuple[int, str]], int]]:
        before = self._slow.get(run.view.job, {})
        return [place for attempt, place in before.items() if attempt != run.view.attempt]

    def _remember(self, slow: Trouble) -> None:
        """Which worker of an attempt was slow: it is of use when the job moves."""
        run = self.runs[slow.job]
        names = list(run.view.workers)
        who = slow.text.split(" ", 1)[0]
        if who not in names:
            return
        places = [(run.view.workers[n].index, run.view.workers[n].node) for n in names]
        if slow.job not in self._slow and len(self._slow) >= _MOST_MOVED:
            del self._slow[next(iter(self._slow))]
        attempts = self._slow.setdefault(slow.job, {})
        attempts[slow.attempt] = places, names.index(who)
        if len(attempts) > _MOST_MOVES:
            del attempts[next(iter(attempts))]
