"""Objects as users write them, and the pods that their operators make of them: Job, JobSet,
PyTorchJob, RayCluster, Deployment, a PodGroup. The API server and the controllers of Kubernetes
are real; of operators that are not part of it, the CRD is installed and a test makes the pods."""

from __future__ import annotations

import urllib.error
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.executors.foreign_pods import DropIn, drop_in, pod
from tests.kubernetes_plane import Plane
from tests.waiting import eventually

pytestmark = pytest.mark.engine

Json = dict[str, Any]
CRDS = {
    ("jobset.x-k8s.io", "v1alpha2"): "JobSet",
    ("kubeflow.org", "v1"): "PyTorchJob",
    ("ray.io", "v1"): "RayCluster",
    ("scheduling.x-k8s.io", "v1alpha1"): "PodGroup",
}


@pytest.fixture
def cluster(plane: Plane) -> Iterator[DropIn]:
    """Two nodes of four GPUs, and CRDs of operators."""
    for (group, version), kind in CRDS.items():
        _install(plane, group, version, kind)
    for name in ("n1", "n2"):
        plane.add_node(name, 4)
    with drop_in(plane) as made:
        yield made


def _install(plane: Plane, group: str, version: str, kind: str) -> None:
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    crd = {
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }
    if group.endswith("k8s.io"):
        crd["metadata"]["annotations"] = {  # type: ignore[index]
            "api-approved.kubernetes.io": "unapproved, for tests"
        }
    try:
        plane.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    except urllib.error.HTTPError as error:
        if error.code != 409:
            raise

    def served() -> bool:
        try:
            plane.call("DELETE", f"/apis/{group}/{version}/namespaces/default/{plural}")
        except urllib.error.HTTPError:
            return False
        return True

    eventually(served)


def make(cluster: DropIn, api: str, kind: str, name: str, spec: Json) -> Json:
    """An object of a user; what comes back has a uid."""
    path = f"/apis/{api}/namespaces/default/{kind.lower()}s"
    body = {"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec}
    return cluster.plane.call("POST", path, body)


def whole(cluster: DropIn, *names: str) -> Counter[str]:
    """How many pods of each are bound."""
    bound = cluster.bound()
    return Counter(name for pod in bound for name in names if pod.startswith(name))


TEMPLATE: Json = {
    "spec": {
        "schedulerName": "presage",
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [
            {
                "name": "train",
                "image": "registry.example.org/train:1",
                "command": ["torchrun", "train.py"],
                "resources": {"limits": {"nvidia.com/gpu": 1}, "requests": {"cpu": "500m"}},
            }
        ],
    }
}


def test_jobs_whose_template_names_a_gang_start_whole(cluster: DropIn) -> None:
    """The controller of Jobs makes the pods."""
    for name in ("first", "second", "third"):
        labels = {"presage.dev/gang": name, "presage.dev/gang-size": "4"}
        template = {**TEMPLATE, "metadata": {"labels": labels}}
        spec = {"parallelism": 4, "completions": 4, "template": template}
        make(cluster, "batch/v1", "Job", name, spec)
    cluster.until(lambda: len(cluster.bound()) == 8)
    cluster.settle()
    counts = whole(cluster, "first", "second", "third")
    assert sorted(counts.values()) == [4, 4]
    done = next(name for name in counts)
    cluster.end(done)
    cluster.until(lambda: len(whole(cluster, "first", "second", "third")) == 3)


def test_a_job_without_a_gang_starts_pod_by_pod(cluster: DropIn) -> None:
    spec = {"parallelism": 10, "completions": 10, "template": TEMPLATE}
    make(cluster, "batch/v1", "Job", "queue", spec)
    cluster.until(lambda: len(cluster.bound()) == 8)
    cluster.end("queue")
    cluster.until(lambda: len(cluster.bound()) == 10)


def test_a_deployment_starts_and_what_is_deleted_comes_back(cluster: DropIn) -> None:
    spec = {
        "replicas": 3,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {**TEMPLATE["spec"], "restartPolicy": "Always"},
        },
    }
    make(cluster, "apps/v1", "Deployment", "web", spec)
    cluster.until(lambda: len(cluster.bound("web")) == 3)
    cluster.delete(next(iter(cluster.bound("web"))))
    cluster.until(lambda: len(cluster.bound("web")) == 3)
    cluster.plane.call("DELETE", "/apis/apps/v1/namespaces/default/deployments/web")
    cluster.until(lambda: not cluster.bound("web"))
    cluster.until(lambda: not cluster.engine.state.jobs)


def test_a_jobset_starts_whole(cluster: DropIn) -> None:
    template: Json = {"spec": {"parallelism": 3, "completions": 3, "template": TEMPLATE}}
    parts: list[Json] = [{"name": "driver", "template": {"spec": {"template": TEMPLATE}}}]
    parts += [{"name": "workers", "replicas": 2, "template": template}]
    owner = make(cluster, "jobset.x-k8s.io/v1alpha2", "JobSet", "js", {"replicatedJobs": parts})

    def member(part: str, job: int, index: int) -> Json:
        labels = {
            "jobset.sigs.k8s.io/jobset-name": "js",
            "jobset.sigs.k8s.io/replicatedjob-name": part,
            "jobset.sigs.k8s.io/job-index": str(job),
            "batch.kubernetes.io/job-completion-index": str(index),
        }
        return pod(f"js-{part}-{job}-{index}", 1, owner, labels)

    pods = [member("workers", job, index) for job in range(2) for index in range(3)]
    cluster.add(*pods)
    cluster.settle()
    assert cluster.bound() == {}
    cluster.add(member("driver", 0, 0))
    cluster.until(lambda: len(cluster.bound("js")) == 7)
    (job,) = cluster.engine.state.jobs.values()
    assert {role.name: role.min for role in job.spec.roles} == {"driver": 1, "workers": 6}


def test_two_pytorchjobs_that_do_not_fit_together_go_one_after_the_other(
    cluster: DropIn,
) -> None:
    replicas = {"Master": {"replicas": 1}, "Worker": {"replicas": 4}}
    spec = {"pytorchReplicaSpecs": {n: {**r, "template": TEMPLATE} for n, r in replicas.items()}}
    owners = {
        name: make(cluster, "kubeflow.org/v1", "PyTorchJob", name, spec)
        for name in ("bert", "gpt")
    }

    def member(name: str, role: str, index: int) -> Json:
        labels = {
            "training.kubeflow.org/job-name": name,
            "training.kubeflow.org/replica-type": role,
            "training.kubeflow.org/replica-index": str(index),
        }
        return pod(f"{name}-{role}-{index}", 1, owners[name], labels)

    for index in range(4):
        cluster.add(*(member(name, "worker", index) for name in owners))
    cluster.add(*(member(name, "master", 0) for name in owners))
    cluster.until(lambda: len(cluster.bound()) == 5)
    cluster.settle()
    (first,) = whole(cluster, "bert", "gpt")
    assert cluster.state_of(first) == "running"
    cluster.set_phase(f"{first}-master-0", "Succeeded")
    cluster.settle(3)
    assert cluster.state_of(first) == "running"  # its workers are still there
    cluster.delete(*(f"{first}-worker-{i}" for i in range(4)))  # as the operator does
    cluster.until(lambda: whole(cluster, "bert", "gpt").total() == 6)
    assert cluster.state_of(first) == "succeeded"


def test_a_raycluster_starts_whole_and_workers_that_come_later_go_alone(cluster: DropIn) -> None:
    groups = [{"groupName": "gpu", "replicas": 2, "minReplicas": 2, "maxReplicas": 5}]
    spec = {"enableInTreeAutoscaling": True, "headGroupSpec": {}, "workerGroupSpecs": groups}
    owner = make(cluster, "ray.io/v1", "RayCluster", "ray", spec)

    def member(kind: str, index: int, gpus: int) -> Json:
        labels = {"ray.io/cluster": "ray", "ray.io/node-type": kind, "ray.io/group": kind}
        return pod(f"ray-{kind}-{index}", gpus, owner, labels)

    cluster.add(member("head", 0, 0), member("worker", 0, 2))
    cluster.settle()
    assert cluster.bound() == {}
    cluster.add(member("worker", 1, 2))
    cluster.until(lambda: cluster.state_of("ray") == "running")
    cluster.add(member("worker", 2, 2))
    cluster.until(lambda: len(cluster.bound()) == 4)
    cluster.delete("ray-worker-2")  # the autoscaler takes it away: its room is free at once
    cluster.until(lambda: len(cluster.engine.state.jobs) == 1)


def test_a_pod_group_that_does_not_exist_is_named_and_waited_for(cluster: DropIn) -> None:
    labels = {"scheduling.x-k8s.io/pod-group": "late"}
    cluster.add(pod("a", labels=labels), pod("b", labels=labels))
    text = (
        "Presage does not know how many pods belong together: there is no PodGroup late of "
        "scheduling.x-k8s.io/v1alpha1 in default that says how many pods it has"
    )
    cluster.until(lambda: ("NotPlaced", text) in cluster.events("a"))
    assert cluster.bound() == {}
    make(cluster, "scheduling.x-k8s.io/v1alpha1", "PodGroup", "late", {"minMember": 2})
    cluster.until(lambda: len(cluster.bound()) == 2)


def test_the_default_scheduler_deadlocks_where_we_do_not(cluster: DropIn) -> None:
    """Eight GPUs, four jobs of four: DLaaS's deadlock. Each job gets half of what it needs."""
    plane = cluster.plane
    names = [f"job{k}" for k in range(4)]
    plane.start_scheduler()
    try:
        cluster.add(pod("first", 0, scheduler="default-scheduler"))
        cluster.until(cluster.bound)  # it schedules from now on
        cluster.delete("first")
        for turn in range(4):
            cluster.add(*(pod(f"{name}-{turn}", scheduler="default-scheduler") for name in names))
        cluster.until(lambda: len(cluster.bound()) == 8)
        cluster.settle(10)
        counts = whole(cluster, *names)
        assert sorted(counts.values()) == [2, 2, 2, 2]  # nobody can begin, nobody gives way
    finally:
        plane.kill("kube-scheduler")
