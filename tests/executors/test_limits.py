"""Which cgroup is used and what is written there, on directories laid out like one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from presage.executors.node.limits import (
    MemoryGroup,
    _systemd,
    delegated_group,
    engines_limit,
    how_memory_is_held,
    scope_of,
)


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


def _made_up_systemd(place: Path, answer: str) -> tuple[Path, Path, Path]:
    """Directories as a machine with systemd and version 2 of cgroups has them, and a `busctl`
    that writes down what it was asked, and does what `answer` says."""
    run, mount, proc = (place / name for name in ("run", "cgroup", "proc"))
    scope = mount / "system.slice" / "presage-x.scope"
    for path in (run / "system", scope, proc / "7"):
        path.mkdir(parents=True)
    (mount / "cgroup.controllers").write_text("cpu memory\n")
    (scope / "memory.max").write_text("max\n")
    (proc / "7" / "cgroup").write_text("0::/user.slice\n")
    program = place / "bin" / "busctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" > {place}/asked\n{answer}\n')
    program.chmod(0o755)
    return run, mount, proc


def test_systemd_is_asked_for_a_scope_where_no_group_was_delegated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "proc" / "7" / "cgroup"
    run, mount, proc = _made_up_systemd(tmp_path, f"echo 0::/system.slice/presage-x.scope > {own}")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    group = scope_of(7, "presage-x", 64 << 20, run=run, mount=mount, proc=proc)
    assert group is not None
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith("--system call org.freedesktop.systemd1")
    assert "presage-x.scope fail 4 PIDs au 1 7 CollectMode s inactive-or-failed MemoryMax" in asked
    assert f"MemoryMax t {64 << 20} MemorySwapMax t 0 0" in asked
    assert (group.path / "memory.max").read_text() == str(64 << 20)
    group.join()
    assert not (group.path / "cgroup.procs").exists()
    (group.path / "memory.events").write_text("oom 1\noom_kill 1\n")
    assert group.ran_out()


def test_a_systemd_that_refuses_leaves_it_to_watching(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, mount, proc = _made_up_systemd(tmp_path, "exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert scope_of(7, "presage-x", 1 << 20, run=run, mount=mount, proc=proc) is None
    assert (tmp_path / "asked").exists()
    # Without systemd, or with the first version of cgroups, it is not asked at all.
    assert _systemd(tmp_path / "none", mount) is None
    assert _systemd(run, tmp_path / "none") is None
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "own"))
    assert _systemd(run, mount) is None
    (tmp_path / "own" / "systemd").mkdir(parents=True)
    assert _systemd(run, mount) == [str(tmp_path / "bin" / "busctl"), "--user"]


def test_what_holds_memory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert how_memory_is_held(tmp_path) == "cgroup"
    monkeypatch.setattr("presage.executors.node.limits._systemd", lambda: None)
    assert how_memory_is_held(None) == "watched"
    monkeypatch.setattr("presage.executors.node.limits._systemd", lambda: ["busctl"])
    assert how_memory_is_held(None) == "systemd"
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert not engines_limit(tmp_path)
    (tmp_path / "cgroup.controllers").write_text("memory")
    assert engines_limit(tmp_path)
