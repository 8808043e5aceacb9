"""Gangs under fire, and the deadlock of half-started gangs, on a real Kubernetes control plane.

    python -m benchmarks.kubernetes_gangs [--short]

Two hundred gangs of 2 to 8 workers on 20 nodes of 8 GPUs, while the API server is killed 50 times.
Then four jobs of four workers on eight GPUs: by kube-scheduler, and by Presage. Nodes are API
objects, and a stand-in patches the status of their pods.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from presage.control.advisors.needs import predictor
from presage.core.engine import Engine
from presage.core.loop import step
from presage.executors.kubernetes.api import PODS, Json, KubeApi, connect
from presage.executors.kubernetes.executor import KubernetesExecutor
from presage.executors.kubernetes.settings import ClusterUse
from presage.model import event as ev
from presage.policy import registry
from presage.store.memory import MemoryStore
from tests.kubernetes_fire import Fire, StandIn, gang_job, under_fire
from tests.kubernetes_plane import Plane

_SHORT = Fire(20, 5, 5, 6, 2, 6, 0.02, 2, 0.2)
_GANG = "gang"
_TIMES = 10


def main() -> None:
    """Print what came of it."""
    fire = _SHORT if "--short" in sys.argv else Fire()
    plane = Plane()
    try:
        plane.start()
        with TemporaryDirectory() as data:
            result = under_fire(plane, Path(data), fire, lambda line: print(line, flush=True))
        print(
            f"{result.succeeded} of {fire.gangs} gangs done in {result.seconds:.0f} s with "
            f"{result.attempts} attempts, {result.bindings} bindings, "
            f"{result.lost_answers} lost answers, {dict(result.done)}"
        )
        print(f"longest that a gang was bound in part: {result.longest_partly_s:.1f} s")
        print(f"breaches: {result.breaches or 'none'}; left behind: {result.left or 'nothing'}")
        plane.clear()
        deadlock(plane)
    finally:
        plane.close()


def deadlock(plane: Plane) -> None:
    """Eight GPUs, four jobs of four workers, submitted at once, many times."""
    plane.add_node("n0", 4)
    plane.add_node("n1", 4)
    api = connect(kubeconfig=plane.kubeconfig())
    plane.start_scheduler()
    stuck = 0
    for _ in range(_TIMES):
        stuck += _by_kube_scheduler(plane, api)
        plane.clear(nodes=False)
        _until_empty(api)
    plane.kill("kube-scheduler")
    print(f"kube-scheduler: {stuck} of {_TIMES} times a deadlock")
    stuck = sum(_by_presage(api, number) for number in range(_TIMES))
    print(f"presage:        {stuck} of {_TIMES} times a deadlock")


def _by_kube_scheduler(plane: Plane, api: KubeApi) -> bool:
    """Whether no gang is whole when all GPUs are taken. The pods come as controllers of four jobs
    make them at the same time: one of each in turn."""
    for worker in range(4):
        for job in range(4):
            api.create(PODS, _pod(f"job-{job}-{worker}", job))
    end = time.monotonic() + 60
    while time.monotonic() < end:
        bound = [pod for pod in api.list(PODS, "default").items if pod["spec"].get("nodeName")]
        if len(bound) == 8:
            gangs = [pod["metadata"]["labels"][_GANG] for pod in bound]
            return all(gangs.count(gang) < 4 for gang in set(gangs))
        time.sleep(0.02)
    raise SystemExit("kube-scheduler did not bind eight pods within a minute")


def _by_presage(api: KubeApi, number: int) -> bool:
    """Whether not all four jobs come to their end."""
    standin = StandIn(api, lambda pod: 0.05)
    with TemporaryDirectory() as data:
        executor = KubernetesExecutor(Path(data), api, ClusterUse(logs=False))
        nodes = executor.nodes()
        engine = Engine(registry.build("fifo"), predictor(nodes, shares=False))
        store = MemoryStore()
        requests: list[ev.Fact] = [ev.NodeUp(node) for node in nodes]
        requests += [
            ev.JobSubmitted(gang_job(Path(data), f"deadlock-{number}-{job}", 4))
            for job in range(4)
        ]
        end = time.monotonic() + 120
        try:
            while requests or engine.state.pending or engine.state.active:
                step(engine, executor, store, time.time(), requests)
                requests = []
                executor.wait(0.05)
                if time.monotonic() > end:
                    return True
            step(engine, executor, store, time.time())
        finally:
            executor.close()
            standin.close()
    return False


def _until_empty(api: KubeApi) -> None:
    while api.list(PODS, "default").items:
        time.sleep(0.05)


def _pod(name: str, gang: int) -> Json:
    limits = {"nvidia.com/gpu": "1"}
    main = {"name": "main", "image": "none", "resources": {"limits": limits}}
    meta = {"name": name, "labels": {_GANG: str(gang)}}
    return {"metadata": meta, "spec": {"containers": [main], "terminationGracePeriodSeconds": 0}}


if __name__ == "__main__":
    main()
