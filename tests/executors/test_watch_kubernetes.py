"""A real Kubernetes control plane with its default scheduler, watched with a token that may only
look, through kills on both sides. There is no kubelet: the tests end pods by their status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from presage.executors.kubernetes.watching import pod_id, seen_pod
from presage.layout import Layout
from presage.store import open_store
from tests.kubernetes_plane import Plane
from tests.waiting import eventually
from tests.watched_slurm import Told, journal_of

pytestmark = pytest.mark.engine

PODS = "/api/v1/namespaces/default/pods"
LOOK = {"resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]}
Watch = Callable[[], "subprocess.Popen[bytes]"]


@pytest.fixture
def scheduled(plane: Plane) -> Iterator[Plane]:
    """The plane with kube-scheduler and one node of four GPUs."""
    plane.allow("watcher", LOOK)
    plane.start_scheduler()
    plane.add_node("n0", 4)
    yield plane
    plane.kill("kube-scheduler")


def add(plane: Plane, name: str, gpus: int) -> None:
    limits = {"nvidia.com/gpu": str(gpus), "cpu": "1"}
    container = {"name": "c", "image": "x", "resources": {"limits": limits}}
    plane.call("POST", PODS, {"metadata": {"name": name}, "spec": {"containers": [container]}})


def bound(plane: Plane, name: str) -> bool:
    return bool(plane.call("GET", f"{PODS}/{name}")["spec"].get("nodeName"))


def end(plane: Plane, name: str, code: int = 0, reason: str = "") -> None:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    done = {"exitCode": code, "finishedAt": now, "startedAt": now, "reason": reason}
    one = {"name": "c", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    phase = "Failed" if code else "Succeeded"
    status = {"phase": phase, "containerStatuses": [{**one, "state": {"terminated": done}}]}
    plane.call("PATCH", f"{PODS}/{name}/status", {"status": status})


def env(plane: Plane, user: str = "watcher") -> dict[str, str]:
    return {**os.environ, "KUBECONFIG": str(plane.kubeconfig(user))}


def presage(plane: Plane, *words: str, code: int = 0, user: str = "watcher") -> str:
    done = subprocess.run(
        [sys.executable, "-m", "presage", *words],
        env=env(plane, user),
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def told(data: Path) -> dict[str, Told]:
    if not Layout(data).lock.exists():  # the database is the watcher's to make
        return {}
    store = open_store(f"sqlite:///{Layout(data).database}")
    try:
        return journal_of(store)
    finally:
        store.close()


def truth(pods: list[dict[str, Any]]) -> dict[str, Told]:
    """What became of pods that are over."""
    found = {}
    for pod in pods:
        run = seen_pod(pod).runs[-1]
        assert run.end is not None
        times = (seen_pod(pod).submitted_at, run.started_at, run.end.at)
        created, started, ended = map(round, times)
        found[pod_id(pod)] = Told(created, started, ended, str(run.end.outcome))
    return found


@pytest.fixture
def watch(scheduled: Plane, tmp_path: Path) -> Iterator[Watch]:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        words = ("watch", "--kubernetes", "--every", "1s", "--data", str(tmp_path))
        command = [sys.executable, "-m", "presage", *words]
        started.append(subprocess.Popen(command, env=env(scheduled), stderr=subprocess.DEVNULL))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_the_journal_is_what_happened_whoever_was_killed(
    scheduled: Plane, tmp_path: Path, watch: Watch
) -> None:
    watcher = watch()
    for number in range(4):
        add(scheduled, f"p{number}", 2)

    def running() -> list[int]:
        return [number for number in range(4) if bound(scheduled, f"p{number}")]

    first, second = eventually(lambda: found if len(found := running()) == 2 else [])
    eventually(lambda: sum(bool(one.started) for one in told(tmp_path).values()) == 2)

    watcher.kill()
    watcher.wait()
    end(scheduled, f"p{first}")
    end(scheduled, f"p{second}", 137, "OOMKilled")
    eventually(lambda: len(running()) == 4)
    watcher = watch()
    eventually(lambda: sum(bool(one.ended) for one in told(tmp_path).values()) == 2)
    scheduled.restart_api()
    add(scheduled, "late", 1)
    rest = {0, 1, 2, 3} - {first, second}
    end(scheduled, f"p{min(rest)}")
    eventually(lambda: bound(scheduled, "late"))
    end(scheduled, "late", 3)
    pods = scheduled.call("GET", PODS)["items"]
    gone = next(pod for pod in pods if pod["metadata"]["name"] == f"p{max(rest)}")
    expected = truth([pod for pod in pods if pod is not gone])
    assert sorted(one.outcome for one in expected.values()) == [
        *("failed", "out_of_memory", "succeeded", "succeeded")
    ]
    eventually(lambda: expected.items() <= told(tmp_path).items())
    scheduled.call("DELETE", f"{PODS}/p{max(rest)}", {"gracePeriodSeconds": 0})
    eventually(lambda: told(tmp_path)[pod_id(gone)].outcome == "stopped")
    watcher.send_signal(signal.SIGTERM)
    assert watcher.wait() == 0
    assert told(tmp_path).keys() == {pod_id(pod) for pod in pods}
    with pytest.raises(urllib.error.HTTPError, match="403"):
        scheduled.call("DELETE", f"{PODS}/late", user="watcher")


def test_a_pod_that_waits_is_explained(scheduled: Plane, tmp_path: Path) -> None:
    add(scheduled, "first", 4)
    eventually(lambda: bound(scheduled, "first"))
    add(scheduled, "mine", 2)
    where = ("--data", str(tmp_path))
    seen = json.loads(presage(scheduled, "watch", "--kubernetes", "--once", "--json", *where))
    assert seen["gpus"] == {"total": 4, "held": 4, "idle": None}
    about = json.loads(presage(scheduled, "explain", "--watch", str(tmp_path), "mine", "--json"))
    assert about["id"].startswith("default/mine@")
    assert about["eta_s"]["p50"] > 0


def test_a_watcher_waits_for_a_cluster_that_is_down_and_that_it_knows(
    scheduled: Plane, tmp_path: Path
) -> None:
    words = ("watch", "--kubernetes", "--data", str(tmp_path / "known"))
    presage(scheduled, *words, "--once")
    scheduled.kill_api()
    try:
        other = ("watch", "--kubernetes", "--data", str(tmp_path / "other"))
        assert "no Kubernetes cluster answers" in presage(scheduled, *other, code=2)
        assert "no Kubernetes cluster answers" in presage(scheduled, *words, "--once", code=2)
        watcher = subprocess.Popen(
            [sys.executable, "-m", "presage", *words, "--every", "1s"],
            env=env(scheduled),
            stderr=subprocess.PIPE,
            text=True,
        )
        assert watcher.stderr is not None
        try:
            assert "still trying" in watcher.stderr.readline()
            scheduled.start_api()
            while "still trying" in (line := watcher.stderr.readline()):
                pass
            assert line == "the cluster answers again\n"
            assert watcher.stderr.readline().startswith("watching kubernetes cluster")
        finally:
            watcher.kill()
            watcher.communicate()
    finally:
        scheduled.restart_api()


def test_what_cannot_be_watched_is_said_in_one_line(plane: Plane, tmp_path: Path) -> None:
    where = ("--once", "--data", str(tmp_path))
    text = presage(plane, "watch", "--kubernetes", *where, code=2, user="nobody")
    assert "nobody may not list nodes" in text
    assert text.count("\n") == 1
    plane.allow("watcher", {"resources": ["nodes"], "verbs": ["get", "list", "watch"]})
    assert "may not list pods" in presage(plane, "watch", "--kubernetes", *where, code=2)
    plane.allow("watcher", LOOK)
    text = presage(plane, "watch", "--kubernetes", "--context", "nope", *where, code=2)
    assert text.startswith("error: there is no context 'nope'")
