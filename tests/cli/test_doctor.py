"""`presage doctor --kubernetes` on a real API server, for users who may much and little."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.kubernetes_plane import Plane

RBAC = Path(__file__).resolve().parents[2] / "deploy/kubernetes/overlays"


def doctor(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "presage", "doctor", *options]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("KUBE", "PRESAGE"))}
    environment = {**clean, "NO_COLOR": "1", "COLUMNS": "80", **environment}
    return subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)


def test_without_a_cluster_it_is_one_line(tmp_path: Path) -> None:
    said = doctor("--kubernetes", KUBECONFIG=str(tmp_path / "none"), HOME=str(tmp_path))
    assert said.returncode not in (0, 1)
    assert len(said.stderr.strip().splitlines()) == 1
    assert "Traceback" not in said.stderr
    said = doctor()
    assert "write presage doctor --kubernetes" in said.stderr


@pytest.mark.engine
def test_an_admin_has_everything_that_is_needed(plane: Plane) -> None:
    plane.add_node("n1", 8)
    said = doctor("--kubernetes", "--json", "--kubeconfig", str(plane.kubeconfig()))
    assert said.returncode == 0, said.stderr
    found = {one["what"]: one for one in json.loads(said.stdout)["findings"]}
    assert found["may create pods/binding in the whole cluster"]["good"]
    assert found["1 nodes with 8 GPUs"]["good"]
    assert not found["schedulingGates"]["good"]  # 1.20
    assert not found["pods/resize"]["needed"]


@pytest.mark.engine
def test_the_observer_may_watch_and_is_told_what_it_may_not(plane: Plane) -> None:
    rules = next(yaml.safe_load_all((RBAC / "watch" / "rbac.yaml").read_text()))["rules"]
    plane.allow("watcher", *rules)
    said = doctor("--kubernetes", "--json", "--kubeconfig", str(plane.kubeconfig("watcher")))
    assert said.returncode == 1
    findings = json.loads(said.stdout)["findings"]
    assert all(one["good"] for one in findings if one["group"] == "watch" and one["needed"])
    (binding,) = [
        one for one in findings if one["what"] == "may create pods/binding in the whole cluster"
    ]
    assert binding["text"] == "give a ClusterRole with create on pods/binding"
    shown = doctor("--kubernetes", "--kubeconfig", str(plane.kubeconfig("watcher"))).stdout
    assert "give a ClusterRole with create on pods/binding" in shown
