"""The directory of a run as the executor sees it: made with its lock held, read as events come,
buried when its guardian is dead.

A run directory appears by one rename, with a lock file that the guardian holds for as long as it
lives. So whoever can take the lock knows that the guardian is dead, and nobody needs to guess.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import presage
from presage.executors import _containers as containers
from presage.executors._guardian import LOCK_FD
from presage.executors._processes import kill_marked, read_stat
from presage.model.cluster import Resources

__all__ = ["Run", "make_run", "open_high", "spawn_guardian", "sweep"]

_BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from presage.executors._guardian import main; main()"
)
_SOURCE = str(Path(presage.__file__).parent.parent)


class Run:
    """One run that is not over, or whose end has not been taken in."""

    def __init__(self, job: str, attempt: int, directory: Path) -> None:
        self.job = job
        self.attempt = attempt
        self.directory = directory
        self.events = str(directory / "events.jsonl")
        self.progress = str(directory / "progress.json")
        self.spawned_at = 0.0
        self.heard = False
        """Whether its guardian has said anything."""
        self.over = False
        """Whether its last event was read."""
        self.cores: list[int] = []
        self.resize_number = int(self.resize_request().get("number", 0))
        """Number of the latest resize that was asked for."""
        self.resized_number = 0
        """Number of the latest resize that was read to be complete."""
        self._request = str(directory / "request.json")
        self._taken = str(directory / "request.taken")
        self._taken_before = True
        """Whether there may be a request that an executor before this one took."""
        self._offset = 0
        self._progress_mark = (0, 0)

    def new_lines(self) -> list[dict[str, Any]]:
        """Events that were added since the last call."""
        try:
            if os.stat(self.events).st_size == self._offset:  # noqa: PTH116 (called very often)
                return []
            with open(self.events, "rb") as file:  # noqa: PTH123
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return []
        complete = text[: text.rfind(b"\n") + 1]
        self._offset += len(complete)
        lines = []
        for line in complete.splitlines():
            with suppress(ValueError):  # torn by a crash of the machine
                lines.append(json.loads(line))
        return lines

    def new_progress(self) -> dict[str, Any] | None:
        """The latest report of progress, if it is new."""
        try:
            stat = os.stat(self.progress)  # noqa: PTH116 (called very often)
            mark = (stat.st_mtime_ns, stat.st_ino)
            if mark == self._progress_mark:
                return None
            self._progress_mark = mark
            report: dict[str, Any] = json.loads(Path(self.progress).read_bytes())
        except (OSError, ValueError):
            return None
        return report

    def take_request(self) -> int | None:
        """How many workers the job itself asked for, if it did. It is told again by the next
        executor unless this one calls `request_is_safe`."""
        try:
            if os.path.exists(self._request):  # noqa: PTH110 (called very often)
                os.replace(self._request, self._taken)  # noqa: PTH105
            elif not self._taken_before:
                return None
            self._taken_before = False
            return int(json.loads(Path(self._taken).read_bytes()))
        except (OSError, ValueError, TypeError):
            self._taken_before = False
            return None

    def request_is_safe(self) -> None:
        """The request that was taken is written down elsewhere."""
        Path(self._taken).unlink(missing_ok=True)

    def guardian(self) -> int | None:
        """PID of the guardian, if it lives and has said so."""
        with suppress(OSError, ValueError):
            pid, start = map(int, (self.directory / "lock").read_text().split())
            stat = read_stat(pid)
            if stat is not None and stat.start == start:
                return pid
        return None

    def read(self, name: str) -> dict[str, Any]:
        """A file of the run; empty when it cannot be read."""
        with suppress(OSError, ValueError):
            body: dict[str, Any] = json.loads((self.directory / name).read_bytes())
            return body
        return {}

    def plan(self) -> dict[str, Any]:
        """The plan its guardian follows."""
        return self.read("plan.json")

    def ask_to_stop(self, code: str, text: str) -> None:
        """Leave word that the run must stop, and nudge the guardian. Twice does no harm."""
        new = self.directory / "stop.new"
        try:
            new.write_text(json.dumps({"code": code, "text": text}))
            new.replace(self.directory / "stop.json")
        except OSError:  # a full disk: without words, then
            if (pid := self.guardian()) is not None:
                os.kill(pid, signal.SIGTERM)
            return
        self._nudge()

    def resize_request(self) -> dict[str, Any]:
        """The latest resize that was asked for; empty if none was."""
        return self.read("resize.json")

    def ask_to_resize(self, target: list[Any], workers: list[dict[str, Any]]) -> None:
        """Leave word that the run is to have these workers. The same again keeps its number."""
        latest = self.resize_request()
        if latest.get("target") == target:
            self.resize_number = latest["number"]
            os.utime(self.directory / "resize.json")  # the guardian answers once more
        else:
            number = latest.get("number", 0) + 1
            new = self.directory / "resize.new"
            new.write_text(json.dumps({"number": number, "target": target, "workers": workers}))
            new.replace(self.directory / "resize.json")
            self.resize_number = number
        self._nudge()

    def ask_to_limit(self, limits: Resources) -> None:
        """Leave word that each worker of the first role is to be held to this."""
        new = self.directory / "limits.new"
        body = {"cpu_milli": limits.cpu_milli, "memory_mib": limits.memory_mib}
        new.write_text(json.dumps(body))
        new.replace(self.directory / "limits.json")

    def _nudge(self) -> None:
        with suppress(OSError):  # not up yet, or gone; it looks for the word before it starts
            fd = os.open(self.directory / "control", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(fd, b"s")
            finally:
                os.close(fd)

    @contextmanager
    def dead(self) -> Iterator[bool]:
        """Whether the guardian is dead; while inside, nobody else deals with that."""
        try:
            fd = os.open(self.directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            yield isinstance(error, FileNotFoundError)  # somebody removed it: nobody guards
            return
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(fd)

    def bury(self) -> dict[str, Any]:
        """The guardian died without a last word: end what it left running, and say it instead."""
        plan = self.plan()
        known: list[tuple[int, int]] = []
        with suppress(OSError, ValueError):
            recorded = json.loads((self.directory / "processes.json").read_bytes())
            known = [(pid, start) for pid, start in recorded]
        kill_marked(f"PRESAGE_RUN={self.directory}", known)
        workers = plan.get("workers", [])
        if plan.get("engine"):
            names = [worker["container"] for worker in workers if worker["container"]]
            containers.remove(plan["engine"], names)
        for worker in workers:
            if plan.get("cgroup"):
                with suppress(OSError):
                    (Path(plan["cgroup"]) / worker["cgroup"]).rmdir()
        line = {"job": self.job, "attempt": self.attempt, "when": time.time(), **self._epitaph()}
        return line

    def _epitaph(self) -> dict[str, Any]:
        said = ""
        with suppress(OSError):
            said = (self.directory / "guardian.log").read_text(errors="replace").strip()
        if said and not self.heard:
            text = f"the guardian of the run could not start: {said.splitlines()[-1][:300]}"
            return {"type": "LaunchFailed", "reason": {"code": "launch_failed", "text": text}}
        text = "the guardian of the run was killed; the job goes on from its last checkpoint"
        reason = {"code": "node_lost", "text": text}
        return {"type": "JobExited", "outcome": "lost", "reason": reason}

    def remove(self) -> None:
        """Take the directory away, whole or not at all, and that of the job if it is empty."""
        job = self.directory.parent
        old = job.parent / f".old-{os.getpid()}-{time.monotonic_ns()}"
        with suppress(OSError):
            self.directory.rename(old)
        shutil.rmtree(old, ignore_errors=True)
        with suppress(OSError):
            job.rmdir()


def sweep(runs: Path) -> None:
    """Remove what was being made or removed when its executor died."""
    for path in runs.iterdir():
        if path.name.startswith(".old-"):
            shutil.rmtree(path, ignore_errors=True)
        elif path.name.startswith(".new-"):
            with Run("", 0, path).dead() as dead:
                if dead:
                    shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.rmdir()  # only if it is empty


def make_run(runs: Path, run: Run, plan: dict[str, Any]) -> int | None:
    """Make the directory of a run; returns its locked lock file, or None if it was there."""
    new = runs / f".new-{os.getpid()}-{time.monotonic_ns()}"
    new.mkdir(mode=0o700, parents=True)
    lock = open_high(new / "lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.mkfifo(new / "control", 0o600)
        (new / "plan.json").write_text(json.dumps(plan))
        run.directory.parent.mkdir(mode=0o700, exist_ok=True)
        new.rename(run.directory)
    except OSError as error:
        os.close(lock)
        shutil.rmtree(new, ignore_errors=True)
        if run.directory.is_dir():
            return None
        raise error
    return lock


def open_high(path: Path) -> int:
    """Open a file under a number that no standard stream has."""
    low = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 10)
    finally:
        os.close(low)


def spawn_guardian(python: str, run: Run, lock: int, env: dict[str, str]) -> int:
    """Start the guardian in a session of its own; it takes over the lock. Returns its PID."""
    log = str(run.directory / "guardian.log")
    ignored = [s for s in signal.valid_signals() if s not in (signal.SIGKILL, signal.SIGSTOP)]
    return os.posix_spawn(
        python,
        [python, "-I", "-S", "-c", _BOOT, _SOURCE, str(run.directory)],
        env,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            (os.POSIX_SPAWN_DUP2, lock, LOCK_FD),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=ignored,
    )
