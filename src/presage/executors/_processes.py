"""What /proc says about processes: who descends from whom, and what each uses.

Standard library only, since the guardian of every run imports it. Processes come and go at any
moment; what is gone is left out.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator

__all__ = [
    "ProcessTree",
    "Usage",
    "all_pids",
    "children",
    "descendants",
    "environment",
    "kill_marked",
    "read_stat",
    "read_text",
]

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_KERNEL_LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # noqa: PTH110


class Stat:
    """The fields of /proc/PID/stat that matter here."""

    __slots__ = ("cpu_s", "name", "parent", "session", "start", "state", "threads")

    def __init__(self, text: str) -> None:
        before, _, after = text.rpartition(")")
        fields = after.split()
        self.name = before.partition("(")[2]
        self.state = fields[0]
        self.parent = int(fields[1])
        self.session = int(fields[3])
        self.cpu_s = sum(map(int, fields[11:15])) / _TICKS  # with children it waited for
        self.threads = int(fields[17])
        self.start = int(fields[19])
        """In ticks since boot: with the PID it names a process for ever."""


class Usage:
    """What the processes of a tree have used so far, and hold now."""

    __slots__ = ("cpu_s", "processes", "read_bytes", "rss", "threads", "write_bytes")

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.processes = self.threads = self.rss = self.read_bytes = self.write_bytes = 0


def read_text(path: str) -> str | None:
    """A small file, or None when it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, 1 << 16).decode("utf-8", "replace")
    except OSError:  # the process ended between the two calls
        return None
    finally:
        os.close(fd)


def read_stat(pid: int) -> Stat | None:
    """What /proc says of a process, or None when there is none."""
    text = read_text(f"/proc/{pid}/stat")
    return Stat(text) if text else None


def all_pids() -> list[int]:
    """Every process on the machine."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208


def children(pid: int) -> list[int]:
    """The direct children of a process."""
    if not _KERNEL_LISTS_CHILDREN:
        return [p for p in all_pids() if (stat := read_stat(p)) and stat.parent == pid]
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:
        return []
    found: list[int] = []
    for thread in threads:
        found += map(int, (read_text(f"/proc/{pid}/task/{thread}/children") or "").split())
    return found


def descendants(pid: int) -> list[int]:
    """Children, their children and so on."""
    found: list[int] = []
    rest = children(pid)
    while rest:
        found += rest
        rest = [child for parent in rest for child in children(parent)]
    return found


def environment(pid: int) -> bytes:
    """The environment a process was started with, as the kernel keeps it."""
    try:
        fd = os.open(f"/proc/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return b"\0" + os.read(fd, 1 << 20)
    except OSError:
        return b""
    finally:
        os.close(fd)


def kill_marked(mark: str, known: Iterable[tuple[int, int]], within_s: float = 5.0) -> None:
    """Kill every process that has `mark` (NAME=value) in its environment, is one of the `known`
    (PID and start), or belongs to the session of one; returns when none is left."""
    sign = b"\0" + mark.encode() + b"\0"
    starts = dict(known)
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        hit = False
        for pid in _others():
            stat = read_stat(pid)
            if stat is None or stat.state == "Z":
                continue
            of_session = stat.session in starts and _same_session(stat, starts[stat.session])
            if of_session or starts.get(pid) == stat.start or sign in environment(pid) + b"\0":
                hit = True
                _kill(pid, signal.SIGKILL)
        if not hit:
            return
        time.sleep(0.01)


def _others() -> Iterator[int]:
    own = os.getpid()
    return (pid for pid in all_pids() if pid != own)


def _same_session(stat: Stat, leader_start: int) -> bool:
    """Whether a session with that number is still the one that was recorded: its leader, if it
    lives, started when it was noted, and no member is older."""
    leader = read_stat(stat.session)
    if leader is not None and leader.session == stat.session and leader.start != leader_start:
        return False
    return stat.start >= leader_start


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        return


class ProcessTree:
    """A process and its descendants, those included whose parent has gone."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._starts: dict[int, int] = {}
        self._last = Usage()
        self.find()

    def find(self) -> None:
        """Look for processes that came since; forget those that went."""
        known = self._starts
        self._starts = {}
        for pid in [self.pid, *descendants(self.pid)]:
            self._add(pid, None)
        for pid, start in known.items():
            if pid not in self._starts and self._add(pid, start):
                for child in descendants(pid):
                    self._add(child, None)

    def _add(self, pid: int, start: int | None) -> bool:
        stat = read_stat(pid)
        if stat is None or start not in (None, stat.start):
            return False
        self._starts[pid] = stat.start
        return True

    @property
    def pids(self) -> list[int]:
        """The processes that were there at the last look."""
        return list(self._starts)

    def rss(self) -> int:
        """Bytes resident, shared pages counted once for each process: an upper bound."""
        total = 0
        for pid in self._starts:
            text = read_text(f"/proc/{pid}/statm")
            if text:
                total += int(text.split()[1]) * _PAGE
        return total

    def pss(self) -> int:
        """Bytes resident, each shared page divided among those who share it. Costs a walk through
        the page tables."""
        total = 0
        for pid in self._starts:
            for line in (read_text(f"/proc/{pid}/smaps_rollup") or "").splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        return total

    def usage(self) -> Usage:
        """Add up the tree; counters never fall, though processes end."""
        now = Usage()
        for pid in self._starts:
            stat = read_stat(pid)
            if stat is None:
                continue
            now.processes += 1
            now.threads += stat.threads
            now.cpu_s += stat.cpu_s
            for line in (read_text(f"/proc/{pid}/io") or "").splitlines():
                name, _, value = line.partition(": ")
                if name == "read_bytes":
                    now.read_bytes += int(value)
                elif name == "write_bytes":
                    now.write_bytes += int(value)
        now.rss = self.rss()
        for name in ("cpu_s", "read_bytes", "write_bytes"):
            setattr(now, name, max(getattr(now, name), getattr(self._last, name)))
        self._last = now
        return now
