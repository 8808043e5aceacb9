"""`presage serve --executor kubernetes --adopt` on a real control plane: pods of others become
jobs that users see, pods say why they wait, and the API server asks our webhook for advice."""

from __future__ import annotations

import json
import subprocess
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.executors.foreign_pods import PODS, gang, pod
from tests.kubernetes_plane import Plane
from tests.server.kit import Server, Zygote, eventually

pytestmark = [pytest.mark.engine, pytest.mark.slow]

RBAC = Path(__file__).resolve().parents[2] / "deploy/kubernetes/overlays/schedule/rbac.yaml"
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


@pytest.fixture
def server(
    plane: Plane, zygote: Zygote, tmp_path: Path, program: Callable[..., str]
) -> Iterator[Server]:
    """A server that may do what deploy/kubernetes gives it, with TLS."""
    rules = [
        rule for item in yaml.safe_load_all(RBAC.read_text()) for rule in item.get("rules", ())
    ]
    plane.allow("scheduler", *rules)
    for name in ("n1", "n2"):
        plane.add_node(name, 2)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *(program("openssl"), "req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"),
            *("-pkeyopt", "ec_paramgen_curve:P-256", "-subj", "/CN=presage"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-out", str(cert), "-keyout", str(key)),
        ],
        check=True,
        capture_output=True,
    )
    options = ("--executor", "kubernetes", "--adopt", "--policy", "backfill", "--context", "test")
    tls = ("--tls-cert", str(cert), "--tls-key", str(key))
    env = {"KUBECONFIG": str(plane.kubeconfig("scheduler"))}
    made = Server(zygote, tmp_path / "data", *options, *tls, nodes=None, env=env, scheme="https")
    try:
        yield made.start()
    finally:
        made.close()


def bound(plane: Plane) -> dict[str, str]:
    items = plane.call("GET", PODS)["items"]
    return {
        item["metadata"]["name"]: item["spec"]["nodeName"]
        for item in items
        if item["spec"].get("nodeName")
    }


def jobs(server: Server) -> dict[str, Any]:
    listed = server.http.get("/api/v1/jobs").json()["jobs"]
    return {job["name"]: job for job in listed}


def run_all(plane: Plane) -> None:
    for name in bound(plane):
        plane.call("PATCH", f"{PODS}/{name}/status", {"status": {"phase": "Running"}})


def test_pods_become_jobs_and_say_why_they_wait(plane: Plane, server: Server) -> None:
    first, second = gang("first", 4), gang("second", 4)
    for one, other in zip(first, second, strict=True):
        plane.call("POST", PODS, one)
        plane.call("POST", PODS, other)
    eventually(lambda: len(bound(plane)) == 4)
    assert len({name.split("-")[0] for name in bound(plane)}) == 1
    run_all(plane)
    eventually(lambda: "PROCESSING" in {job["status"] for job in jobs(server).values()})
    (waits,) = {"first", "second"} - {name.split("-")[0] for name in bound(plane)}

    def said() -> list[str]:
        items = plane.call("GET", "/api/v1/namespaces/default/events")["items"]
        return [
            item["message"]
            for item in items
            if item["involvedObject"]["name"].startswith(waits) and item["reason"] == "Waiting"
        ]

    words = eventually(said)[0]
    assert words.startswith("needs 4 workers × 1 GPU, 1 core, 1 GiB")
    server.kill()
    for name in bound(plane):
        plane.call("PATCH", f"{PODS}/{name}/status", {"status": {"phase": "Succeeded"}})
    server.start()
    eventually(lambda: sum(name.startswith(waits) for name in bound(plane)) == 4)
    done = {job["status"] for name, job in jobs(server).items() if name != waits}
    assert done == {"COMPLETED"}


def test_the_api_server_asks_for_advice_and_pods_are_made_without_it(
    plane: Plane, server: Server, tmp_path: Path
) -> None:
    ca = b64encode((tmp_path / "cert.pem").read_bytes()).decode()
    hook = {
        "name": "advice.presage.dev",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Ignore",
        "timeoutSeconds": 10,
        "clientConfig": {"url": f"{server.url}/admission/v1/pods/fill", "caBundle": ca},
        "rules": [
            {
                "operations": ["CREATE"],
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "resources": ["pods"],
            }
        ],
    }
    plane.call("POST", HOOKS, {"metadata": {"name": "advice"}, "webhooks": [hook]})
    try:
        made = pod("plain", 0, annotations={
            "presage.dev/model": "zoo:resnet50", "presage.dev/model.batch": "64"})  # fmt: skip

        def advised() -> Any:
            plane.call("POST", PODS, made)
            there = plane.call("GET", f"{PODS}/plain")
            plane.call("DELETE", f"{PODS}/plain", {"gracePeriodSeconds": 0})
            return there if "presage.dev/advice" in there["metadata"]["annotations"] else None

        there = eventually(advised)
        limits = there["spec"]["containers"][0]["resources"]["limits"]
        assert limits["nvidia.com/gpu"] == "1"
        assert (
            "filled in nvidia.com/gpu: 1" in there["metadata"]["annotations"]["presage.dev/advice"]
        )
        server.kill()
        plane.call("POST", PODS, made)
        left = plane.call("GET", f"{PODS}/plain")
        assert "presage.dev/advice" not in left["metadata"]["annotations"]
    finally:
        plane.call("DELETE", f"{HOOKS}/advice")


def test_what_is_no_review_is_refused_in_one_line(server: Server) -> None:
    said = server.http.post("/admission/v1/pods/fill", json={"a": 1})
    assert said.status_code == 400
    assert said.json()["error"]["text"] == "this is no AdmissionReview with a request and its uid"
    assert server.http.post("/admission/v1/pods/loudly", json={}).status_code == 422
    review = {"request": {"uid": "u", "kind": {"kind": "Pod"}, "object": {"spec": 3}}}
    answer = server.http.post("/admission/v1/pods/fill", content=json.dumps(review))
    assert answer.json()["response"] == {"uid": "u", "allowed": True}
