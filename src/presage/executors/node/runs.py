"""The directory of a run as the executor sees it: made with its lock held, read as events come,
buried when its guardian is dead.

A run directory appears by one rename, with a lock file that the guardian holds for as long as it
lives. So a process that can take the lock knows that the guardian is dead; no timeout is guessed.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import presage
from presage.executors.node import containers, keeping, wire
from presage.executors.node import messages as msg
from presage.executors.node.guardian import LOCK_FD
from presage.executors.node.processes import kill_marked, read_stat

__all__ = ["Run", "boot", "make_run", "spawn_guardian", "sweep"]

log = logging.getLogger("presage.runs")

M = TypeVar("M", bound=wire.Message)


class Run:
    """One run that is not over, or whose end has not been taken in."""

    def __init__(self, job: str, attempt: int, directory: Path) -> None:
        self.job = job
        self.attempt = attempt
        self.directory = directory
        self.events = str(directory / msg.Event.FILE)
        self.progress = str(directory / msg.ProgressReport.FILE)
        self.spawned_at = 0.0
        self.heard = False
        """Whether its guardian has said anything."""
        self.over = False
        """Whether its last event was read."""
        self.cores: list[int] = []
        latest = self.find(msg.ResizeOrder)
        self.resize_number = latest.number if latest else 0
        """Number of the latest resize that was asked for."""
        self.resized_number = 0
        """Number of the latest resize that was read to be complete."""
        self._request = str(directory / msg.SizeRequest.FILE)
        self._taken = str(directory / "request.taken")
        self._taken_before = True
        """Whether there may be a request that an executor before this one took."""
        self._offset = 0
        self._progress_mark: wire.Mark | None = None

    def find(self, kind: type[M]) -> M | None:
        """What a file of the run says; None when there is none, or none that is understood."""
        try:
            return wire.find(kind, self.directory)
        except wire.MessageError as error:
            log.warning("run %d of job %s: %s", self.attempt, self.job, error)
            return None

    def new_events(self) -> list[msg.Event]:
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
        events = []
        for line in complete.splitlines():
            try:
                events.append(wire.loads(msg.Event, line))
            except wire.MessageError as error:  # torn by a crash of the machine, or too new
                log.warning("run %d of job %s: %s", self.attempt, self.job, error)
        return events

    def new_progress(self) -> msg.ProgressReport | None:
        """The latest report of progress, if it is new."""
        changed = wire.mark(self.progress)
        if changed in (None, self._progress_mark):
            return None
        self._progress_mark = changed
        return self.find(msg.ProgressReport)

    def take_request(self) -> int | None:
        """How many workers the job itself asked for, if it did. It is told again by the next
        executor unless this one calls `request_is_safe`."""
        try:
            if os.path.exists(self._request):  # noqa: PTH110 (called very often)
                os.replace(self._request, self._taken)  # noqa: PTH105
            elif not self._taken_before:
                return None
            self._taken_before = False
            return wire.loads(msg.SizeRequest, Path(self._taken).read_bytes()).workers
        except (OSError, wire.MessageError):
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

    def leave(self, order: wire.Message) -> None:
        """Leave word for the guardian, and nudge it."""
        wire.write(self.directory, order)
        with suppress(OSError):  # not up yet, or gone; it looks for the word before it starts
            fd = os.open(self.directory / "control", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(fd, b"s")
            finally:
                os.close(fd)

    def ask_to_stop(self, code: str, text: str) -> None:
        """Leave word that the run must stop. Twice does no harm."""
        try:
            self.leave(msg.StopOrder(code=code, text=text))
        except OSError:  # a full disk: without words, then
            if (pid := self.guardian()) is not None:
                os.kill(pid, signal.SIGTERM)

    def ask_to_resize(
        self, target: Sequence[msg.Identity], workers: Sequence[msg.WorkerPlan] = ()
    ) -> None:
        """Leave word that the run is to have these workers. The same again keeps its number, and
        is answered once more."""
        latest, wanted = self.find(msg.ResizeOrder), tuple(target)
        if latest is None or latest.target != wanted:
            number = latest.number + 1 if latest else 1
            latest = msg.ResizeOrder(number=number, target=wanted, workers=tuple(workers))
        self.resize_number = latest.number
        self.leave(latest)

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

    def bury(self) -> msg.Event:
        """The guardian died without a last word: end what it left running, and say it instead."""
        recorded = self.find(msg.Processes)
        kill_marked(f"PRESAGE_RUN={self.directory}", recorded.known if recorded else ())
        plan = self.find(msg.RunPlan)
        if plan and plan.engine:
            names = [worker.container for worker in plan.workers if worker.container]
            containers.remove(plan.engine, names)
        if plan and plan.cgroup:
            for worker in plan.workers:
                with suppress(OSError):
                    (plan.cgroup / worker.cgroup).rmdir()
        end = self._epitaph(_kept(plan) if plan else "")
        return end.event(self.job, self.attempt, time.time())

    def _epitaph(self, kept: str) -> msg.Verdict:
        said = ""
        with suppress(OSError):
            said = (self.directory / "guardian.log").read_text(errors="replace").strip()
        if said and not self.heard:
            text = f"the guardian of the run could not start: {said.splitlines()[-1][:300]}"
            return msg.refused(text)
        text = "the guardian of the run was killed; the job goes on from its last checkpoint"
        text += kept
        return msg.exited("lost", "node_lost", text)

    def remove(self) -> None:
        """Take the directory away, whole or not at all, and that of the job if it is empty."""
        job = self.directory.parent
        old = job.parent / f".old-{os.getpid()}-{time.monotonic_ns()}"
        with suppress(OSError):
            self.directory.rename(old)
        shutil.rmtree(old, ignore_errors=True)
        with suppress(OSError):
            job.rmdir()


def _kept(plan: msg.RunPlan) -> str:
    """Keep what a run left whose guardian is dead; says so in words."""
    try:
        return keeping.said(keeping.keep(plan), plan.most_results)
    except (OSError, ValueError) as error:
        return f"; its results could not be kept: {error}"


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


def make_run(runs: Path, run: Path, order: wire.Message, *, guarded: bool = True) -> int | None:
    """Make the directory of a run, whole or not at all. Returns its lock file, locked for a
    guardian, or None if it has none or the directory was there."""
    new = runs / f".new-{os.getpid()}-{time.monotonic_ns()}"
    new.mkdir(mode=0o700, parents=True)
    lock = _open_high(new / "lock") if guarded else None
    try:
        if lock is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.mkfifo(new / "control", 0o600)
        wire.write(new, order, durable=not guarded)
        run.parent.mkdir(mode=0o700, exist_ok=True)
        new.rename(run)
    except OSError:
        if lock is not None:
            os.close(lock)
        shutil.rmtree(new, ignore_errors=True)
        if not run.is_dir():
            raise
        return None
    return lock


def boot(python: str, module: str, argument: str, *, bare: bool = False) -> list[str]:
    """The command that runs `main` of a module of executors, of this very source; `bare`: with the
    standard library alone, which is up in a moment."""
    start = f"from presage.executors.{module} import main; main()"
    code = f"import sys; sys.path.insert(0, sys.argv.pop(1)); {start}"
    source = str(Path(presage.__file__).parent.parent)
    return [python, *(("-I", "-S") if bare else ()), "-c", code, source, argument]


def _open_high(path: Path) -> int:
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
        boot(python, "node.guardian", str(run.directory), bare=True),
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
