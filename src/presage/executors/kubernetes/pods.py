"""The objects of a run, from what a job asks for: record, pods, Service, NetworkPolicy, Secret.

The record is a ConfigMap and the owner of all else, so that nothing outlives it. Pods name our
scheduler and wait until the executor binds them. Nothing here talks to a cluster, and the content
of a secret is in the Secret alone.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import shlex
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from presage.executors.kubernetes.api import Json
from presage.executors.kubernetes.devices import TOLERATED, by_hami, gpu_request
from presage.executors.kubernetes.settings import ClusterUse
from presage.executors.node.messages import RunPlan
from presage.executors.node.plan import bare_plan, secret_path, worker_environment
from presage.executors.node.runspec import RoleSpec, RunSpec
from presage.executors.node.wire import pack
from presage.layout import Layout
from presage.model.cluster import Worker
from presage.model.errors import RunSpecError

__all__ = [
    "COMPANION",
    "GATE",
    "JOB",
    "MAIN",
    "MANAGED",
    "PORT_TOKEN",
    "RUN",
    "SIZE",
    "WORKER",
    "RunObjects",
    "main_resources",
    "placed_json",
    "placed_workers",
    "run_name",
    "secrets_of",
    "worker_name",
]

MANAGED = "app.kubernetes.io/managed-by"
RUN = "presage.dev/run"
JOB, ATTEMPT = "presage.dev/job", "presage.dev/attempt"
WORKER = "presage.dev/worker"
SIZE = "presage.dev/size"
"""How often the run had got other workers when this pod was made."""
GATE = "presage.dev/gang"
RECORD = "presage.dev/record"
MAIN, COMPANION, BRING = "main", "presage-keep", "presage-bring"
PORT_TOKEN = "PRESAGE_PORT_TOKEN"
PORT = 29_400
"""Where workers of torchrun meet."""
_INSIDE = Layout(Path("/presage"))
"""Files inside a pod have the paths that the server's data directory has, below this one."""
_OBJECT = "presage.executors.kubernetes"


@dataclass(frozen=True, slots=True)
class RunObjects:
    """All objects of one run."""

    job: str
    attempt: int
    spec: RunSpec
    workers: Sequence[Worker]
    """In the order of their ranks."""
    use: ClusterUse
    namespace: str
    nodes: Mapping[str, Json]
    """The nodes of the workers, as the cluster has them."""
    size: int = 0
    """How often it has got other workers."""
    ran_s: float = 0.0
    """For how long others before these ran."""

    @property
    def name(self) -> str:
        """What its record and Service are called, and how its pods begin."""
        return run_name(self.job, self.attempt)

    @property
    def brings(self) -> bool:
        """Whether something must be there before the job starts."""
        return bool(self.spec.folder or self.spec.git or self.spec.data)

    def check(self) -> None:
        """Raise RunSpecError for what cannot be run in a cluster like this."""
        if self.spec.console:
            raise RunSpecError(
                "a console cannot be offered on Kubernetes; submit the job, and use presage exec"
            )
        if not (self.spec.image or self.use.image):
            raise RunSpecError("the manifest names no image, and the server has no default one")
        if (self.brings or self.spec.results) and not self.use.helper_image:
            raise RunSpecError(
                "the job has a work folder, data or results, and this server has no helper image "
                "to bring them; set executor.kubernetes.helper_image, or put them into the image"
            )
        if self.spec.folder and not self.use.lasting:
            raise RunSpecError(
                "the job has a work folder, and pods see no storage with the server's data; name "
                "a claim in executor.kubernetes.claim, or put the code into the job's image"
            )

    def record(self) -> Json:
        """The object that owns all others and holds what was decided about the run."""
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {**self._meta(self.name), "labels": {**self._labels(), RECORD: "true"}},
            "data": {
                "workers": placed_json(self.workers),
                RunPlan.FILE: json.dumps(
                    pack(bare_plan(_INSIDE, self.spec, self.job, self.attempt))
                ),
            },
        }

    def secret(self, contents: Mapping[str, str], owner: Json) -> Json:
        """The content of the job's secrets, by environment variable."""
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": self._meta(self.name, owner),
            "data": {name: b64encode(text.encode()).decode() for name, text in contents.items()},
        }

    def service(self, owner: Json) -> Json:
        """Names for the workers, so that they find each other."""
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": self._meta(self.name, owner),
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": {RUN: self.name},
                "ports": [{"name": "rendezvous", "port": PORT}],
            },
        }

    def policy(self, owner: Json) -> Json:
        """Nobody but the run's own workers reaches them; they reach whom they like."""
        own = {"podSelector": {"matchLabels": {RUN: self.name}}}
        return {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": self._meta(self.name, owner),
            "spec": {**own, "policyTypes": ["Ingress"], "ingress": [{"from": [own]}]},
        }

    def pods(self, owner: Json) -> dict[str, Json]:
        """A pod for each worker, by the worker's name."""
        plan = bare_plan(_INSIDE, self.spec, self.job, self.attempt)
        made = {}
        for rank, worker in enumerate(self.workers):
            name = worker_name(self.spec, worker)
            meta = self._meta(f"{self.name}-{name}", owner)
            meta["labels"] = {**meta["labels"], WORKER: name, SIZE: str(self.size)}
            spec = self._pod_spec(plan, worker, rank)
            made[name] = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
        return made

    def binding(self, pod: Json, node: str) -> Json:
        """The decision that a pod goes to a node."""
        meta = {name: pod["metadata"][name] for name in ("name", "namespace", "uid")}
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        return {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}

    # -- parts of a pod -------------------------------------------------------------------------

    def _labels(self) -> dict[str, str]:
        return {
            MANAGED: "presage",
            RUN: self.name,
            JOB: _slug(self.job, 63),
            ATTEMPT: str(self.attempt),
        }

    def _meta(self, name: str, owner: Json | None = None) -> Json:
        meta: Json = {
            "name": name,
            "namespace": self.namespace,
            "labels": self._labels(),
            "annotations": {JOB: self.job, ATTEMPT: str(self.attempt)},
        }
        if owner is not None:
            known = {"name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
            meta["ownerReferences"] = [
                {"apiVersion": "v1", "kind": "ConfigMap", "controller": True, **known}
            ]
        return meta

    def _pod_spec(self, plan: RunPlan, worker: Worker, rank: int) -> Json:
        use, spec, role = self.use, self.spec, self.spec.roles[worker.role]
        containers = [self._main(plan, worker, role, rank)]
        if use.helper_image:
            containers.append(self._step(COMPANION, "keep", self._progress(plan, worker)))
        made: Json = {
            "schedulerName": use.scheduler_name,
            "schedulingGates": [{"name": GATE}],
            "restartPolicy": "Never",
            "hostname": worker_name(spec, worker),
            "terminationGracePeriodSeconds": max(1, math.ceil(spec.grace_s)),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            # The programs of a job are not process 1, so that a signal means what it always does.
            "shareProcessNamespace": True,
            "tolerations": [{"key": TOLERATED, "operator": "Exists"}],
            "containers": containers,
            "volumes": self._volumes(),
        }
        if role.gpus:
            made |= by_hami(self.nodes[worker.node])
        if self.brings:
            bring = self._step(BRING, "bring", self._progress(plan, worker))
            made["initContainers"] = [bring]
        if use.host_network:
            made["hostNetwork"] = True
        else:
            made["subdomain"] = self.name
        if spec.time_limit_s is not None:
            made["activeDeadlineSeconds"] = max(1, math.ceil(spec.time_limit_s - self.ran_s))
        if use.service_account:
            made["serviceAccountName"] = use.service_account
        if use.pull_secrets:
            made["imagePullSecrets"] = [{"name": name} for name in use.pull_secrets]
        return made

    def _main(self, plan: RunPlan, worker: Worker, role: RoleSpec, rank: int) -> Json:
        spec = self.spec
        env = worker_environment(plan, spec, role.name, rank, len(self.workers))
        env["PRESAGE_PROGRESS"] = self._progress(plan, worker)
        if spec.ports:
            env[PORT_TOKEN] = secrets.token_hex(24)
        if plan.torchrun:
            env |= {"MASTER_ADDR": self._first_address(), "MASTER_PORT": str(self._port())}
        gpus = gpu_request(role.gpus, 0, self.nodes[worker.node])
        if not gpus:  # an image that says "all" would see every GPU of the node
            env |= {"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ""}
        limits = dict(gpus)
        if role.cpus:
            limits["cpu"] = f"{math.ceil(role.cpus * 1000)}m"
        if role.memory_mib:
            limits["memory"] = f"{role.memory_mib}Mi"
        variables: list[Json] = [{"name": key, "value": value} for key, value in env.items()]
        for name in spec.secrets:
            key = {"secretKeyRef": {"name": self.name, "key": name}}
            variables.append({"name": name, "valueFrom": key})
        made: Json = {
            "name": MAIN,
            "image": spec.image or self.use.image,
            "command": list(self._command(role)),
            "workingDir": str(plan.work),
            "env": variables,
            "resources": {"limits": limits, "requests": limits},
            "volumeMounts": self._mounts_of_job(),
            # An error's last words come with the status, also where no kubelet can be asked.
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }
        if spec.ports:
            made["ports"] = [{"containerPort": port} for port in spec.ports]
        return made

    def _command(self, role: RoleSpec) -> Sequence[str]:
        """What to start; with a command to continue, the shell of the image looks whether there is
        a checkpoint."""
        if not self.spec.resume:
            return role.argv
        begin, go_on = shlex.join(role.argv), shlex.join(self.spec.resume)
        kept = _INSIDE.checkpoints(self.job)
        look = f'if [ -n "$(ls -A {kept})" ]; then exec {go_on}; fi; exec {begin}'
        return "/bin/sh", "-c", look

    def _progress(self, plan: RunPlan, worker: Worker) -> str:
        return f"{plan.progress_dir}/{worker_name(self.spec, worker)}.json"

    def _step(self, name: str, step: str, progress: str) -> Json:
        place = f"{_INSIDE.data}/record"
        return {
            "name": name,
            "image": self.use.helper_image,
            "command": ["python3", "-m", f"{_OBJECT}.steps", step],
            "env": [
                {"name": "PRESAGE_PLAN", "value": f"{place}/{RunPlan.FILE}"},
                {"name": "PRESAGE_PROGRESS", "value": progress},
            ],
            "volumeMounts": [
                {"name": "run", "mountPath": str(_INSIDE.run(self.job, self.attempt))},
                *self._mounts(),
                {"name": "record", "mountPath": place, "readOnly": True},
            ],
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }

    def _mounts(self) -> list[Json]:
        run = _INSIDE.run(self.job, self.attempt)
        mounts: list[Json] = [
            {"name": "run", "mountPath": f"{run}/{part}", "subPath": part}
            for part in ("work", "data", "progress")  # so that they are there, whoever looks
        ]
        if self.use.lasting:  # the server passes word there
            path = run / "progress"
            inside = str(path.relative_to(_INSIDE.data))
            mounts[-1] = {"name": "data", "mountPath": str(path), "subPath": inside}
        kept = [_INSIDE.checkpoints(self.job), _INSIDE.results(self.job)]
        for path in kept:
            inside = str(path.relative_to(_INSIDE.data)) if self.use.lasting else path.name
            volume = "data" if self.use.lasting else "run"
            mounts.append({"name": volume, "mountPath": str(path), "subPath": inside})
        if self.spec.folder:
            folder = _INSIDE.folder(self.spec.folder)
            inside = str(folder.relative_to(_INSIDE.data))
            mount = {"mountPath": str(folder), "subPath": inside, "readOnly": True}
            mounts.append({"name": "data", **mount})
        return mounts

    def _mounts_of_job(self) -> list[Json]:
        """With checkpoints also where the program writes them. The steps must not see them there:
        what is in the work directory becomes results."""
        mounts = self._mounts()
        kept = str(_INSIDE.checkpoints(self.job))
        wanted = self.spec.checkpoint_dir or "~"
        place = os.path.normpath(_INSIDE.run(self.job, self.attempt) / "work" / wanted)
        by_place = {mount["mountPath"]: mount for mount in mounts}
        if not wanted.startswith("~") and place not in by_place:
            mounts.append({**by_place[kept], "mountPath": place})
        return mounts

    def _volumes(self) -> list[Json]:
        volumes: list[Json] = [{"name": "run", "emptyDir": {}}]
        if self.use.claim:
            claim = {"claimName": self.use.claim}
            volumes.append({"name": "data", "persistentVolumeClaim": claim})
        elif self.use.host_path:
            volumes.append({"name": "data", "hostPath": {"path": self.use.host_path}})
        if self.use.helper_image:
            keys = [{"key": RunPlan.FILE, "path": RunPlan.FILE}]
            volumes.append({"name": "record", "configMap": {"name": self.name, "items": keys}})
        return volumes

    def _first_address(self) -> str:
        first = self.workers[0]
        if not self.use.host_network:
            return f"{worker_name(self.spec, first)}.{self.name}.{self.namespace}.svc"
        addresses = self.nodes[first.node].get("status", {}).get("addresses") or ()
        inside = [each["address"] for each in addresses if each["type"] == "InternalIP"]
        return inside[0] if inside else first.node

    def _port(self) -> int:
        """Where rank 0 waits; on the network of a node, runs must not share one."""
        shift = int(sha256(self.name.encode()).hexdigest(), 16) % 3000
        return PORT + shift if self.use.host_network else PORT


def secrets_of(layout: Layout, spec: RunSpec) -> dict[str, str]:
    """The content of the job's secrets, by environment variable; raises RunSpecError."""
    contents = {}
    for variable, name in spec.secrets.items():
        try:
            contents[variable] = secret_path(layout, spec, name).read_text().rstrip("\n")
        except (OSError, ValueError):
            text = f"there is no secret {name!r} that can be read, for {variable}"
            raise RunSpecError(text) from None
    return contents


def run_name(job: str, attempt: int) -> str:
    """What the objects of a run are called: readable, and one for each run."""
    mark = sha256(job.encode()).hexdigest()[:8]
    return f"presage-{_slug(job, 24)}-{mark}-{attempt}".lower()


def main_resources(pod: Json) -> Json:
    """What the job's own container of a pod asks for."""
    resources = (c.get("resources") for c in pod["spec"]["containers"] if c["name"] == MAIN)
    return next(resources, None) or {}


def placed_json(workers: Sequence[Worker]) -> str:
    """Workers as the record has them."""
    return json.dumps([[w.role, w.index, w.node, list(w.devices)] for w in workers])


def placed_workers(text: str) -> tuple[Worker, ...]:
    """Workers from what a record has."""
    placed = json.loads(text)
    return tuple(Worker(role, index, node, tuple(held)) for role, index, node, held in placed)


def worker_name(spec: RunSpec, worker: Worker) -> str:
    """What a worker is called, here and in logs."""
    return f"{spec.roles[worker.role].name}-{worker.index}"


def _slug(text: str, most: int) -> str:
    """A text as names and labels may have it."""
    return re.sub(r"[^a-zA-Z0-9]+", "-", text)[:most].strip("-") or "job"


def ranked(workers: Sequence[Any]) -> list[Worker]:
    """Workers in the order of their ranks."""
    return sorted(workers, key=lambda worker: (worker.role, worker.index))
