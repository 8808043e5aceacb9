"""The control plane that other tests rely on: real programs, users who may little, a restart."""

from __future__ import annotations

import urllib.error

import pytest

from tests.kubernetes_plane import Plane

pytestmark = pytest.mark.engine


def _pod(name: str) -> dict[str, object]:
    containers = [{"name": "main", "image": "none", "command": ["true"]}]
    return {"metadata": {"name": name}, "spec": {"schedulerName": "x", "containers": containers}}


def test_nodes_have_gpus_and_are_ready(plane: Plane) -> None:
    plane.add_node("n1", 8, nvidia_com__gpu_product="A100")
    node = plane.call("GET", "/api/v1/nodes/n1")
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert node["status"]["conditions"][0]["status"] == "True"


def test_a_user_may_do_what_was_allowed_and_no_more(plane: Plane) -> None:
    with pytest.raises(urllib.error.HTTPError, match="403"):
        plane.call("GET", "/api/v1/pods", user="nobody")
    plane.allow("watcher", {"resources": ["pods"], "verbs": ["list"]})
    assert plane.call("GET", "/api/v1/pods", user="watcher")["items"] == []
    with pytest.raises(urllib.error.HTTPError, match="403"):
        plane.call("POST", "/api/v1/namespaces/default/pods", _pod("p"), user="watcher")


def test_objects_outlive_a_killed_api_server(plane: Plane) -> None:
    plane.call("POST", "/api/v1/namespaces/default/pods", _pod("stays"))
    plane.restart_api()
    assert plane.call("GET", "/api/v1/namespaces/default/pods/stays")["metadata"]["uid"]
