"""A cluster whose pods others make: a core and its drop-in scheduler on a real API server, a
kubelet's part played by patches of pod status, and objects as users and operators write them."""

from __future__ import annotations

import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from presage.core.engine import Engine
from presage.core.loop import act, step, unconfirmed
from presage.core.state import State
from presage.executors.kubernetes.adopted import AdoptedPods
from presage.executors.kubernetes.api import KubeApi, connect
from presage.model import event as ev
from presage.policy.config import PolicyConfig
from presage.policy.registry import build
from presage.store.memory import MemoryStore
from tests.kubernetes_plane import Plane
from tests.scenario import Known
from tests.waiting import PATIENCE_S

PODS = "/api/v1/namespaces/default/pods"
Json = dict[str, Any]


class DropIn:
    """The deciding loop over pods of others. Every job starts as soon as it is bound."""

    def __init__(
        self, plane: Plane, policy: PolicyConfig | str = "backfill", user: str = "admin"
    ) -> None:
        self.plane, self.user = plane, user
        self.store = MemoryStore()
        self.engine = Engine(build(policy), Known(), check_every=1)
        self.over: dict[str, str] = {}
        self.adopted = self._connect()
        nodes: list[ev.Fact] = [ev.NodeUp(node) for node in self.adopted.nodes()]
        self._handle(nodes)

    def _api(self) -> KubeApi:
        return connect(kubeconfig=self.plane.kubeconfig(self.user))

    def _connect(self) -> AdoptedPods:
        return AdoptedPods(
            self._api(), jobs=lambda: self.engine.state.jobs, was=lambda job: job in self.over
        )

    def restart(self) -> None:
        """Kill the scheduler, and start it on what it wrote."""
        self.adopted.close()
        state = State.restore(self.engine.state.snapshot())
        self.engine = Engine(self.engine.policy, Known(), state, check_every=1)
        self.adopted = self._connect()
        there = {node.name: node for node in self.adopted.nodes()}
        act(self.adopted, unconfirmed(state))
        known = {state.capacity.nodes[i].name for i in state.capacity.index.values()}
        self._handle(
            [
                *(ev.NodeDown(name) for name in known - there.keys()),
                *(ev.NodeChanged(node) for name, node in there.items() if name in known),
                *(ev.NodeUp(node) for name, node in there.items() if name not in known),
            ]
        )

    def turn(self) -> None:
        """One step, and the kubelets'."""
        self.adopted.wait(0.02)
        self._handle([])
        for pod in self.pods():
            if pod["spec"].get("nodeName") and pod["status"].get("phase") == "Pending":
                self.set_phase(pod["metadata"]["name"], "Running")

    def _handle(self, facts: list[ev.Fact]) -> None:
        step(self.engine, self.adopted, self.store, time.time(), facts)
        self.over |= {job.id: str(job.state) for job in self.engine.state.ended}

    def until(self, condition: Callable[[], object]) -> None:
        """Go on until something is so."""
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, self.engine.state.jobs
            self.turn()

    def settle(self, turns: int = 15) -> None:
        """Let whatever would happen happen."""
        for _ in range(turns):
            self.turn()

    # -- the cluster ----------------------------------------------------------------------------

    def pods(self) -> list[Json]:
        """All pods."""
        return list(self.plane.call("GET", PODS)["items"])

    def bound(self, label: str = "") -> dict[str, str]:
        """Pods that have a node."""
        return {
            pod["metadata"]["name"]: pod["spec"]["nodeName"]
            for pod in self.pods()
            if pod["spec"].get("nodeName") and pod["metadata"]["name"].startswith(label)
        }

    def add(self, *pods: Json) -> None:
        """Make pods."""
        for pod in pods:
            self.plane.call("POST", PODS, pod)

    def delete(self, *names: str) -> None:
        """Delete pods at once."""
        for name in names:
            self.plane.call("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})

    def set_phase(self, name: str, phase: str, **status: Any) -> None:
        """What the kubelet of a pod would say."""
        body = {"status": {"phase": phase, **status}}
        try:
            self.plane.call("PATCH", f"{PODS}/{name}/status", body)
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise

    def end(self, prefix: str, phase: str = "Succeeded") -> None:
        """All pods with such a name end."""
        for name in self.bound(prefix):
            self.set_phase(name, phase)

    def events(self, name: str) -> list[tuple[str, str]]:
        """Reason and message of what is said about a pod."""
        items = self.plane.call("GET", "/api/v1/namespaces/default/events")["items"]
        return [
            (item["reason"], item["message"])
            for item in items
            if item["involvedObject"]["name"] == name
        ]

    def state_of(self, prefix: str) -> str:
        """The state of the job of these pods."""
        states = {job.id: str(job.state) for job in self.engine.state.jobs.values()} | self.over
        return next((states[name] for name in states if name.startswith(prefix)), "")


@contextmanager
def drop_in(
    plane: Plane, policy: PolicyConfig | str = "backfill", user: str = "admin"
) -> Iterator[DropIn]:
    """A drop-in scheduler that is put away."""
    made = DropIn(plane, policy, user)
    try:
        yield made
    finally:
        made.adopted.close()


def pod(
    name: str,
    gpus: int = 1,
    owner: Json | None = None,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    scheduler: str = "presage",
    **spec: Any,
) -> Json:
    """A pod as somebody's operator makes it."""
    asked = {"cpu": "1", "memory": "1Gi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    meta: Json = {"name": name, "labels": labels or {}, "annotations": annotations or {}}
    if owner is not None:
        meta["ownerReferences"] = [
            {
                "apiVersion": owner["apiVersion"],
                "kind": owner["kind"],
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
                "controller": True,
            }
        ]
    main = {"name": "main", "image": "busybox", "resources": {"limits": asked, "requests": asked}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {
            "schedulerName": scheduler,
            "terminationGracePeriodSeconds": 0,
            "containers": [main],
            **spec,
        },
    }


def gang(name: str, size: int, gpus: int = 1, **more: Any) -> list[Json]:
    """Pods that say themselves that they belong together."""
    labels = {"presage.dev/gang": name, "presage.dev/gang-size": str(size)}
    return [pod(f"{name}-{i}", gpus, labels=labels, **more) for i in range(size)]
