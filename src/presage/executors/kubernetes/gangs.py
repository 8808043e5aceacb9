"""Which pods belong together, and how many make a gang whole: pure functions of API objects.

A pod says it by the labels of group schedulers (Presage's own, Kueue, Volcano, the coscheduling
plugin), or by who made it: JobSet, LeaderWorkerSet, the training operators (PyTorchJob, MPIJob …),
RayCluster, an Indexed Job whose members all run at once. Every other pod, such as one of a
Deployment, is a gang of one and starts as soon as there is room for it.

The number of members often stands in another object (the owner, a PodGroup): the caller brings
`find`, which reads it. No I/O here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from presage.executors.kubernetes.reading import Json, role_of_pod
from presage.model.job import JobSpec, Role

__all__ = [
    "FOREIGN",
    "Find",
    "Gang",
    "ObjectRef",
    "Workers",
    "alone",
    "gang_of",
    "job_id",
    "job_of",
    "workers_of",
]

FOREIGN = "presage/kubernetes"
"""A label of jobs that are pods of others: namespace, kind and name of who made them."""
GANG, SIZE = "presage.dev/gang", "presage.dev/gang-size"
QUEUE, OWNER = "presage.dev/queue", "presage.dev/owner"
MODEL = "presage.dev/model"
PREEMPTIBLE = "presage.dev/preemptible"

_KUEUE, _KUEUE_COUNT = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"
_COSCHEDULING = "scheduling.x-k8s.io/pod-group"
_OLD_COSCHEDULING = "pod-group.scheduling.sigs.k8s.io"
_VOLCANO = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
_LWS = "leaderworkerset.sigs.k8s.io"
_JOBSET = "jobset.sigs.k8s.io"
_TRAINING = "training.kubeflow.org/job-name"
_RAY = "ray.io/cluster"
_QUEUES = (QUEUE, "kueue.x-k8s.io/queue-name", "volcano.sh/queue-name", "kai.scheduler/queue")
_ROLES = (
    "training.kubeflow.org/replica-type",
    "ray.io/group",
    f"{_JOBSET}/replicatedjob-name",
    "volcano.sh/task-spec",
)


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """An object that says how many pods belong together."""

    api_version: str
    kind: str
    namespace: str
    name: str


Find = Callable[[ObjectRef], Json | None]
"""Reads an object; None when there is none, or nobody may read it."""


@dataclass(frozen=True, slots=True)
class Gang:
    """What a pod is a member of."""

    namespace: str
    kind: str
    name: str
    size: int
    """Members that make it whole; 0 when nobody says."""
    problem: str = ""
    """Why nobody says, in words."""
    uid: str = ""
    """Of the object that says so: one that is made anew under the same name is another."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The same for all its members."""
        return self.namespace, self.kind, self.name, self.uid

    def __str__(self) -> str:
        return f"{self.namespace}/{self.kind}/{self.name}"


def gang_of(pod: Json, find: Find = lambda ref: None) -> Gang:
    """The gang that a pod is a member of."""
    meta = pod["metadata"]
    marks = {**(meta.get("annotations") or {}), **(meta.get("labels") or {})}
    space = meta.get("namespace", "default")
    for read in (_by_own_label, _by_group_label, _by_set, _by_operator, _by_ray, _by_job):
        gang = read(space, marks, pod, find)
        if gang is not None:
            return gang
    return alone(pod)


def alone(pod: Json) -> Gang:
    """A gang of one."""
    meta = pod["metadata"]
    return Gang(meta.get("namespace", "default"), _kind(pod), meta["name"], 1, "", meta["uid"])


Marks = Mapping[str, str]


def _by_own_label(space: str, marks: Marks, pod: Json, find: Find) -> Gang | None:
    if GANG in marks:
        return _counted(space, "gang", marks[GANG], marks.get(SIZE), f"{SIZE} is missing")
    if _KUEUE in marks:
        count = marks.get(_KUEUE_COUNT)
        return _counted(space, "pod group", marks[_KUEUE], count, f"{_KUEUE_COUNT} is missing")
    if _OLD_COSCHEDULING + "/name" in marks:
        count = marks.get(_OLD_COSCHEDULING + "/min-available")
        name = marks[_OLD_COSCHEDULING + "/name"]
        return _counted(space, "pod group", name, count, "min-available is missing")
    return None


def _by_group_label(space: str, marks: Marks, pod: Json, find: Find) -> Gang | None:
    group, api = marks.get(_COSCHEDULING), "scheduling.x-k8s.io/v1alpha1"
    if group is None:
        group = next((marks[name] for name in _VOLCANO if name in marks), None)
        api = "scheduling.volcano.sh/v1beta1"
    if group is None:
        return None
    there = find(ObjectRef(api, "PodGroup", space, group))
    count = ((there or {}).get("spec") or {}).get("minMember")
    problem = f"there is no PodGroup {group} of {api} in {space} that says how many pods it has"
    return _counted(space, "PodGroup", group, count, problem, _uid(there))


def _by_set(space: str, marks: Marks, pod: Json, find: Find) -> Gang | None:
    """JobSet and LeaderWorkerSet."""
    if f"{_LWS}/name" in marks:
        group = f"{marks[f'{_LWS}/name']}-{marks.get(f'{_LWS}/group-index', '0')}"
        size = marks.get(f"{_LWS}/size")
        return _counted(space, "LeaderWorkerSet", group, size, f"{_LWS}/size is missing")
    name = marks.get(f"{_JOBSET}/jobset-name")
    if name is None:
        return None
    there = find(ObjectRef("jobset.x-k8s.io/v1alpha2", "JobSet", space, name))
    count = None
    if there is not None:
        count = sum(
            int(part.get("replicas", 1)) * _at_once(part["template"].get("spec") or {})
            for part in there["spec"].get("replicatedJobs") or ()
        )
    attempt = marks.get(f"{_JOBSET}/restart-attempt", "0")
    called = name if attempt == "0" else f"{name}#{attempt}"
    problem = f"JobSet {name} cannot be read"
    return _counted(space, "JobSet", called, count, problem, _uid(there))


def _by_operator(space: str, marks: Marks, pod: Json, find: Find) -> Gang | None:
    """PyTorchJob, TFJob, MPIJob and their like: the sum of all replicas."""
    name, owner = marks.get(_TRAINING), _owner(pod)
    if name is None or owner is None:
        return None
    there = find(ObjectRef(owner["apiVersion"], owner["kind"], space, owner["name"]))
    count = None
    if there is not None:
        spec = there.get("spec") or {}
        policy = (spec.get("runPolicy") or {}).get("schedulingPolicy") or {}
        count = policy.get("minAvailable") or _replicas(spec)
    problem = f"{owner['kind']} {owner['name']} cannot be read"
    return _counted(space, owner["kind"], name, count, problem, _uid(there))


def _replicas(spec: Json) -> int:
    total = 0
    for key, roles in spec.items():
        if key.endswith("ReplicaSpecs") and isinstance(roles, Mapping):
            late = spec.get("launcherCreationPolicy") == "WaitForWorkersReady"
            total += sum(
                int((role or {}).get("replicas", 1))
                for name, role in roles.items()
                if not (late and name == "Launcher")
            )
    return total


def _by_ray(space: str, marks: Marks, pod: Json, find: Find) -> Gang | None:
    """A head and its workers; with its autoscaler on, the fewest workers there may be, and those
    that come later go alone."""
    name = marks.get(_RAY)
    if name is None:
        return None
    there = find(ObjectRef("ray.io/v1", "RayCluster", space, name))
    if there is None:
        return Gang(space, "RayCluster", name, 0, f"RayCluster {name} cannot be read")
    spec = there["spec"]
    least = "minReplicas" if spec.get("enableInTreeAutoscaling") else "replicas"
    workers = sum(
        int(group.get(least, group.get("replicas", 0)) or 0) * int(group.get("numOfHosts", 1) or 1)
        for group in spec.get("workerGroupSpecs") or ()
        if not group.get("suspend")
    )
    return Gang(space, "RayCluster", name, 1 + workers, "", _uid(there))


def _by_job(space: str, marks: Marks, pod: Json, find: Find) -> Gang | None:
    """An Indexed Job whose members all run at once is how a distributed training is written; a Job
    that works off a queue starts each pod as it can."""
    owner = _owner(pod)
    if owner is None or owner["kind"] != "Job":
        return None
    name = owner["name"]
    if "batch.kubernetes.io/job-completion-index" not in marks:
        return None
    there = find(ObjectRef(owner["apiVersion"], "Job", space, name))
    if there is None:
        return Gang(space, "Job", name, 0, f"Job {name} cannot be read")
    spec = there["spec"]
    together = int(spec.get("completions") or 1) <= int(spec.get("parallelism", 1))
    return Gang(space, "Job", name, _at_once(spec), "", _uid(there)) if together else None


def _at_once(job: Json) -> int:
    """Pods of a Job that run at the same time."""
    parallel, completions = int(job.get("parallelism", 1)), job.get("completions")
    return parallel if completions is None else min(parallel, int(completions))


def _counted(space: str, kind: str, name: str, count: object, problem: str, uid: str = "") -> Gang:
    text = str(count or "")
    if text.isdecimal() and int(text) > 0:
        return Gang(space, kind, name, int(text), "", uid)
    return Gang(space, kind, name, 0, f"{text!r} is no number of pods" if text else problem, uid)


def _uid(item: Json | None) -> str:
    return str((item or {}).get("metadata", {}).get("uid", ""))


def _owner(pod: Json) -> Json | None:
    owners: Sequence[Json] = pod["metadata"].get("ownerReferences") or ()
    return next((one for one in owners if one.get("controller")), owners[0] if owners else None)


def _kind(pod: Json) -> str:
    owner = _owner(pod)
    return "Pod" if owner is None else str(owner["kind"])


# -- jobs -----------------------------------------------------------------------------------------


Workers = tuple[tuple[Role, ...], dict[tuple[int, int], Json]]


def workers_of(pods: Sequence[Json]) -> Workers:
    """Roles of pods that ask for the same, and the pod of each (role, index), in a fixed order."""
    groups: dict[Role, list[Json]] = {}
    for pod in sorted(pods, key=_rank):
        groups.setdefault(role_of_pod(pod, _role_name(pod)), []).append(pod)
    roles: list[Role] = []
    members: dict[tuple[int, int], Json] = {}
    names: dict[str, int] = {}
    for r, (role, members_of_role) in enumerate(groups.items()):
        name, count = role.name, len(members_of_role)
        names[name] = names.get(name, 0) + 1
        name = name if names[name] == 1 else f"{name}-{names[name]}"
        roles.append(replace(role, name=name, min=count, max=count))
        members |= {(r, index): pod for index, pod in enumerate(members_of_role)}
    return tuple(roles), members


def job_of(
    gang: Gang, pods: Sequence[Json], *, again: int = 0, workers: Workers | None = None
) -> JobSpec:
    """The job that pods of a gang are: one run, since whoever made them makes new ones after it.
    `again` tells jobs of the same pods apart; `workers` are theirs, where they are known."""
    roles, members = workers or workers_of(pods)
    marks: list[Marks] = [_marks(pod) for pod in members.values()]

    def said(*names: str) -> str:
        return next((m[name] for m in marks for name in names if m.get(name)), "")

    made_again = all(_owner(pod) is not None for pod in pods)
    return JobSpec(
        id=job_id(gang, pods, again),
        roles=roles,
        owner=said(OWNER) or gang.namespace,
        queue=said(*_QUEUES) or gang.namespace,
        priority=max(int(pod["spec"].get("priority") or 0) for pod in pods),
        preemptible=made_again and said(PREEMPTIBLE).lower() != "false",
        checkpointable=False,
        shareable=any(role.resources.shared for role in roles),
        max_retries=0,
        max_lost=0,
        relaunch=False,
        time_limit_s=_deadline(pods),
        model=said(MODEL) or None,
        labels={FOREIGN: str(gang)},
        entrypoint=_command(members[0, 0]),
    )


def job_id(gang: Gang, pods: Sequence[Json], again: int = 0) -> str:
    """What the job of these pods is called."""
    uids = sorted(str(pod["metadata"]["uid"]) for pod in pods)
    digest = hashlib.sha256(" ".join([*uids, str(again)]).encode()).hexdigest()[:10]
    name = re.sub(r"[^a-z0-9-]+", "-", gang.name.lower()).strip("-")[:40] or "pods"
    return f"{name}-{digest}"


def _command(pod: Json) -> tuple[str, ...]:
    """What the first container runs: by this, pods of the same work are known."""
    first = pod["spec"]["containers"][0] if pod["spec"].get("containers") else {}
    words = (*(first.get("command") or ()), *(first.get("args") or ()))
    return (str(first.get("image", "")), *map(str, words))


def _deadline(pods: Sequence[Json]) -> float | None:
    limits = [pod["spec"].get("activeDeadlineSeconds") for pod in pods]
    given = [float(limit) for limit in limits if limit]
    return max(given) if len(given) == len(pods) else None


def _marks(pod: Json) -> Marks:
    meta = pod["metadata"]
    return {**(meta.get("annotations") or {}), **(meta.get("labels") or {})}


def _role_name(pod: Json) -> str:
    marks = _marks(pod)
    return next((marks[name] for name in _ROLES if marks.get(name)), "worker").lower()


def _rank(pod: Json) -> tuple[str, int, str]:
    """The order of pods in a gang: by role, then by the number in their names."""
    name = str(pod["metadata"]["name"])
    marks = _marks(pod)
    index = marks.get("batch.kubernetes.io/job-completion-index") or marks.get(
        "training.kubeflow.org/replica-index", ""
    )
    tail = index if index.isdecimal() else (re.findall(r"\d+", name) or ["0"])[-1]
    return _role_name(pod), int(tail[:9]), name
