"""One worker of a run, as its guardian sees it: started, watched, stopped.

Standard library only.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from presage.executors.node.console import Console, own_terminal
from presage.executors.node.credentials import drop
from presage.executors.node.limits import (
    MemoryGroup,
    die_with_parent,
    engines_limit,
    limit_data,
    pin,
    scope_of,
    stand_first_in_line,
)
from presage.executors.node.log_times import LogTimes
from presage.executors.node.messages import UnixUser, WorkerPlan
from presage.executors.node.processes import children, read_stat
from presage.executors.node.workdir import has_content
from presage.telemetry.processes import ProcessTree

if TYPE_CHECKING:
    from presage.telemetry.nvml import GpuProbe

__all__ = [
    "StartError",
    "WorkerProcess",
    "cut_log",
    "is_memory_error",
    "missing_program",
    "start_all",
    "telling_line",
]

_SHELLS = frozenset(("sh", "bash", "dash", "ash", "zsh", "ksh", "busybox"))
_OUT_OF_MEMORY = (
    "memoryerror",
    "bad_alloc",
    "cannot allocate memory",
    "can't allocate memory",
    "out of memory",
    "outofmemoryerror",
)
_TAIL = 16 << 10
_LONGEST_LINE = 300
_FIND_SHARE = 0.0005
_PSS_SHARE = 0.01
"""Looking for new processes, and dividing shared pages, get at most these shares of a core."""


class StartError(Exception):
    """A worker could not be started; nothing of its run is left."""


class WorkerProcess:
    """A process, the group and session it leads, and everything that descends from it."""

    def __init__(
        self, plan: WorkerPlan, cgroup: Path | None, user: UnixUser | None = None
    ) -> None:
        self.plan, self.user = plan, user
        self.name = plan.name
        self.argv = plan.argv
        self.memory = 0 if plan.container and engines_limit() else plan.memory
        """Bytes that we hold it to; the engine does that for a container, where it can."""
        self.container = plan.container
        self.inside = False
        """Whether its tree is that of the container rather than that of the engine."""
        self.pid = 0
        self.status: int | None = None
        """As `waitpid` gave it, once the first process has ended."""
        self.tree: ProcessTree | None = None
        self.group: MemoryGroup | None = None
        self.near_limit = False
        """Whether it held more than half of its memory at the last look."""
        self.console = Console(plan.console, plan.log) if plan.console else None
        self._asked: list[int] = []
        self._urged = False
        self._next_find = self._next_pss = 0.0
        self._gpus: GpuProbe | None = None
        self._gpus_sought = False
        self._times = LogTimes(plan.log)
        if cgroup and self.memory and not plan.container:
            with suppress(OSError):  # then it is watched instead
                self.group = MemoryGroup(cgroup / plan.cgroup, self.memory)

    # -- starting -------------------------------------------------------------------------------

    def continue_from(self, checkpoints: Path) -> None:
        """Start the command that the manifest has for it, if there is a checkpoint."""
        if self.plan.resume and has_content(checkpoints):
            self.argv = self.plan.resume

    def become(self, work: Path, secrets: dict[str, str], go: int, errors: int) -> NoReturn:
        """Turn this forked process into the worker once `go` is closed, or say why not."""
        try:
            if self.console:
                self._own(self.console.inner[1])
                self.enter(work, self.console.inner, tty=self.console.tty)
            else:
                null = os.open(os.devnull, os.O_RDONLY)
                log = os.open(self.plan.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                self._own(log)
                self.enter(work, (null, log, log))
        except OSError as error:
            _give_up(errors, f"{self.name} cannot be set up: {error}")
        os.read(go, 1)
        self.execute(self.argv, work, secrets, errors)

    def execute(
        self, argv: Sequence[str], work: Path, secrets: dict[str, str], errors: int, **env: str
    ) -> NoReturn:
        """Turn this process, which has entered, into a program with the worker's environment, or
        say why not."""
        program = argv[0]
        own = {**os.environ, **self.plan.env, **secrets, "PWD": str(work), **env}
        try:
            os.execvpe(program, list(argv), own)
        except (FileNotFoundError, PermissionError):
            text = missing_program(list(argv), own, work) or f"{program!r} cannot be started"
        except OSError as error:
            text = f"{program!r} cannot be started: {error.strerror}"
        _give_up(errors, f"{self.name}: {text}")

    def _own(self, fd: int) -> None:
        """A log, or a terminal, is the user's own, so that a program can open it again."""
        if self.user is not None:
            os.fchown(fd, self.user.uid, self.user.gid)

    def enter(self, work: Path, streams: tuple[int, int, int], *, tty: bool = False) -> None:
        """Give this process what every process of the worker has: a session, cores, limits, the
        folder, its Unix user; and these standard streams, of which a terminal becomes its own.
        The program that runs a container stays who it is: it makes the worker that user."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.umask(0o022)
        parent = os.getppid()
        os.setsid()
        die_with_parent(parent)
        stand_first_in_line()
        if self.plan.cpus:
            with suppress(OSError):  # cores may be taken away from a machine
                os.sched_setaffinity(0, self.plan.cpus)
        if self.group:
            self.group.join()
        elif self.memory and not self.container:
            limit_data(self.memory)
        for target, source in enumerate(streams):
            os.dup2(source, target)
        if tty:
            own_terminal()
            self._own(0)
        os.chdir(work)
        if not self.container:
            drop(self.user)
            die_with_parent(parent)  # a process that changes its user forgets that

    def hold_to(self, cpu_milli: int, memory_mib: int) -> None:
        """Give it and all its processes less than it asked for, or more again. Memory is only
        reclaimed beyond this, never refused: its limit stays what it asked for."""
        if self.tree is None:
            return
        if cpu_milli:
            have = self.plan.cpus or sorted(os.sched_getaffinity(0))
            self.tree.find()
            pin(self.tree.pids, have[: max(1, ceil(cpu_milli / 1000))])
        if self.group:
            self.group.hold_to(cpu_milli, memory_mib << 20)

    def look_inside(self, pid: int) -> None:
        """Watch the processes of its container, whose first one this is (0: not there yet)."""
        if pid:
            self.tree, self.inside = ProcessTree(pid), True

    # -- watching -------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether its first process is gone."""
        return self.status is not None

    @property
    def alive(self) -> bool:
        """Whether anything of its process group is left."""
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # a set-user-id program
            return True
        return True

    @property
    def exit_code(self) -> int | None:
        """As a shell gives it: a signal counts from 128."""
        if self.status is None:
            return None
        code = os.waitstatus_to_exitcode(self.status)
        return code if code >= 0 else 128 - code

    @property
    def found_no_command(self) -> bool:
        """Whether the shell or container that we put around its command did not find one."""
        around = self.container or self.argv[:2] == ("/bin/sh", "-c")
        return bool(around) and self.exit_code in (126, 127)

    @property
    def signal_name(self) -> str | None:
        """The signal that ended it, also when the shell we put around it says so."""
        if self.status is None:
            return None
        number = os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else 0
        if not number and (self.container or self.argv[:2] == ("/bin/sh", "-c")):
            number = max(0, os.WEXITSTATUS(self.status) - 128)
        with suppress(ValueError):
            return signal.Signals(number).name if number else None
        return f"signal {number}"

    def overuse(self) -> int:
        """Bytes it holds if that is more than it may, else 0."""
        if not self.memory or self.group or self.tree is None or self.ended:
            return 0
        now = time.monotonic()
        if now >= self._next_find:
            self.tree.find()
            self._next_find = now + (time.monotonic() - now) / _FIND_SHARE
        held = self.tree.rss()
        self.near_limit = held > self.memory // 2
        if held <= self.memory or now < self._next_pss:
            return 0
        held = self.tree.pss() or held  # shared pages were counted more than once
        self._next_pss = now + (time.monotonic() - now) / _PSS_SHARE
        return held if held > self.memory else 0

    def gpus(self, nvml: str | None) -> GpuProbe | None:
        """What reads its GPUs, if somebody can; NVML's binding is in the folder `nvml`."""
        if nvml is not None and not self._gpus_sought and self.plan.env["CUDA_VISIBLE_DEVICES"]:
            from presage.telemetry.nvml import open_gpus

            self._gpus = open_gpus(self.plan.env["CUDA_VISIBLE_DEVICES"], nvml)[0]
        self._gpus_sought = True
        return self._gpus

    def look_at_log(self, most: int) -> None:
        """Note how long its log is by now; keep the last part of one that has grown too long, and
        say so in it."""
        with suppress(OSError):
            size = self.plan.log.stat().st_size
            if size <= most:
                self._times.note(size, time.time())
                return
            kept, note = cut_log(self.plan.log, most)
            self._times.cut(size - kept, note)

    def last_words(self) -> str:
        """The line of its log that says most about an error: the end of the last traceback, else
        the last line."""
        return telling_line(_tail(self.plan.log, _TAIL).decode("utf-8", "replace"))

    def says_out_of_memory(self) -> bool:
        """Whether its last words are those of a program that got no memory."""
        return is_memory_error(self.last_words())

    # -- stopping -------------------------------------------------------------------------------

    @property
    def gone(self) -> bool:
        """Whether nothing of it is left."""
        return self.ended and not self.alive

    def ask_to_stop(self) -> None:
        """SIGTERM to the program: to the first process and, as a shell passes nothing on, to what
        a shell runs. Helpers of the program (data loaders) are left alone, so that it can still
        save a checkpoint; an agent would not spare them, so its program is asked directly."""
        rest = [] if self.ended else [self.pid]
        if self.plan.agent and not self.container:
            rest = children(self.pid) or rest
        while rest:
            pid = rest.pop()
            stat = read_stat(pid)
            if stat is not None and stat.name in _SHELLS:
                rest += children(pid)
            self._asked.append(pid)
            with suppress(OSError):
                os.kill(pid, signal.SIGTERM)

    def dismiss(self) -> None:
        """SIGTERM to the first process: an agent that leaves ends its program and goes."""
        self._asked.append(self.pid)
        with suppress(OSError):
            os.kill(self.pid, signal.SIGTERM)

    def urge(self) -> None:
        """When all who were asked are gone and others are left, a wrapper did not pass the signal
        on: SIGTERM to all of them, once."""
        if self.ended and not self._urged and not any(map(read_stat, self._asked)):
            self._urged = True
            self.kill(signal.SIGTERM)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to its whole process group, and to that of an agent's program."""
        below = children(self.pid) if self.plan.agent and not self.ended else []
        for group in (*below, self.pid):
            with suppress(OSError):
                os.killpg(group, number)


def cut_log(log: Path, most: int) -> tuple[int, int]:
    """Keep the last part of a log that has passed `most` bytes, and say so in it; how many bytes
    are left of it, and how many say so."""
    tail = _tail(log, most // 4).partition(b"\n")[2]
    note = f"[presage: the log passed {most} bytes; what came before was cut]\n".encode()
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        os.ftruncate(fd, 0)
        os.write(fd, note + tail)
    finally:
        os.close(fd)
    return len(tail), len(note)


def telling_line(text: str) -> str:
    """The line of a log that says most about an error: the end of the last traceback, else the
    last line."""
    lines = text.splitlines()
    starts = [n for n, line in enumerate(lines) if line.startswith("Traceback (most recent")]
    if starts:
        for line in lines[starts[-1] + 1 :]:
            if line.strip() and not line.startswith(" "):
                return _printable(line)
    said = [line for line in lines if line.strip()]
    return _printable(said[-1]) if said else ""


def is_memory_error(words: str) -> bool:
    """Whether these are the last words of a program that got no memory."""
    return any(sign in words.lower() for sign in _OUT_OF_MEMORY)


def start_all(
    workers: Sequence[WorkerProcess],
    work: Path,
    secrets: dict[str, str],
    record: Callable[[], None],
) -> None:
    """Start every worker or none; raises StartError with the reason. `record` is called when all
    are forked and none has begun."""
    go_read, go_write = os.pipe()
    errors_read, errors_write = os.pipe()
    try:
        for worker in workers:
            pid = os.fork()
            if pid == 0:
                os.close(go_write)
                worker.become(work, secrets, go_read, errors_write)
            worker.pid = pid
            _enclose(worker)
        record()
    except OSError as error:
        for worker in workers:
            if worker.pid:
                os.kill(worker.pid, signal.SIGKILL)
        raise StartError(f"a process could not be started: {error.strerror}") from None
    finally:
        os.close(go_write)
        os.close(go_read)
        os.close(errors_write)
        said = _drain(errors_read)
        os.close(errors_read)
    if said:
        raise StartError(said)
    for worker in workers:
        worker.tree = ProcessTree(worker.pid)


def _enclose(worker: WorkerProcess) -> None:
    """Have systemd hold a worker's memory, where no group for that was delegated."""
    if worker.memory and not worker.group and not worker.container:
        worker.group = scope_of(worker.pid, worker.plan.cgroup, worker.memory)


def missing_program(argv: Sequence[str], env: Mapping[str, str], work: Path) -> str | None:
    """What is wrong with the program of a command, in words; None if it can be executed. Of a
    torchrun agent, also with the program that it runs."""
    import shutil

    _, _, inner = map(tuple, _split(argv, "--no-python"))
    for program in (argv[0], *inner[:1]):
        where = str(work / program) if "/" in program else program
        path = shutil.which(where, path=env.get("PATH", os.defpath))
        if path is None and "/" in program and Path(where).exists():
            return f"{program!r} is not executable"
        if path is None:
            return f"there is no program {program!r}; check the command and its PATH"
        if (interpreter := _interpreter(path)) and not Path(interpreter).exists():
            return f"{program!r} names an interpreter that is not there: {interpreter}"
    return None


def _split(words: Sequence[str], at: str) -> tuple[Sequence[str], ...]:
    """What comes before a word, the word, and what comes after; all of it if it is not there."""
    n = words.index(at) if at in words else len(words)
    return words[:n], words[n : n + 1], words[n + 1 :]


def _interpreter(program: str) -> str:
    """What the first line of a script names, if that is what a program is."""
    with suppress(OSError), Path(program).open("rb") as file:
        first = file.readline(256)
        if first.startswith(b"#!"):
            return (first[2:].split() or [b""])[0].decode("utf-8", "replace")
    return ""


def _give_up(errors: int, text: str) -> NoReturn:
    os.write(errors, text.encode()[:4000] + b"\n")
    os._exit(127)


def _drain(fd: int) -> str:
    parts = []
    while part := os.read(fd, 1 << 16):
        parts.append(part)
    return b"".join(parts).decode("utf-8", "replace").partition("\n")[0]


def _tail(path: Path, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - size))
            return file.read(size)
    except OSError:
        return b""


def _printable(line: str) -> str:
    return "".join(sign for sign in line.strip() if sign.isprintable())[:_LONGEST_LINE]
