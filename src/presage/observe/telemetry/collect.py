"""Collectors: what the workers of jobs use right now, as rows of telemetry; and the loop that
writes them down.

A collector is told the time and never reads a clock; `record` does. Counters become rates over the
time since the last sample, so the first sample of a worker has none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Protocol

from presage.nvml import GpuProbe
from presage.observe.telemetry.archive import Archive
from presage.observe.telemetry.cgroups import Cgroup, cgroup_of
from presage.observe.telemetry.sampler import ProcessTree
from presage.observe.telemetry.series import TelemetryError

__all__ = [
    "CgroupCollector",
    "Collector",
    "GpuCollector",
    "ProcessCollector",
    "Recording",
    "Row",
    "record",
]

_MIB = 1 << 20
_TIDY_EVERY_S = 3600.0


@dataclass(frozen=True, slots=True)
class Row:
    """What a worker of a job used at one time; NaN for what is not known."""

    job: str
    worker: str
    """Empty for a job that has only one."""
    time: float
    values: Mapping[str, float]

    @property
    def pod(self) -> str:
        """The name of its series."""
        return f"{self.job}/{self.worker}" if self.worker else self.job


class Collector(Protocol):
    """A source of telemetry."""

    def sample(self, now: float) -> list[Row]:
        """A row for each worker that is there. Raises `TelemetryError` when the source does not
        answer; it may answer the next time."""


class ProcessCollector:
    """A process and its descendants."""

    def __init__(self, job: str, pid: int, worker: str = "") -> None:
        self._job, self._worker = job, worker
        self._tree = ProcessTree(pid)
        self._rates = _Rates()

    @property
    def pids(self) -> set[int]:
        """The processes that were there at the last sample."""
        return self._tree.pids

    def sample(self, now: float) -> list[Row]:
        """One row; none when all processes have ended."""
        self._tree.find_new()
        used = self._tree.read()
        if used.processes == 0:
            return []
        counters = {
            "cpu_cores": used.cpu_s,
            "read_bytes_s": float(used.read_bytes),
            "write_bytes_s": float(used.write_bytes),
        }
        values = self._rates.since_last(now, counters)
        values["memory_bytes"] = used.rss_mib * _MIB
        values["processes"] = float(used.processes)
        values["threads"] = float(used.threads)
        return [Row(self._job, self._worker, now, values)]


class CgroupCollector:
    """A control group; memory is its working set."""

    def __init__(self, job: str, group: Cgroup | int, worker: str = "") -> None:
        """`group` may be the id of a process that is in it."""
        self._job, self._worker = job, worker
        self._group = group if isinstance(group, Cgroup) else cgroup_of(group)
        self._rates = _Rates()

    def sample(self, now: float) -> list[Row]:
        """One row; none when the group is gone."""
        used = self._group.read()
        if math.isnan(used.cpu_s) and math.isnan(used.memory_bytes):
            return []
        counters = {"cpu_cores": used.cpu_s, "throttled_share": used.throttled_s}
        values = self._rates.since_last(now, counters)
        values["cpu_limit_cores"] = used.cpu_limit_cores
        values["memory_bytes"] = used.working_set_bytes
        values["memory_charged_bytes"] = used.memory_bytes
        values["memory_limit_bytes"] = used.memory_limit_bytes
        values["oom_kills"] = used.oom_kills
        return [Row(self._job, self._worker, now, values)]


class GpuCollector:
    """The NVIDIA GPUs that some processes use."""

    def __init__(
        self, job: str, probe: GpuProbe, pids: Callable[[], Collection[int]], worker: str = ""
    ) -> None:
        """`pids` says which processes are there, such as those of a `ProcessCollector`."""
        self._job, self._worker = job, worker
        self._probe, self._pids = probe, pids

    def sample(self, now: float) -> list[Row]:
        """One row; none when all processes have ended."""
        pids = self._pids()
        if not pids:
            return []
        used = self._probe.read(pids)
        values = {"gpu_util_pct": used.util_pct, "gpu_memory_bytes": used.memory_mib * _MIB}
        return [Row(self._job, self._worker, now, values)]


@dataclass(slots=True)
class Recording:
    """How a recording went."""

    samples: int = 0
    failures: int = 0
    """Times that a source did not answer."""
    last_failure: str = ""
    pods: set[str] = field(default_factory=set)


def record(
    collectors: Sequence[Collector],
    archive: Archive,
    *,
    every: float = 15.0,
    seconds: float = math.inf,
    stop: Event | None = None,
) -> Recording:
    """Sample every so many seconds and keep the rows, until the time is up, `stop` is set, or
    every source answers that nobody is there any more. A source that does not answer is asked
    again; the others go on."""
    if not every > 0:
        raise TelemetryError(f"cannot sample every {every:g} s; give a time above 0")
    stop = stop or Event()
    start, tick, next_tidy = time.monotonic(), 0.0, 0.0
    done = Recording()
    while not stop.is_set():
        if tick * every >= next_tidy:
            archive.tidy(time.time())
            next_tidy += _TIDY_EVERY_S
        rows, answers = _sample_all(collectors, time.time(), done)
        if not rows and answers == len(collectors):
            break
        archive.append((pod, at, values) for (pod, at), values in rows.items())
        done.samples += len(rows)
        done.pods |= {pod for pod, _ in rows}
        behind = time.monotonic() - start
        tick = max(tick + 1, behind // every + 1)  # lateness does not add up
        if tick * every > seconds:
            break
        stop.wait(tick * every - behind)
    return done


def _sample_all(
    collectors: Sequence[Collector], now: float, done: Recording
) -> tuple[dict[tuple[str, float], dict[str, float]], int]:
    """One row for each pod, whoever knows something about it, and how many sources answered."""
    rows: dict[tuple[str, float], dict[str, float]] = {}
    answers = 0
    for collector in collectors:
        try:
            for row in collector.sample(now):
                rows.setdefault((row.pod, row.time), {}).update(row.values)
            answers += 1
        except TelemetryError as error:
            done.failures += 1
            done.last_failure = str(error)
    return rows, answers


class _Rates:
    """Turns counters into rates a second. A counter that fell has started anew."""

    def __init__(self) -> None:
        self._time = math.nan
        self._counters: Mapping[str, float] = {}

    def since_last(self, now: float, counters: Mapping[str, float]) -> dict[str, float]:
        """The rates; NaN when there is no earlier sample."""
        span = now - self._time
        rates = {}
        for name, value in counters.items():
            grown = value - self._counters.get(name, math.nan)
            rates[name] = grown / span if span > 0 and grown >= 0 else math.nan
        self._time, self._counters = now, dict(counters)
        return rates
