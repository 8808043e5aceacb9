"""GPUs as Kubernetes knows them: extended resources by name, and types by node label.

A whole GPU is one `nvidia.com/gpu` (or the same of another vendor). For a share, clusters have one
of three ways, and a node's own resources say which: replicas by time-slicing or MPS, profiles of
MIG, or shares of cores and memory by HAMi. HAMi's device plugin gives nothing, not even a whole
GPU, to a pod that its own scheduler has not placed: there we name the node, and that scheduler
binds. Nothing here talks to a cluster.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from presage.executors.kubernetes.api import Json
from presage.executors.kubernetes.reading import GPU_RESOURCE, HAMI, NODE_NAME, node_of
from presage.model.cluster import WHOLE_GPU, Node
from presage.model.errors import RunSpecError

__all__ = ["HAMI_SCHEDULER", "TOLERATED", "by_hami", "gpu_request", "is_usable", "run_node"]

TOLERATED = "nvidia.com/gpu"
"""The key of the taint that keeps pods off nodes with GPUs."""
_SHARED = "nvidia.com/gpu.shared"
_CORES, _MEMORY = "nvidia.com/gpucores", "nvidia.com/gpumem"
_REPLICAS = "nvidia.com/gpu.replicas"
_MIG = re.compile(r"nvidia\.com/mig-(\d+)g\.(\d+)gb")
HAMI_SCHEDULER = "hami-scheduler"
_SEVENTHS = 7
"""Slices of compute that a GPU with MIG has."""


def run_node(item: Json) -> Node:
    """A node as runs of ours use it: as `reading` has it, but a GPU that is offered several times
    is one that can be shared, and the taint that keeps others off GPUs is one we tolerate."""
    node = node_of(item)
    replicas = int(node.labels.get(_REPLICAS) or 1)
    if replicas == 1 and node.labels.get(GPU_RESOURCE) == _SHARED:
        replicas = 2
    taints = tuple(taint for taint in node.taints if not taint.startswith(TOLERATED))
    return replace(node, devices=node.devices[: len(node.devices) // replicas], taints=taints)


def is_usable(item: Json) -> bool:
    """Whether a node takes pods: it is ready, and nobody has cordoned it."""
    conditions = item.get("status", {}).get("conditions") or ()
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    leaving = item["metadata"].get("deletionTimestamp") is not None
    return ready and not leaving and not item.get("spec", {}).get("unschedulable")


def by_hami(node: Mapping[str, Any]) -> Json:
    """What a pod with GPUs says so that HAMi's scheduler puts it on this node; empty where HAMi
    has none of its GPUs."""
    meta = node["metadata"]
    if HAMI not in (meta.get("annotations") or {}):
        return {}
    rule = {"key": NODE_NAME, "operator": "In", "values": [meta["name"]]}
    terms = {"nodeSelectorTerms": [{"matchFields": [rule]}]}
    must = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    return {"schedulerName": HAMI_SCHEDULER, "affinity": {"nodeAffinity": must}}


def gpu_request(gpus: float, memory_mib: int, node: Mapping[str, Any]) -> dict[str, str]:
    """What a container asks of a node for so many GPUs; raises RunSpecError where that node has no
    way to give it."""
    if gpus <= 0:
        return {}
    meta, have = node["metadata"], node.get("status", {}).get("allocatable") or {}
    labels = meta.get("labels") or {}
    whole = node_of(dict(node)).labels.get(GPU_RESOURCE, "nvidia.com/gpu")
    if HAMI in (meta.get("annotations") or {}):
        asked = {whole: str(math.ceil(gpus)), _CORES: str(math.ceil(min(gpus, 1) * 100))}
        return {**asked, _MEMORY: str(memory_mib)} if memory_mib else asked
    if gpus >= 1:
        return {whole: str(math.ceil(gpus))}
    fitting = sorted(
        (int(mig[1]), int(mig[2]), name)
        for name in have
        if (mig := _MIG.fullmatch(name))
        and int(mig[1]) / _SEVENTHS >= gpus - 0.5 / _SEVENTHS
        and int(mig[2]) * 1024 >= memory_mib
    )
    if fitting:
        return {fitting[0][2]: "1"}
    if _SHARED in have:
        return {_SHARED: "1"}
    if int(labels.get(_REPLICAS, "1") or 1) > 1:
        return {whole: "1"}
    raise RunSpecError(
        f"node {meta['name']} cannot share a GPU (no time-slicing, MIG or HAMi); ask for a whole "
        f"one instead of {gpus * WHOLE_GPU / 1000:g}"
    )
