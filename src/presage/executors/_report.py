"""What a guardian tells: events for the journal, progress, and telemetry. Standard library only.

A line of `events.jsonl` is a fact as `presage.model.event` writes it, with one more key: `when`
(seconds since 1970). Nothing here may hold the content of a secret.
"""

from __future__ import annotations

import errno
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

from presage.executors._processes import Usage

__all__ = ["Reporter", "read_progress"]

_MIB = 1 << 20
_LARGEST_PROGRESS = 64 << 10
_MOST_METRICS = 64
_PATIENCE_S = 600.0
_MOST_WORKERS = 1_000_000


class Reporter:
    """Writes what happens in a run, and wakes up the executor."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._run = Path(plan["run"])
        self._about = {"job": plan["job"], "attempt": plan["attempt"]}
        self._events = os.open(
            self._run / "events.jsonl",
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
            0o600,
        )
        self._telemetry: int | None = None
        self._began = time.time()
        self._sampled: dict[str, tuple[float, float]] = {}
        """When each worker was last sampled, and the CPU time it had used by then."""
        self._unwritten = b""
        self._seen: dict[Path, tuple[int, int]] = {}

    def event(self, kind: str, **fields: Any) -> None:
        """Add a fact to the events of the run."""
        line = {"type": kind, **self._about, **fields, "when": time.time()}
        self._unwritten += json.dumps(line).encode() + b"\n"
        self.flush()

    def flush(self) -> bool:
        """Bring events to disk; False when there is no room, and then nothing was written."""
        if not self._unwritten:
            return True
        size = os.fstat(self._events).st_size
        try:
            if os.write(self._events, self._unwritten) != len(self._unwritten):
                raise OSError(errno.ENOSPC, "a part was written")
            os.fsync(self._events)
        except OSError:
            os.ftruncate(self._events, size)
            return False
        self._unwritten = b""
        self.wake()
        return True

    def finish(self) -> None:
        """Bring the last event to disk. On a full disk it waits: a result is worth that."""
        end = time.monotonic() + _PATIENCE_S
        while not self.flush() and time.monotonic() < end:
            time.sleep(1.0)

    def progress(self, files: list[Path]) -> None:
        """Pass on what the first worker that reports has reported, if that is new."""
        for file in files:
            try:
                stat = file.stat()
            except OSError:
                continue
            mark = (stat.st_mtime_ns, stat.st_ino)
            if self._seen.get(file) != mark:
                self._seen[file] = mark
                self._pass_on(read_progress(file))
            return

    def _pass_on(self, report: dict[str, Any] | None) -> None:
        if report is not None:
            with suppress(OSError):  # a full disk; the next report may find room
                new = self._run / "progress.new"
                new.write_text(json.dumps(report))
                new.replace(self._run / "progress.json")
                self.wake()

    def request(self, file: Path) -> None:
        """Pass on how many workers the job itself asked for, if it did."""
        try:
            asked = json.loads(file.read_bytes())["workers"]
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            asked = None
        with suppress(OSError):  # a full disk; it is tried again
            if isinstance(asked, int) and 0 < asked <= _MOST_WORKERS:
                new = self._run / "request.new"
                new.write_text(json.dumps(asked))
                new.replace(self._run / "request.json")
                self.wake()
            file.unlink(missing_ok=True)

    def sample(self, worker: str, used: Usage, gpus: dict[str, Any]) -> None:
        """Add a sample of a worker to the telemetry of the job: counters since its start, the
        cores it kept busy since its last sample, and what it uses of GPUs if that is known."""
        now = time.time()
        since, cpu_s = self._sampled.get(worker, (self._began, 0.0))
        self._sampled[worker] = (now, used.cpu_s)
        line = {
            "at": round(now, 3),
            "worker": worker,
            "cpu_s": round(used.cpu_s, 3),
            "cpu_cores": round((used.cpu_s - cpu_s) / max(now - since, 0.001), 3),
            "rss_mib": round(used.rss / _MIB, 1),
            "processes": used.processes,
            "threads": used.threads,
            "read_bytes": used.read_bytes,
            "write_bytes": used.write_bytes,
            **gpus,
        }
        with suppress(OSError):  # telemetry is not worth a training
            if self._telemetry is None:
                path = Path(self._plan["telemetry"])
                path.parent.mkdir(parents=True, exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._telemetry = os.open(path, flags, 0o600)
            os.write(self._telemetry, json.dumps(line).encode() + b"\n")

    def wake(self) -> None:
        """Tell the executor, if one listens, that there is something to read."""
        line = f"{self._about['job']}/{self._about['attempt']}\n".encode()
        with suppress(OSError):  # nobody reads, or the pipe is full; the executor looks by itself
            fd = os.open(self._plan["wake"], os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(fd, line)
            finally:
                os.close(fd)


def read_progress(file: Path) -> dict[str, Any] | None:
    """What a worker reported, checked, since any program may write there."""
    try:
        with file.open("rb") as source:
            body = json.loads(source.read(_LARGEST_PROGRESS + 1))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(body, dict):
        return None
    names = ("epoch", "step", "steps", "step_s")
    detail = {name: body[name] for name in names if _is_number(body.get(name))}
    done = body.get("done")
    if not _is_number(done) and detail.get("steps") and "step" in detail:
        done = detail["step"] / detail["steps"]
    metrics = body.get("metrics")
    if isinstance(metrics, dict):
        numbers = [(str(name)[:64], value) for name, value in metrics.items() if _is_number(value)]
        detail = {**dict(numbers[:_MOST_METRICS]), **detail}
    return {"done": min(1.0, max(0.0, done)) if _is_number(done) else 0.0, "detail": detail}


def _is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
