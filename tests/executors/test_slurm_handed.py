"""Secrets on their way to agents, and what others hold: without a Slurm."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from presage.executors.fleet.cluster import AgentSilent
from presage.executors.slurm.commands import SlurmJob, SlurmNode
from presage.executors.slurm.handed import handed_over, remove_stale, take
from presage.executors.slurm.held import held_by_others
from presage.model.cluster import Device, Node


def test_secrets_are_in_a_file_while_a_call_lasts(tmp_path: Path) -> None:
    folder = tmp_path / "handed"
    with handed_over(folder, "start", ("key", {"HUB": "sesame"})) as said:
        key, name = said
        assert (key, "sesame" in str(said)) == ("key", False)
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert take(folder, name) == {"HUB": "sesame"}
        assert list(folder.iterdir()) == []
        with pytest.raises(FileNotFoundError):
            take(folder, name)
    with handed_over(folder, "start", ("key", {"HUB": "sesame"})):
        pass  # nobody took it
    assert list(folder.iterdir()) == []


def test_other_calls_are_as_they_were(tmp_path: Path) -> None:
    with handed_over(tmp_path / "handed", "stop", ("key", "code", "text", 3.0)) as said:
        assert said == ("key", "code", "text", 3.0)
    with handed_over(tmp_path / "handed", "start", ("key", {})) as said:
        assert said == ("key", "")
    assert take(tmp_path / "handed", "") == {}
    assert list(tmp_path.iterdir()) == []


def test_only_names_are_taken(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("{}")
    with pytest.raises(ValueError, match="names no secrets"):
        take(tmp_path / "handed", "../other")


def test_a_disk_that_takes_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(AgentSilent, match=r"secrets cannot be put into .*: Not a directory"),
        handed_over(tmp_path / "file" / "handed", "start", ("key", {"HUB": "sesame"})),
    ):
        pass


def test_what_a_killed_driver_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    seen = remove_stale(tmp_path, {}, 100.0)
    (tmp_path / "new").touch()
    seen = remove_stale(tmp_path, seen, 150.0)
    assert seen == {"old": 100.0, "new": 150.0}
    assert remove_stale(tmp_path, seen, 170.0) == {"new": 150.0}
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_what_is_held_and_not_ours_is_of_others() -> None:
    node = SlurmNode(
        Node("n1", (Device(),) * 4, 16_000, 64_000), "n1", frozenset({"MIXED"}), (), "", 6, 3, 600
    )
    nodes = [node, replace(node, node=replace(node.node, name="n2"))]
    job = SlurmJob(
        **dict.fromkeys(SlurmJob.__dataclass_fields__, 0)  # type: ignore[arg-type]
        | {"state": "RUNNING", "flags": frozenset(), "nodes": ("n1", "n2"), "node_count": 2}
        | {"cpus": 8, "memory_mib": 1000, "gpus": 4}
    )
    part = replace(job, nodes=("n2",), node_count=1, cpus=2, memory_mib=100, gpus=1)
    waits, over = replace(job, state="PENDING"), replace(job, state="COMPLETED")
    assert held_by_others(nodes, [job, part, waits, over]) == {"n1": (2000, 100, 1)}
    ends = replace(over, flags=frozenset({"COMPLETING"}))
    assert held_by_others(nodes, [ends, part]) == {"n1": (2000, 100, 1)}
