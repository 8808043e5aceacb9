"""Control groups of both versions from files written here, and the live one of this process."""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path

import pytest

from presage.observe.telemetry.cgroups import Cgroup, cgroup_of
from presage.observe.telemetry.series import TelemetryError

PID = 4711


def write(directory: Path, **files: str) -> None:
    """Files of a group; `__` in a name stands for the dot."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text)


def machine(tmp_path: Path, groups: str, mounts: str) -> Path:
    """A /proc that knows a process and what is mounted."""
    write(tmp_path / "proc" / str(PID), cgroup=groups)
    write(tmp_path / "proc" / "self", mountinfo=mounts)
    return tmp_path / "proc"


def mount(number: int, point: Path, kind: str, options: str, root: str = "/") -> str:
    where = str(point).replace(" ", "\\040")
    return f"{number} 1 0:{number} {root} {where} rw,relatime shared:9 - {kind} {kind} {options}\n"


@pytest.fixture
def version_2(tmp_path: Path) -> Path:
    group = tmp_path / "sys fs" / "pods" / "a"  # a blank in a path is written in octal
    write(
        group,
        cpu__stat="usage_usec 2500000\nuser_usec 1\nnr_throttled 3\nthrottled_usec 400000\n",
        cpu__max="150000 100000\n",
        memory__current="1000000\n",
        memory__max="4000000\n",
        memory__stat="anon 600000\nfile 400000\ninactive_file 300000\n",
        memory__events="low 0\nhigh 0\nmax 5\noom 2\noom_kill 1\n",
    )
    return machine(
        tmp_path,
        "0::/pods/a\n",
        mount(1, tmp_path, "tmpfs", "rw") + mount(2, tmp_path / "sys fs", "cgroup2", "rw"),
    )


def test_version_2(version_2: Path) -> None:
    used = cgroup_of(PID, proc=version_2).read()
    assert (used.cpu_s, used.throttled_s, used.cpu_limit_cores) == (2.5, 0.4, 1.5)
    assert (used.memory_bytes, used.working_set_bytes) == (1_000_000, 700_000)
    assert (used.memory_limit_bytes, used.oom_kills) == (4_000_000, 1)


def test_version_2_without_limits(version_2: Path) -> None:
    group = cgroup_of(PID, proc=version_2)
    assert group.memory is not None
    write(group.memory, cpu__max="max 100000\n", memory__max="max\n")
    used = group.read()
    assert (used.cpu_limit_cores, used.memory_limit_bytes) == (math.inf, math.inf)


def version_1(tmp_path: Path, root: str = "/") -> Path:
    write(
        tmp_path / "cpu,cpuacct" / "job",
        cpuacct__usage="3500000000\n",
        cpu__stat="nr_periods 10\nnr_throttled 4\nthrottled_time 700000000\n",
        cpu__cfs_quota_us="200000\n",
        cpu__cfs_period_us="100000\n",
    )
    write(
        tmp_path / "memory" / "job",
        memory__usage_in_bytes="2000000\n",
        memory__limit_in_bytes="9223372036854771712\n",
        memory__stat="inactive_file 1\ntotal_inactive_file 500000\n",
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 6\n",
    )
    path = f"{root.rstrip('/')}/job"
    mounts = mount(2, tmp_path / "cpu,cpuacct", "cgroup", "rw,cpu,cpuacct", root)
    mounts += mount(3, tmp_path / "memory", "cgroup", "rw,memory", root)
    mounts += mount(4, tmp_path / "unified", "cgroup2", "rw")
    return machine(tmp_path, f"5:memory:{path}\n4:cpu,cpuacct:{path}\n0::/\n", mounts)


@pytest.mark.parametrize("root", ["/", "/docker/1234"])
def test_version_1_also_below_a_container(tmp_path: Path, root: str) -> None:
    used = cgroup_of(PID, proc=version_1(tmp_path, root)).read()
    assert (used.cpu_s, used.throttled_s, used.cpu_limit_cores) == (3.5, 0.7, 2.0)
    assert (used.memory_bytes, used.working_set_bytes) == (2_000_000, 1_500_000)
    assert (used.memory_limit_bytes, used.oom_kills) == (math.inf, 6)


def test_version_1_without_a_limit(tmp_path: Path) -> None:
    group = cgroup_of(PID, proc=version_1(tmp_path))
    assert group.cpu is not None
    write(group.cpu, cpu__cfs_quota_us="-1\n")
    assert group.read().cpu_limit_cores == math.inf


def test_a_group_that_only_the_host_can_name_is_the_root_of_the_mount(tmp_path: Path) -> None:
    write(tmp_path / "cg", memory__current="5\n")
    proc = machine(tmp_path, "0::/host/only\n", mount(1, tmp_path / "cg", "cgroup2", "rw"))
    used = cgroup_of(PID, proc=proc).read()
    assert used.memory_bytes == used.working_set_bytes == 5
    assert math.isnan(used.cpu_s)
    assert math.isnan(used.cpu_limit_cores)
    assert math.isnan(used.oom_kills)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TelemetryError, match="process 4711 is not known: No such file"):
        cgroup_of(PID, proc=tmp_path)
    with pytest.raises(TelemetryError, match="in no control group"):
        cgroup_of(PID, proc=machine(tmp_path, "3:pids:/\n", ""))
    assert math.isnan(Cgroup(None, None, None).read().memory_bytes)


@pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")
def test_the_live_group_of_this_process() -> None:
    try:
        group = cgroup_of(os.getpid())
    except TelemetryError as error:
        pytest.skip(str(error))
    before = group.read()
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    after = group.read()
    if math.isnan(before.cpu_s):
        pytest.skip("this machine does not account CPU time by group")
    assert after.cpu_s - before.cpu_s >= 0.04
