"""Objects of a run on Kubernetes: valid for the newest version; what became of them in words."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # ships none
import pytest

from presage.executors.kubernetes.devices import gpu_request, run_node
from presage.executors.kubernetes.monitor import (
    Sight,
    judge,
    started_at,
    stuck,
    trouble,
    why_gone,
)
from presage.executors.kubernetes.pods import RunObjects, run_name
from presage.executors.kubernetes.reading import NODE_NAME, where_of
from presage.executors.kubernetes.settings import ClusterUse
from presage.executors.node.runspec import RunSpec
from presage.model.cluster import Worker
from presage.model.errors import RunSpecError
from presage.model.event import JobExited, LaunchFailed, Outcome
from presage.model.job import ReasonCode
from tests.executors.kubernetes_kit import write_job

_A100 = {
    "metadata": {"name": "n1", "labels": {"nvidia.com/gpu.product": "A100"}},
    "status": {"allocatable": {"nvidia.com/gpu": "8", "cpu": "64", "memory": "512Gi"}},
}


def _objects(tmp_path: Path, use: ClusterUse | None = None, **manifest: Any) -> RunObjects:
    manifest = {"image": "python:3", "command": "python train.py", "workers": 2, **manifest}
    write_job(tmp_path, "My Job_1", **manifest)
    spec = RunSpec.load(tmp_path / "jobs" / "My Job_1" / "job.json")
    workers = [Worker(0, index, "n1", (index,)) for index in range(2)]
    nodes = {"n1": _A100}
    return RunObjects("My Job_1", 3, spec, workers, use or ClusterUse(), "team", nodes)


def _all(objects: RunObjects) -> list[dict[str, Any]]:
    record = objects.record()
    owner = {**record, "metadata": {**record["metadata"], "uid": "u-1"}}
    pods = objects.pods(owner)
    stored = {"metadata": {"name": "p", "namespace": "team", "uid": "u-2"}}
    return [
        record,
        objects.secret({"TOKEN": "sesame"}, owner),
        objects.service(owner),
        objects.policy(owner),
        objects.binding(stored, "n1"),
        *pods.values(),
    ]


@pytest.mark.parametrize(
    ("use", "manifest"),
    [
        (ClusterUse(), {}),
        (
            ClusterUse(helper_image="presage:1", claim="data", service_account="runner"),
            {
                "resources": {"gpus": 2, "cpus": 1.5, "memory": "3Gi"},
                "data": {"set": "s3://bucket/set"},
                "results": "s3://bucket/out",
                "secrets": {"TOKEN": "token"},
                "env": {"A": "1"},
                "launcher": "torchrun",
                "time_limit": "2h",
                "checkpoint": {"resume": "python train.py --resume"},
                "ports": [8080],
            },
        ),
        (ClusterUse(host_network=True, host_path="/data", pull_secrets=("reg",)), {}),
    ],
)
def test_every_object_is_valid_for_the_newest_kubernetes(
    tmp_path: Path, use: ClusterUse, manifest: Mapping[str, Any]
) -> None:
    newest = kubernetes_validate.latest_version()
    assert tuple(map(int, newest.split("."))) >= (1, 36)
    for item in _all(_objects(tmp_path, use, **manifest)):
        kubernetes_validate.validate(item, newest, strict=True)


def test_all_belongs_to_the_record_and_waits_for_us(tmp_path: Path) -> None:
    objects = _objects(tmp_path)
    record, secret, service, policy, _, *pods = _all(objects)
    assert record["metadata"]["name"] == run_name("My Job_1", 3) == objects.name
    for item in (secret, service, policy, *pods):
        (owner,) = item["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("ConfigMap", objects.name, "u-1")
    for pod in pods:
        assert pod["spec"]["schedulerName"] == "presage"
        assert pod["spec"]["schedulingGates"] == [{"name": "presage.dev/gang"}]
        assert "nodeName" not in pod["spec"]
    assert secret["data"] == {"TOKEN": "c2VzYW1l"}
    assert "sesame" not in str((record, service, policy, pods))


@pytest.mark.parametrize("wanted", ["out/ckpt", "/ckpt", "."])
def test_checkpoints_are_where_the_program_writes_them(tmp_path: Path, wanted: str) -> None:
    for use in (ClusterUse(), ClusterUse(host_path="/data", helper_image="presage:1")):
        objects = _objects(tmp_path, use, checkpoint={"dir": wanted})
        *_, pod = _all(objects)
        kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)
        mounts = pod["spec"]["containers"][0]["volumeMounts"]
        at = {mount["mountPath"]: (mount["name"], mount["subPath"]) for mount in mounts}
        assert len(at) == len(mounts)
        place = wanted if wanted.startswith("/") else f"/presage/runs/My Job_1/3/work/{wanted}"
        if wanted != ".":
            assert at[place] == at["/presage/jobs/My Job_1/checkpoints"]
        for step in (
            pod["spec"]["containers"][1:] if wanted != "." else ()
        ):  # what they see there would become results
            assert at.keys() - {mount["mountPath"] for mount in step["volumeMounts"]} == {place}


def test_what_a_cluster_cannot_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunSpecError, match="names no image"):
        _objects(tmp_path, image=None).check()
    with pytest.raises(RunSpecError, match="no helper image"):
        _objects(tmp_path, results="s3://bucket/out").check()
    _objects(tmp_path, ClusterUse(helper_image="presage:1"), results="s3://bucket/out").check()


@pytest.mark.parametrize(
    ("gpus", "have", "labels", "asked"),
    [
        (2, {"nvidia.com/gpu": "8"}, {}, {"nvidia.com/gpu": "2"}),
        (1, {"nvidia.com/mig-3g.20gb": "2"}, {}, {"nvidia.com/mig-3g.20gb": "1"}),
        (1, {"amd.com/gpu": "4"}, {}, {"amd.com/gpu": "1"}),
        (0.5, {"nvidia.com/gpu.shared": "4"}, {}, {"nvidia.com/gpu.shared": "1"}),
        (0.5, {"nvidia.com/gpu": "4"}, {"nvidia.com/gpu.replicas": "4"}, {"nvidia.com/gpu": "1"}),
        (
            0.4,
            {"nvidia.com/mig-1g.5gb": "7", "nvidia.com/mig-3g.20gb": "2"},
            {},
            {"nvidia.com/mig-3g.20gb": "1"},
        ),
        (0, {"nvidia.com/gpu": "8"}, {}, {}),
    ],
)
def test_gpus_are_asked_for_as_the_node_offers_them(
    gpus: float, have: dict[str, str], labels: dict[str, str], asked: dict[str, str]
) -> None:
    node = {"metadata": {"name": "n", "labels": labels}, "status": {"allocatable": have}}
    assert gpu_request(gpus, 0, node) == asked


_HAMI_GPUS = [{"id": f"GPU-{n}", "devmem": 40960, "type": "NVIDIA-A100"} for n in range(2)]


@pytest.mark.parametrize(("gpus", "cores", "count"), [(0.3, "30", "1"), (2, "100", "2")])
def test_on_a_node_of_hami_its_scheduler_binds(
    tmp_path: Path, gpus: float, cores: str, count: str
) -> None:
    annotations = {"hami.io/node-nvidia-register": json.dumps(_HAMI_GPUS)}
    node = {
        "metadata": {"name": "n1", "annotations": annotations},
        "status": {"allocatable": {"nvidia.com/gpu": "20"}},
    }
    assert [device.memory_mib for device in run_node(node).devices] == [40960, 40960]
    objects = replace(_objects(tmp_path, resources={"gpus": gpus}), nodes={"n1": node})
    for item in _all(objects):
        kubernetes_validate.validate(item, kubernetes_validate.latest_version(), strict=True)
    spec = objects.pods({**objects.record(), "metadata": {"name": "r", "uid": "u"}})["worker-0"][
        "spec"
    ]
    assert spec["containers"][0]["resources"]["limits"] == {
        "nvidia.com/gpu": count,
        "nvidia.com/gpucores": cores,
    }
    assert spec["schedulerName"] == "hami-scheduler"
    (rules,) = where_of({"spec": spec}).any_of
    assert [rule.values for rule in rules if rule.key == NODE_NAME] == [("n1",)]
    objects = replace(_objects(tmp_path, resources={"gpus": 0}), nodes={"n1": node})
    pods = objects.pods({**objects.record(), "metadata": {"name": "r", "uid": "u"}})
    assert pods["worker-0"]["spec"]["schedulerName"] == "presage"


def test_a_node_that_cannot_share_says_so() -> None:
    with pytest.raises(RunSpecError, match=r"node n1 cannot share a GPU .* instead of 0.5"):
        gpu_request(0.5, 0, _A100)


def test_a_gpu_that_is_offered_several_times_is_one_to_share() -> None:
    assert [device.type for device in run_node(_A100).devices] == ["A100"] * 8
    labels = {"nvidia.com/gpu.replicas": "4"}
    taints = [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]
    sliced = {**_A100, "metadata": {"name": "n", "labels": labels}, "spec": {"taints": taints}}
    node = run_node(sliced)
    assert len(node.devices) == 2
    assert not any(taint.startswith("nvidia.com/gpu") for taint in node.taints)


# -- what became of it --------------------------------------------------------------------------


def _pod(main: Mapping[str, Any], **status: Any) -> dict[str, Any]:
    one = {"name": "main", "image": "img", "state": main}
    return {"metadata": {}, "spec": {}, "status": {"containerStatuses": [one], **status}}


def _ended(code: int, **more: Any) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "finishedAt": "2026-01-01T00:00:00Z", **more}}


_PULL = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "img"'}}
_CONFIG = {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "s" not found'}}


@pytest.mark.parametrize(
    ("pod", "outcome", "code", "words"),
    [
        (_pod(_ended(3, message="x\nLookupError: y")), "failed", "error", "exit code 3: Lookup"),
        (_pod(_ended(139)), "failed", "error", "SIGSEGV"),
        (_pod(_ended(137)), "lost", "error", "SIGKILL"),
        (_pod(_ended(137, reason="OOMKilled")), "out_of_memory", "out_of_memory", "the 96 MiB"),
        (_pod(_PULL), "", "launch_failed", "image img cannot be pulled: Back-off"),
        (_pod(_CONFIG), "", "launch_failed", 'secret "s" not found'),
        (
            _pod({}, phase="Failed", reason="Evicted", message="The node was low on memory"),
            "lost",
            "node_lost",
            "worker-0 was evicted: The node was low on memory",
        ),
        (
            _pod({}, phase="Failed", reason="Preempting", message="make room"),
            "lost",
            "node_lost",
            "was preempted by a pod of higher priority",
        ),
        (
            _pod({}, phase="Failed", reason="OutOfnvidia.com/gpu", message="short of gpu"),
            "lost",
            "node_lost",
            "the node had no room for worker-0",
        ),
        (
            _pod(_ended(143), phase="Failed", reason="DeadlineExceeded"),
            "failed",
            "time_limit",
            "longer than its time limit of 5 s",
        ),
    ],
)
def test_an_end_is_said_in_words(pod: dict[str, Any], outcome: str, code: str, words: str) -> None:
    end = judge(("j", 1), [Sight("worker-0", pod, 96)], started=True, time_limit_s=5)
    assert end is not None
    assert end.reason is not None
    assert isinstance(end, JobExited if outcome else LaunchFailed)
    if isinstance(end, JobExited):
        assert end.outcome == outcome
    assert end.reason.code is ReasonCode(code)
    assert words in end.reason.text


def test_all_must_end_well_but_those_who_serve() -> None:
    good, runs = _pod(_ended(0)), _pod({"running": {"startedAt": "2026-01-01T00:00:00Z"}})
    sights: Sequence[Sight] = (Sight("worker-0", good), Sight("ps-0", runs, serves=True))
    end = judge(("j", 1), sights, started=True)
    assert isinstance(end, JobExited)
    assert end.outcome is Outcome.SUCCEEDED
    assert judge(("j", 1), (*sights, Sight("worker-1", runs)), started=True) is None


def test_a_program_that_could_not_be_started_has_not_begun() -> None:
    runs = _pod({"running": {"startedAt": "2026-01-01T00:00:00Z"}})
    typo = _pod(_ended(128, reason="StartError", startedAt="1970-01-01T00:00:00Z"))
    assert started_at([Sight("worker-0", runs)]) is not None
    assert started_at([Sight("worker-0", runs), Sight("worker-1", typo)]) is None
    end = judge(("j", 1), [Sight("worker-0", runs), Sight("worker-1", typo)], started=False)
    assert isinstance(end, LaunchFailed)


def test_what_keeps_a_pod_from_starting() -> None:
    pod = _pod({"waiting": {"reason": "ContainerCreating"}})
    mount = {
        "type": "Warning",
        "reason": "FailedMount",
        "message": "MountVolume.SetUp failed for volume data: no such claim",
        "lastTimestamp": "2026-01-01T00:00:01Z",
    }
    older = {**mount, "reason": "Old", "lastTimestamp": "2026-01-01T00:00:00Z"}
    assert trouble(pod, []) == ""
    assert trouble(pod, [older, mount]).startswith("FailedMount: MountVolume.SetUp failed")


def test_a_pod_that_does_not_end_is_said_to_be_stuck() -> None:
    def leaving(ago_s: float, **meta: Any) -> str:
        at = datetime.fromtimestamp(time.time() - ago_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        pod = {"metadata": {"deletionTimestamp": at, **meta}, "spec": {"nodeName": "n1"}}
        return stuck("worker-0", pod)

    assert stuck("worker-0", {"metadata": {}, "spec": {"nodeName": "n1"}}) == ""
    assert leaving(-20) == ""
    assert leaving(100) == "stopping: node n1 does not end worker-0"
    assert leaving(100, finalizers=["a/b"]).endswith("; it is held by a/b")


def test_who_took_a_pod_away() -> None:
    target = {"type": "DisruptionTarget", "reason": "PreemptionByScheduler", "message": "by x"}
    pod = {"spec": {"nodeName": "n1"}, "status": {"conditions": [target]}}
    assert why_gone("worker-1", pod, {}) == (
        "worker-1 was preempted by a pod of higher priority: by x"
    )
    plain = {"spec": {"nodeName": "n1"}, "status": {}}
    assert why_gone("worker-1", plain, None) == "worker-1 was on node n1, which is gone"
    assert "deleted, and not by Presage" in why_gone("worker-1", plain, {})
