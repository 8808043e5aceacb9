"""SQLite under a writer that is killed, and on a disk that is full."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WRITERS = Path(__file__).parent / "_writers.py"


def run(
    *arguments: object, wrapper: tuple[str, ...] = (), timeout_s: float = 120
) -> dict[str, Any]:
    done = subprocess.run(
        [*wrapper, sys.executable, WRITERS, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_writer_that_is_killed_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    found = run("crash", tmp_path / "presage.db", 10)
    assert found["steps"] > 50


@pytest.mark.soak
def test_a_writer_that_is_killed_often(tmp_path: Path) -> None:
    found = run("crash", tmp_path / "presage.db", 200, timeout_s=900)  # each round reads all of it
    assert found["steps"] > 1000


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    found = run("full", tmp_path, "limit")
    assert "presage.db is unavailable: " in found["said"]


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    wrapper = ("unshare", "--map-root-user", "--mount")  # its own mounts, gone with the process
    mount = ("mount", "-t", "tmpfs", "tmpfs", str(tmp_path))
    try:
        allowed = subprocess.run([*wrapper, *mount], capture_output=True).returncode == 0
    except FileNotFoundError:
        allowed = False
    if not allowed:
        pytest.skip("nobody may mount here; test_a_file_that_may_not_grow is much the same")
    found = run("full", tmp_path, "tmpfs", wrapper=wrapper)
    assert "presage.db is unavailable: database or disk is full" in found["said"]
