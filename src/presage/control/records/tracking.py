"""Metrics of jobs, passed on to MLflow or TensorBoard while they run: what `presage.job` reports,
at most once a second, with parameters at the beginning and the status at the end.

The server writes, not the job: the job needs no package for it, and it works alike on every
executor. A process per address and credentials does the work (`tracker_process`); one that is slow
or broken costs metrics there and nothing else. What must outlive this server is in `track.json` of
the job: the run of MLflow, which the next server continues.

An address from a manifest gets the job's own secrets (MLFLOW_TRACKING_*) and nothing of the
server's environment; an address from the server's settings gets the server's.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from presage.control.board import ENDED
from presage.layout import Layout
from presage.model.errors import PresageError
from presage.store.records import JobChange, JobRow
from presage.store.sql import SqlStore

__all__ = ["Tracker"]

log = logging.getLogger("presage.tracking")

_UNTRACKED = ("at", "step", "steps")
_MOST_WAITING = 10_000
_PATIENCE_S = 10.0
_ALIVE = ("QUEUED", "DOWNLOADING", "PROCESSING", "STORING", "HALTED")


@dataclass(frozen=True, slots=True)
class _TrackTarget:
    """Where the metrics of a job go, and with which credentials."""

    mlflow: str
    tensorboard: str
    """A directory below `root`; empty for none."""
    root: str
    secrets: tuple[tuple[str, str], ...]
    """Names of the job's secrets by variable."""
    own: bool
    """Whether the job names the MLflow server, rather than the settings."""

    @property
    def worker(self) -> tuple[Any, ...]:
        """Jobs with the same share a process."""
        return (self.mlflow, self.secrets) if self.own and self.mlflow else ()


class Tracker:
    """Passes metrics on. `note` is called by the deciding loop and only takes a note."""

    def __init__(
        self, store: SqlStore, layout: Layout, mlflow: str, tensorboard: Path | None
    ) -> None:
        self._store, self._layout = store, layout
        self._mlflow, self._tensorboard = mlflow, tensorboard
        self._all = bool(mlflow or tensorboard)
        self._asked: set[str] = set()
        """Jobs whose manifest asks for it, where the settings do not for all."""
        self._news: queue.SimpleQueue[JobChange | None] = queue.SimpleQueue()
        self._targets: dict[str, _TrackTarget] = {}
        self._workers: dict[tuple[Any, ...], _TrackerLink] = {}
        self._thread = threading.Thread(target=self._work, name="presage-tracking", daemon=True)

    def start(self) -> None:
        """Begin to pass on; jobs that run already are found again."""
        self._thread.start()

    def close(self) -> None:
        """Let go; the next server continues the runs."""
        if self._thread.is_alive():
            self._news.put(None)
            self._thread.join(_PATIENCE_S)

    def note(self, rows: Sequence[JobRow], changes: Sequence[JobChange]) -> None:
        """These jobs are new, and this became different."""
        for row in rows:
            if row.manifest and row.manifest.get("track"):
                self._asked.add(row.id)
        for change in changes:
            if (change.progress is not None or change.ended_at is not None) and (
                self._all or change.job in self._asked
            ):
                self._news.put(change)

    # -- on its own thread ----------------------------------------------------------------------

    def _work(self) -> None:
        with suppress(PresageError):
            self._find_alive()
        while (change := self._news.get()) is not None:
            try:
                self._pass_on(change)
            except (OSError, PresageError) as error:
                log.warning("metrics of job %s are not passed on: %s", change.job, error)
        for worker in self._workers.values():
            worker.close()

    def _find_alive(self) -> None:
        """Jobs that an earlier server accepted."""
        after = None
        while page := self._store.jobs.list(statuses=_ALIVE, limit=1000, after=after):
            for row in page:
                whole = self._store.jobs.get(row.id)
                if whole is not None and (whole.manifest or {}).get("track"):
                    self._asked.add(row.id)
            after = page[-1].seq

    def _pass_on(self, change: JobChange) -> None:
        target = self._targets.get(change.job) or self._begin(change.job)
        if target is None:
            return
        worker = self._workers[target.worker]
        if change.progress is not None:
            report = dict(change.progress)
            step = report.get("step", report.get("epoch", 0))
            metrics = {
                name: value
                for name, value in report.items()
                if name not in _UNTRACKED and isinstance(value, int | float)
            }
            order = {"do": "log", "at": change.at, "step": int(step), "metrics": metrics}
            worker.tell({"job": change.job, **order})
        if change.ended_at is not None and change.status in ENDED:
            order = {"do": "end", "at": change.at, "status": str(change.status)}
            worker.tell({"job": change.job, "reason": change.reason_text or "", **order})
            del self._targets[change.job]
            self._asked.discard(change.job)
            if target.worker not in {other.worker for other in self._targets.values()}:
                self._workers.pop(target.worker).close()

    def _begin(self, job: str) -> _TrackTarget | None:
        row = self._store.jobs.get(job)
        target = self._target(row) if row is not None else None
        if row is None or target is None:
            return None
        worker = self._workers.get(target.worker)
        if worker is None:
            worker = _TrackerLink(self._layout, self._environment(target))
            self._workers[target.worker] = worker
        self._targets[job] = target
        worker.tell(
            {
                "job": job,
                "do": "begin",
                "mlflow": target.mlflow,
                "run": _known_run(self._layout, job),
                "tensorboard": target.tensorboard,
                "tensorboard_root": target.root,
                "experiment": row.name,
                "owner": row.owner,
                "params": _params(row.manifest or {}),
                "tags": {"owner": row.owner, "queue": row.queue, "name": row.name},
            }
        )
        return target

    def _target(self, row: JobRow) -> _TrackTarget | None:
        manifest = row.manifest or {}
        asked = manifest.get("track") or {}
        mlflow = asked.get("mlflow") or self._mlflow
        if asked.get("tensorboard"):
            root, place = str(self._layout.results(row.id)), asked["tensorboard"]
        else:
            root, place = str(self._tensorboard or ""), row.id if self._tensorboard else ""
        if not (mlflow or place):
            return None
        secrets = manifest.get("secrets") or {}
        own = {key: ref for key, ref in secrets.items() if key.startswith("MLFLOW_TRACKING_")}
        return _TrackTarget(
            mlflow, place, root, tuple(sorted(own.items())), own=bool(asked.get("mlflow"))
        )

    def _environment(self, target: _TrackTarget) -> dict[str, str]:
        waits = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
        if not target.worker:
            return {**waits, **os.environ}
        env = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        for variable, ref in target.secrets:
            with suppress(OSError):
                env[variable] = self._layout.secret(ref).read_text().rstrip("\n")
        return {**waits, **env, "HOME": "/nonexistent"}


class _TrackerLink:
    """A process that writes, and the two threads that talk to it: what waits for it is bounded."""

    def __init__(self, layout: Layout, env: Mapping[str, str]) -> None:
        self._layout = layout
        self._orders: queue.Queue[dict[str, Any] | None] = queue.Queue(_MOST_WAITING)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "presage.control.records.tracker_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**env, "PYTHONPATH": str(Path(__file__).parents[2])},
            text=True,
            start_new_session=True,
        )
        self._said: set[tuple[str, str]] = set()
        self._writes = threading.Thread(target=self._write, daemon=True)
        self._reads = threading.Thread(target=self._read, daemon=True)
        self._writes.start()
        self._reads.start()

    def tell(self, order: dict[str, Any]) -> None:
        """Have something written, unless too much waits already."""
        try:
            self._orders.put_nowait(order)
        except queue.Full:
            self._complain(order["job"], "too many metrics wait for it; some were left out")

    def close(self) -> None:
        """Have it write what waits, and end."""
        with suppress(queue.Full):
            self._orders.put_nowait(None)
        self._reads.join(_PATIENCE_S)
        if self._process.poll() is None and self._reads.is_alive():
            self._process.kill()
        self._process.wait()

    def _write(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError), self._process.stdin as pipe:
            while (order := self._orders.get()) is not None:
                pipe.write(json.dumps(order) + "\n")
                pipe.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(ValueError, KeyError):
                answer = json.loads(line)
                if "run" in answer:
                    _remember_run(self._layout, answer["job"], answer["run"])
                if "error" in answer:
                    self._complain(answer["job"], answer["error"])

    def _complain(self, job: str, why: str) -> None:
        if (job, why) not in self._said:
            self._said.add((job, why))
            log.warning("metrics of job %s are not passed on: %s", job, why)


def _params(manifest: Mapping[str, Any]) -> dict[str, str]:
    """What a job was given, as parameters: labels, variables that are no secrets, the model."""
    model = manifest.get("model") or {}
    model = {"ref": model} if isinstance(model, str) else model
    parts = {"label": manifest.get("labels"), "env": manifest.get("env"), "model": model}
    return {
        f"{kind}.{name}": str(value)
        for kind, values in parts.items()
        for name, value in (values or {}).items()
    }


def _known_run(layout: Layout, job: str) -> str | None:
    with suppress(OSError, ValueError, KeyError):
        return str(json.loads(layout.track_note(job).read_text())["run"])
    return None


def _remember_run(layout: Layout, job: str, run: str) -> None:
    note = layout.track_note(job)
    with suppress(OSError):
        new = note.with_suffix(".new")
        new.write_text(json.dumps({"run": run}))
        new.replace(note)
