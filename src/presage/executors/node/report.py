"""What a guardian tells: events for the journal, progress, and telemetry. Standard library only.

Nothing here may hold the content of a secret.
"""

from __future__ import annotations

import errno
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from presage.executors.node import messages as msg
from presage.executors.node import wire
from presage.executors.node.credentials import acting_as
from presage.telemetry.processes import ProcessTree, tcp_segments
from presage.telemetry.rows import Row, append

if TYPE_CHECKING:
    from presage.executors.node.shares.figures import ShareProbe
    from presage.telemetry.nvml import GpuProbe

__all__ = ["Reporter", "RunLog", "read_progress", "surroundings"]

_LARGEST_PROGRESS = 64 << 10
_MIB = 1 << 20
_WRITTEN_BY_THE_LIBRARY = {"epoch", "step", "steps", "done", "metrics", "step_s", "at"}
_MOST_METRICS = 64
_PATIENCE_S = 600.0
_MOST_WORKERS = 1_000_000


class RunLog:
    """The event log of a run, in files that an executor reads; each new event wakes it."""

    def __init__(self, run: Path, wake: Path, job: str, attempt: int) -> None:
        self._run = run
        self._wake = wake
        self._job, self._attempt = job, attempt
        self._unwritten = b""

    def event(
        self,
        type: str,
        *,
        at: float | None = None,
        stage: str | None = None,
        number: int | None = None,
        port: int | None = None,
    ) -> None:
        """Add an event of the run."""
        self.tell(
            msg.Event(
                type=type,
                job=self._job,
                attempt=self._attempt,
                when=time.time(),
                at=at,
                stage=stage,
                number=number,
                port=port,
            )
        )

    def end(self, verdict: msg.Verdict) -> None:
        """Add the last event."""
        self.tell(verdict.event(self._job, self._attempt, time.time()))

    def tell(self, event: msg.Event) -> None:
        """Bring an event to disk, at once if there is room."""
        self._unwritten += wire.dumps(event)
        self.flush()

    def flush(self) -> bool:
        """Bring events to disk; False when there is no room, and then nothing was written."""
        if not self._unwritten:
            return True
        try:
            with (self._run / msg.Event.FILE).open("ab", buffering=0) as file:
                size = file.seek(0, os.SEEK_END)
                try:
                    if file.write(self._unwritten) != len(self._unwritten):
                        raise OSError(errno.ENOSPC, "a part was written")
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(size)
                    return False
        except FileNotFoundError:
            pass  # the directory was removed: nobody wants to hear of the run
        except OSError:
            return False
        self._unwritten = b""
        self.wake()
        return True

    def pass_on(self, message: wire.Message) -> None:
        """Replace what was said before."""
        with suppress(OSError):  # a full disk; the next one may find room
            wire.write(self._run, message)
            self.wake()

    def wake(self) -> None:
        """Tell the executor, if one listens, that there is something to read."""
        with suppress(OSError):  # nobody reads, or the pipe is full; the executor looks by itself
            fd = os.open(self._wake, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(fd, f"{self._job}/{self._attempt}\n".encode())
            finally:
                os.close(fd)


class Reporter(RunLog):
    """Writes what happens in a run, and wakes up the executor."""

    def __init__(self, plan: msg.RunPlan) -> None:
        super().__init__(plan.run, plan.wake, plan.job, plan.attempt)
        self._telemetry, self._user, self._work = plan.telemetry, plan.user, plan.work
        self._shares = plan.shares
        self._probe: ShareProbe | None = None
        self._began = time.time()
        self._sampled: dict[str, Row] = {}
        """The last row of each worker."""
        self._seen: dict[Path, wire.Mark] = {}

    def finish(self) -> None:
        """Bring the last event to disk. On a full disk it waits: a result is worth that."""
        end = time.monotonic() + _PATIENCE_S
        while not self.flush() and time.monotonic() < end:
            time.sleep(1.0)

    def progress(self, files: list[Path]) -> None:
        """Pass on what the first worker that reports has reported, if that is new."""
        for file in files:
            changed = wire.mark(file)
            if changed is None:
                continue
            if self._seen.get(file) != changed:
                self._seen[file] = changed
                with acting_as(self._user):
                    report = read_progress(file)
                if report is not None:
                    self.pass_on(report)
            return

    def step_of(self, file: Path) -> float | None:
        """The step that a worker reported itself."""
        with acting_as(self._user):
            report = read_progress(file)
        return report.detail.get("step") if report is not None else None

    def request(self, file: Path) -> None:
        """Pass on how many workers the job itself asked for, if it did."""
        try:
            with acting_as(self._user):
                asked = json.loads(wire.read_bounded(file))["workers"]
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            asked = None
        with suppress(OSError):  # a full disk; it is tried again
            if isinstance(asked, int) and 0 < asked <= _MOST_WORKERS:
                wire.write(self._run, msg.SizeRequest(workers=asked))
                self.wake()
            file.unlink(missing_ok=True)

    def sample(
        self,
        worker: str,
        tree: ProcessTree,
        gpus: GpuProbe | None,
        step: float | None = None,
        share: str | None = None,
    ) -> None:
        """Add what a worker uses to the telemetry of the job, and the step it is at; `share` is
        the name of what it has of a GPU."""
        before = self._sampled.get(worker) or Row(self._began, worker, cpu_s=0.0)
        row = tree.row(time.time(), worker, gpus, before)
        row = row._replace(step=step, **surroundings(self._work, tree.pid))
        self._sampled[worker] = row = self._with_share(row, share)
        append(self._telemetry, row)

    def _with_share(self, row: Row, share: str | None) -> Row:
        if share is None or self._shares is None:
            return row
        if self._probe is None:
            from presage.executors.node.shares.figures import ShareProbe

            self._probe = ShareProbe(self._shares, f"{self._job}.{self._attempt}.")
        return self._probe.add_to(row, share)


def surroundings(work: Path, pid: int) -> dict[str, Any]:
    """The room on the disk that a run works on, and how the network of a process does."""
    figures: dict[str, Any] = {}
    with suppress(OSError):
        disk = os.statvfs(work)
        figures["disk_free_mib"] = disk.f_bavail * disk.f_frsize / _MIB
        figures["disk_total_mib"] = disk.f_blocks * disk.f_frsize / _MIB
    segments = tcp_segments(pid)
    if segments is not None:
        figures["tcp_sent"], figures["tcp_resent"] = segments
    return figures


def read_progress(file: Path) -> msg.ProgressReport | None:
    """What a worker reported, checked, since any program may write there."""
    try:
        body = json.loads(wire.read_bounded(file, _LARGEST_PROGRESS + 1))
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
    done = min(1.0, max(0.0, done)) if _is_number(done) else 0.0
    return msg.ProgressReport(done=done, detail=detail, not_finite=_not_finite(body, metrics))


def _not_finite(body: dict[str, Any], metrics: Any) -> tuple[str, ...]:
    """The metrics that are NaN or infinite. `presage.job` writes null for them; a program that
    writes the file itself may mean something else by null."""
    ours = body.keys() >= _WRITTEN_BY_THE_LIBRARY
    names = [
        str(name)[:64]
        for name, value in (metrics.items() if isinstance(metrics, dict) else ())
        if (value is None and ours) or (isinstance(value, float) and not _is_number(value))
    ]
    return tuple(names[:_MOST_METRICS])


def _is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
