"""GPUs as Kubernetes knows them: extended resources by name, and types by node label.

A whole GPU is one `nvidia.com/gpu` (or the same of another vendor). For a share, clusters have one
of three ways, and a node's own resources say which: replicas by time-slicing or MPS, profiles of
MIG, or shares of cores and memory by HAMi. Nothing here talks to a cluster.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from presage.executors.kubernetes.api import Json
from presage.model.cluster import ANY_GPU, WHOLE_GPU, Device, Node
from presage.model.errors import RunSpecError

__all__ = ["gpu_request", "is_usable", "node_of", "quantity"]

_WHOLE = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "habana.ai/gaudi")
_SHARED = "nvidia.com/gpu.shared"
_CORES, _MEMORY = "nvidia.com/gpucores", "nvidia.com/gpumem"
_REPLICAS = "nvidia.com/gpu.replicas"
_MIG = re.compile(r"nvidia\.com/mig-(\d+)g\.(\d+)gb")
_SEVENTHS = 7
"""Slices of compute that a GPU with MIG has."""
_TYPES = ("presage.dev/gpu-type", "nvidia.com/gpu.product", "amd.com/gpu.product-name")
_GPU_MEMORY = "nvidia.com/gpu.memory"
_SCALES = {
    "": 1.0,
    "m": 0.001,
    **{sign: 1000.0**power for power, sign in enumerate("kMGTPE", start=1)},
    **{f"{sign}i": 1024.0**power for power, sign in enumerate("KMGTPE", start=1)},
}


def quantity(text: Any) -> float:
    """A quantity as Kubernetes writes it: `500m`, `2`, `16Gi`, `1e3`."""
    found = re.fullmatch(r"([+-]?[\d.]+(?:[eE][+-]?\d+)?)([a-zA-Z]*)", str(text).strip())
    if not found or found[2] not in _SCALES:
        raise ValueError(f"{text!r} is not a quantity")
    return float(found[1]) * _SCALES[found[2]]


def node_of(item: Json) -> Node:
    """A node as the scheduler sees it: its devices, and what it gives to pods."""
    labels = dict(item["metadata"].get("labels") or {})
    have = item.get("status", {}).get("allocatable") or {}
    whole = next((name for name in _WHOLE if name in have), None)
    count = int(quantity(have[whole])) if whole else 0
    if whole and int(labels.get(_REPLICAS, "1") or 1) > 1:
        count //= int(labels[_REPLICAS])  # each replica is a share
    elif not count and _SHARED in have:
        count = int(quantity(have[_SHARED])) // max(2, int(labels.get(_REPLICAS, "2") or 2))
    kind = next((labels[name] for name in _TYPES if labels.get(name)), ANY_GPU)
    memory = labels.get(_GPU_MEMORY, "")
    device = Device(kind, int(memory)) if memory.isdecimal() else Device(kind)
    return Node(
        item["metadata"]["name"],
        (device,) * count,
        cpu_milli=int(quantity(have.get("cpu", 0)) * 1000),
        memory_mib=int(quantity(have.get("memory", 0)) / (1 << 20)),
        labels=labels,
    )


def is_usable(item: Json) -> bool:
    """Whether a node takes pods: it is ready, and nobody has cordoned it."""
    conditions = item.get("status", {}).get("conditions") or ()
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    leaving = item["metadata"].get("deletionTimestamp") is not None
    return ready and not leaving and not item.get("spec", {}).get("unschedulable")


def gpu_request(gpus: float, memory_mib: int, node: Mapping[str, Any]) -> dict[str, str]:
    """What a container asks of a node for so many GPUs; raises RunSpecError where that node has no
    way to give it."""
    if gpus <= 0:
        return {}
    meta, have = node["metadata"], node.get("status", {}).get("allocatable") or {}
    labels = meta.get("labels") or {}
    whole = next((name for name in _WHOLE if name in have), _WHOLE[0])
    if gpus >= 1:
        return {whole: str(math.ceil(gpus))}
    percent = math.ceil(gpus * 100)
    if _CORES in have or any(
        name.startswith("hami.io/") for name in meta.get("annotations") or {}
    ):
        asked = {whole: "1", _CORES: str(percent)}
        return {**asked, _MEMORY: str(memory_mib)} if memory_mib else asked
    fitting = sorted(
        (int(found[1]), int(found[2]), name)
        for name in have
        if (found := _MIG.fullmatch(name))
        and int(found[1]) / _SEVENTHS >= gpus - 0.5 / _SEVENTHS
        and int(found[2]) * 1024 >= memory_mib
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
