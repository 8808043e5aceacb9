"""What the kernel is told about a worker: its cores, its memory, and whom it dies with.

Memory is limited by a cgroup (version 2) where one was delegated to the server, else by a scope of
systemd where that runs. Elsewhere the guardian watches what the worker's processes hold, and
RLIMIT_DATA stops the one that grows faster than it can look. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

__all__ = [
    "MemoryGroup",
    "become_subreaper",
    "delegated_group",
    "die_with_parent",
    "engines_limit",
    "how_memory_is_held",
    "limit_data",
    "no_new_privileges",
    "oom_kills",
    "pin",
    "scope_of",
    "stand_first_in_line",
]

DATA_SLACK = 4 << 30
"""RLIMIT_DATA counts what is reserved (thread stacks, arenas), not what is used: leave room."""

_SCOPE_S = 5.0
"""How long systemd may take to make a scope."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def become_subreaper() -> None:
    """Orphaned descendants become children of this process instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def no_new_privileges() -> None:
    """No program that is executed from now on gains rights, set-user-id ones included."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def die_with_parent(parent: int) -> None:
    """Be killed when the parent dies, also when that happened just now."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def stand_first_in_line() -> None:
    """When the machine runs out of memory, take this process before the guardian or the server."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def limit_data(memory: int) -> None:
    """The backstop behind watching: no process may reserve much more than its worker may use."""
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (memory + DATA_SLACK, memory + DATA_SLACK))


def oom_kills() -> int:
    """Processes that the kernel has killed for want of memory, on the whole machine."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def delegated_group(own: str | None = None, mount: Path = Path("/sys/fs/cgroup")) -> Path | None:
    """The cgroup below which this process may limit memory, if it was given one.

    Its own group serves when it may have groups below it. So does the group above, if it was
    delegated: that is where systemd leaves room with `Delegate=memory` and `DelegateSubgroup=`.
    """
    if own is None:
        own = _own_group()
    if own is None or not (mount / "cgroup.controllers").is_file():
        return None
    group = mount / own.lstrip("/")
    for candidate in (group, group.parent):
        if candidate != group and not (mount in candidate.parents and _delegated(candidate)):
            continue
        if _can_limit_memory(candidate):
            return candidate
    return None


def _own_group() -> str | None:
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                return line[3:]
    return None


def _delegated(group: Path) -> bool:
    for name in ("user.delegate", "trusted.delegate"):
        with suppress(OSError):
            return os.getxattr(group, name) == b"1"
    return False


def _can_limit_memory(group: Path) -> bool:
    """Whether groups below this one can have a memory limit; switches that on if it is off."""
    enabled = group / "cgroup.subtree_control"
    try:
        if "memory" not in (group / "cgroup.controllers").read_text().split():
            return False
        if "memory" not in enabled.read_text().split():
            enabled.write_text("+memory")
        return os.access(group, os.W_OK) and os.access(group / "cgroup.procs", os.W_OK)
    except OSError:
        return False


def pin(pids: Iterable[int], cores: Sequence[int]) -> None:
    """Have these processes, with all their threads, run on these cores alone."""
    for pid in pids:
        with suppress(OSError):  # it has ended
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with suppress(OSError):
                    os.sched_setaffinity(int(thread.name), cores)


def engines_limit(mount: Path = Path("/sys/fs/cgroup")) -> bool:
    """Whether podman or docker can limit the memory of a container: root can, others where there
    is version 2 of cgroups alone."""
    return os.geteuid() == 0 or (mount / "cgroup.controllers").is_file()


def how_memory_is_held(cgroup: Path | None) -> str:
    """What limits the memory of workers here, in a word: `cgroup`, `systemd` or `watched`."""
    if cgroup is not None:
        return "cgroup"
    return "watched" if _systemd() is None else "systemd"


def _systemd(
    run: Path = Path("/run/systemd"), mount: Path = Path("/sys/fs/cgroup")
) -> list[str] | None:
    """The command that asks systemd, if it is there and has version 2 of cgroups."""
    import shutil

    if not (mount / "cgroup.controllers").is_file() or not (run / "system").is_dir():
        return None
    program = shutil.which("busctl")
    if program is None:
        return None
    if os.geteuid() == 0:
        return [program, "--system"]
    own = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")
    return [program, "--user"] if (own / "systemd").is_dir() else None


def scope_of(
    pid: int,
    name: str,
    memory: int,
    *,
    run: Path = Path("/run/systemd"),
    mount: Path = Path("/sys/fs/cgroup"),
    proc: Path = Path("/proc"),
) -> MemoryGroup | None:
    """Have systemd put a process that has not begun into a scope with a memory limit. None where
    there is no systemd, or where it refuses: then the process is watched instead."""
    import subprocess

    ask = _systemd(run, mount)
    if ask is None:
        return None
    service = ["org.freedesktop.systemd1", "/org/freedesktop/systemd1"]
    call = ["org.freedesktop.systemd1.Manager", "StartTransientUnit", "ssa(sv)a(sa(sv))"]
    limits = ["MemoryMax", "t", str(memory), "MemorySwapMax", "t", "0"]
    properties = ["4", "PIDs", "au", "1", str(pid), "CollectMode", "s", "inactive-or-failed"]
    words = [*service, *call, f"{name}.scope", "fail", *properties, *limits, "0"]
    end = time.monotonic() + _SCOPE_S
    try:
        subprocess.run([*ask, "call", *words], capture_output=True, timeout=_SCOPE_S, check=True)
        while time.monotonic() < end:  # the job of systemd is queued when it answers
            own = next(iter((proc / str(pid) / "cgroup").read_text().split("0::")[1:]), "")
            path = mount / own.strip().lstrip("/")
            if path.name == f"{name}.scope" and (path / "memory.max").is_file():
                return MemoryGroup(path, memory, made=True)
            time.sleep(0.01)
    except (OSError, subprocess.SubprocessError):
        pass
    return None


class MemoryGroup:
    """A cgroup of one worker with a memory limit. The kernel kills all of it when it passes."""

    def __init__(self, path: Path, memory: int, *, made: bool = False) -> None:
        self.path = path
        self._made = made
        """Whether it was there, with the worker in it."""
        if not made:
            path.mkdir()
        (path / "memory.max").write_text(str(memory))
        for name, value in (("memory.oom.group", "1"), ("memory.swap.max", "0")):
            with suppress(OSError):  # older kernels, or no swap
                (path / name).write_text(value)

    def join(self) -> None:
        """Move this process in; what it starts is born inside."""
        if self._made:
            return
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def hold_to(self, cpu_milli: int, memory: int) -> None:
        """Slow it down beyond so much CPU, and reclaim its memory beyond so many bytes; 0 for no
        limit."""
        quota = f"{100 * cpu_milli} 100000" if cpu_milli else "max 100000"
        for name, value in (("cpu.max", quota), ("memory.high", str(memory or "max"))):
            with suppress(OSError):  # the controller was not delegated
                (self.path / name).write_text(value)

    def ran_out(self) -> bool:
        """Whether the kernel killed it for want of memory."""
        with suppress(OSError):
            for line in (self.path / "memory.events").read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill" and int(count):
                    return True
        return False

    def remove(self) -> None:
        """Take the empty group away."""
        with suppress(OSError):
            self.path.rmdir()
