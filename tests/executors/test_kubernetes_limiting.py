"""Limits of pods that run. The API server here (1.20) has no `pods/resize`: `Resizes` stands in
for that one subresource, by the rules of the newest version; the pods are those that we make."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # ships none
import pytest

from presage.executors.kubernetes.api import PODS, Json, KubeApi, Resource, connect
from presage.executors.kubernetes.executor import KubernetesExecutor
from presage.executors.kubernetes.limiting import PodLimits
from presage.executors.kubernetes.pods import RunObjects, main_resources
from presage.executors.kubernetes.settings import ClusterUse
from presage.executors.node.runspec import RunSpec
from presage.model.cluster import Resources, Worker
from presage.model.errors import KubernetesError
from presage.model.event import JobStarted, Launch, Limit
from presage.model.job import Reason, ReasonCode
from tests.executors.kubernetes_kit import write_job
from tests.kubernetes_fire import StandIn
from tests.kubernetes_plane import Plane
from tests.waiting import eventually

_LESS = Reason(ReasonCode.OK, "it needs no more")
_NEWEST = kubernetes_validate.latest_version()


class Resizes:
    """`pods/resize`: applies a patch to a pod if what a server checks there holds."""

    def __init__(self, pod: Json, *, lowers_memory: bool = True, status: int = 0) -> None:
        self.pod = pod
        self.asked: list[Json] = []
        self._lowers_memory, self._status = lowers_memory, status

    def patch(
        self, resource: Resource, name: str, body: Any, namespace: str | None = None, *, sub: str
    ) -> Json:
        assert (resource, name, sub) == (PODS, self.pod["metadata"]["name"], "resize")
        self.asked.append(body)
        if self._status:
            raise KubernetesError("no", self._status)
        then = _patched(self.pod, body)
        kubernetes_validate.validate(then, _NEWEST, strict=True)
        before, after = main_resources(self.pod), main_resources(then)
        assert _rest(self.pod) == _rest(then), "only resources change"
        for part in ("limits", "requests"):
            assert before[part].keys() == after[part].keys(), "nothing is added or removed"
            others = before[part].keys() - {"cpu", "memory"}
            assert all(before[part][one] == after[part][one] for one in others)
        assert (before["limits"] == before["requests"]) == (after["limits"] == after["requests"])
        less = _mib(after["limits"]["memory"]) < _mib(before["limits"]["memory"])
        if less and not self._lowers_memory:
            raise KubernetesError("memory limits cannot be decreased", 422)
        self.pod = then
        return then

    @property
    def limits(self) -> tuple[str, str]:
        """CPU and memory."""
        limits = main_resources(self.pod)["limits"]
        return limits["cpu"], limits["memory"]


def _patched(pod: Json, steps: list[Json]) -> Json:
    """A pod after a JSON patch of `test` and `replace`."""
    then = copy.deepcopy(pod)
    for step in steps:
        *path, last = [int(p) if p.isdecimal() else p for p in step["path"].split("/")[1:]]
        place: Any = then
        for part in path:
            place = place[part]
        if step["op"] == "test":
            assert place[last] == step["value"]
        else:
            assert step["op"] == "replace"
            place[last] = step["value"]
    return then


def _rest(pod: Json) -> Json:
    rest = copy.deepcopy(pod)
    for container in rest["spec"]["containers"]:
        container.pop("resources", None)
    return rest


def _mib(text: str) -> int:
    """An API server writes 1024Mi as 1Gi."""
    return int(text[:-2]) * {"Mi": 1, "Gi": 1024}[text[-2:]]


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    resources = {"cpus": 4, "memory": "8Gi", "gpus": 1}
    write_job(tmp_path, "j", image="i", command="train", resources=resources)
    return RunSpec.load(tmp_path / "jobs" / "j" / "job.json")


def _pod(spec: RunSpec, **use: Any) -> Json:
    """A pod of ours that is bound."""
    node = {"metadata": {"name": "n1"}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}
    worker = Worker(0, 0, "n1", (0,))
    objects = RunObjects("j", 1, spec, [worker], ClusterUse(**use), "team", {"n1": node})
    record = objects.record()
    record["metadata"]["uid"] = "u-1"
    (pod,) = objects.pods(record).values()
    pod["metadata"]["uid"] = "u-2"
    pod["spec"]["nodeName"] = "n1"
    return pod


def _hold(server: Resizes, spec: RunSpec, limits: PodLimits, used: float | None = None) -> None:
    limits.hold(server, server.pod, spec.roles[0], used)  # type: ignore[arg-type]


def test_a_pod_gets_less_and_all_of_it_back(spec: RunSpec) -> None:
    server, limits = Resizes(_pod(spec, helper_image="presage:1")), PodLimits()
    _hold(server, spec, limits)
    assert not server.asked  # nobody wants anything
    limits.ask(Resources(cpu_milli=1500, memory_mib=3000))
    _hold(server, spec, limits, used=1000.0)
    assert server.limits == ("1500m", "3000Mi")
    _hold(server, spec, limits, used=1200.0)
    assert len(server.asked) == 1  # it has that
    limits.ask(Resources())
    _hold(server, spec, limits)
    assert server.limits == ("4000m", "8192Mi")
    assert main_resources(server.pod)["limits"]["nvidia.com/gpu"] == "1"


def test_memory_never_goes_below_what_is_used(spec: RunSpec) -> None:
    server, limits = Resizes(_pod(spec)), PodLimits()
    limits.ask(Resources(cpu_milli=1000, memory_mib=1000))
    _hold(server, spec, limits, used=2000.0)
    assert server.limits == ("1000m", "2200Mi")
    _hold(server, spec, limits, used=1990.0)  # it moves all the time
    assert len(server.asked) == 1
    _hold(server, spec, limits, used=100_000.0)
    assert server.limits == ("1000m", "8192Mi")  # never more than the job asked for


def test_a_server_that_lowers_no_memory_lowers_cpus(spec: RunSpec) -> None:
    server, limits = Resizes(_pod(spec), lowers_memory=False), PodLimits()
    limits.ask(Resources(cpu_milli=1000, memory_mib=1000))
    _hold(server, spec, limits)
    assert server.limits == ("1000m", "8192Mi")
    asked = len(server.asked)
    _hold(server, spec, limits)  # the memory is not asked for again and again
    _hold(server, spec, limits)
    assert len(server.asked) <= asked + 1


@pytest.mark.parametrize("status", [400, 403, 405, 422])
def test_what_is_refused_for_good_is_asked_once(spec: RunSpec, status: int) -> None:
    server, limits = Resizes(_pod(spec), status=status), PodLimits()
    limits.ask(Resources(cpu_milli=1000))
    _hold(server, spec, limits)
    _hold(server, spec, limits)
    assert len(server.asked) == 1
    limits.ask(Resources(cpu_milli=2000))
    _hold(server, spec, limits)
    assert len(server.asked) == 2


def test_what_may_pass_is_tried_again(spec: RunSpec) -> None:
    server, limits = Resizes(_pod(spec), status=500), PodLimits()
    limits.ask(Resources(cpu_milli=1000))
    for _ in range(2):
        with pytest.raises(KubernetesError):
            _hold(server, spec, limits)
    assert len(server.asked) == 2


def test_a_pod_that_asks_for_nothing_is_left(tmp_path: Path) -> None:
    write_job(tmp_path, "j", image="i", command="train")
    spec = RunSpec.load(tmp_path / "jobs" / "j" / "job.json")
    server, limits = Resizes(_pod(spec)), PodLimits()
    limits.ask(Resources(cpu_milli=1000, memory_mib=1000))
    _hold(server, spec, limits)
    assert not server.asked


def test_a_record_keeps_what_is_wanted() -> None:
    limits, other = PodLimits(), PodLimits()
    limits.ask(Resources(cpu_milli=1500, memory_mib=3000))
    assert limits.unwritten
    other.read(limits.json())
    assert other.wanted == limits.wanted
    assert not other.unwritten


class _Resizing(KubeApi):
    """The real API server, with that subresource beside it."""

    def offers(self, sub: str) -> bool:
        return sub == "pods/resize" or super().offers(sub)

    def patch(self, resource: Resource, name: str, *rest: Any, sub: str = "", **more: Any) -> Json:
        if sub != "resize":
            return super().patch(resource, name, *rest, sub=sub, **more)
        server = Resizes(self.get(resource, name, rest[1]))
        self.resized: list[Json] = [
            *getattr(self, "resized", ()),
            server.patch(resource, name, *rest, sub=sub),
        ]
        return self.resized[-1]


@pytest.mark.engine
def test_the_executor_limits_where_the_server_can(plane: Plane, tmp_path: Path) -> None:
    plane.add_node("n0", 4)
    plain = connect(kubeconfig=plane.kubeconfig())
    executor = KubernetesExecutor(tmp_path, plain, ClusterUse(logs=False))
    assert executor.limit is None  # 1.20
    executor.close()
    api = _Resizing(plain._settings, plain.namespace)
    resources = {"cpus": 4, "memory": "8Gi"}
    write_job(tmp_path, "j", image="i", command="train", resources=resources)
    executor = KubernetesExecutor(tmp_path, api, ClusterUse(logs=False))
    standin = StandIn(plain, lambda pod: None)
    try:
        executor.launch(Launch("j", 1, (Worker(0, 0, "n0", ()),)))
        eventually(lambda: any(isinstance(fact, JobStarted) for fact in executor.poll(0.0)))
        executor.limit(Limit("j", 1, Resources(cpu_milli=1500, memory_mib=3000), _LESS))
        eventually(lambda: bool(getattr(api, "resized", ())))
        limits = main_resources(api.resized[0])["limits"]
        assert (limits["cpu"], limits["memory"]) == ("1500m", "3000Mi")
        (record,) = plane.call(
            "GET", "/api/v1/namespaces/default/configmaps?labelSelector=presage.dev/record"
        )["items"]
        assert json.loads(record["data"]["limits"]) == [1500, 3000]
    finally:
        standin.close()
        executor.close()
