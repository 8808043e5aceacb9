"""Time from a pod's creation to its binding, as a drop-in scheduler, beside kube-scheduler.

    python -m benchmarks.kubernetes_pods [--nodes 1000] [--pods 1000] [--gang 1] [--pending 0]
                                         [--only presage]

Nodes of 8 GPUs are API objects on a real control plane; pods of one GPU are made as fast as
eight threads can, in gangs of a size, while so many others that fit nowhere wait. For each
scheduler, a process of its own on the same nodes: pods bound a second, and the time from creation
to binding, as a watch of this process sees both.
"""

from __future__ import annotations

import argparse
import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from presage.core.engine import Engine
from presage.core.loop import step
from presage.executors.kubernetes.adopted import AdoptedPods
from presage.executors.kubernetes.api import PODS, KubeApi, connect
from presage.executors.kubernetes.reflect import Reflector
from presage.model import event as ev
from presage.policy import registry
from presage.store.memory import MemoryStore
from tests.executors.foreign_pods import gang, pod
from tests.kubernetes_plane import Plane
from tests.scenario import Known

_THREADS = 8


def main() -> None:
    """Print a line for each scheduler."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--gang", type=int, default=1)
    parser.add_argument("--pending", type=int, default=0)
    parser.add_argument("--only", choices=("default-scheduler", "presage"))
    parser.add_argument("--patience", type=float, default=120.0, help="seconds for each")
    wanted = parser.parse_args()
    plane = Plane()
    try:
        plane.start()
        with ThreadPoolExecutor(_THREADS) as pool:
            for done in [pool.submit(plane.add_node, f"n{i}", 8) for i in range(wanted.nodes)]:
                done.result()
        for name in [wanted.only] if wanted.only else ("default-scheduler", "presage"):
            print(_measured(plane, name, wanted), flush=True)
            plane.clear(nodes=False)
    finally:
        plane.close()


def _measured(plane: Plane, scheduler: str, wanted: Any) -> str:
    api = connect(kubeconfig=plane.kubeconfig())
    ours = None
    if scheduler == "presage":  # a process of its own, as the other is
        spawn = multiprocessing.get_context("spawn")
        ours = spawn.Process(target=_decide, args=(plane.kubeconfig(),))
        ours.start()
    else:
        plane.start_scheduler()
    seen = Reflector(api, PODS, "default")
    seen.start()
    try:
        _make(api, [pod(f"waits-{i}", 9, scheduler=scheduler) for i in range(wanted.pending)])
        return f"{scheduler}: {_bound(api, seen, scheduler, wanted)}"
    finally:
        seen.close()
        plane.kill("kube-scheduler")
        if ours is not None:
            ours.kill()
            ours.join()


def _bound(api: KubeApi, seen: Reflector, scheduler: str, wanted: Any) -> str:
    """Make pods, and wait until all of them are bound."""
    groups = wanted.pods // wanted.gang
    bodies = [
        body
        for g in range(groups)
        for body in (
            gang(f"g{g}", wanted.gang, scheduler=scheduler)
            if wanted.gang > 1
            else [pod(f"g{g}-0", scheduler=scheduler)]
        )
    ]
    _make(api, [pod("g-first", scheduler=scheduler)])
    while not any(item["spec"].get("nodeName") for item in seen.objects().values()):
        time.sleep(0.01)  # until the scheduler is up
    began = time.perf_counter()
    maker = threading.Thread(target=_make, args=(api, bodies))
    maker.start()
    made: dict[str, float] = {}
    bound: dict[str, float] = {}
    while len(bound) <= len(bodies) and time.perf_counter() - began < wanted.patience:
        for change in seen.changes():
            name, now = change.object["metadata"]["name"], time.perf_counter()
            if name.startswith("g"):
                made.setdefault(name, now)
                if change.object["spec"].get("nodeName"):
                    bound.setdefault(name, now)
        time.sleep(0.002)
    took_s = time.perf_counter() - began
    maker.join()
    count = len(bound) - 1
    waits = sorted(bound[name] - made[name] for name in bound)
    p50, p99 = waits[len(waits) // 2], waits[int(len(waits) * 0.99)]
    return (
        f"{count} of {len(bodies)} pods in gangs of {wanted.gang}, {wanted.nodes} nodes, "
        f"{wanted.pending} that wait: {count / took_s:.0f} pods/s, "
        f"{count / wanted.gang / took_s:.0f} gangs/s, "
        f"created to bound p50 {p50:.3f} s, p99 {p99:.3f} s"
    )


def _make(api: KubeApi, bodies: list[dict[str, Any]]) -> None:
    with ThreadPoolExecutor(_THREADS) as pool:
        for done in [pool.submit(api.create, PODS, body, "default") for body in bodies]:
            done.result()


def _decide(kubeconfig: Path) -> None:
    engine, store = Engine(registry.build("backfill"), Known()), MemoryStore()
    adopted = AdoptedPods(connect(kubeconfig=kubeconfig), jobs=lambda: engine.state.jobs)
    step(engine, adopted, store, time.time(), [ev.NodeUp(node) for node in adopted.nodes()])
    while True:
        adopted.wait(0.1)
        step(engine, adopted, store, time.time())


if __name__ == "__main__":
    main()
