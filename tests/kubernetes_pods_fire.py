"""Gangs of pods that others made, under fire: the core, the drop-in scheduler and a real API
server that is killed, while watches break, answers get lost, pods are deleted and the scheduler
restarts.

`Operator` makes the pods, as a training operator does: when one of a gang goes away before all
have ended well, it deletes the rest and makes all of them anew. Kubelets are `StandIn`s.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from presage.executors.kubernetes.api import CONFIG_MAPS, PODS, Json, KubeApi, connect
from presage.executors.kubernetes.reflect import Reflector
from presage.model.errors import KubernetesError
from tests.executors.foreign_pods import DropIn, gang
from tests.kubernetes_fire import GPUS, LossyApi, Pace, Recorder, StandIn
from tests.kubernetes_plane import Plane
from tests.waiting import eventually

__all__ = ["PodsFire", "PodsFireResult", "pods_under_fire"]

GANG, SIZE = "presage.dev/gang", "presage.dev/gang-size"


class Operator:
    """Makes gangs of pods until each has ended well once."""

    def __init__(self, api: KubeApi, sizes: dict[str, int]) -> None:
        self._api = api
        self.left: dict[str, int] = {}
        self.coming = dict(sizes)
        """Gangs that are not wanted yet."""
        self.made: Counter[str] = Counter()
        """How often each gang was made."""
        self._names: dict[str, list[str]] = {}
        """The pods of each gang that is made."""
        meta = {"metadata": {"name": "operator"}}
        owner = api.create(CONFIG_MAPS, meta, "default")
        self._owner = {"apiVersion": "v1", "kind": "ConfigMap", **owner}
        self.pods = Reflector(api, PODS, "default", labels=GANG)
        self.pods.start()

    def want(self, more: int) -> None:
        """So many gangs more are to run."""
        for name in list(self.coming)[:more]:
            self.left[name] = self.coming.pop(name)

    @property
    def active(self) -> bool:
        """Whether pods of some gang are there."""
        return bool(self._names)

    def look(self) -> None:
        """Do what is to be done now."""
        there: dict[str, dict[str, Json]] = {}
        for pod in self.pods.objects().values():
            name = pod["metadata"]["labels"][GANG]
            there.setdefault(name.rpartition("-")[0], {})[pod["metadata"]["name"]] = pod
        for name in list(self.left):
            with suppress(KubernetesError):  # the next look goes on
                self._look_at(name, there.get(name, {}))

    def _look_at(self, name: str, pods: dict[str, Json]) -> None:
        if name not in self._names:
            if not pods:
                self._make(name)
            return
        phases = [pod["status"].get("phase") for pod in pods.values()]
        done = phases.count("Succeeded") == self.left[name]
        missing = [pod for pod in self._names[name] if pod not in pods]
        if done or "Failed" in phases or any(map(self._is_gone, missing)):
            for pod in pods:
                self._api.delete(PODS, pod, "default", uid=pods[pod]["metadata"]["uid"])
            del self._names[name]
            if done:
                del self.left[name]

    def _make(self, name: str) -> None:
        label = f"{name}-{self.made[name]}"
        bodies = gang(label, self.left[name], owner=self._owner)
        for body in bodies:
            eventually(partial(self._is_made, body))
        self.made[name] += 1
        self._names[name] = [body["metadata"]["name"] for body in bodies]

    def _is_made(self, body: Json) -> bool:
        try:
            self._api.create(PODS, body, "default")
        except KubernetesError as error:
            return error.status == 409  # made before, though its answer was never heard
        return True

    def _is_gone(self, pod: str) -> bool:
        """Whether a pod that the copy does not hold (any more, or yet) is not there."""
        try:
            self._api.get(PODS, pod, "default")
        except KubernetesError as error:
            if error.status == 404:
                return True
            raise
        return False


@dataclass(frozen=True, slots=True)
class PodsFire:
    """How much of what goes wrong."""

    gangs: int = 100
    nodes: int = 10
    api_kills: int = 30
    pod_deletes: int = 60
    watch_drops: int = 30
    restarts: int = 10
    lost_answers: float = 0.02
    runs_s: float = 0.5
    seed: int = 0
    patience_s: float = 900.0


@dataclass(slots=True)
class PodsFireResult:
    """What came of it."""

    undone: list[str] = field(default_factory=list)
    """Gangs that did not end well in time."""
    breaches: list[str] = field(default_factory=list)
    half: list[str] = field(default_factory=list)
    bindings: int = 0
    made: int = 0
    """How often gangs were made."""
    lost_answers: int = 0
    seconds: float = 0.0
    longest_partly_s: float = 0.0
    """The longest that a gang was bound in part before it was whole, or taken back."""
    done: Counter[str] = field(default_factory=Counter)


def pods_under_fire(plane: Plane, fire: PodsFire, say: Callable[[str], None]) -> PodsFireResult:
    """Let all gangs end well while everything goes wrong that may."""
    chance = random.Random(fire.seed)
    for number in range(fire.nodes):
        plane.add_node(f"node-{number}", GPUS)
    clean = connect(kubeconfig=plane.kubeconfig())
    LossyApi.lose, LossyApi.lost = fire.lost_answers, 0
    recorder = Recorder(clean, lambda meta: int(meta["labels"][SIZE]), GANG)
    standin = StandIn(clean, lambda pod: fire.runs_s)
    scheduler = LossyDropIn(plane)
    operator = Operator(clean, {f"g{i}": chance.randint(2, 6) for i in range(fire.gangs)})
    todo = _blows(fire, chance)
    pace = Pace(fire.gangs, len(todo))
    result, began = PodsFireResult(), time.monotonic()
    try:
        while operator.coming or operator.left or todo:
            if time.monotonic() > began + fire.patience_s:
                break
            came = fire.gangs - len(operator.coming)
            ended = came - len(operator.left)
            operator.want(pace.release(ended, came))
            operator.look()
            scheduler.decide()
            if todo and pace.strikes(ended, active=operator.active):
                blow = todo.pop(0)
                result.done[blow] += 1
                _strike(blow, plane, clean, scheduler, chance)
                say(f"{ended} of {fire.gangs} gangs done; {blow}")
        result.seconds = time.monotonic() - began
        result.undone = [*operator.left, *operator.coming]
        result.half = recorder.half()
    finally:
        operator.pods.close()
        scheduler.adopted.close()
        standin.close()
        recorder.close()
    result.breaches, result.bindings = recorder.breaches, recorder.bindings
    result.longest_partly_s = max(recorder.partly_s, default=0.0)
    result.made, result.lost_answers = operator.made.total(), LossyApi.lost
    return result


class LossyDropIn(DropIn):
    """A drop-in scheduler whose answers get lost now and then, and whose pods have kubelets."""

    def _api(self) -> KubeApi:
        clean = super()._api()
        return LossyApi(clean._settings, clean.namespace)

    def decide(self) -> None:
        """One step."""
        self.adopted.wait(0.02)
        self._handle([])


def _blows(fire: PodsFire, chance: random.Random) -> list[str]:
    counts = {
        "kill the API server": fire.api_kills,
        "delete a pod": fire.pod_deletes,
        "drop the watches": fire.watch_drops,
        "restart": fire.restarts,
    }
    blows = [what for what, count in counts.items() for _ in range(count)]
    chance.shuffle(blows)
    return blows


def _strike(
    blow: str, plane: Plane, api: KubeApi, scheduler: DropIn, chance: random.Random
) -> None:
    if blow == "kill the API server":
        plane.restart_api()
    elif blow == "restart":
        scheduler.restart()
    elif blow == "drop the watches":
        scheduler.adopted._watched.drop()
        scheduler.adopted._nodes.drop()
    elif pods := api.list(PODS, labels=GANG).items:
        meta = chance.choice(list(pods))["metadata"]
        api.delete(PODS, meta["name"], meta["namespace"])
