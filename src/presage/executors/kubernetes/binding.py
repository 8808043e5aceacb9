"""Binds the pods of a gang to nodes, and takes that back: all of them, or none.

A Binding cannot be undone: a bound pod can only be deleted. So a gang is finished where it can be
(nobody answered, the server was busy, the pod is already where we want it), and undone where it
cannot: a pod that is gone or going leaves a gang that would never be whole, so those bound before
it are deleted, and their controller makes new ones, which are a new gang. Pods that nobody would
make again are left as they are, and it is said so.

Calls return at once; threads do the work, and answers are taken with `results`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from presage.executors.kubernetes.api import PODS, Json, KubeApi
from presage.executors.kubernetes.pods import JOB, WORKER
from presage.executors.kubernetes.reading import Json as ReadOnly
from presage.model.errors import KubernetesError

__all__ = [
    "BindResult",
    "Binder",
    "Bound",
    "PodName",
    "Slot",
    "job_of_pod",
    "pod_name",
    "slot_of_pod",
]

log = logging.getLogger("presage.kubernetes")

Slot = tuple[int, int]
"""Role and index of a worker."""
_THREADS = 8
_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0


@dataclass(frozen=True, slots=True)
class PodName:
    """A pod, and no other of the same name."""

    namespace: str
    name: str
    uid: str
    made_again: bool = True
    """Whether somebody makes a new one when it is deleted."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A pod and the node that it goes to."""

    pod: PodName
    node: str
    worker: str


@dataclass(frozen=True, slots=True)
class BindResult:
    """How it went with the pods of a run."""

    job: str
    attempt: int
    problem: str = ""
    """Why the gang could not be bound; nothing of it is left then, but for `kept`."""
    kept: tuple[PodName, ...] = ()


class Binder:
    """The threads that bind and delete; `on_result` is called when there is something to take."""

    def __init__(self, api: KubeApi, on_result: Callable[[], object] = lambda: None) -> None:
        self._api, self._on_result = api, on_result
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="presage-bind")
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._results: list[BindResult] = []

    def bind(self, job: str, attempt: int, members: Sequence[Bound]) -> None:
        """Bind all of a gang."""
        self._pool.submit(self._bind_all, job, attempt, tuple(members))

    def delete(self, pods: Sequence[PodName]) -> None:
        """Delete pods, with the time that they have to end well."""
        for pod in pods:
            self._pool.submit(self._surely, partial(self._delete, pod))

    def results(self) -> list[BindResult]:
        """What came of it since the last call."""
        with self._lock:
            taken, self._results = self._results, []
        return taken

    def close(self) -> None:
        """Let go; what is under way is taken up after the next start."""
        self._closed.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    # -- in threads -----------------------------------------------------------------------------

    def _bind_all(self, job: str, attempt: int, members: tuple[Bound, ...]) -> None:
        done: list[Bound] = []
        problem = ""
        for member in members:
            answer = self._surely(partial(self._bind, job, member))
            if answer is None:  # closed before it was answered: the next start goes on here
                return
            if answer:
                problem = answer
                break
            done.append(member)
        kept: tuple[PodName, ...] = ()
        if problem:
            kept = tuple(m.pod for m in done if not m.pod.made_again)
            for member in done:
                if member.pod.made_again:
                    self._surely(partial(self._delete, member.pod))
        with self._lock:
            self._results.append(BindResult(job, attempt, problem, kept))
        self._on_result()

    def _surely(self, call: Callable[[], str]) -> str | None:
        """The answer to a call that is tried until there is one; None once we are closed."""
        pause_s = _PAUSE_S
        while not self._closed.is_set():
            try:
                return call()
            except KubernetesError as error:
                if error.status == 403:
                    return str(error)
                log.info("tried again: %s", error)
            except Exception as error:
                log.exception("a pod could not be changed")
                return f"{type(error).__name__}: {error}"
            self._closed.wait(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
        return None

    def _bind(self, job: str, member: Bound) -> str:
        """Empty when the pod is bound; else why it never will be."""
        pod = member.pod
        # The annotations go to the pod: they say whose it is, after a restart as well.
        body: Json = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": pod.name,
                "uid": pod.uid,
                "annotations": {JOB: job, WORKER: member.worker},
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": member.node},
        }
        try:
            self._api.create(PODS, body, pod.namespace, name=pod.name, sub="binding")
            return ""
        except KubernetesError as error:
            if error.status == 404:
                return f"pod {pod.name} is gone"
            if error.status != 409:
                raise
        return self._conflict(member)

    def _conflict(self, member: Bound) -> str:
        """Somebody was there before us: us, another scheduler, or who deletes it."""
        pod = member.pod
        try:
            there = self._api.get(PODS, pod.name, pod.namespace)
        except KubernetesError as error:
            if error.status == 404:
                return f"pod {pod.name} is gone"
            raise
        if there["metadata"]["uid"] != pod.uid or there["metadata"].get("deletionTimestamp"):
            return f"pod {pod.name} was deleted"
        node = there["spec"].get("nodeName")
        if not node:
            raise KubernetesError(f"pod {pod.name} was changed while it was bound", 409)
        if node != member.node:
            log.warning("pod %s was bound to %s by somebody else", pod.name, node)
        return ""

    def _delete(self, pod: PodName) -> str:
        self._api.delete(PODS, pod.name, pod.namespace, uid=pod.uid)
        return ""


def pod_name(pod: ReadOnly) -> PodName:
    """What is needed to bind or delete a pod."""
    meta = pod["metadata"]
    return PodName(
        meta.get("namespace", "default"),
        meta["name"],
        meta["uid"],
        any(owner.get("controller") for owner in meta.get("ownerReferences") or ()),
    )


def job_of_pod(pod: ReadOnly) -> str:
    """The job that a pod was bound or made for; empty for none."""
    meta = pod["metadata"]
    named = (meta.get("annotations") or {}).get(JOB) or (meta.get("labels") or {}).get(JOB)
    return str(named or "")


def slot_of_pod(pod: ReadOnly, job: str) -> Slot | None:
    """Which worker of a job a bound pod is."""
    marks = pod["metadata"].get("annotations") or {}
    role, _, index = str(marks.get(WORKER, "")).partition("/")
    if marks.get(JOB) != job or not (role.isdecimal() and index.isdecimal()):
        return None
    return int(role), int(index)
