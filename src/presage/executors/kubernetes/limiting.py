"""Holds the workers of a run to less CPU and memory while they run, through `pods/resize`.

Where the API server has that subresource (Kubernetes 1.33, earlier with its feature gate on), the
kubelet changes the cgroups of a container that goes on; elsewhere nothing is offered. Requests and
limits stay equal, and only what the job asked for is changed: a resource cannot be added to a pod
that runs. Never below what a worker uses, as far as that was measured. What a server refuses for
good (1.33 lowers no memory) is said once, in the log, and left. It starts and places nothing.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping

from presage.executors.kubernetes.amounts import amount, cpu_milli, mib
from presage.executors.kubernetes.api import PODS, Json, KubeApi
from presage.executors.kubernetes.pods import MAIN, main_resources
from presage.executors.node.runspec import RoleSpec
from presage.model.cluster import Resources
from presage.model.errors import KubernetesError

__all__ = ["RESIZE", "PodLimits"]

log = logging.getLogger("presage.kubernetes")

RESIZE = "resize"
"""The subresource of pods."""
_ROOM = 1.1
"""Memory that a worker keeps, times what it holds."""
_FOR_GOOD = (400, 403, 405, 413, 415, 422)


class PodLimits:
    """What the workers of the first role of a run are held to."""

    def __init__(self) -> None:
        self.wanted: Resources | None = None
        """0 for what the job asked for."""
        self.unwritten = False
        """Whether that is not in the record yet."""
        self._tried: dict[str, Json] = {}
        """What was last asked for, by pod, if that was refused for good."""

    def ask(self, limits: Resources) -> None:
        """Hold them to this from now on."""
        if limits != self.wanted:
            self.wanted, self.unwritten = limits, True
            self._tried.clear()

    def json(self) -> str:
        """As the record has it."""
        wanted = self.wanted or Resources()
        return json.dumps([wanted.cpu_milli, wanted.memory_mib])

    def read(self, text: str) -> None:
        """From the record."""
        cpu, memory = json.loads(text)
        self.wanted = Resources(cpu_milli=cpu, memory_mib=memory)

    def hold(self, api: KubeApi, pod: Json, role: RoleSpec, used_mib: float | None) -> Json | None:
        """Ask for what a pod is to have, unless it is what it has, or was refused for good; the
        pod as it is then."""
        if self.wanted is None or not pod["spec"].get("nodeName"):
            return None
        goal, meta = _goal(pod, role, self.wanted, used_mib), pod["metadata"]
        if not goal or self._tried.get(meta["uid"]) == goal:
            return None
        try:
            return _resize(api, pod, goal)
        except KubernetesError as error:
            if error.status == 404:
                return None  # it is gone; a watch says so
            if error.status not in _FOR_GOOD:
                raise
            self._tried[meta["uid"]] = goal
            log.warning("pod %s keeps its limits: %s", meta["name"], error)
            if error.status != 422 or goal.keys() != {"cpu", "memory"}:
                return None
        try:  # one of the two may be allowed
            return _resize(api, pod, {"cpu": goal["cpu"]})
        except KubernetesError as error:
            if error.status not in (404, *_FOR_GOOD):
                raise
            return None


def _goal(pod: Json, role: RoleSpec, wanted: Resources, used_mib: float | None) -> dict[str, str]:
    """The amounts of the job's container that are to be others, by name."""
    has = main_resources(pod).get("limits") or {}
    goal: dict[str, str] = {}
    if role.cpus and "cpu" in has:
        asked = math.ceil(role.cpus * 1000)
        milli = min(asked, wanted.cpu_milli or asked)
        if milli != cpu_milli(amount(has["cpu"])):
            goal["cpu"] = f"{milli}m"
    if role.memory_mib and "memory" in has:
        least = math.ceil((used_mib or 0.0) * _ROOM)
        memory = min(role.memory_mib, max(least, wanted.memory_mib or role.memory_mib))
        now = mib(amount(has["memory"]))
        # What it holds moves all the time: that alone is no reason to ask again.
        near = least > wanted.memory_mib > 0 and least <= now <= 1.2 * least
        if memory != now and not near:
            goal["memory"] = f"{memory}Mi"
    return goal


def _resize(api: KubeApi, pod: Json, goal: Mapping[str, str]) -> Json:
    """Ask for other amounts, whatever else the container asks for; its number is made sure of."""
    names = [container["name"] for container in pod["spec"]["containers"]]
    place = f"/spec/containers/{names.index(MAIN)}"
    now = main_resources(pod)
    then = {part: {**(now.get(part) or {}), **goal} for part in ("limits", "requests")}
    steps: list[Json] = [
        {"op": "test", "path": f"{place}/name", "value": MAIN},
        {"op": "replace", "path": f"{place}/resources", "value": {**now, **then}},
    ]
    meta = pod["metadata"]
    return api.patch(PODS, meta["name"], steps, meta["namespace"], sub=RESIZE)
