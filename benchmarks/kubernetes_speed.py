"""How fast pods are bound: by Presage and by kube-scheduler, on one Kubernetes control plane.

    python -m benchmarks.kubernetes_speed [PODS ...] [--only presage|kube-scheduler]
                                         [--patience SECONDS]

PODS is 1000 unless told otherwise.

A thousand nodes of 16 GPUs are API objects; nothing runs the pods. All jobs are there at once. For
kube-scheduler, pods are created as fast as the API server takes them, before it is started; for
Presage, jobs are submitted to the core, which decides, makes the objects of each run (record, pod,
NetworkPolicy) and binds. Time counts from the start of the scheduler, or from the submission,
until a pod's binding is seen by a watch of its own. Kueue's published figure is 42 admissions a
second.
"""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from presage.control.advisors.needs import predictor
from presage.core.engine import Engine
from presage.core.loop import step
from presage.executors.kubernetes.api import PODS, Json, KubeApi, connect
from presage.executors.kubernetes.executor import KubernetesExecutor
from presage.executors.kubernetes.reflect import Reflector
from presage.executors.kubernetes.settings import ClusterUse
from presage.model import event as ev
from presage.policy import registry
from presage.store.memory import MemoryStore
from tests.kubernetes_fire import gang_job
from tests.kubernetes_plane import Plane, PlaneError

_NODES, _GPUS = 1000, 16


class Bound:
    """When each pod was seen to be bound."""

    def __init__(self, api: KubeApi) -> None:
        self.at: dict[str, float] = {}
        self._pods = Reflector(api, PODS, "default", keep=_small, on_change=self._look)
        self._pods.start()

    def _look(self) -> None:
        now = time.monotonic()
        for change in self._pods.changes():
            meta = change.object["metadata"]
            if change.object["node"] and not change.deleted:
                self.at.setdefault(meta["uid"], now)

    def close(self) -> None:
        """Watch no more."""
        self._pods.close()


def main() -> None:
    """Print a line for each scheduler and number of pods."""
    parser = argparse.ArgumentParser()
    parser.add_argument("pods", type=int, nargs="*", default=[1000])
    parser.add_argument("--only", choices=_SCHEDULERS)
    parser.add_argument("--patience", type=float, default=1800.0, help="seconds for each")
    wanted = parser.parse_args()
    try:
        plane = Plane()
    except PlaneError as error:
        print(f"skipped: {error}")
        return
    try:
        plane.start()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: plane.add_node(f"n{n}", _GPUS), range(_NODES)))
        api = connect(kubeconfig=plane.kubeconfig())
        for pods in wanted.pods:
            for who in [wanted.only] if wanted.only else _SCHEDULERS:
                before = _cpu_s(plane)
                times, own_s = _SCHEDULERS[who](plane, api, pods, wanted.patience)
                _report(who, pods, times, own_s, plane, before)
                _clear(plane, api)
    finally:
        plane.close()


def _by_presage(_: Plane, api: KubeApi, pods: int, patience_s: float) -> tuple[list[float], float]:
    bound, before_s = Bound(api), time.process_time()
    with TemporaryDirectory() as data:
        specs = [gang_job(Path(data), f"job-{number}", 1) for number in range(pods)]
        executor = KubernetesExecutor(Path(data), api, ClusterUse(logs=False))
        nodes = executor.nodes()
        engine = Engine(registry.build("fifo"), predictor(nodes, shares=False))
        store = MemoryStore()
        began = time.monotonic()
        requests: list[ev.Fact] = [ev.NodeUp(node) for node in nodes]
        requests += [ev.JobSubmitted(spec) for spec in specs]
        while len(bound.at) < pods and time.monotonic() - began < patience_s:
            step(engine, executor, store, time.time(), requests)
            requests = []
            executor.wait(0.05)
        own_s = time.process_time() - before_s
        executor.close()
    bound.close()
    return [at - began for at in bound.at.values()], own_s


def _by_kube_scheduler(
    plane: Plane, api: KubeApi, pods: int, patience_s: float
) -> tuple[list[float], float]:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: api.create(PODS, _pod(n)), range(pods)))
    bound = Bound(api)
    began = time.monotonic()
    plane.start_scheduler()
    while len(bound.at) < pods and time.monotonic() - began < patience_s:
        time.sleep(0.05)
    own_s = _used_s(plane.running["kube-scheduler"].pid)
    plane.kill("kube-scheduler")
    bound.close()
    return [at - began for at in bound.at.values()], own_s


_SCHEDULERS = {"presage": _by_presage, "kube-scheduler": _by_kube_scheduler}


def _report(
    who: str, pods: int, times: list[float], own_s: float, plane: Plane, before_s: float
) -> None:
    p50, p99 = np.percentile(times, (50, 99)) if times else (0.0, 0.0)
    rate = len(times) / max(times) if times else 0.0
    others_s = _cpu_s(plane) - before_s
    print(
        f"{who:15} {pods:6} pods on {_NODES} nodes: {len(times)} bound, {rate:6.1f} a second, "
        f"p50 {p50:.2f} s, p99 {p99:.2f} s; CPU of the scheduler {1000 * own_s / pods:.1f} ms, of "
        f"the API server and etcd {1000 * others_s / pods:.1f} ms a pod",
        flush=True,
    )


def _cpu_s(plane: Plane) -> float:
    """CPU time that the API server and etcd have used."""
    return sum(_used_s(plane.running[name].pid) for name in ("kube-apiserver", "etcd"))


def _used_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _clear(plane: Plane, api: KubeApi) -> None:
    plane.clear(nodes=False)
    while api.list(PODS, "default").items:
        time.sleep(0.2)


def _small(pod: Json) -> Json:
    return {"metadata": pod["metadata"], "node": pod["spec"].get("nodeName")}


def _pod(number: int) -> Json:
    limits = {"nvidia.com/gpu": "1"}
    main = {"name": "main", "image": "none", "resources": {"limits": limits}}
    spec = {"containers": [main], "terminationGracePeriodSeconds": 0}
    return {"metadata": {"name": f"pod-{number}"}, "spec": spec}


if __name__ == "__main__":
    main()
