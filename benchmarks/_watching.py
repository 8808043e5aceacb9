"""What the benchmarks of `presage watch` share: the jobs of a day, and a watcher that sees the
times of a day that goes by faster."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from presage.control.seat import Seat
from presage.control.watch.watcher import ClusterWatcher
from presage.core.ports import ClusterSource
from presage.layout import Layout
from presage.model.errors import WatchError
from presage.model.watched import SeenCluster, SeenEnd, SeenJob, SeenRun
from presage.store import open_store

__all__ = ["Task", "a_day", "watch"]

LIMITS_H = (1, 2, 4, 8, 24)


@dataclass(frozen=True, slots=True)
class Task:
    """A job to submit: seconds of the day."""

    at_s: float
    run_s: float
    limit_h: int
    gpus: int
    name: str


def a_day(hours: float, gpus: int, load: float, seed: int, sizes: dict[int, float]) -> list[Task]:
    """Jobs of twelve users who run the same few things again and again, more by day than by
    night; together they want `load` of the GPUs. `sizes` says how often
    somebody asks for how many."""
    rng = np.random.default_rng(seed)
    kinds = []
    for user in range(12):
        for kind in range(3):
            size = int(rng.choice(list(sizes), p=list(sizes.values())))
            usual = float(np.exp(rng.normal(np.log(2700.0), 1.0)))
            over = float(rng.choice([1.3, 2.0, 4.0, 8.0]))
            limit = next((h for h in LIMITS_H if h * 3600 >= usual * over), LIMITS_H[-1])
            kinds.append((f"u{user}-k{kind}", size, usual, limit))
    tasks: list[Task] = []
    wanted = load * gpus * hours * 3600
    while wanted > 0:
        name, size, usual, limit = kinds[rng.integers(len(kinds))]
        run_s = float(usual * np.exp(rng.normal(0.0, 0.35)))
        while True:
            at_s = float(rng.uniform(0, hours * 3600))
            if rng.random() < 0.6 + 0.4 * np.sin((at_s / 86_400 - 0.25) * 2 * np.pi):
                break
        tasks.append(Task(at_s, run_s, limit, size, name))
        wanted -= min(run_s, limit * 3600) * size
    return sorted(tasks, key=lambda task: task.at_s)


class Stretched:
    """A source whose times go as fast as those of the day that is replayed."""

    def __init__(self, source: ClusterSource, began: float, faster: float) -> None:
        self._source, self._began, self._faster = source, began, faster
        self.kind, self.name = source.kind, source.name

    def clock(self) -> float:
        """Now, in the time of the day."""
        return self._slow(time.time())

    def look(self, since: float, alive: Collection[str]) -> SeenCluster:
        """What the source sees, with other times."""
        sight = self._source.look(self._began + (since - self._began) / self._faster, alive)
        jobs = tuple(self._job(job) for job in sight.jobs)
        return SeenCluster(self._slow(sight.now), jobs, sight.nodes, sight.notes)

    def annotate(self, job: str, text: str) -> None:
        """Nothing is written."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to do."""

    def _slow(self, at: float) -> float:
        return self._began + (at - self._began) * self._faster

    def _end(self, end: SeenEnd | None) -> SeenEnd | None:
        return None if end is None else replace(end, at=self._slow(end.at))

    def _run(self, run: SeenRun) -> SeenRun:
        return replace(run, started_at=self._slow(run.started_at), end=self._end(run.end))

    def _job(self, job: SeenJob) -> SeenJob:
        limit, expected = job.time_limit_s, job.expected_at
        return replace(
            job,
            submitted_at=self._slow(job.submitted_at),
            runs=tuple(self._run(run) for run in job.runs),
            end=self._end(job.end),
            time_limit_s=None if limit is None else limit * self._faster,
            expected_at=None if expected is None else self._slow(expected),
        )


def watch(
    make: Callable[[], ClusterSource], data: Path, began: float, faster: float, every_s: float
) -> None:
    """Look again and again until somebody ends it."""
    layout = Layout(data)
    while True:
        try:
            inner = make()
            break
        except WatchError as error:  # it is down at this moment
            print(f"watcher: {error}", file=sys.stderr, flush=True)
            time.sleep(every_s)
    source = Stretched(inner, began, faster)
    store = open_store(f"sqlite:///{layout.database}")
    past_s = 86_400.0
    watcher = ClusterWatcher(
        store, source, Seat(layout.lock).take(), past_s=past_s, clock=source.clock
    )
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    while not stopping:
        until = time.monotonic() + every_s
        try:
            watcher.turn()
        except Exception as error:
            print(f"watcher: {error}", file=sys.stderr, flush=True)
        watcher.keep_lease()
        time.sleep(max(0.0, until - time.monotonic()))
    watcher.close()
