"""Half a day of a real Slurm and of a real Kubernetes, much faster, with kills on both sides."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes_plane import PlaneError, find_programs
from tests.slurm_cluster import missing_engine

pytestmark = pytest.mark.soak


def run(root: Path, name: str, *words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", "--nodes", "4", *words]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return results


@pytest.mark.skipif(os.getuid() != 0, reason="to run as somebody else takes root")
@pytest.mark.skipif(missing_engine("22.05") is not None, reason="there is no Slurm here")
def test_half_a_day_of_slurm(root: Path) -> None:
    found = run(root, "watch_slurm", "--faster", "120", "--hours", "12")
    journal = found["journal"]
    assert (journal["missing"], journal["other"], journal["more"]) == (0, 0, 0)
    assert found["writes"] == []
    assert all("denied" in text or "Invalid user" in text for text in found["refused"])
    assert found["report"]["coverage"] > 0.6
    assert found["report"]["compared_error_s"] < found["report"]["their_error_s"]


def test_half_a_day_of_kubernetes(root: Path) -> None:
    try:
        find_programs()
    except PlaneError as error:
        pytest.skip(str(error))
    found = run(root, "watch_kubernetes", "--faster", "120", "--hours", "12")
    journal = found["journal"]
    assert (journal["missing"], journal["other"], journal["more"]) == (0, 0, 0)
    assert found["asked"].keys() <= {"get", "list", "watch"}
    assert found["refused"] == 403
    assert found["report"]["coverage"] > 0.6
