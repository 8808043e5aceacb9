"""What is in deploy/kubernetes: valid for the newest Kubernetes, taken by a real API server, and
enough, and no more than enough, for what it is there for."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # ships none
import pytest
import yaml

from presage.executors.kubernetes.api import NODES, SECRETS, connect
from presage.executors.kubernetes.binding import PodName
from presage.executors.kubernetes.pod_events import event_body
from tests.executors.foreign_pods import drop_in, gang, pod
from tests.kubernetes_plane import Plane

HOME = Path(__file__).resolve().parent.parent / "deploy" / "kubernetes"
OVERLAYS = ("overlays/watch", "overlays/schedule", "admission")
NEWEST = "1.37"
Json = dict[str, Any]


def rendered(folder: Path) -> list[Json]:
    """What kustomize makes of a folder, as far as ours go: resources and patches."""
    config = yaml.safe_load((folder / "kustomization.yaml").read_text())
    items: list[Json] = []
    for name in config["resources"]:
        path = (folder / name).resolve()
        items += rendered(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))
    for patch in config.get("patches", ()):
        for change in yaml.safe_load_all((folder / patch["path"]).read_text()):
            (found,) = [item for item in items if _name(item) == _name(change)]
            items.remove(found)
            if change.get("$patch") != "delete":
                items.append(_merged(found, change))
    return items


def _name(item: Json) -> tuple[str, str]:
    return item["kind"], item["metadata"]["name"]


def _merged(old: Any, new: Any) -> Any:
    """A strategic merge: mappings are merged, lists of named things by name, null removes."""
    if isinstance(old, dict) and isinstance(new, dict):
        made = {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}
        return {key: value for key, value in made.items() if value is not None}
    if isinstance(old, list) and isinstance(new, list) and all("name" in item for item in new):
        given = {item["name"]: item for item in new}
        gone = {name for name, item in given.items() if item.get("$patch") == "delete"}
        kept = [_merged(item, given.pop(item["name"], {})) for item in old]
        return [i for i in kept if i["name"] not in gone] + [
            item for name, item in given.items() if name not in gone
        ]
    return new


def roles(items: list[Json]) -> Iterator[Json]:
    for item in items:
        if item["kind"] in ("Role", "ClusterRole"):
            yield from item["rules"]


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_object_is_valid_for_the_newest_kubernetes(name: str) -> None:
    for item in rendered(HOME / name):
        if item["kind"] != "ServiceMonitor":  # no part of Kubernetes
            kubernetes_validate.validate(item, NEWEST, strict=True)


@pytest.mark.parametrize("name", OVERLAYS)
def test_kustomize_makes_the_same_of_it(name: str) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl on PATH")
    argv = [kubectl, "kustomize", str(HOME / name)]
    made = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    ours = {_name(item): item for item in rendered(HOME / name)}
    assert {_name(item): item for item in yaml.safe_load_all(made)} == ours


def test_the_observer_may_only_look() -> None:
    rules = list(roles(rendered(HOME / "overlays/watch")))
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert not any("secrets" in rule["resources"] for rule in rules)


def test_the_scheduler_may_do_three_things_to_pods_of_others() -> None:
    items = rendered(HOME / "overlays/schedule")
    (cluster,) = [item for item in items if item["kind"] == "ClusterRole"]
    writes = {
        (verb, resource)
        for rule in cluster["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
        if verb not in ("get", "list", "watch")
    }
    assert writes == {("create", "pods/binding"), ("delete", "pods"), ("create", "events")}
    assert not any("*" in json.dumps(rule) for rule in roles(items))


@pytest.mark.parametrize("name", ["overlays/watch", "overlays/schedule"])
def test_the_command_line_is_one_that_we_understand(name: str) -> None:
    (deployment,) = [i for i in rendered(HOME / name) if i["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    command, *options = container["args"]
    argv = [sys.executable, "-m", "presage", command, "--help"]
    wide = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
    help_ = subprocess.run(argv, capture_output=True, text=True, env=wide, check=False)
    if help_.returncode:
        pytest.skip(f"there is no presage {command} yet")
    words = set(re.findall(r"--[a-z-]+", help_.stdout))
    assert {option.partition("=")[0] for option in options} <= words


@pytest.mark.engine
@pytest.mark.parametrize("name", OVERLAYS)
def test_a_real_api_server_takes_it_all(plane: Plane, name: str) -> None:
    """1.20 does not know policy/v1; there it is v1beta1 with the same fields."""
    groups = {
        "Namespace": "/api/v1/namespaces",
        "ServiceAccount": "/api/v1/namespaces/presage/serviceaccounts",
        "Service": "/api/v1/namespaces/presage/services",
        "Deployment": "/apis/apps/v1/namespaces/presage/deployments",
        "PodDisruptionBudget": "/apis/policy/v1beta1/namespaces/presage/poddisruptionbudgets",
        "MutatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/"
        "mutatingwebhookconfigurations",
        **{
            kind: f"/apis/rbac.authorization.k8s.io/v1/{space}{kind.lower()}s"
            for kind, space in {
                "ClusterRole": "",
                "ClusterRoleBinding": "",
                "Role": "namespaces/presage/",
                "RoleBinding": "namespaces/presage/",
            }.items()
        },
    }
    with suppress(urllib.error.HTTPError):  # it is there from the case before
        plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": "presage"}})
    for item in rendered(HOME / name):
        if item["kind"] in ("ServiceMonitor", "Namespace"):
            continue
        body = {key: value for key, value in item.items() if key != "apiVersion"}
        plane.call("POST", f"{groups[item['kind']]}?dryRun=All", body)


@pytest.mark.engine
def test_the_scheduler_gets_along_with_what_it_may(plane: Plane) -> None:
    """The rules of the overlay, for a user of this API server, are enough to schedule pods."""
    (role,) = [i for i in rendered(HOME / "overlays/schedule") if i["kind"] == "ClusterRole"]
    plane.allow("scheduler", *role["rules"])
    plane.add_node("n1", 4)
    with drop_in(plane, user="scheduler") as cluster:
        cluster.add(*gang("pair", 2), pod("big", 9))
        cluster.until(lambda: cluster.state_of("pair") == "running")
        cluster.until(lambda: cluster.events("big"))
    api = connect(kubeconfig=plane.kubeconfig("scheduler"))
    assert not api.may("list", SECRETS)
    assert not api.may("patch", NODES)


def test_events_are_valid() -> None:
    body = event_body(PodName("default", "p", "u"), "Waiting", "needs 4 GPUs", warning=True)
    kubernetes_validate.validate(body, NEWEST, strict=True)
