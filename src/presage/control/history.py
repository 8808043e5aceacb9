"""What the cluster and its jobs looked like over time, for charts: a recorder and what it kept.

The server that decides looks every few seconds and writes what it saw to what it knows
(`Knowledge`): samples of the cluster, and of each job that runs, its progress. Nothing is decided
on them. Reads are bounded, however long a job runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from threading import Lock

import numpy as np
import numpy.typing as npt

from presage.control.advisors import StateReader, Telemetry
from presage.control.charts import chart_entry
from presage.core.ports import Entry, Knowledge
from presage.core.state import State
from presage.model.cluster import WHOLE_GPU
from presage.model.event import Fact
from presage.store.records import JobRow
from presage.store.sql import SqlStore

__all__ = ["FIELDS", "ClusterHistory", "HistoryRecorder", "RunUse"]

FIELDS = (
    "at",
    "nodes",
    "gpus",
    "gpus_held",
    "pending",
    "running",
    "cpus_asked",
    "cpus_used",
    "memory_asked_mib",
    "memory_used_mib",
    "gpus_busy",
)
"""Of one sample of the cluster. What is used is measured of jobs that asked for an amount. New
fields come last: what was kept before them has 0 there."""

_FINE, _COARSE = "cluster/fine", "cluster/coarse"
_LOOK_S = 5.0
_FINE_S = 2 * 86_400.0
"""Samples stay as they are for so long; older ones become means of `_COARSE_S`."""
_COARSE_S = 300.0
_MOST_FINE, _MOST_COARSE = 40_000, 60 * 288
"""More than two days of samples, and 60 days of means."""
_THIN = 360
"""Samples between two times that old ones become means."""
_POINTS_OF_A_JOB = 2000
"""Progress is written down less often the longer a job runs."""
_ALIVE = ("DOWNLOADING", "PROCESSING", "STORING")
_STALE_S = 30.0
_IDLE = 0.05
"""A GPU that is less busy than this does nothing worth the name."""

Rows = npt.NDArray[np.float64]


class ClusterHistory:
    """Samples of the cluster: those of two days as they are, and means of older ones."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._lock = Lock()
        self._epoch: int | None = None
        self._coarse = self._fine = _rows([])
        self._fresh: list[list[float]] = []

    def add(self, sample: Mapping[str, float]) -> None:
        """Keep a sample."""
        row = [round(float(sample[name]), 3) for name in FIELDS]
        with self._lock:
            self._catch_up()
            self._fresh.append(row)
            means = self._thin(row[0]) if len(self._fresh) % _THIN == 0 else _rows([])
            keep = len(self._fine) + len(self._fresh)
            epoch, self._epoch = self._epoch, None  # what cannot be written is read again
            self._knowledge.write(
                *(_entry(_COARSE, mean, _MOST_COARSE) for mean in means.round(3).tolist()),
                _entry(_FINE, row, min(keep, _MOST_FINE)),
            )
            self._epoch = epoch

    def since(self, at: float, points: int) -> dict[str, list[float]]:
        """Samples from a time on, as means of at most so many equal spans; one list a field."""
        with self._lock:
            self._catch_up()
            rows = np.concatenate([self._coarse, self._fine, _rows(self._fresh)])
        rows = rows[rows[:, 0] >= at]
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        if len(rows) > points:
            span = (rows[-1, 0] - rows[0, 0]) / points
            rows = _means(rows, span)
        return {name: rows[:, k].round(3).tolist() for k, name in enumerate(FIELDS)}

    def _catch_up(self) -> None:
        """Read what there is, if another server may have written."""
        epoch = self._knowledge.epoch
        if epoch != self._epoch:
            self._coarse = _read(self._knowledge.tail(_COARSE, _MOST_COARSE))
            self._fine = _read(self._knowledge.tail(_FINE, _MOST_FINE))
            self._fresh, self._epoch = [], epoch

    def _thin(self, now: float) -> Rows:
        """Make means of the samples that are too old to stay as they are, whole spans only."""
        rows = np.concatenate([self._fine, _rows(self._fresh)])
        old = rows[:, 0] < (now - _FINE_S) // _COARSE_S * _COARSE_S
        means = _means(rows[old], _COARSE_S)
        self._fine, self._fresh = rows[~old], []
        self._coarse = np.concatenate([self._coarse, means])[-_MOST_COARSE:]
        return means


def _entry(name: str, body: object, keep: int) -> Entry:
    return Entry(name, json.dumps(body).encode(), keep)


def _read(lines: list[bytes]) -> Rows:
    """Samples; those that an earlier version kept have fewer fields."""
    rows = json.loads(b"[" + b",".join(lines) + b"]")
    return _rows([row + [0.0] * (len(FIELDS) - len(row)) for row in rows])


def _rows(samples: list[list[float]]) -> Rows:
    return np.asarray(samples, dtype=np.float64).reshape(-1, len(FIELDS))


def _means(rows: Rows, span_s: float) -> Rows:
    """The mean of the samples of each span."""
    if not len(rows):
        return rows
    spans = np.floor(rows[:, 0] / max(span_s, 1e-9)).astype(np.int64)
    starts = np.flatnonzero(np.diff(spans, prepend=spans[0] - 1))
    counts = np.diff(starts, append=len(rows))
    return np.asarray(np.add.reduceat(rows, starts) / counts[:, None])


# -- recording ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunUse:
    """What a run used when it was last looked at, of what it holds."""

    gpus_measured: int
    """GPUs of which the driver says how busy they are."""
    gpus_idle: int
    """Those of them that do next to nothing."""
    cpus_used: float


class HistoryRecorder:
    """An advisor that tells nothing: it looks at the cluster and at what runs, and keeps it for
    charts."""

    name = "history"
    every_s = _LOOK_S

    def __init__(self, store: SqlStore, knowledge: Knowledge, history: ClusterHistory) -> None:
        self._store, self._knowledge, self._history = store, knowledge, history
        self._seen: dict[str, tuple[object, float]] = {}
        self._turn = 0
        self._before: Mapping[str, RunUse] = {}
        self.uses: Mapping[str, RunUse] = {}
        """Of runs at the latest look; a new mapping each time, so any thread may read it."""

    def look(self, now: float, ask: StateReader, telemetry: Telemetry) -> Iterable[Fact]:
        """Keep a sample of the cluster every other time, and the progress of jobs each time."""
        if self._turn % 2 == 0:
            cluster, asked = ask(_cluster)
            used, uses = _used(telemetry, asked, now)
            self._history.add({"at": now, **cluster, **used})
            self.uses = {job: _steady(use, self._before.get(job)) for job, use in uses.items()}
            self._before = uses
        self._look_at_jobs(now)
        self._turn += 1
        return ()

    def _look_at_jobs(self, now: float) -> None:
        """Write down the progress and the size of every job that runs, where they are new."""
        alive, after = set[str](), None
        while True:
            rows = self._store.jobs.list(statuses=_ALIVE, limit=1000, after=after)
            alive |= {row.id for row in rows}
            self._knowledge.write(*(new for row in rows for new in self._progress(row, now)))
            if len(rows) < 1000:
                break
            after = rows[-1].seq
        gone = self._seen.keys() - alive
        ended = [row for row in map(self._store.jobs.get, gone) if row is not None]
        self._knowledge.write(
            *(new for row in ended for new in self._progress(row, now, last=True))
        )
        for job in gone:
            del self._seen[job]

    def _progress(self, row: JobRow, now: float, *, last: bool = False) -> Iterator[Entry]:
        mark = (row.attempt, row.workers, row.progress)
        before, written = self._seen.get(row.id, (None, 0.0))
        pause = (now - (row.started_at or now)) / _POINTS_OF_A_JOB
        if mark == before or (now - written < pause and not last):
            self._seen.setdefault(row.id, (mark, now))
            return
        self._seen[row.id] = (mark, now)
        line: dict[str, object] = {"at": round(now, 3), "attempt": row.attempt}
        line |= {"workers": row.workers, "progress": dict(row.progress or {})}
        yield chart_entry(row.id, "progress", line)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a run asked for, and where its workers are."""

    job: str
    attempt: int
    cpus: float
    memory_mib: float
    places: Mapping[str, tuple[str, tuple[int, ...]]]
    """Worker -> its node and devices."""


def _cluster(state: State) -> tuple[dict[str, float], list[_Asked]]:
    """The cluster of this moment, and what runs on it asked for."""
    up = [name for name in state.capacity.index if name not in state.down]
    nodes = (state.capacity.nodes[state.capacity.index[name]] for name in up)
    asked = []
    for job in state.active.values():
        roles, workers = job.spec.roles, job.allocation
        cpu = sum(roles[worker.role].resources.cpu_milli for worker in workers)
        memory = sum(roles[worker.role].resources.memory_mib for worker in workers)
        places = {
            f"{roles[worker.role].name}-{worker.index}": (worker.node, worker.devices)
            for worker in workers
        }
        asked.append(_Asked(job.id, job.attempt, cpu / 1000, memory, places))
    figures = {
        "nodes": len(up),
        "gpus": sum(len(node.devices) for node in nodes),
        "gpus_held": sum(state.usage.values()) / WHOLE_GPU,
        "pending": len(state.pending),
        "running": len(state.active),
        "cpus_asked": sum(run.cpus for run in asked),
        "memory_asked_mib": sum(run.memory_mib for run in asked),
    }
    return figures, asked


def _used(
    telemetry: Telemetry, asked: Iterable[_Asked], now: float
) -> tuple[dict[str, float], dict[str, RunUse]]:
    """What workers used lately, by their telemetry: in all, and by job."""
    cpus = memory = 0.0
    busy: dict[tuple[str, int], float] = {}
    uses: dict[str, RunUse] = {}
    for run in asked:
        own: dict[tuple[str, int], float] = {}
        cores, rows = 0.0, telemetry.latest(run.job, run.attempt, len(run.places), now - _STALE_S)
        for row in rows:
            cores += row.cpu_cores or 0.0
            memory += (row.rss_mib or 0.0) if run.memory_mib else 0.0
            node, devices = run.places.get(row.worker, ("", ()))
            if row.gpu_util_pct is None:
                continue
            for device in devices:  # who shares one reads the same
                share = row.gpu_util_pct / 100
                own[node, device] = max(share, own.get((node, device), 0.0))
        for place, share in own.items():
            busy[place] = max(share, busy.get(place, 0.0))
        cpus += cores if run.cpus else 0.0
        if rows:
            idle = sum(share < _IDLE for share in own.values())
            uses[run.job] = RunUse(len(own), idle, round(cores, 3))
    figures = {"cpus_used": cpus, "memory_used_mib": memory, "gpus_busy": sum(busy.values())}
    return figures, uses


def _steady(now: RunUse, before: RunUse | None) -> RunUse:
    """GPUs are idle that were so at two looks: a pause between two steps is none."""
    idle = min(now.gpus_idle, before.gpus_idle) if before is not None else 0
    return replace(now, gpus_idle=idle)
