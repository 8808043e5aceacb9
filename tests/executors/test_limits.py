"""Which cgroup is used and what is written there, on directories laid out like one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from presage.executors.node.limits import MemoryGroup, delegated_group


def group(path: Path, controllers: str = "cpu memory", enabled: str = "") -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "cgroup.controllers").write_text(controllers)
    (path / "cgroup.subtree_control").write_text(enabled)
    (path / "cgroup.procs").touch()
    return path


def test_the_own_group_is_used_when_it_has_memory(tmp_path: Path) -> None:
    mount = group(tmp_path)
    own = group(mount / "user" / "server", enabled="memory")
    assert delegated_group("/user/server", mount) == own


def test_memory_is_switched_on_where_it_is_off(tmp_path: Path) -> None:
    own = group(group(tmp_path) / "server")
    assert delegated_group("/server", tmp_path) == own
    assert (own / "cgroup.subtree_control").read_text() == "+memory"


def test_without_the_controller_there_is_no_group(tmp_path: Path) -> None:
    group(group(tmp_path) / "server", controllers="cpu pids")
    assert delegated_group("/server", tmp_path) is None
    assert delegated_group("/server", tmp_path / "elsewhere") is None


def test_a_group_above_is_used_only_if_it_was_delegated(tmp_path: Path) -> None:
    above = group(group(tmp_path) / "presage.service")
    group(above / "server", controllers="cpu")
    assert delegated_group("/presage.service/server", tmp_path) is None
    try:
        os.setxattr(above, "user.delegate", b"1")
    except OSError:
        pytest.skip("this file system has no extended attributes")
    assert delegated_group("/presage.service/server", tmp_path) == above


def test_a_memory_group_says_when_it_ran_out(tmp_path: Path) -> None:
    memory = MemoryGroup(tmp_path / "w0", 64 << 20)
    assert (tmp_path / "w0" / "memory.max").read_text() == str(64 << 20)
    assert (tmp_path / "w0" / "memory.oom.group").read_text() == "1"
    memory.join()
    assert (tmp_path / "w0" / "cgroup.procs").read_text() == str(os.getpid())
    events = tmp_path / "w0" / "memory.events"
    events.write_text("low 0\noom 0\noom_kill 0\n")
    assert not memory.ran_out()
    events.write_text("low 0\noom 1\noom_kill 2\n")
    assert memory.ran_out()


def test_a_group_is_slowed_down_and_reclaimed_from_but_not_killed(tmp_path: Path) -> None:
    group = MemoryGroup(tmp_path / "worker", 1 << 30)
    (group.path / "cpu.max").write_text("max 100000")
    (group.path / "memory.high").write_text("max")
    group.hold_to(1500, 256 << 20)
    assert (group.path / "cpu.max").read_text() == "150000 100000"
    assert (group.path / "memory.high").read_text() == str(256 << 20)
    assert (group.path / "memory.max").read_text() == str(1 << 30)
    group.hold_to(0, 0)
    assert (group.path / "cpu.max").read_text() == "max 100000"
    assert (group.path / "memory.high").read_text() == "max"
