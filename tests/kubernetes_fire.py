"""Gangs under fire: the core, the executor `kubernetes` and a real API server that is killed,
while watches break, answers get lost, pods are deleted and nodes go away.

Nodes are API objects; `StandIn` plays their kubelets: it patches the status of bound pods and runs
nothing. `Recorder` watches by itself and checks after every change what must hold.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from presage.control.advisors.needs import predictor
from presage.core.engine import Engine
from presage.core.loop import act, step, unconfirmed
from presage.executors.kubernetes.api import (
    CONFIG_MAPS,
    NETWORK_POLICIES,
    PODS,
    SERVICES,
    Json,
    KubeApi,
    connect,
)
from presage.executors.kubernetes.executor import KubernetesExecutor
from presage.executors.kubernetes.pods import JOB, RUN
from presage.executors.kubernetes.reflect import Reflector
from presage.executors.kubernetes.settings import ClusterUse
from presage.model import event as ev
from presage.model.cluster import Resources
from presage.model.errors import KubernetesError
from presage.model.job import JobSpec, Role
from presage.policy import registry
from presage.store.memory import MemoryStore
from tests.executors.kubernetes_kit import write_job
from tests.kubernetes_plane import Plane

__all__ = [
    "RESET_IN_HANDSHAKE",
    "Fire",
    "FireResult",
    "LossyApi",
    "Pace",
    "Recorder",
    "StandIn",
    "gang_job",
    "under_fire",
]

GPUS = 8
RESET_IN_HANDSHAKE = "ignore:unclosed <ssl.SSLSocket:ResourceWarning"
"""For tests that kill an API server: Python's `SSLContext.wrap_socket` leaves a socket open that
is reset before the handshake, and nobody else has it then."""
_AT_ONCE = 12
"""Gangs that are there before anything has gone wrong."""
_GPU = "nvidia.com/gpu"
_OVER = ("Succeeded", "Failed")


class StandIn:
    """Kubelets that run nothing: a bound pod runs for a while and ends well; a deleted one
    goes."""

    def __init__(
        self, api: KubeApi, runs_s: Callable[[Json], float | None], hands: int = 4
    ) -> None:
        self._api = api
        self._runs_s = runs_s
        self._due: dict[str, tuple[float, Json]] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._pods = Reflector(api, PODS, fields="spec.nodeName!=", on_change=self._sort)
        self._pods.start()
        self._sort()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(hands)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Play no more."""
        self._closed.set()
        self._pods.close()
        for thread in self._threads:
            thread.join()

    def _sort(self) -> None:
        with self._lock:
            for change in self._pods.changes():
                pod, meta = change.object, change.object["metadata"]
                over = pod["status"].get("phase") in _OVER
                if change.deleted or (over and not meta.get("deletionTimestamp")):
                    self._due.pop(meta["uid"], None)
                    continue
                at = 0.0
                if pod["status"].get("phase") == "Running" and not meta.get("deletionTimestamp"):
                    runs_s = self._runs_s(pod)
                    if runs_s is None:
                        continue
                    known = self._due.get(meta["uid"])
                    at = known[0] if known and known[0] else time.monotonic() + runs_s
                self._due[meta["uid"]] = (at, pod)

    def _work(self) -> None:
        while not self._closed.is_set():
            pod = self._take()
            if pod is None:
                self._closed.wait(0.005)
                continue
            try:
                self._play(pod)
            except KubernetesError as error:
                if error.status not in (404, 409):
                    with self._lock:
                        self._due.setdefault(pod["metadata"]["uid"], (time.monotonic() + 0.2, pod))

    def _take(self) -> Json | None:
        now = time.monotonic()
        with self._lock:
            for uid, (at, pod) in self._due.items():
                if at <= now:
                    del self._due[uid]
                    return pod
        return None

    def _play(self, pod: Json) -> None:
        meta = pod["metadata"]
        where, name = meta["namespace"], meta["name"]
        if meta.get("deletionTimestamp"):
            self._api.delete(PODS, name, where, uid=meta["uid"], grace_s=0)
            return
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        state: Json = {"running": {"startedAt": now}}
        phase = "Running"
        if pod["status"].get("phase") == "Running":
            phase = "Succeeded"
            state = {"terminated": {"exitCode": 0, "startedAt": now, "finishedAt": now}}
        names = [each["name"] for each in pod["spec"]["containers"]]
        statuses = [
            {"name": each, "state": state, "ready": phase == "Running", "restartCount": 0}
            | {"image": "x", "imageID": "x"}
            for each in names
        ]
        body = {"metadata": {"uid": meta["uid"]}}
        body["status"] = {"phase": phase, "containerStatuses": statuses}
        self._api.patch(PODS, name, body, where, sub="status")


class Recorder:
    """Watches all pods and writes down every breach of what must hold."""

    def __init__(self, api: KubeApi, size: Callable[[Json], int], label: str = RUN) -> None:
        """Pods with the same value of `label` are a gang; `size` of the metadata of one says how
        many there are."""
        self.breaches: list[str] = []
        self.bindings = 0
        self.partly_s: list[float] = []
        """For how long gangs were bound in part before they were whole or gone."""
        self.leaving_s: list[float] = []
        """For how long gangs that had been whole were there in part before they were gone."""
        self._whole: set[str] = set()
        self._size, self._label = size, label
        self._partly: dict[str, float] = {}
        self._bound: dict[str, set[str]] = {}
        self._node_of: dict[str, str] = {}
        self._held: dict[str, tuple[str, int]] = {}
        self._load: Counter[str] = Counter()
        self._pods = Reflector(api, PODS, labels=label, on_change=self._look)
        self._pods.start()

    def close(self) -> None:
        """Watch no more."""
        self._pods.close()

    def _look(self) -> None:
        for change in self._pods.changes():
            pod, meta = change.object, change.object["metadata"]
            node, uid = pod["spec"].get("nodeName"), meta["uid"]
            if node and uid not in self._node_of:
                self.bindings += 1
                self._node_of[uid] = node
            elif node and self._node_of[uid] != node:
                self.breaches.append(f"{meta['name']} bound to {self._node_of[uid]} and {node}")
            live = bool(node) and not change.deleted and pod["status"].get("phase") not in _OVER
            self._count(meta, live)
            before = self._held.pop(uid, None)
            if before:
                self._load[before[0]] -= before[1]
            if node and not change.deleted and pod["status"].get("phase") not in _OVER:
                gpus = sum(
                    int(each.get("resources", {}).get("limits", {}).get(_GPU, 0))
                    for each in pod["spec"]["containers"]
                )
                self._held[uid] = (node, gpus)
                self._load[node] += gpus
                if self._load[node] > GPUS:
                    self.breaches.append(f"{self._load[node]} GPUs of {node} are held")

    def half(self) -> list[str]:
        """Gangs of which a part is bound and the rest is not."""
        return [f"{run}: {len(self._bound[run])} bound" for run in self._partly]

    def _count(self, meta: Json, live: bool) -> None:
        run = meta["labels"][self._label]
        bounds = self._bound.setdefault(run, set())
        bounds.add(meta["uid"]) if live else bounds.discard(meta["uid"])
        size = self._size(meta)
        if 0 < len(bounds) < size:
            self._partly.setdefault(run, time.monotonic())
        elif run in self._partly:
            times = self.leaving_s if run in self._whole else self.partly_s
            times.append(time.monotonic() - self._partly.pop(run))
        if len(bounds) == size:
            self._whole.add(run)


class LossyApi(KubeApi):
    """Requests whose answers get lost now and then, although they were carried out."""

    lose = 0.0
    lost = 0
    chance = random.Random(1)

    def request(self, method: str, path: str, **options: Any) -> Json:
        """As it is, but for what got lost."""
        answer = super().request(method, path, **options)
        if method in ("POST", "PATCH", "DELETE") and self.chance.random() < self.lose:
            type(self).lost += 1
            raise KubernetesError("the answer got lost")
        return answer


class Pace:
    """Gangs come as fast as blows fall, and blows fall as fast as gangs end: so they hit all
    along, however quick the machine is."""

    def __init__(self, gangs: int, blows: int) -> None:
        self._gangs, self._blows, self._struck = gangs, blows, 0

    def release(self, ended: int, came: int) -> int:
        """How many further gangs may come."""
        due = _AT_ONCE + self._gangs * self._struck // max(1, self._blows)
        if self._struck >= self._blows:
            due = self._gangs
        return max(due - came, 2 if ended == came else 0)

    def strikes(self, ended: int, *, active: bool) -> bool:
        """Whether the next blow falls."""
        behind = ended < 0.9 * self._gangs * self._struck / self._blows
        if behind or not (active or ended == self._gangs):
            return False
        self._struck += 1
        return True


@dataclass(frozen=True, slots=True)
class Fire:
    """How much of what goes wrong."""

    gangs: int = 200
    nodes: int = 20
    api_kills: int = 50
    pod_deletes: int = 60
    node_losses: int = 10
    watch_drops: int = 60
    lost_answers: float = 0.02
    restarts: int = 5
    """How often the executor itself dies and another one takes over."""
    runs_s: float = 1.0
    seed: int = 0


@dataclass(slots=True)
class FireResult:
    """What came of it."""

    succeeded: int = 0
    breaches: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    half: list[str] = field(default_factory=list)
    attempts: int = 0
    bindings: int = 0
    lost_answers: int = 0
    seconds: float = 0.0
    longest_partly_s: float = 0.0
    """The longest time that a gang was bound in part before it was whole, or taken back."""
    longest_leaving_s: float = 0.0
    """The longest time that a gang which had been whole was there in part before it was gone."""
    done: Counter[str] = field(default_factory=Counter)


def gang_job(data: Path, job: str, workers: int, gpus: int = 1) -> JobSpec:
    """A gang, and its file."""
    resources = {"gpus": gpus}
    write_job(
        data, job, command=["true"], image="none", workers=workers, resources=resources, grace=1
    )
    role = Role("worker", Resources(gpu_milli=1000 * gpus), workers, workers)
    return JobSpec(job, (role,), shareable=False)


def under_fire(plane: Plane, data: Path, fire: Fire, say: Callable[[str], None]) -> FireResult:
    """Run all gangs to their end while everything goes wrong that may."""
    chance = random.Random(fire.seed)
    for number in range(fire.nodes):
        plane.add_node(f"node-{number}", GPUS)
    clean = connect(kubeconfig=plane.kubeconfig())
    lossy = LossyApi(clean._settings, clean.namespace)
    LossyApi.lose, LossyApi.lost = fire.lost_answers, 0
    sizes = {f"gang-{number}": chance.randint(2, 8) for number in range(fire.gangs)}
    recorder = Recorder(clean, lambda meta: sizes[meta["annotations"][JOB]])
    standin = StandIn(clean, lambda pod: fire.runs_s)
    result = FireResult()
    use = ClusterUse(logs=False)
    executor = KubernetesExecutor(data, lossy, use)
    nodes = executor.nodes()
    engine, store = Engine(registry.build("fifo"), predictor(nodes, shares=False)), MemoryStore()
    requests: list[ev.Fact] = [ev.NodeUp(node) for node in nodes]
    coming = list(sizes)
    todo = _blows(fire, chance)
    pace = Pace(fire.gangs, len(todo))
    away: dict[str, float] = {}
    began = time.monotonic()
    try:
        while requests or coming or todo or engine.state.jobs:
            ended = fire.gangs - len(coming) - len(engine.state.jobs)
            for job in coming[: pace.release(ended, fire.gangs - len(coming))]:
                coming.remove(job)
                requests.append(ev.JobSubmitted(gang_job(data, job, sizes[job])))
            step(engine, executor, store, time.time(), requests)
            requests = []
            executor.wait(0.05)
            if todo and pace.strikes(ended, active=bool(engine.state.active)):
                blow = todo.pop(0)
                result.done[blow] += 1
                if blow == "restart":
                    executor.close()
                    executor = KubernetesExecutor(data, lossy, use)
                    requests += _resend(engine, executor)
                else:
                    _strike(blow, plane, clean, executor, chance, away, fire.nodes)
                say(f"{ended} of {fire.gangs} gangs done; {blow}")
            for name in [name for name, at in away.items() if at <= time.monotonic()]:
                with suppress(OSError):
                    plane.add_node(name, GPUS)
                    del away[name]
        step(engine, executor, store, time.time())
        result.seconds = time.monotonic() - began
        result.left = _left(clean)
        result.half = recorder.half()
    finally:
        executor.close()
        standin.close()
        recorder.close()
    events = [event for _, event in store.read()]
    well = [e for e in events if isinstance(e, ev.JobExited) and e.outcome is ev.Outcome.SUCCEEDED]
    result.succeeded = len({end.job for end in well})
    result.attempts = sum(isinstance(event, ev.Launch) for event in events)
    result.longest_partly_s = max(recorder.partly_s, default=0.0)
    result.longest_leaving_s = max(recorder.leaving_s, default=0.0)
    result.breaches, result.bindings = recorder.breaches, recorder.bindings
    result.lost_answers = LossyApi.lost
    return result


def _blows(fire: Fire, chance: random.Random) -> list[str]:
    """What goes wrong, in which order."""
    counts = {
        "kill the API server": fire.api_kills,
        "delete a pod": fire.pod_deletes,
        "lose a node": fire.node_losses,
        "drop the watches": fire.watch_drops,
        "restart": fire.restarts,
    }
    blows = [what for what, count in counts.items() for _ in range(count)]
    chance.shuffle(blows)
    return blows


def _strike(
    blow: str,
    plane: Plane,
    api: KubeApi,
    executor: KubernetesExecutor,
    chance: random.Random,
    away: dict[str, float],
    nodes: int,
) -> None:
    if blow == "kill the API server":
        plane.restart_api()
    elif blow == "delete a pod":
        pods = api.list(PODS, labels=RUN).items
        if pods:
            meta = chance.choice(list(pods))["metadata"]
            api.delete(PODS, meta["name"], meta["namespace"])
    elif blow == "lose a node":
        name = f"node-{chance.randrange(nodes)}"
        if name in away:
            return
        plane.remove_node(name)
        away[name] = time.monotonic() + 2.0
    elif blow == "drop the watches":
        for reflector in (executor._pods, executor._nodes):
            reflector.drop()


def _resend(engine: Engine, executor: KubernetesExecutor) -> list[ev.Fact]:
    """What a server does when it starts again: it says once more what is not confirmed, and which
    nodes there are."""
    act(executor, list(unconfirmed(engine.state)))
    capacity = engine.state.capacity
    known = {capacity.nodes[i].name for i in capacity.index.values()}
    there = {node.name: node for node in executor.nodes()}
    facts: list[ev.Fact] = [ev.NodeDown(name) for name in known if name not in there]
    return facts + [
        ev.NodeUp(node)
        for name, node in there.items()
        if name not in known or name in engine.state.down
    ]


def _left(api: KubeApi, patience_s: float = 300.0) -> list[str]:
    """Objects of runs that are still there when the garbage collector had time: what it could not
    reach while the API server was away, it tries again ever more rarely."""
    end = time.monotonic() + patience_s
    while True:
        left = [
            f"{kind.plural}/{item['metadata']['name']}"
            for kind in (PODS, CONFIG_MAPS, SERVICES, NETWORK_POLICIES)
            for item in api.list(kind, "default", labels=RUN).items
        ]
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.2)
