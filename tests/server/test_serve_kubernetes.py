"""`presage serve --executor kubernetes`: a real server on a real control plane, with no more
rights than the documents say. A stand-in patches the status of bound pods; nothing runs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from presage.executors.kubernetes.api import CONFIG_MAPS, PODS, KubeApi, connect
from presage.executors.kubernetes.pods import RUN
from tests.kubernetes_fire import StandIn
from tests.kubernetes_plane import Plane
from tests.kubernetes_streams import StreamingNode
from tests.server.kit import Server, Zygote, eventually

pytestmark = [pytest.mark.engine, pytest.mark.slow]

RIGHTS = (
    {
        "resources": ["pods"],
        "verbs": ["get", "list", "watch", "create", "patch", "delete", "deletecollection"],
    },
    {"resources": ["pods/binding"], "verbs": ["create"]},
    {"resources": ["pods/log"], "verbs": ["get"]},
    {"resources": ["pods/exec", "pods/portforward"], "verbs": ["get", "create"]},
    {"resources": ["configmaps"], "verbs": ["get", "list", "create", "patch", "delete"]},
    {"resources": ["services", "secrets"], "verbs": ["get", "create"]},
    {
        "apiGroups": ["networking.k8s.io"],
        "resources": ["networkpolicies"],
        "verbs": ["get", "create"],
    },
    {"resources": ["nodes"], "verbs": ["get", "list", "watch"]},
)
"""What docs/how-to/run-on-kubernetes.md names."""


@pytest.fixture
def api(plane: Plane) -> KubeApi:
    """The cluster, as its admin, with two nodes of four GPUs."""
    for name in ("n0", "n1"):
        plane.add_node(name, 4)
    return connect(kubeconfig=plane.kubeconfig())


@pytest.fixture
def server(plane: Plane, api: KubeApi, zygote: Zygote, tmp_path: Path) -> Iterator[Server]:
    """A server that may do what the documents say, and no more."""
    plane.allow("executor", *RIGHTS)
    env = {"KUBECONFIG": str(plane.kubeconfig("executor"))}
    server = Server(
        zygote,
        tmp_path / "data",
        "--executor",
        "kubernetes",
        "--context",
        "test",
        nodes=None,
        env=env,
    )
    server.start()
    yield server
    server.close()


def test_a_gang_runs_and_nothing_is_left(api: KubeApi, server: Server) -> None:
    assert {node["name"] for node in server.http.get("/api/v1/nodes").json()["nodes"]} == {
        "n0",
        "n1",
    }
    gang = {"image": "none", "workers": 6, "resources": {"gpus": 1}, "name": "gang"}
    standin = StandIn(api, lambda pod: None)
    job = server.submit("train", **gang)
    server.wait(job, "PROCESSING")
    pods = api.list(PODS, "default", labels=RUN).items
    assert len(pods) == 6
    assert all(pod["spec"]["nodeName"] in ("n0", "n1") for pod in pods)
    server.kill()
    server.start()
    assert server.job(job)["status"] == "PROCESSING"
    uids = {pod["metadata"]["uid"] for pod in api.list(PODS, "default", labels=RUN).items}
    assert uids == {pod["metadata"]["uid"] for pod in pods}
    standin.close()
    standin = StandIn(api, lambda pod: 0.0)
    assert server.wait(job)["status"] == "COMPLETED"
    eventually(lambda: not api.list(PODS, "default", labels=RUN).items)
    eventually(lambda: not api.list(CONFIG_MAPS, "default", labels=RUN).items)
    standin.close()


def test_a_command_runs_beside_a_worker(plane: Plane, api: KubeApi, server: Server) -> None:
    node = StreamingNode(plane, "n2", gpus=8)
    standin = StandIn(api, lambda pod: None)
    try:
        eventually(lambda: '"n2"' in server.http.get("/api/v1/nodes").text)
        job = server.submit("train", image="none", resources={"gpus": 8})
        server.wait(job, "PROCESSING")
        done = server.presage("exec", job, "--", "sh", "-c", "echo inside; exit 4")
        assert (done.code, done.out) == (4, "inside\n"), done
        (path, _) = node.asked[0]
        assert path.startswith("/exec/default/presage-")
        done = server.presage("run", "--image", "none", "--", "true")
        assert "a console cannot be offered on Kubernetes; submit the job" in done.err
    finally:
        standin.close()
        node.close()


def test_a_job_without_an_image_is_refused_in_words(server: Server) -> None:
    job = server.submit("train")
    ended = server.wait(job)
    assert ended["status"] == "FAILED"
    assert "names no image" in str(ended["reason"])


def test_no_rights_are_one_line(plane: Plane, zygote: Zygote, tmp_path: Path) -> None:
    env = {"KUBECONFIG": str(plane.kubeconfig("nobody"))}
    argv = ("serve", "--port", "0", "--data", str(tmp_path), "--executor", "kubernetes")
    done = zygote.run(*argv, env=env)
    assert done.code == 2
    assert done.err.strip().endswith(
        "nobody may not list nodes in the whole cluster; give it a ClusterRole with list on nodes"
    )
