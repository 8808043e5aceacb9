"""A Kubernetes cluster to look at: its pods and nodes, from local copies that follow them.

Each pod is a job of its own, as for kube-scheduler: it waits until it is bound to a node, and
holds what it asked for until it is over. It takes get, list and watch on pods and nodes, and no
right to write. What became of a pod that was deleted is known while somebody watches; of one that
vanished meanwhile, that it is gone.
"""

from __future__ import annotations

import time
from calendar import timegm
from collections.abc import Collection, Iterable
from typing import Any

from presage.executors.kubernetes.api import NODES, PODS, KubeApi, connect
from presage.executors.kubernetes.reading import (
    Json,
    node_of,
    refusals,
    role_of_pod,
)
from presage.executors.kubernetes.reflect import Reflector
from presage.model.errors import KubernetesError, WatchError
from presage.model.event import Outcome
from presage.model.job import Reason, ReasonCode
from presage.model.watched import (
    NodeState,
    SeenCluster,
    SeenEnd,
    SeenJob,
    SeenNode,
    SeenRun,
    SeenWorker,
)

__all__ = ["KubernetesSource", "pod_id", "seen_pod"]

_DELETED = Reason(ReasonCode.REQUESTED, "its pod was deleted")
_MOST_WORDS = 200
_NOTE = "presage.dev/starts"
"""The annotation with when a pod is expected to start."""


class KubernetesSource:
    """One Kubernetes cluster, by a context of the kubeconfig, or the one that we run in."""

    kind = "kubernetes"

    def __init__(self, context: str | None = None, *, api: KubeApi | None = None) -> None:
        try:
            self._api = api or connect(context)
            self.name = self._api.url
            self._pods = Reflector(self._api, PODS)
            self._nodes = Reflector(self._api, NODES)
            self._nodes.start()
            self._pods.start()
        except KubernetesError as error:
            down = error.status == 0 or error.status >= 500
            raise WatchError(str(error), down=down) from None

    def look(self, since: float, alive: Collection[str]) -> SeenCluster:
        """What the copies hold, and what was deleted since the last look."""
        for copy in (self._pods, self._nodes):
            if copy.trouble:
                raise WatchError(copy.trouble)
        now = float(int(time.time()))
        jobs: dict[str, SeenJob] = {}
        for change in self._pods.changes():
            if change.deleted:
                seen = seen_pod(change.object, now)
                jobs[seen.id] = seen
        strange = 0
        for pod in self._pods.objects().values():
            seen = seen_pod(pod)
            jobs[seen.id] = seen
            strange += not seen.runs and bool(refusals(pod))
        nodes = tuple(_node(item) for item in self._nodes.objects().values())
        notes: tuple[str, ...] = ()
        if strange:
            notes = (f"{strange} pods that wait ask for more than is foreseen here",)
        return SeenCluster(now, tuple(_ordered(jobs.values())), nodes, notes)

    def annotate(self, job: str, text: str) -> None:
        """As an annotation of the pod; takes patch on pods."""
        namespace, _, name = job.partition("@")[0].partition("/")
        body = {"metadata": {"annotations": {_NOTE: text}}}
        try:
            self._api.patch(PODS, name, body, namespace)
        except KubernetesError as error:
            raise WatchError(f"pod {name} gets no annotation: {error}") from None

    def close(self) -> None:
        """End the watches."""
        self._pods.close()
        self._nodes.close()


def pod_id(pod: Json) -> str:
    """What a pod is called here: another pod of the same name is another job."""
    meta = pod["metadata"]
    return f"{meta['namespace']}/{meta['name']}@{meta['uid'][:8]}"


def seen_pod(pod: Json, deleted_at: float | None = None) -> SeenJob:
    """A pod as a job; `deleted_at` is when it was seen to vanish."""
    meta, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    created = _seconds(meta.get("creationTimestamp")) or 0.0
    role = role_of_pod(pod)
    bound = _condition(status, "PodScheduled")
    end = _end(pod, deleted_at)
    runs: tuple[SeenRun, ...] = ()
    if spec.get("nodeName"):
        started = _seconds(bound.get("lastTransitionTime")) if bound else None
        started = started or _seconds(status.get("startTime")) or created
        if end is not None and end.at < started:
            started = end.at
        runs = (SeenRun(1, started, (SeenWorker(spec["nodeName"], role.resources),), end),)
    gates = [str(gate.get("name")) for gate in spec.get("schedulingGates") or ()]
    limit = spec.get("activeDeadlineSeconds")
    return SeenJob(
        pod_id(pod),
        _work(meta),
        str(meta["namespace"]),
        str(meta["namespace"]),
        created,
        role,
        runs,
        None if runs else end,
        time_limit_s=None if limit is None else float(limit),
        priority=int(spec.get("priority") or 0),
        why=str(bound.get("message") or "")[:_MOST_WORDS] if bound and not runs else "",
        held=f"it has scheduling gates: {', '.join(gates)}" if gates else "",
    )


def _work(meta: Json) -> str:
    """What a pod is one of: whoever made it, else what its name begins with."""
    for owner in meta.get("ownerReferences") or ():
        if owner.get("controller"):
            return str(owner["name"])
    return str(meta.get("generateName") or meta["name"]).rstrip("-")


def _end(pod: Json, deleted_at: float | None) -> SeenEnd | None:
    status = pod.get("status") or {}
    phase = status.get("phase")
    if phase not in ("Succeeded", "Failed"):
        return None if deleted_at is None else SeenEnd(deleted_at, Outcome.STOPPED, _DELETED)
    ends = [
        done
        for one in status.get("containerStatuses") or ()
        if (done := (one.get("state") or {}).get("terminated"))
    ]
    times = [at for done in ends if (at := _seconds(done.get("finishedAt"))) is not None]
    times += [
        at
        for one in status.get("conditions") or ()
        if not times and (at := _seconds(one.get("lastTransitionTime"))) is not None
    ]
    at = max(times, default=_seconds(pod["metadata"].get("creationTimestamp")) or 0.0)
    if phase == "Succeeded":
        return SeenEnd(at, Outcome.SUCCEEDED, exit_code=0)
    worst: Json = max(ends, key=lambda done: int(done.get("exitCode") or 0), default={})
    outcome, code, text = _failure(status, worst)
    return SeenEnd(at, outcome, Reason(code, text), worst.get("exitCode"))


def _failure(status: Json, worst: Json) -> tuple[Outcome, ReasonCode, str]:
    reason = str(status.get("reason") or worst.get("reason") or "")
    said = str(status.get("message") or "")[:_MOST_WORDS]
    if worst.get("reason") == "OOMKilled":
        return Outcome.OUT_OF_MEMORY, ReasonCode.OUT_OF_MEMORY, "it ran out of memory"
    if reason in ("Evicted", "Preempting", "Preempted"):
        return Outcome.STOPPED, ReasonCode.PREEMPTED, said or "it was evicted"
    if reason in ("NodeLost", "Shutdown", "Terminated", "NodeShutdown"):
        return Outcome.LOST, ReasonCode.NODE_LOST, said or "its node went away"
    if reason == "DeadlineExceeded":
        return Outcome.FAILED, ReasonCode.TIME_LIMIT, "it ran into its time limit"
    return Outcome.FAILED, ReasonCode.ERROR, said or "it ended with an error"


def _ordered(jobs: Iterable[SeenJob]) -> list[SeenJob]:
    """Those that wait as kube-scheduler takes them: by priority, then the oldest first."""
    return sorted(jobs, key=lambda job: (-job.priority, job.submitted_at, job.id))


def _node(item: Json) -> SeenNode:
    ready = _condition(item.get("status") or {}, "Ready")
    state = NodeState.UP
    if ready is None or ready.get("status") != "True":
        state = NodeState.DOWN
    elif (item.get("spec") or {}).get("unschedulable"):
        state = NodeState.DRAINING
    return SeenNode(node_of(item), state)


def _condition(status: Json, kind: str) -> dict[str, Any] | None:
    for one in status.get("conditions") or ():
        if one.get("type") == kind:
            return dict(one)
    return None


def _seconds(text: Any) -> float | None:
    """`2026-01-31T12:00:00Z` as seconds."""
    try:
        return float(timegm(time.strptime(str(text)[:19], "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return None
