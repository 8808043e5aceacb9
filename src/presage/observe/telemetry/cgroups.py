"""What a control group uses of CPU and memory, and how often it hit its limits; versions 1 and 2,
and machines that have some controllers in each.

Reads files only. What the kernel does not tell is NaN. Working set is memory without the file
pages that can go at once (`inactive_file`), as cAdvisor and Kubernetes count it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from presage.observe.telemetry.series import TelemetryError

__all__ = ["Cgroup", "CgroupReading", "cgroup_of"]

_PROC = Path("/proc")
_NO_LIMIT = 1 << 60
"""Version 1 says 'no limit' with the largest number of pages."""


@dataclass(frozen=True, slots=True)
class CgroupReading:
    """What the processes of a group have used so far, and hold now."""

    cpu_s: float
    throttled_s: float
    """Time that they wanted to run and the CPU limit did not let them, so far."""
    cpu_limit_cores: float
    """Infinite without a limit; that of the group itself, not of those it is in."""
    memory_bytes: float
    working_set_bytes: float
    memory_limit_bytes: float
    oom_kills: float
    """Processes killed because the group was out of memory, so far."""


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The directories of a group. In version 2 all are the same; None when the kernel does not
    have that controller."""

    cpu: Path | None
    cpu_account: Path | None
    memory: Path | None

    def read(self) -> CgroupReading:
        """Its figures now."""
        quota, period = self._cpu_limit()
        memory = _number(self.memory, "memory.current", "memory.usage_in_bytes")
        stat = _table(self.memory, "memory.stat")
        inactive = stat.get("total_inactive_file", stat.get("inactive_file", math.nan))
        limit = _number(self.memory, "memory.max", "memory.limit_in_bytes")
        kills = _table(self.memory, "memory.events") or _table(self.memory, "memory.oom_control")
        return CgroupReading(
            cpu_s=self._cpu_s(),
            throttled_s=self._throttled_s(),
            cpu_limit_cores=math.inf if quota < 0 else quota / period,
            memory_bytes=memory,
            working_set_bytes=max(0.0, memory - inactive) if inactive >= 0 else memory,
            memory_limit_bytes=math.inf if limit >= _NO_LIMIT else limit,
            oom_kills=kills.get("oom_kill", math.nan),
        )

    def _cpu_s(self) -> float:
        used = _table(self.cpu_account, "cpu.stat").get("usage_usec")
        return _number(self.cpu_account, "cpuacct.usage") / 1e9 if used is None else used / 1e6

    def _throttled_s(self) -> float:
        stat = _table(self.cpu, "cpu.stat")
        if "throttled_usec" in stat:
            return stat["throttled_usec"] / 1e6
        return stat.get("throttled_time", math.nan) / 1e9

    def _cpu_limit(self) -> tuple[float, float]:
        """The quota, below 0 for none, and its period."""
        words = _text(self.cpu, "cpu.max").split()
        if len(words) == 2:
            return (-1.0 if words[0] == "max" else float(words[0])), float(words[1])
        quota = _number(self.cpu, "cpu.cfs_quota_us")
        return quota, _number(self.cpu, "cpu.cfs_period_us")


def cgroup_of(pid: int, *, proc: Path = _PROC) -> Cgroup:
    """The control group that a process is in."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
        mounts = list(_mounts((proc / "self" / "mountinfo").read_text()))
    except OSError as error:
        raise TelemetryError(
            f"the control group of process {pid} is not known: {error.strerror or error}"
        ) from None
    paths = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))

    def find(controller: str) -> Path | None:
        # A controller is in version 1 or in version 2, whose line names none.
        for name in (controller, ""):
            for mount in mounts:
                if name in paths and name in mount.controllers:
                    return mount.directory(paths[name])
        return None

    found = Cgroup(find("cpu"), find("cpuacct"), find("memory"))
    if found == Cgroup(None, None, None):
        raise TelemetryError(f"process {pid} is in no control group that is mounted here")
    return found


@dataclass(frozen=True, slots=True)
class _Mount:
    controllers: frozenset[str]
    """Of version 1; the empty name stands for version 2."""
    root: str
    point: Path

    def directory(self, path: str) -> Path:
        """Where a group is. A container may see its own group as the root, under a name that
        only the host knows."""
        inside = path.removeprefix(self.root.rstrip("/")).lstrip("/")
        found = self.point / inside
        return found if found.is_dir() else self.point


def _mounts(mountinfo: str) -> Iterator[_Mount]:
    """See proc_pid_mountinfo(5): the optional fields end with a dash."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        root, point = before.split()[3:5]
        kind, _, options = after.split(" ", 2)
        names = {"cgroup2": {""}, "cgroup": set(options.split(","))}.get(kind)
        if names is not None:
            yield _Mount(frozenset(names), root, Path(_plain(point)))


def _plain(path: str) -> str:
    """The kernel writes a blank in a path as \\040."""
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), path)


def _text(directory: Path | None, name: str) -> str:
    """A file of the group; empty when it is not there, or is gone by now."""
    if directory is None:
        return ""
    try:
        return (directory / name).read_text()
    except OSError:
        return ""


def _number(directory: Path | None, *names: str) -> float:
    """The number in the first of the files that is there."""
    text = next((text for name in names if (text := _text(directory, name).strip())), "nan")
    return math.inf if text == "max" else float(text)


def _table(directory: Path | None, name: str) -> dict[str, float]:
    """A file with a name and a number in each line."""
    words = [line.split() for line in _text(directory, name).splitlines()]
    return {pair[0]: float(pair[1]) for pair in words if len(pair) == 2}
