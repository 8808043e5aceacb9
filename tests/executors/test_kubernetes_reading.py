"""API objects as users and operators write them, and what we read in them."""

from fractions import Fraction
from typing import Any

import pytest

from presage.executors.kubernetes.amounts import amount, cpu_milli, mib
from presage.executors.kubernetes.gangs import Gang, ObjectRef, gang_of, job_of, workers_of
from presage.executors.kubernetes.reading import (
    GPU_RESOURCE,
    ask_of_pod,
    gpu_types_of,
    node_of,
    node_remarks,
    refusals,
    requests_of,
    where_of,
)
from presage.model.cluster import Device, Resources

READY = [{"type": "Ready", "status": "True"}]


def node(name: str = "n1", labels: dict[str, str] | None = None, **allocatable: str) -> Any:
    offered = {
        key.replace("__", "/").replace("_", "."): value for key, value in allocatable.items()
    }
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {},
        "status": {"allocatable": offered, "conditions": READY},
    }


def container(**requests: str) -> Any:
    return {"resources": {"requests": requests}}


def pod(*containers: Any, name: str = "p", **spec: Any) -> Any:
    meta = {"name": name, "namespace": "team", "uid": f"uid-{name}"}
    return {"metadata": meta, "spec": {"containers": list(containers), **spec}, "status": {}}


def gpus(count: int, resource: str = "nvidia.com/gpu") -> Any:
    return {"resources": {"limits": {resource: str(count)}, "requests": {"cpu": "2"}}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("100m", Fraction(1, 10)),
        ("1.5", Fraction(3, 2)),
        (2, Fraction(2)),
        ("2Gi", Fraction(2 << 30)),
        ("1k", Fraction(1000)),
        ("1e3", Fraction(1000)),
        ("12E", Fraction(12 * 10**18)),
        (".5", Fraction(1, 2)),
        ("5u", Fraction(5, 10**6)),
    ],
)
def test_quantities_are_exact(text: object, value: Fraction) -> None:
    assert amount(text) == value


@pytest.mark.parametrize("text", ["", "1 Gi", "1X", "m", "1ee3", "NaN", "1" * 40])
def test_what_is_no_quantity_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity of Kubernetes, such as") as refused:
        amount(text)
    assert "\n" not in str(refused.value)


def test_requests_are_rounded_up() -> None:
    assert cpu_milli(amount("1500u")) == 2
    assert mib(amount("1")) == 1
    assert mib(amount("1G")) == 954


def test_a_node_offers_what_is_allocatable() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.memory": "81920"}
    labels["topology.kubernetes.io/zone"] = "eu-1a"
    read = node_of(node("gpu-1", labels, cpu="31850m", memory="128Gi", nvidia_com__gpu="8"))
    assert (read.name, read.cpu_milli, read.memory_mib) == ("gpu-1", 31_850, 131_072)
    assert read.devices == (Device("NVIDIA-A100-SXM4-80GB", 81_920),) * 8
    assert read.labels[GPU_RESOURCE] == "nvidia.com/gpu"
    assert read.labels["area"] == "eu-1a"
    assert read.taints == ()


@pytest.mark.parametrize(
    ("offered", "devices"),
    [
        ({"amd_com__gpu": "4"}, (Device(),) * 4),
        ({"nvidia_com__gpu_shared": "6"}, (Device(),) * 6),
        ({"nvidia_com__gpu": "0"}, ()),
        ({"cpu": "4"}, ()),
    ],
)
def test_gpus_by_the_names_in_use(offered: dict[str, str], devices: tuple[Device, ...]) -> None:
    assert node_of(node("n", {}, **offered)).devices == devices


def test_mig_profiles_are_devices_and_a_second_kind_is_named_and_left() -> None:
    item = node(cpu="8")
    item["status"]["allocatable"] |= {"nvidia.com/mig-1g.5gb": "7", "nvidia.com/gpu": "1"}
    read = node_of(item)
    assert read.devices == (Device("mig-1g.5gb", 4768),) * 7
    assert node_remarks(item) == [
        "node n1 offers nvidia.com/mig-1g.5gb and nvidia.com/gpu: only nvidia.com/mig-1g.5gb is "
        "counted there"
    ]


def test_hami_says_which_gpus_there_are() -> None:
    item = node(nvidia_com__gpu="20")
    item["metadata"]["annotations"] = {
        "hami.io/node-nvidia-register": '[{"type":"NVIDIA-T4","devmem":15360,"count":10},'
        '{"type":"NVIDIA-T4","devmem":15360,"count":10}]'
    }
    assert node_of(item).devices == (Device("NVIDIA-T4", 15_360),) * 2
    item["metadata"]["annotations"]["hami.io/node-nvidia-register"] = "GPU-1,10,15360:"
    assert len(node_of(item).devices) == 20


def test_cordoned_not_ready_and_tainted_nodes_have_the_taints_of_kubernetes() -> None:
    item = node()
    item["spec"] = {
        "unschedulable": True,
        "taints": [
            {"key": "dedicated", "value": "ml", "effect": "NoSchedule"},
            {"key": "soft", "effect": "PreferNoSchedule"},
        ],
    }
    item["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    assert node_of(item).taints == (
        "dedicated=ml:NoSchedule",
        "node.kubernetes.io/unschedulable=:NoSchedule",
        "node.kubernetes.io/not-ready=:NoSchedule",
    )


def test_a_pod_asks_for_the_sum_or_for_its_largest_init_container() -> None:
    sidecar = {**container(cpu="100m"), "restartPolicy": "Always"}
    made = pod(
        container(cpu="1", memory="1Gi"),
        container(cpu="500m"),
        initContainers=[container(memory="2Gi"), sidecar, container(cpu="1800m")],
        overhead={"cpu": "50m"},
    )
    assert requests_of(made) == {"cpu": Fraction(195, 100), "memory": Fraction(2 << 30)}
    made["spec"]["resources"] = {"requests": {"cpu": "3"}}
    assert ask_of_pod(made) == Resources(3050, 2048)


def test_a_limit_alone_is_a_request() -> None:
    assert ask_of_pod(pod(gpus(2))) == Resources(2000, 0, 2000)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"nvidia.com/gpucores": "30"}, (300, 0)),
        ({"nvidia.com/gpumem": "4000"}, (100, 4000)),
        ({"nvidia.com/gpumem-percentage": "50"}, (500, 0)),
    ],
)
def test_shares_of_hami(more: dict[str, str], expected: tuple[int, int]) -> None:
    made = pod({"resources": {"limits": {"nvidia.com/gpu": "1", **more}}})
    ask = ask_of_pod(made)
    assert (ask.gpu_milli, ask.gpu_memory_mib) == expected
    assert refusals(made) == [
        "it asks for a part of a GPU of HAMi, whose own scheduler has to place it"
    ]


def test_selectors_affinity_and_tolerations_decide_where() -> None:
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {
                        "matchExpressions": [
                            {
                                "key": "nvidia.com/gpu.product",
                                "operator": "In",
                                "values": ["A100", "H100"],
                            },
                            {"key": "spot", "operator": "DoesNotExist"},
                        ]
                    },
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["x"]}]},
                ]
            }
        }
    }
    tolerations = [{"key": "gpu", "operator": "Exists"}, {"key": "a", "value": "b"}]
    made = pod(gpus(1), nodeSelector={"pool": "ml"}, affinity=affinity, tolerations=tolerations)
    where = where_of(made)
    labels = {"pool": "ml", "nvidia.com/gpu.product": "H100"}
    good = node("n", labels, nvidia_com__gpu="1")
    assert where.accepts(node_of(good))
    good["spec"]["taints"] = [{"key": "gpu", "value": "x", "effect": "NoExecute"}]
    assert where.accepts(node_of(good))
    good["spec"]["taints"].append({"key": "a", "value": "c", "effect": "NoSchedule"})
    assert not where.accepts(node_of(good))
    for other in ({**labels, "spot": "1"}, {**labels, "pool": "web"}, {"pool": "ml"}):
        assert not where.accepts(node_of(node("n", other, nvidia_com__gpu="1")))
    assert where.accepts(node_of(node("x", {"pool": "ml"}, nvidia_com__gpu="1")))
    assert not where.accepts(node_of(node("n", labels, amd_com__gpu="1")))
    assert gpu_types_of(made) == ()  # node x will do, whatever it has
    assert gpu_types_of(pod(gpus(1), nodeSelector={"nvidia.com/gpu.product": "T4"})) == ("T4",)


def test_a_term_without_rules_matches_no_node() -> None:
    terms: Any = {"nodeSelectorTerms": [{"matchExpressions": []}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    made = pod(gpus(1), affinity={"nodeAffinity": required})
    assert not where_of(made).accepts(node_of(node(nvidia_com__gpu="1")))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"resourceClaims": [{"name": "gpu"}]}, "dynamic resource allocation"),
        (
            {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]},
            "topologySpreadConstraints that must hold",
        ),
        (
            {
                "affinity": {
                    "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}
                }
            },
            "it requires podAntiAffinity",
        ),
    ],
)
def test_what_is_not_understood_is_refused_in_words(spec: dict[str, Any], words: str) -> None:
    (refused,) = refusals(pod(gpus(1), **spec))
    assert words in refused


def test_resources_that_nobody_counts_and_ports_of_the_host_are_refused() -> None:
    first: Any = {"resources": {"limits": {"rdma/hca": "1", "nvidia.com/gpu": "1"}}}
    first["ports"] = [{"hostPort": 80}]
    assert refusals(pod(first)) == [
        "it asks for rdma/hca, which is not counted here",
        "it asks for a port of the host",
    ]
    both = {"resources": {"limits": {"amd.com/gpu": "1", "nvidia.com/gpu": "1"}}}
    assert refusals(pod(both)) == ["it asks for nvidia.com/gpu, which is not counted here"]
    assert refusals(pod(gpus(1), topologySpreadConstraints=[
        {"whenUnsatisfiable": "ScheduleAnyway"}])) == []  # fmt: skip


# -- gangs ----------------------------------------------------------------------------------------


def member(name: str, owner: str = "", kind: str = "Job", **labels: str) -> Any:
    made = pod(gpus(1), name=name)
    made["metadata"]["labels"] = {k.replace("__", "/"): v for k, v in labels.items()}
    if owner:
        made["metadata"]["ownerReferences"] = [
            {"apiVersion": "x/v1", "kind": kind, "name": owner, "controller": True}
        ]
    return made


def having(**specs: Any) -> Any:
    def find(ref: ObjectRef) -> Any:
        spec = specs.get(ref.kind)
        return None if spec is None else {"spec": spec}

    return find


INDEX = "batch.kubernetes.io/job-completion-index"
TRAIN = {"training.kubeflow.org/job-name": "bert", "training.kubeflow.org/replica-type": "worker"}
LWS = "leaderworkerset.sigs.k8s.io"


@pytest.mark.parametrize(
    ("labels", "owner", "find", "gang"),
    [
        ({}, "", {}, ("Pod", "p", 1)),
        ({}, "ReplicaSet", {}, ("ReplicaSet", "p", 1)),
        ({"presage.dev/gang": "g", "presage.dev/gang-size": "3"}, "", {}, ("gang", "g", 3)),
        ({"presage.dev/gang": "g"}, "", {}, ("gang", "g", 0)),
        (
            {
                "kueue.x-k8s.io/pod-group-name": "g",
                "kueue.x-k8s.io/pod-group-total-count": "2",
            },
            "",
            {},
            ("pod group", "g", 2),
        ),
        (
            {"scheduling.x-k8s.io/pod-group": "g"},
            "",
            {"PodGroup": {"minMember": 5}},
            ("PodGroup", "g", 5),
        ),
        (
            {"scheduling.k8s.io/group-name": "v"},
            "Job",
            {"PodGroup": {"minMember": 2}},
            ("PodGroup", "v", 2),
        ),
        ({"scheduling.k8s.io/group-name": "v"}, "Job", {}, ("PodGroup", "v", 0)),
        ({}, "Job", {"Job": {"parallelism": 4}}, ("Job", "p", 1)),
        ({INDEX: "0"}, "Job", {"Job": {"parallelism": 4, "completions": 4}}, ("Job", "o", 4)),
        ({INDEX: "0"}, "Job", {"Job": {"parallelism": 2, "completions": 9}}, ("Job", "p", 1)),
        (
            {"jobset.sigs.k8s.io/jobset-name": "js", INDEX: "0"},
            "Job",
            {
                "JobSet": {
                    "replicatedJobs": [
                        {
                            "replicas": 2,
                            "template": {"spec": {"parallelism": 3, "completions": 3}},
                        },
                        {"template": {"spec": {}}},
                    ]
                }
            },
            ("JobSet", "js", 7),
        ),
        (
            TRAIN,
            "PyTorchJob",
            {"PyTorchJob": {"pytorchReplicaSpecs": {"Master": {}, "Worker": {"replicas": 3}}}},
            ("PyTorchJob", "bert", 4),
        ),
        (
            TRAIN,
            "MPIJob",
            {
                "MPIJob": {
                    "launcherCreationPolicy": "WaitForWorkersReady",
                    "mpiReplicaSpecs": {"Launcher": {}, "Worker": {"replicas": 2}},
                }
            },
            ("MPIJob", "bert", 2),
        ),
        (TRAIN, "TFJob", {}, ("TFJob", "bert", 0)),
        (
            {"ray.io/cluster": "r", "ray.io/group": "small"},
            "RayCluster",
            {"RayCluster": {"workerGroupSpecs": [{"replicas": 2, "numOfHosts": 2}]}},
            ("RayCluster", "r", 5),
        ),
        (
            {"ray.io/cluster": "r"},
            "RayCluster",
            {
                "RayCluster": {
                    "enableInTreeAutoscaling": True,
                    "workerGroupSpecs": [{"replicas": 3, "minReplicas": 1, "maxReplicas": 9}],
                }
            },
            ("RayCluster", "r", 2),
        ),
        (
            {f"{LWS}/name": "llm", f"{LWS}/group-index": "1", f"{LWS}/size": "4"},
            "StatefulSet",
            {},
            ("LeaderWorkerSet", "llm-1", 4),
        ),
    ],
)
def test_gangs_by_label_and_by_owner(
    labels: dict[str, str], owner: str, find: Any, gang: tuple[str, str, int]
) -> None:
    made = member("p", "o" if owner else "", owner)
    made["metadata"]["labels"] = labels
    found = gang_of(made, having(**find))
    assert (found.kind, found.name, found.size) == gang
    assert bool(found.problem) is (found.size == 0)


def test_pods_that_ask_for_different_things_are_roles_of_one_job() -> None:
    workers = [
        member(f"bert-worker-{i}", "bert", "PyTorchJob", **{
            "training.kubeflow.org__job-name": "bert",
            "training.kubeflow.org__replica-type": "worker",
            "training.kubeflow.org__replica-index": str(i),
        })
        for i in (10, 2, 0)
    ]  # fmt: skip
    master = pod(gpus(2), name="bert-master-0", priority=7)
    master["metadata"]["labels"] = {"training.kubeflow.org/replica-type": "Master"}
    roles, members = workers_of([*workers, master])
    assert [(role.name, role.min, role.resources.gpu_milli) for role in roles] == [
        ("master", 1, 2000),
        ("worker", 3, 1000),
    ]
    names = [members[1, k]["metadata"]["name"] for k in range(3)]
    assert names == ["bert-worker-0", "bert-worker-2", "bert-worker-10"]
    gang = Gang("team", "PyTorchJob", "bert", 4)
    spec = job_of(gang, [*workers, master])
    assert (spec.queue, spec.owner, spec.priority) == ("team", "team", 7)
    assert spec.labels == {"presage/kubernetes": "team/PyTorchJob/bert"}
    assert not spec.preemptible  # nobody would make the master again
    assert spec.id == job_of(gang, [master, *reversed(workers)]).id
    assert spec.id != job_of(gang, [master, *workers], again=1).id
    assert spec.id.startswith("bert-")


def test_queue_owner_and_model_stand_in_labels_and_annotations() -> None:
    made = member("p", "o", **{"kueue.x-k8s.io__queue-name": "research"})
    made["metadata"]["annotations"] = {
        "presage.dev/owner": "ann",
        "presage.dev/model": "hf:bert-base-uncased",
    }
    spec = job_of(gang_of(made), [made])
    assert (spec.queue, spec.owner, spec.model) == ("research", "ann", "hf:bert-base-uncased")
    assert spec.preemptible
