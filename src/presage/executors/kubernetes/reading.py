"""Nodes and pods of Kubernetes as our model has them: pure functions of API objects.

Objects are the dictionaries of the wire. What a pod asks for is counted as Kubernetes counts it
(`requests_of`); where it may be, as selectors, required node affinity and tolerations say
(`where_of`). `refusals` names in words what a pod asks for and we do not understand: whoever
places pods must leave such a pod alone, whoever only watches may go on. Preferences are not
read.

No I/O and no clock here; `gangs` says which pods belong together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

from presage.executors.kubernetes.amounts import amount, cpu_milli, mib
from presage.model.cluster import (
    ANY_GPU,
    UNLIMITED,
    WHOLE_GPU,
    Device,
    LabelOperator,
    LabelRule,
    Node,
    Resources,
    Where,
)
from presage.model.job import Role

__all__ = [
    "GPU_RESOURCE",
    "HAMI",
    "NODE_NAME",
    "Json",
    "ask_of_pod",
    "gpu_resource_of",
    "gpu_types_of",
    "is_over",
    "is_unbound",
    "node_of",
    "node_remarks",
    "refusals",
    "requests_of",
    "role_of_pod",
    "where_of",
]

Json = Mapping[str, Any]

GPU_RESOURCE = "presage.dev/gpu-resource"
"""A label that we add to nodes: the name under which they offer their GPUs."""
HAMI = "hami.io/node-nvidia-register"
"""The annotation of a node whose GPUs HAMi hands out."""
NODE_NAME = "metadata.name"
"""The one field that node affinity may name; a label of ours, to be looked at like others."""

_GPU = re.compile(
    r"nvidia\.com/(?:gpu(?:\.shared)?|mig-\d+(?:c\.\d+)?g\.\d+gb(?:\.[a-z0-9.]+)?(?:\.shared)?)"
    r"|amd\.com/gpu|gpu\.intel\.com/(?:i915|xe)|habana\.ai/gaudi|metax-tech\.com/gpu"
    r"|huawei\.com/Ascend\w+|cambricon\.com/(?:mlu|vmlu)|hygon\.com/dcunum"
)
_SHARE = {"nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"}
"""HAMi: parts of a GPU, beside `nvidia.com/gpu`."""
_COUNTED = {"cpu", "memory"} | _SHARE
_TYPE_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "gpu.intel.com/product",
    "accelerator",
)
_PLACES = {
    "rack": ("topology.kubernetes.io/rack", "topology.kubernetes.io/block"),
    "area": ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"),
}
_KEEPS_OFF = ("NoSchedule", "NoExecute")


# -- nodes ----------------------------------------------------------------------------------------


def node_of(item: Json) -> Node:
    """A node with what it offers to pods. One that is cordoned or not ready carries the taint that
    Kubernetes gives it, whether that has come or not."""
    meta, status = item["metadata"], item.get("status") or {}
    offered = status.get("allocatable") or status.get("capacity") or {}
    labels = {**(meta.get("labels") or {}), NODE_NAME: meta["name"]}
    resource = _main_gpu(offered)
    if resource:
        labels[GPU_RESOURCE] = resource
    for ours, theirs in _PLACES.items():
        place = next((labels[name] for name in theirs if name in labels), None)
        if place is not None:
            labels.setdefault(ours, place)
    return Node(
        name=meta["name"],
        devices=_devices(item, offered, resource),
        cpu_milli=int(amount(offered.get("cpu", 0)) * 1000),
        memory_mib=int(amount(offered.get("memory", 0)) / (1 << 20)),
        labels=labels,
        taints=tuple(_taints(item)),
    )


def node_remarks(item: Json) -> list[str]:
    """What of a node is not used, in words."""
    status = item.get("status") or {}
    offered = _gpus(status.get("allocatable") or {})
    main = _main_gpu(status.get("allocatable") or {})
    rest = sorted(name for name in offered if name != main)
    name = item["metadata"]["name"]
    said = [f"node {name} offers {main} and {one}: only {main} is counted there" for one in rest]
    if HAMI in (item["metadata"].get("annotations") or {}):
        said.append(f"node {name} has GPUs of HAMi: pods of others get none there through Presage")
    return said


def _gpus(offered: Json) -> dict[str, int]:
    return {
        name: count
        for name, text in offered.items()
        if _is_gpu(name) and (count := int(amount(text))) > 0
    }


def _main_gpu(offered: Json) -> str:
    """The name under which a node offers most of its GPUs; one kind for each node."""
    gpus = _gpus(offered)
    return min(gpus, key=lambda name: (-gpus[name], name)) if gpus else ""


def _devices(item: Json, offered: Json, resource: str) -> tuple[Device, ...]:
    if not resource:
        return ()
    labels = item["metadata"].get("labels") or {}
    registered = (item["metadata"].get("annotations") or {}).get(HAMI)
    if registered and resource == "nvidia.com/gpu":
        physical = _hami_devices(registered)
        if physical:
            return physical
    memory = UNLIMITED
    kind = next((labels[name] for name in _TYPE_LABELS if labels.get(name)), ANY_GPU)
    profile = re.search(r"mig-(.*?(\d+)gb.*)", resource)
    if profile:
        kind, memory = f"mig-{profile[1]}", int(profile[2]) * 10**9 >> 20
    elif str(labels.get("nvidia.com/gpu.memory", "")).isdecimal():
        memory = int(labels["nvidia.com/gpu.memory"])
    return (Device(kind, memory),) * int(amount(offered[resource]))


def _hami_devices(text: str) -> tuple[Device, ...]:
    """The GPUs that HAMi found on a node, which offers each of them several times."""
    try:
        listed = json.loads(text)
        return tuple(Device(str(d.get("type", ANY_GPU)), int(d["devmem"])) for d in listed)
    except (ValueError, TypeError, KeyError, AttributeError):
        return ()  # former versions wrote their own format: the count of the node is used


def _taints(item: Json) -> Iterable[str]:
    spec, tainted = item.get("spec") or {}, {}
    for taint in spec.get("taints") or ():
        if taint.get("effect") in _KEEPS_OFF:
            text = f"{taint['key']}={taint.get('value') or ''}:{taint['effect']}"
            tainted[taint["key"]] = True
            yield text
    if spec.get("unschedulable") and "node.kubernetes.io/unschedulable" not in tainted:
        yield "node.kubernetes.io/unschedulable=:NoSchedule"
    conditions = (item.get("status") or {}).get("conditions") or ()
    ready = next((c.get("status") for c in conditions if c.get("type") == "Ready"), None)
    if ready != "True" and not tainted.keys() & _NOT_READY:
        yield "node.kubernetes.io/not-ready=:NoSchedule"


_NOT_READY = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}


# -- what a pod asks for --------------------------------------------------------------------------


def is_over(pod: Json) -> bool:
    """Whether a pod holds nothing any more."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def is_unbound(pod: Json) -> bool:
    """Whether a pod waits to be placed."""
    meta, spec = pod["metadata"], pod["spec"]
    return not (
        spec.get("nodeName") or meta.get("deletionTimestamp") or spec.get("schedulingGates")
    )


def requests_of(pod: Json) -> dict[str, Fraction]:
    """What a pod asks for, by resource, by the rule of Kubernetes: the sum of its containers or
    the largest init container, whichever is more, with sidecars and overhead."""
    spec = pod["spec"]
    running: dict[str, Fraction] = {}
    for container in spec.get("containers") or ():
        _add(running, _container(container))
    sidecars: dict[str, Fraction] = {}
    starting: dict[str, Fraction] = {}
    for container in spec.get("initContainers") or ():
        asks = _container(container)
        if container.get("restartPolicy") == "Always":
            _add(sidecars, asks)
            asks = {}
        for name in {*asks, *sidecars}:
            at_once = asks.get(name, Fraction()) + sidecars.get(name, Fraction())
            starting[name] = max(starting.get(name, Fraction()), at_once)
    _add(running, sidecars)
    total = running
    for name, number in starting.items():
        total[name] = max(total.get(name, number), number)
    total |= _stated(spec.get("resources") or {})  # of the pod as a whole, since 1.34
    _add(total, {name: amount(text) for name, text in (spec.get("overhead") or {}).items()})
    return {name: number for name, number in total.items() if number}


def _add(total: dict[str, Fraction], more: Mapping[str, Fraction]) -> None:
    for name, number in more.items():
        total[name] = total[name] + number if name in total else number


def _container(container: Json) -> dict[str, Fraction]:
    return _stated(container.get("resources") or {})


def _stated(resources: Json) -> dict[str, Fraction]:
    """Requests; a limit alone is one as well."""
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: amount(text) for name, text in asked.items()}


def role_of_pod(pod: Json, name: str = "worker", count: int = 1) -> Role:
    """Workers that ask for what a pod asks for."""
    asked = requests_of(pod)
    where = _where(pod["spec"], asked)
    return Role(name, _ask(asked), count, count, _gpu_types(where), where)


def gpu_resource_of(pod: Json) -> str:
    """The name under which a pod asks for GPUs; empty if it wants none."""
    return _gpu_resource(requests_of(pod))


def _gpu_resource(asked: Iterable[str]) -> str:
    return min((name for name in asked if _is_gpu(name)), default="")


@lru_cache(maxsize=1024)
def _is_gpu(resource: str) -> bool:
    return _GPU.fullmatch(resource) is not None


def ask_of_pod(pod: Json) -> Resources:
    """What a pod asks for, as a worker does. With HAMi, GPUs are shared by cores or memory."""
    return _ask(requests_of(pod))


def _ask(asked: Mapping[str, Fraction]) -> Resources:
    gpus = sum(int(number) for name, number in asked.items() if _is_gpu(name))
    milli = gpus * WHOLE_GPU
    memory = int(asked.get("nvidia.com/gpumem", 0))
    cores = int(asked.get("nvidia.com/gpucores", 0))
    percent = int(asked.get("nvidia.com/gpumem-percentage", 0))
    if gpus == 1 and (cores or memory or percent):
        milli = min(WHOLE_GPU, 10 * (cores or percent) or _HAMI_SHARE_MILLI)
    return Resources(
        cpu_milli=cpu_milli(asked.get("cpu", Fraction())),
        memory_mib=mib(asked.get("memory", Fraction())),
        gpu_milli=milli,
        gpu_memory_mib=memory,
    )


_HAMI_SHARE_MILLI = 100
"""Of a pod that names GPU memory alone: HAMi splits a GPU ten ways unless told otherwise."""


# -- where a pod may be ---------------------------------------------------------------------------


def where_of(pod: Json) -> Where:
    """The nodes that a pod may be on, by its selector, required node affinity and tolerations,
    and by the name under which it asks for GPUs."""
    return _where(pod["spec"], requests_of(pod))


def _where(spec: Json, asked: Iterable[str]) -> Where:
    always = [
        LabelRule(key, LabelOperator.IN, (value,))
        for key, value in sorted((spec.get("nodeSelector") or {}).items())
    ]
    resource = _gpu_resource(asked)
    if resource:
        always.append(LabelRule(GPU_RESOURCE, LabelOperator.IN, (resource,)))
    terms = _required(spec)
    if terms is None:
        any_of: tuple[tuple[LabelRule, ...], ...] = (tuple(always),) if always else ()
    else:
        any_of = tuple((*always, *rules) for rules in terms) or (_NOWHERE,)
    return Where(any_of, tuple(_tolerated(spec.get("tolerations") or ())))


_NOWHERE = (LabelRule(NODE_NAME, LabelOperator.DOES_NOT_EXIST),)


def _required(spec: Json) -> list[list[LabelRule]] | None:
    """Sets of rules, one of which must hold; None when nothing is required. A term without rules
    matches no node, as in Kubernetes."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return None
    sets = []
    for term in required.get("nodeSelectorTerms") or ():
        rules = [
            LabelRule(
                rule["key"], LabelOperator(rule["operator"]), tuple(rule.get("values") or ())
            )
            for rule in (*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ()))
        ]
        if rules:
            sets.append(rules)
    return sets


def _tolerated(tolerations: Sequence[Json]) -> Iterable[str]:
    for one in tolerations:
        key, effect = one.get("key") or "*", one.get("effect") or "*"
        exists = one.get("operator") == "Exists"
        yield f"{key}={'*' if exists else one.get('value') or ''}:{effect}"


def gpu_types_of(pod: Json) -> tuple[str, ...]:
    """GPU types that a pod insists on, where it names them by a label that we know."""
    return _gpu_types(where_of(pod))


def _gpu_types(where: Where) -> tuple[str, ...]:
    chosen = where.any_of
    named = [
        rule.values
        for rules in chosen
        for rule in rules
        if rule.key in _TYPE_LABELS and rule.operator is LabelOperator.IN
    ]
    return (
        tuple(dict.fromkeys(v for values in named for v in values))
        if len(named) == len(chosen)
        else ()
    )


# -- what is not understood -----------------------------------------------------------------------


def refusals(pod: Json) -> list[str]:
    """What a pod asks for that we do not take into account: to place it would be wrong."""
    spec, asked = pod["spec"], requests_of(pod)
    reasons = [f"it asks for {name}, which is not counted here" for name in _uncounted(asked)]
    if any(name in _SHARE for name in asked):
        reasons.append("it asks for a part of a GPU of HAMi, whose own scheduler has to place it")
    affinity = spec.get("affinity") or {}
    for kind in ("podAffinity", "podAntiAffinity"):
        if (affinity.get(kind) or {}).get("requiredDuringSchedulingIgnoredDuringExecution"):
            reasons.append(f"it requires {kind}")
    if any(
        one.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule"
        for one in spec.get("topologySpreadConstraints") or ()
    ):
        reasons.append("it has topologySpreadConstraints that must hold")
    if spec.get("resourceClaims"):
        reasons.append("it has resourceClaims (dynamic resource allocation)")
    ports = [p for each in spec.get("containers") or () for p in each.get("ports") or ()]
    if any(port.get("hostPort") for port in ports) and not spec.get("hostNetwork"):
        reasons.append("it asks for a port of the host")
    return reasons


def _uncounted(asked: Iterable[str]) -> list[str]:
    names = set(asked) - _COUNTED
    gpus = sorted(name for name in names if _is_gpu(name))
    return sorted(names - set(gpus)) + gpus[1:]
