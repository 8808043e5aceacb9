"""Samples the workers and servers of a distributed training fast enough to see single steps.

For each of them: how busy its device is in compute, how busy memory is, what it sent and received.
On a GPU these are NVML's figures. Without one, utilization is the share of its cores that its
threads kept busy, without those in which gloo and NCCL talk to others; memory is explained in
`counters`. The network is that of its network namespace. Rows are those of all telemetry. Linux.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from threading import Event, Thread

import numpy as np
import numpy.typing as npt

from presage.model.errors import UserError
from presage.telemetry.bursts.counters import EventCounter, copied_bytes_s
from presage.telemetry.bursts.labels import RESOURCES, Bursts, label
from presage.telemetry.nvml import GpuProbe
from presage.telemetry.processes import descendants, read_stat
from presage.telemetry.rows import Row, append

__all__ = ["LOWEST_HZ", "BurstSampler", "TaskBursts", "bursts_of"]

Floats = npt.NDArray[np.float64]

LOWEST_HZ = 20.0
_MIB = 1 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE")
_LINE = 64
_LOOK_EVERY_S = 0.25
_WHOLE = "worker"
"""The task that is the whole of a command."""
_RANKS = ("PRESAGE_RANK", "RANK")
_TALKING = ("gloo", "pt_gloo", "pt_tcpstore", "nccl")
"""How the names of threads begin that only communicate."""


class BurstSampler:
    """Samples tasks, each a process and all below it, from `start` to `stop`. Of one process alone
    (`root`) the tasks are looked for: those below it that were started with a rank, such as those
    of torchrun or of Presage; without any, it is one task itself."""

    def __init__(
        self,
        tasks: Mapping[str, int] | int,
        hz: float = 40.0,
        *,
        cores: float = 1.0,
        gpus: GpuProbe | None = None,
        out: Path | None = None,
        peak_bytes_s: float | None = None,
    ) -> None:
        if not LOWEST_HZ <= hz <= 100:
            raise UserError(f"bursts need {LOWEST_HZ:g} to 100 samples a second, not {hz:g}")
        peak = peak_bytes_s or (0.0 if gpus else copied_bytes_s())
        self.hz = hz
        self.cores = cores
        self._peak = peak
        self._root = tasks if isinstance(tasks, int) else None
        given = {_WHOLE: tasks} if isinstance(tasks, int) else tasks
        self._tasks = [_WatchedTask(name, pid, peak) for name, pid in given.items()]
        self._ended: list[_WatchedTask] = []
        self._gpus, self._out = gpus, out
        self._rows: list[Row] = []
        self._written = 0
        self._stop = Event()
        self._thread = Thread(target=self._run, name="presage-bursts", daemon=True)
        self.cpu_s = 0.0
        """CPU time that sampling itself took."""

    @property
    def memory_counter(self) -> str:
        """What memory utilization was made of."""
        counted = all(task.memory_counted for task in self._tasks)
        return "nvml" if self._gpus else "cache misses" if counted else "page faults"

    @property
    def shared_network(self) -> bool:
        """Whether tasks share a network, so that each shows what all of them sent."""
        spaces = [task.network for task in self._tasks]
        return len(set(spaces)) < len(spaces)

    def start(self) -> None:
        """Begin, in a thread of its own."""
        self._thread.start()

    def stop(self) -> list[Row]:
        """End, and hand over the rows; those of a task are in order."""
        self._stop.set()
        self._thread.join()
        for task in (*self._tasks, *self._ended):
            task.close()
        if self._root is not None and any(row.worker != _WHOLE for row in self._rows):
            self._rows = [row for row in self._rows if row.worker != _WHOLE]
        self._write()
        return self._rows

    def _find_tasks(self) -> None:
        """Take up tasks below the root that came since; the root itself is none then."""
        known = {task.name for task in (*self._tasks, *self._ended)}
        for name, pid in _ranked(self._root or 0).items():
            if name not in known:
                with suppress(UserError):  # it has ended already
                    self._tasks.append(_WatchedTask(name, pid, self._peak))
        if len(self._tasks) > 1 and self._tasks[0].name == _WHOLE:
            self._ended.append(self._tasks.pop(0))

    def _run(self) -> None:
        period, start = 1 / self.hz, time.monotonic()
        tick = 0.0
        next_look = next_write = start + _LOOK_EVERY_S
        for task in self._tasks:
            task.look()
        while not self._stop.is_set():
            now = time.monotonic()
            if now >= next_look:
                next_look = now + _LOOK_EVERY_S
                if self._root is not None:
                    self._find_tasks()
                for task in self._tasks:
                    task.look()
            at = time.time()
            self._rows += [row for task in self._tasks if (row := task.row(at, self._gpus))]
            if now >= next_write and self._root is None:
                next_write = now + 1.0
                self._write()
            self.cpu_s = time.thread_time()
            behind = time.monotonic() - start
            tick = max(tick + 1, behind // period + 1)
            self._stop.wait(tick * period - behind)

    def _write(self) -> None:
        if self._out is not None and self._written < len(self._rows):
            append(self._out, *self._rows[self._written :])
            self._written = len(self._rows)


def _ranked(root: int) -> dict[str, int]:
    """The processes below one that were started with a rank, the topmost of each, by role and
    rank."""
    out: dict[str, int] = {}
    for pid in descendants(root):
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        env = dict(word.decode("utf-8", "replace").partition("=")[::2] for word in words)
        rank = next((env[name] for name in _RANKS if name in env), None)
        if rank is not None and rank != os.environ.get("PRESAGE_RANK", os.environ.get("RANK")):
            out.setdefault(f"{env.get('PRESAGE_ROLE', 'worker')}-{rank}", pid)
    return out


class _WatchedTask:
    """A worker or a server: its processes, their threads, and what they had used."""

    def __init__(self, name: str, pid: int, peak_bytes_s: float) -> None:
        if read_stat(pid) is None:
            raise UserError(f"{name}: there is no process {pid}")
        self.name, self.pid = name, pid
        self._peak = peak_bytes_s
        self._threads: dict[tuple[int, int], int] = {}
        self._used_ns: dict[tuple[int, int], int] = {}
        self._pids: list[int] = []
        self._counter = EventCounter.open(pid)
        self.memory_counted = self._counter is not None
        self._before: tuple[float, float, float] | None = None
        with suppress(OSError):
            self.network = os.stat(f"/proc/{pid}/ns/net").st_ino  # noqa: PTH116  # not its target

    network = 0

    def look(self) -> None:
        """Find processes and threads that came since."""
        self._pids = [self.pid, *descendants(self.pid)]
        for pid in self._pids:
            with suppress(OSError):
                for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  # 20 times a second
                    key = (pid, int(thread))
                    if key not in self._used_ns:
                        self._open(key)

    def _open(self, key: tuple[int, int]) -> None:
        place = f"/proc/{key[0]}/task/{key[1]}"
        with suppress(OSError):
            name = Path(f"{place}/comm").read_text(encoding="utf-8", errors="replace")
            if not name.startswith(_TALKING):
                self._threads[key] = os.open(f"{place}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            self._used_ns[key] = 0

    def row(self, at: float, gpus: GpuProbe | None) -> Row | None:
        """What it used so far; None once it is gone."""
        cpu_s = self._cpu_s()
        moved, seen = self._moved()
        network = self._network()
        if not seen or network is None:
            return None
        now = time.monotonic()
        cores = memory = None
        if self._before is not None:
            spent = max(now - self._before[0], 1e-4)
            cores = max(0.0, cpu_s - self._before[1]) / spent
            if self._peak:
                memory = max(0.0, 100 * (moved - self._before[2]) / spent / self._peak)
        self._before = (now, cpu_s, moved)
        row = Row(
            at,
            self.name,
            cpu_s,
            cores,
            processes=len(self._pids),
            threads=len(self._used_ns),
            net_sent_bytes=network[0],
            net_received_bytes=network[1],
            memory_util_pct=memory,
        )
        used = gpus.read(self._pids) if gpus is not None else None
        return row if used is None else used.add_to(row)

    def close(self) -> None:
        """Let go of all files."""
        for fd in self._threads.values():
            os.close(fd)
        self._threads.clear()
        if self._counter is not None:
            self._counter.close()

    def _cpu_s(self) -> float:
        """Of all threads that compute, those included that have ended."""
        for key, fd in list(self._threads.items()):
            try:
                self._used_ns[key] = int(os.pread(fd, 64, 0).split()[0])
            except (OSError, IndexError, ValueError):  # it has ended
                os.close(self._threads.pop(key))
        return sum(self._used_ns.values()) / 1e9

    def _moved(self) -> tuple[float, bool]:
        """Bytes moved through memory so far, and whether the task is still there."""
        faults = 0
        alive = False
        for pid in self._pids:
            with suppress(OSError):
                words = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
                faults += int(words[7])
                alive = alive or words[0] not in (b"Z", b"X")
        if self._counter is not None:
            return float(self._counter.read() * _LINE), alive
        return float(faults * _PAGE), alive

    def _network(self) -> tuple[int, int] | None:
        """Bytes that left and reached the network that the task sees."""
        sent = received = 0
        try:
            lines = Path(f"/proc/{self.pid}/net/dev").read_bytes().splitlines()[2:]
        except OSError:
            return None
        for line in lines:
            words = line.partition(b":")[2].split()
            received += int(words[0])
            sent += int(words[8])
        return sent, received


@dataclass(frozen=True, slots=True)
class TaskBursts:
    """How a worker or a server pulsed."""

    task: str
    samples: int
    hz: float
    by_resource: dict[str, Bursts]
    series: dict[str, Floats] = field(repr=False, default_factory=dict)
    """By resource, in its unit, at `hz`."""

    @property
    def numbers(self) -> list[float]:
        """The twelve targets in order."""
        return [number for name in RESOURCES for number in self.by_resource[name].numbers]


def bursts_of(rows: list[Row], *, cores: float = 1.0) -> list[TaskBursts]:
    """What the rows of each task add up to. `cores` is what a task without GPUs may use."""
    by_task: dict[str, list[Row]] = {}
    for row in rows:
        by_task.setdefault(row.worker, []).append(row)
    return [_task_bursts(name, each, cores) for name, each in by_task.items() if len(each) > 3]


def _task_bursts(task: str, rows: list[Row], cores: float) -> TaskBursts:
    at = np.array([row.at for row in rows])
    hz = float((len(at) - 1) / max(at[-1] - at[0], 1e-6))
    on_gpu = any(row.gpu_util_pct is not None for row in rows)
    util = _column(rows, "gpu_util_pct") if on_gpu else _column(rows, "cpu_cores") * 100 / cores
    spent = np.maximum(np.diff(at), 1e-4)
    series = {
        "util": np.minimum(util[1:], 100.0),
        "memory": np.minimum(_column(rows, "memory_util_pct")[1:], 100.0),
        "sent": np.diff(_column(rows, "net_sent_bytes")) / spent / _MIB,
        "received": np.diff(_column(rows, "net_received_bytes")) / spent / _MIB,
    }
    series = {name: np.nan_to_num(each) for name, each in series.items()}
    bursts = {name: label(each, hz, RESOURCES[name]) for name, each in series.items()}
    return TaskBursts(task, len(rows), hz, bursts, series)


def _column(rows: list[Row], name: str) -> Floats:
    values = [getattr(row, name) for row in rows]
    return np.array([nan if value is None else value for value in values], np.float64)
