"""Which permissions and features of a Kubernetes cluster are there, for each way to use it.

Asks and reads; changes nothing (SelfSubjectAccessReviews are questions).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from presage.executors.findings import Finding
from presage.executors.kubernetes.api import (
    CONFIG_MAPS,
    EVENTS,
    NETWORK_POLICIES,
    NODES,
    PODS,
    SECRETS,
    SERVICES,
    KubeApi,
    Resource,
)
from presage.executors.kubernetes.limiting import RESIZE
from presage.executors.kubernetes.reading import node_of, node_remarks
from presage.model.errors import KubernetesError

__all__ = ["examine"]

WATCH, SCHEDULE, RUN = "watch", "schedule pods of others", "run jobs"
_JOBS = Resource("jobs", "batch")
_EVERYWHERE = (
    (WATCH, "list", NODES, ""),
    (WATCH, "watch", NODES, ""),
    (WATCH, "list", PODS, ""),
    (WATCH, "watch", PODS, ""),
    (SCHEDULE, "create", PODS, "binding"),
    (SCHEDULE, "delete", PODS, ""),
    (SCHEDULE, "create", EVENTS, ""),
    (SCHEDULE, "get", _JOBS, ""),
)
_HERE = (
    ("create", PODS, ""),
    ("delete", PODS, ""),
    ("create", PODS, "binding"),
    ("patch", PODS, ""),
    ("get", PODS, "log"),
    ("create", CONFIG_MAPS, ""),
    ("patch", CONFIG_MAPS, ""),
    ("create", SERVICES, ""),
    ("create", SECRETS, ""),
    ("create", NETWORK_POLICIES, ""),
)
_ATTACHING = "presage exec, shell and forward are refused"
_BESIDES = (
    # A WebSocket is a GET; since 1.35 it needs both.
    ("get", PODS, "exec", _ATTACHING),
    ("create", PODS, "exec", _ATTACHING),
    ("get", PODS, "portforward", _ATTACHING),
    ("create", PODS, "portforward", _ATTACHING),
    ("list", EVENTS, "", "why pods do not start is said in fewer words"),
)
_GATES = (1, 27)
"""Pods may wait without being looked at: schedulingGates, on by default."""


def examine(api: KubeApi) -> list[Finding]:
    """All findings; raises KubernetesError when nobody answers."""
    return [*_permissions(api), *_features(api), *_nodes(api)]


def _permissions(api: KubeApi) -> Iterator[Finding]:
    for group, verb, resource, sub in _EVERYWHERE:
        named = _named(resource, sub)
        good = api.may(verb, resource, sub=sub)
        text = "" if good else f"give a ClusterRole with {verb} on {named}"
        yield Finding(group, f"may {verb} {named} in the whole cluster", good, text)
    for verb, resource, sub in _HERE:
        named = _named(resource, sub)
        good = api.may(verb, resource, api.namespace, sub=sub)
        text = "" if good else f"give a Role in {api.namespace} with {verb} on {named}"
        yield Finding(RUN, f"may {verb} {named} in {api.namespace}", good, text)
    for verb, resource, sub, without in _BESIDES:
        named = _named(resource, sub)
        good = api.may(verb, resource, api.namespace, sub=sub)
        text = "" if good else f"{without} without a Role with {verb} on {named}"
        yield Finding(RUN, f"may {verb} {named} in {api.namespace}", good, text, needed=False)


def _features(api: KubeApi) -> Iterator[Finding]:
    version = ".".join(map(str, api.version))
    yield Finding(WATCH, f"Kubernetes {version}", True)
    gates = api.version >= _GATES
    text = "" if gates else "pods of a gang are held back by their scheduler's name alone"
    yield Finding(RUN, "schedulingGates", gates, text, needed=False)
    resize, text = api.offers(f"pods/{RESIZE}"), ""
    if not resize:
        text = "CPU and memory of pods that run stay as they are: this server is too old"
    elif not api.may("patch", PODS, api.namespace, sub=RESIZE):
        resize, text = False, f"give a Role in {api.namespace} with patch on pods/{RESIZE}"
    yield Finding(RUN, f"pods/{RESIZE}", resize, text, needed=False)
    groups = set()
    with suppress(KubernetesError):
        groups = {one["name"] for one in api.request("GET", "/apis").get("groups") or ()}
    metrics = "metrics.k8s.io" in groups
    text = "" if metrics else "what pods use is not known; name a Prometheus, or install it"
    yield Finding(WATCH, "metrics.k8s.io", metrics, text, needed=False)
    for group, name in (
        ("jobset.x-k8s.io", "JobSet"),
        ("kubeflow.org", "PyTorchJob and its like"),
        ("ray.io", "RayCluster"),
        ("scheduling.x-k8s.io", "PodGroup of coscheduling"),
        ("scheduling.volcano.sh", "PodGroup of Volcano"),
        ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"),
    ):
        if group in groups:
            yield Finding(SCHEDULE, f"gangs of {name}", True)


def _nodes(api: KubeApi) -> Iterator[Finding]:
    try:
        items = api.list(NODES).items
    except KubernetesError:
        return  # that it may not is said already
    nodes = [node_of(item) for item in items]
    gpus = sum(len(node.devices) for node in nodes)
    text = "" if gpus else "no node offers a GPU under a name that is known here"
    yield Finding(WATCH, f"{len(nodes)} nodes with {gpus} GPUs", gpus > 0, text, needed=False)
    for item in items:
        for remark in node_remarks(item):
            yield Finding(SCHEDULE, remark, False, needed=False)


def _named(resource: Resource, sub: str) -> str:
    name = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
    return f"{name}/{sub}" if sub else name
