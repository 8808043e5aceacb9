"""What the cluster and its jobs looked like over time, for charts: a recorder and what it kept.

The server that decides looks every few seconds and writes what it saw below its data directory:
`history.jsonl` for the cluster, `jobs/ID/progress.jsonl` for each job that runs. Nothing is
decided on these files, so a lost one costs a chart and no more. Reads are bounded, however long a
job runs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from presage.core.engine import Engine
from presage.model.cluster import WHOLE_GPU
from presage.model.errors import PresageError
from presage.server.service import Service
from presage.store.records import JobRow

__all__ = ["FIELDS", "History", "record", "spread_lines"]

log = logging.getLogger("presage.history")

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

_FIELDS_AT_FIRST = 10
_LOOK_S = 5.0
_FINE_S = 2 * 86_400.0
"""Samples stay as they are for so long; older ones become means of `_COARSE_S`."""
_COARSE_S = 300.0
_KEPT_S = 60 * 86_400.0
_POINTS_OF_A_JOB = 2000
"""Progress is written down less often the longer a job runs."""
_ALIVE = ("DOWNLOADING", "PROCESSING", "STORING")
_STALE_S = 30.0
_LINE = 400
"""Bytes that a line of telemetry has at most."""

Rows = npt.NDArray[np.float64]


class History:
    """Samples of the cluster, in a file of JSON lines and in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self._rows = _thinned(_load(path), time.time())
        self._fresh: list[tuple[float, ...]] = []
        self._rewrite()

    def add(self, sample: Mapping[str, float]) -> None:
        """Keep a sample."""
        with self._lock:
            self._fresh.append(tuple(float(sample[name]) for name in FIELDS))
            line = json.dumps([round(value, 3) for value in self._fresh[-1]])
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
            if len(self._fresh) >= 5000:
                self._rows = _thinned(self._all(), sample["at"])
                self._fresh.clear()
                self._rewrite()

    def since(self, at: float, points: int) -> dict[str, list[float]]:
        """Samples from a time on, as means of at most so many equal spans; one list a field."""
        with self._lock:
            rows = self._all()
        rows = rows[rows[:, 0] >= at]
        if len(rows) > points:
            span = (rows[-1, 0] - rows[0, 0]) / points
            rows = _means(rows, span)
        return {name: rows[:, k].round(3).tolist() for k, name in enumerate(FIELDS)}

    def _all(self) -> Rows:
        fresh = np.asarray(self._fresh, dtype=np.float64).reshape(-1, len(FIELDS))
        return np.concatenate([self._rows, fresh])

    def _rewrite(self) -> None:
        draft = self._path.with_suffix(".new")
        with draft.open("w", encoding="utf-8") as file:
            for row in self._rows.round(3).tolist():
                file.write(json.dumps(row) + "\n")
        draft.replace(self._path)


def _load(path: Path) -> Rows:
    found = []
    with suppress(FileNotFoundError), path.open("rb") as file:
        for line in file:
            with suppress(ValueError, TypeError):  # a line that was cut off by a full disk
                row = [float(value) for value in json.loads(line)]
                if _FIELDS_AT_FIRST <= len(row) <= len(FIELDS):
                    found.append(row + [0.0] * (len(FIELDS) - len(row)))
    return np.asarray(found, dtype=np.float64).reshape(-1, len(FIELDS))


def _thinned(rows: Rows, now: float) -> Rows:
    rows = rows[(rows[:, 0] > now - _KEPT_S) & (rows[:, 0] <= now)]
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    old = rows[:, 0] < now - _FINE_S
    return np.concatenate([_means(rows[old], _COARSE_S), rows[~old]])


def _means(rows: Rows, span_s: float) -> Rows:
    """The mean of the samples of each span."""
    if not len(rows):
        return rows
    spans = np.floor((rows[:, 0] - rows[0, 0]) / max(span_s, 1e-9)).astype(np.int64)
    starts = np.flatnonzero(np.diff(spans, prepend=-1))
    counts = np.diff(starts, append=len(rows))
    return np.asarray(np.add.reduceat(rows, starts) / counts[:, None])


# -- recording ------------------------------------------------------------------------------------


async def record(service: Service, history: History) -> None:
    """Look at the cluster and at what runs, for as long as this is not cancelled."""
    seen: dict[str, tuple[object, float]] = {}
    turn = 0
    while True:
        try:
            if service.live.leading.is_set():
                if turn % 2 == 0:
                    await _look_at_cluster(service, history)
                await asyncio.to_thread(_look_at_jobs, service, seen)
                turn += 1
        except (PresageError, OSError) as error:
            log.warning("nothing was recorded for the charts: %s", error)
        await asyncio.sleep(_LOOK_S if turn > 1 else 1.0)


async def _look_at_cluster(service: Service, history: History) -> None:
    def question(engine: Engine) -> dict[str, Any]:
        state = engine.state
        up = [name for name in state.capacity.index if name not in state.down]
        nodes = (state.capacity.nodes[state.capacity.index[name]] for name in up)
        asked = []
        for job in state.active.values():
            roles = job.spec.roles
            cpu = sum(roles[worker.role].resources.cpu_milli for worker in job.allocation)
            memory = sum(roles[worker.role].resources.memory_mib for worker in job.allocation)
            places = {
                f"{roles[worker.role].name}-{worker.index}": (worker.node, worker.devices)
                for worker in job.allocation
            }
            asked.append((job.id, job.attempt, places, cpu / 1000, memory))
        return {
            "nodes": len(up),
            "gpus": sum(len(node.devices) for node in nodes),
            "gpus_held": sum(state.usage.values()) / WHOLE_GPU,
            "pending": len(state.pending),
            "running": len(state.active),
            "asked": asked,
        }

    found = await service.ask(question)
    now = time.time()
    asked = found.pop("asked")
    found["cpus_asked"] = sum(cpus for *_, cpus, _ in asked)
    found["memory_asked_mib"] = sum(memory for *_, memory in asked)
    jobs = service.settings.data / "jobs"
    used = await asyncio.to_thread(_used, jobs, asked, now)
    history.add({"at": now, **found, **used})


def _used(jobs: Path, asked: Iterable[tuple[Any, ...]], now: float) -> dict[str, float]:
    """What workers used lately, by their telemetry."""
    cpus = memory = 0.0
    busy: dict[tuple[str, int], float] = {}
    for job, attempt, places, asked_cpus, asked_memory in asked:
        path = jobs / job / "telemetry" / f"{attempt}.jsonl"
        latest: dict[str, dict[str, Any]] = {}
        for line in _parsed(_tail(path, _LINE * max(1, len(places)))):
            latest[str(line.get("worker"))] = line
        for worker, line in latest.items():
            if now - float(line.get("at", 0.0)) < _STALE_S:
                cpus += float(line.get("cpu_cores", 0.0)) if asked_cpus else 0.0
                memory += float(line.get("rss_mib", 0.0)) if asked_memory else 0.0
                node, devices = places.get(worker, ("", ()))
                share = float(line.get("gpu_util_pct", 0.0)) / 100
                for device in devices:  # who shares one reads the same
                    busy[node, device] = max(share, busy.get((node, device), 0.0))
    return {"cpus_used": cpus, "memory_used_mib": memory, "gpus_busy": sum(busy.values())}


def _look_at_jobs(service: Service, seen: dict[str, tuple[object, float]]) -> None:
    """Write down the progress and the size of every job that runs, where they are new."""
    now, alive, after = time.time(), set(), None
    while True:
        rows = service.store.jobs.list(statuses=_ALIVE, limit=1000, after=after)
        for row in rows:
            alive.add(row.id)
            _write_progress(service, row, seen, now)
        if len(rows) < 1000:
            break
        after = rows[-1].seq
    for gone in seen.keys() - alive:
        last = service.store.jobs.get(gone)
        if last is not None:
            _write_progress(service, last, seen, now, last=True)
        del seen[gone]


def _write_progress(
    service: Service,
    row: JobRow,
    seen: dict[str, tuple[object, float]],
    now: float,
    *,
    last: bool = False,
) -> None:
    mark = (row.attempt, row.workers, row.progress)
    before, written = seen.get(row.id, (None, 0.0))
    pause = (now - (row.started_at or now)) / _POINTS_OF_A_JOB
    if mark == before or (now - written < pause and not last):
        seen.setdefault(row.id, (mark, now))
        return
    seen[row.id] = (mark, now)
    line = {"at": round(now, 3), "attempt": row.attempt, "workers": row.workers}
    path = service.settings.data / "jobs" / row.id / "progress.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**line, "progress": dict(row.progress or {})}) + "\n")


# -- reading lines --------------------------------------------------------------------------------


def spread_lines(path: Path, most: int = 1 << 20, pieces: int = 256) -> Iterator[dict[str, Any]]:
    """The lines of a file; of one with more than `most` bytes, pieces from its whole length."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if size <= most:
                yield from _parsed(file.read(most))
                return
            for k in range(pieces):
                file.seek((size - most // pieces) * k // (pieces - 1))
                yield from _parsed(file.read(most // pieces).partition(b"\n")[2])
    except FileNotFoundError:
        return


def _tail(path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - most))
            return file.read(most)
    except FileNotFoundError:
        return b""


def _parsed(text: bytes) -> Iterator[dict[str, Any]]:
    """JSON objects, one a line; halves of lines are left out."""
    for line in text.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found
