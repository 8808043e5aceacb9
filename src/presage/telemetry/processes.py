"""What /proc says about processes: who descends from whom, and what a tree of them uses.

Standard library only, since the guardian of every run imports it. Processes come and go at any
moment; what is gone is left out. Nothing here ends a process.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from presage.telemetry.rows import Row

if TYPE_CHECKING:
    from presage.telemetry.nvml import GpuProbe

__all__ = [
    "ProcessTree",
    "Stat",
    "all_pids",
    "children",
    "descendants",
    "read_stat",
    "tcp_segments",
]

_MIB = 1 << 20
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_KERNEL_LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # noqa: PTH110


class Stat:
    """The fields of /proc/PID/stat that matter here."""

    __slots__ = ("cpu_s", "name", "parent", "rss", "session", "start", "state", "threads")

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
        self.rss = int(fields[21]) * _PAGE


def _read_text(path: str) -> str | None:
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
    text = _read_text(f"/proc/{pid}/stat")
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
    pids: list[int] = []
    for thread in threads:
        pids += map(int, (_read_text(f"/proc/{pid}/task/{thread}/children") or "").split())
    return pids


def descendants(pid: int) -> list[int]:
    """Children, their children and so on."""
    pids: list[int] = []
    rest = children(pid)
    while rest:
        pids += rest
        rest = [child for parent in rest for child in children(parent)]
    return pids


def tcp_segments(pid: int) -> tuple[int, int] | None:
    """TCP segments that were sent, and sent again, in the network namespace of a process."""
    lines = (_read_text(f"/proc/{pid}/net/snmp") or "").splitlines()
    names, counts = [line.split() for line in lines if line.startswith("Tcp:")] or ([], [])
    at = dict(zip(names, counts, strict=False))
    if "OutSegs" not in at or "RetransSegs" not in at:
        return None
    return int(at["OutSegs"]), int(at["RetransSegs"])


class _Member:
    """A process of a tree, with what it had used when it was last seen."""

    __slots__ = ("cpu_s", "orphan", "read_bytes", "start", "wait_s", "write_bytes")

    def __init__(self, start: int) -> None:
        self.start = start
        self.orphan = False
        """Nobody of the tree is its parent, so nobody inherits its counters."""
        self.cpu_s = self.wait_s = 0.0
        self.read_bytes = self.write_bytes = 0

    def look(self, pid: int, stat: Stat) -> None:
        self.cpu_s = stat.cpu_s
        words = (_read_text(f"/proc/{pid}/io") or "").split()
        if len(words) >= 12:  # a set-user-id program hides them
            self.read_bytes, self.write_bytes = int(words[9]), int(words[11])
        # Of its first thread, in nanoseconds: time on a core, then time spent waiting for one.
        words = (_read_text(f"/proc/{pid}/schedstat") or "").split()
        if len(words) == 3:
            self.wait_s = int(words[1]) / 1e9


class ProcessTree:
    """A process and its descendants, those included whose parent has gone.

    What a process used that lived between two looks is not lost: Linux adds it to the counters of
    its parent when that waits for it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._members: dict[int, _Member] = {}
        self._lost = _Member(0)
        """Counters of those that ended without a parent."""
        self._last = (0.0, 0, 0)
        self.find()

    @property
    def pids(self) -> list[int]:
        """The processes that were there at the last look."""
        return list(self._members)

    def adopt(self, pid: int) -> None:
        """Count a process, and those below it, that descends from somebody else."""
        self._take(pid, self._members)

    def find(self) -> None:
        """Look for processes that came since; forget those that went."""
        known, self._members = self._members, {}
        self._take(self.pid, known)
        for pid in list(known):
            if pid in known:
                self._take(pid, known)

    def _take(self, pid: int, known: dict[int, _Member]) -> None:
        """Keep a process, if it is still the one that was known, and all below it."""
        stat, member = read_stat(pid), known.pop(pid, None)
        if stat is None or (member is not None and member.start != stat.start):
            self._lose(member)
            return
        top = self._members[pid] = member or _Member(stat.start)
        top.orphan = True
        for child in descendants(pid):
            mine = known.pop(child, None)
            if mine is None and (stat := read_stat(child)) is not None:
                mine = _Member(stat.start)
            if mine is not None:
                self._members[child] = mine

    def _lose(self, member: _Member | None) -> None:
        if member is not None and member.orphan:
            self._lost.cpu_s += member.cpu_s
            self._lost.wait_s += member.wait_s
            self._lost.read_bytes += member.read_bytes
            self._lost.write_bytes += member.write_bytes

    def row(
        self,
        at: float,
        worker: str = "",
        gpus: GpuProbe | None = None,
        before: Row | None = None,
    ) -> Row:
        """What the tree has used so far, and holds now; cores are those since the row `before`.

        Parents come before their children, so that a child that ends meanwhile is missed until the
        next row rather than counted twice. Counters never fall, though processes end."""
        rss = threads = stopped = 0
        cpu_s, wait_s, read_bytes, write_bytes = 0.0, 0.0, 0, 0
        for pid, member in list(self._members.items()):
            stat = read_stat(pid)
            if stat is None or stat.start != member.start:
                self._lose(self._members.pop(pid))
                continue
            member.look(pid, stat)
            rss += stat.rss
            threads += stat.threads
            stopped += stat.state in "Tt"
            cpu_s += member.cpu_s
            wait_s += member.wait_s
            read_bytes += member.read_bytes
            write_bytes += member.write_bytes
        cpu_s, read_bytes, write_bytes = self._last = (
            max(self._last[0], cpu_s + self._lost.cpu_s),
            max(self._last[1], read_bytes + self._lost.read_bytes),
            max(self._last[2], write_bytes + self._lost.write_bytes),
        )
        cores = None
        if before is not None and before.cpu_s is not None:
            cores = max(0.0, cpu_s - before.cpu_s) / max(at - before.at, 0.001)
        row = Row(
            at,
            worker,
            cpu_s,
            cores,
            rss / _MIB,
            len(self._members),
            threads,
            read_bytes,
            write_bytes,
            stopped=stopped,
            wait_s=wait_s + self._lost.wait_s,
        )
        used = gpus.read(self._members) if gpus is not None else None
        return row if used is None else used.add_to(row)

    def rss(self) -> int:
        """Bytes resident, shared pages counted once for each process: an upper bound."""
        total = 0
        for pid in self._members:
            text = _read_text(f"/proc/{pid}/statm")
            if text:
                total += int(text.split()[1]) * _PAGE
        return total

    def pss(self) -> int:
        """Bytes resident, each shared page divided among those who share it. Costs a walk through
        the page tables."""
        total = 0
        for pid in self._members:
            for line in (_read_text(f"/proc/{pid}/smaps_rollup") or "").splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        return total
