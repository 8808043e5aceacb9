"""Samples a tree of processes at a steady rate, in a thread of its own.

Counters (CPU time, bytes) are kept as they were read; rates are made of them afterwards. What a
process used that lived between two looks is not lost: Linux adds it to its parent's counters when
the parent waits for it. Processes may come and go at any moment.
"""

from __future__ import annotations

import time
from array import array
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Thread

import numpy as np
import numpy.typing as npt
import psutil

from presage.nvml import GpuProbe, GpuReading

__all__ = ["COLUMNS", "ProcessTree", "Sampler", "TreeReading"]

COLUMNS = (
    "t_s",
    "cpu_s",
    "rss_mib",
    "processes",
    "threads",
    "read_bytes",
    "write_bytes",
    "net_sent_bytes",
    "net_received_bytes",
    "gpu_util_pct",
    "gpu_memory_mib",
    "gpu_shared",
)
"""Of a sample. `cpu_s` and the bytes are counters."""

_MIB = 1 << 20
_LOOK_EVERY_S = 0.25
_LOOK_SHARE = 0.005
"""Looking for new processes reads the list of all on the machine; it gets at most this share of a
core."""
_NO_GPU = GpuReading()


@dataclass(frozen=True, slots=True)
class TreeReading:
    """What the processes of a tree have used so far, and hold now."""

    cpu_s: float
    rss_mib: float
    processes: int
    threads: int
    read_bytes: int
    write_bytes: int


@dataclass(slots=True)
class _Member:
    """A process of the tree, with what it had used when it was last seen."""

    process: psutil.Process
    threads: int = 1
    orphan: bool = False
    """Its parent is gone, so nobody of the tree inherits its counters."""
    cpu_s: float = 0.0
    rss: int = 0
    read_bytes: int = 0
    write_bytes: int = 0

    def look(self) -> None:
        times = self.process.cpu_times()
        self.rss = self.process.memory_info().rss
        self.cpu_s = times.user + times.system + times.children_user + times.children_system
        with suppress(psutil.AccessDenied, OSError):  # a set-user-id program hides its counters
            io = self.process.io_counters()
            self.read_bytes, self.write_bytes = io.read_bytes, io.write_bytes


class ProcessTree:
    """A process and its descendants, those included whose parent has gone."""

    def __init__(self, pid: int) -> None:
        self._members: dict[int, _Member] = {}
        self._lost = _Counters()
        self._last = _Counters()
        with suppress(psutil.Error):
            self._root = psutil.Process(pid)
            self._members[pid] = _Member(self._root)

    @property
    def pids(self) -> set[int]:
        """The processes that were there at the last look."""
        return set(self._members)

    def find_new(self) -> None:
        """Look for processes that were started since."""
        if not self._members:
            return
        found = {}
        with suppress(psutil.Error):
            found = {child.pid: child for child in self._root.children(recursive=True)}
        for pid, process in found.items():
            self._members.setdefault(pid, _Member(process))
        for pid, member in self._members.items():
            if pid not in found and pid != self._root.pid and member.process.is_running():
                member.orphan = True
            with suppress(psutil.Error):
                member.threads = member.process.num_threads()

    def read(self) -> TreeReading:
        """Add up the tree. Parents come before their children, so that a child that ends meanwhile
        is missed until the next look rather than counted twice."""
        for pid, member in list(self._members.items()):
            try:
                member.look()
            except (psutil.Error, OSError):
                del self._members[pid]
                if member.orphan:
                    self._lost.add(member)
        now = _Counters(self._lost.cpu_s, self._lost.read_bytes, self._lost.write_bytes)
        for member in self._members.values():
            now.add(member)
        self._last.rise_to(now)
        return TreeReading(
            cpu_s=self._last.cpu_s,
            rss_mib=sum(member.rss for member in self._members.values()) / _MIB,
            processes=len(self._members),
            threads=sum(member.threads for member in self._members.values()),
            read_bytes=self._last.read_bytes,
            write_bytes=self._last.write_bytes,
        )


@dataclass(slots=True)
class _Counters:
    cpu_s: float = 0.0
    read_bytes: int = 0
    write_bytes: int = 0

    def add(self, member: _Member) -> None:
        self.cpu_s += member.cpu_s
        self.read_bytes += member.read_bytes
        self.write_bytes += member.write_bytes

    def rise_to(self, other: _Counters) -> None:
        """A counter never falls, though a process may end between two reads."""
        self.cpu_s = max(self.cpu_s, other.cpu_s)
        self.read_bytes = max(self.read_bytes, other.read_bytes)
        self.write_bytes = max(self.write_bytes, other.write_bytes)


class Sampler:
    """Samples a tree `hz` times a second from `start` to `stop`. Ticks are at whole multiples of
    the period after the start: lateness does not add up, and a tick that is missed is skipped."""

    def __init__(self, pid: int, hz: float, gpus: GpuProbe | None = None) -> None:
        self._tree = ProcessTree(pid)
        self._period_s = 1 / hz
        self._gpus = gpus
        self._columns = [array("d") for _ in COLUMNS]
        self._stop = Event()
        self._thread = Thread(target=self._run, name="presage-sampler", daemon=True)
        self.cpu_s = 0.0
        """CPU time that sampling itself took."""

    def start(self) -> None:
        """Begin, in a thread of its own."""
        self._thread.start()

    def stop(self) -> dict[str, npt.NDArray[np.float64]]:
        """End, and hand over the samples by column."""
        self._stop.set()
        self._thread.join()
        return {
            name: np.asarray(column) for name, column in zip(COLUMNS, self._columns, strict=True)
        }

    def _run(self) -> None:
        start = time.monotonic()
        next_look = tick = 0.0
        while not self._stop.is_set():
            now = time.monotonic() - start
            if now >= next_look:
                self._tree.find_new()
                cost = time.monotonic() - start - now
                next_look = now + max(_LOOK_EVERY_S, cost / _LOOK_SHARE)
            self._sample(start)
            self.cpu_s = time.thread_time()
            behind = time.monotonic() - start
            tick = max(tick + 1, behind // self._period_s + 1)
            self._stop.wait(tick * self._period_s - behind)

    def _sample(self, start: float) -> None:
        now = time.monotonic() - start
        used = self._tree.read()
        if used.processes == 0:
            return
        gpu = self._gpus.read(self._tree.pids) if self._gpus is not None else _NO_GPU
        net = psutil.net_io_counters(nowrap=False)  # 64 bits do not wrap
        sample = (
            now,
            used.cpu_s,
            used.rss_mib,
            used.processes,
            used.threads,
            used.read_bytes,
            used.write_bytes,
            net.bytes_sent if net else 0,
            net.bytes_recv if net else 0,
            gpu.util_pct,
            gpu.memory_mib,
            gpu.shared,
        )
        for column, value in zip(self._columns, sample, strict=True):
            column.append(value)
