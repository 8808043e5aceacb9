"""The kit that runs the conformance suite on the executor `ray`, and a cluster to run it on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from presage.core.engine import Engine
from presage.core.loop import step
from presage.core.ports import Executor
from presage.executors.node.processes import all_pids, environment, read_stat
from presage.executors.ray.executor import RayExecutor, RayLink
from presage.executors.ray.head import BARE, HEALTH
from presage.model import event as ev
from presage.model.cluster import WHOLE_GPU, Resources, Worker
from presage.model.job import JobSpec, Placement, Role
from presage.policy import registry
from presage.store.memory import MemoryStore
from presage.testing.executors import RoleWork
from presage.testing.machine import StablePredictor
from tests.executors.kit import LocalKit
from tests.waiting import PATIENCE_S, eventually

NODES = 3
GPUS = 4

ROOT = Path(tempfile.gettempdir()) / f"presage-{os.getuid()}"
"""Where nodes keep what runs there."""

_HELD = """
import json, logging, sys, ray
from ray.util import placement_group_table
ray.init(address=sys.argv[1], logging_level=logging.ERROR, log_to_driver=False)
for owner in sys.stdin:
    names = {n["NodeID"]: n["NodeName"] for n in ray.nodes()}
    held = {}
    for group in placement_group_table().values():
        _, whose, job, *_ = group["name"].split("/")
        if whose == owner.strip() and group["state"] != "REMOVED":
            held[job] = {
                names[id]: group["bundles"][n] for n, id in group["bundles_to_node_id"].items()
            }
    print("held", json.dumps(held), flush=True)
"""

_ALONE = {"no_monitor": True, "include_log_monitor": False}
"""Nobody asks for what these processes do."""
_CONFIG = HEALTH | BARE | {"health_check_timeout_ms": 20_000}
"""A node that is gone refuses the connection and is noticed as soon as ever; one that takes long
on a busy machine is waited for."""

_WAITS = {
    "RAY_gcs_server_port_wait_time_s": str(int(PATIENCE_S)),
    "RAY_gcs_server_request_timeout_seconds": str(int(PATIENCE_S)),
}
"""How long the head may take to say its port, and to answer a node that starts."""

_shared: list[RayCluster] = []


@contextmanager
def _patience() -> Iterator[None]:
    """Start nodes without the API server, and wait for them as long as it takes: Ray itself gives
    up after half a minute, which a busy machine may need."""
    from ray._private import ray_constants, services
    from ray._private.node import Node

    get = services.get_node

    def get_node(*args: Any) -> Any:
        found: list[Any] = []

        def ask() -> list[Any]:
            with suppress(RuntimeError):  # it is not there yet
                found.append(get(*args))  # type: ignore[no-untyped-call]
            return found

        return eventually(ask)[0]

    with (
        patch.dict(os.environ, _WAITS),
        patch.object(services, "get_node", get_node),
        patch.object(ray_constants, "GCS_SERVER_REQUEST_TIMEOUT_SECONDS", int(PATIENCE_S)),
        patch.object(Node, "start_api_server", lambda *args, **options: None),
    ):
        yield


def shared_cluster() -> RayCluster:
    """One cluster for the tests of a group: it takes a quarter of a minute to start."""
    if find_spec("ray") is None:
        reason = "ray is not installed: pip install 'presage[ray]'"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{reason} (CI=true: nothing is skipped)", pytrace=False)
        pytest.skip(reason)
    if not _shared:
        _shared.append(RayCluster())
    return _shared[0]


def close_shared() -> None:
    """End it: it would use a tenth of a core for the rest of the run."""
    while _shared:
        _shared.pop().close()


class RayCluster:
    """A head that takes no jobs unless it has CPUs, and nodes of four GPUs: all on one machine."""

    def __init__(self, nodes: int = NODES, head_cpus: int = 0, port: int | None = None) -> None:
        from ray.cluster_utils import Cluster

        self._asker: subprocess.Popen[str] | None = None
        """Asks Ray what is reserved: a process of its own, since one is connected once."""
        head: dict[str, Any] = {"num_cpus": head_cpus, "num_gpus": 0, "node_name": "head"}
        head |= {"include_dashboard": False, "gcs_server_port": port, **_ALONE}
        with _patience():
            self._cluster = Cluster(
                initialize_head=True, head_node_args={**head, "_system_config": _CONFIG}
            )
        self.nodes: dict[str, Any] = {}
        for n in range(nodes):
            self.add(f"n{n}")
        self._cluster.wait_for_nodes(timeout=PATIENCE_S)

    @property
    def address(self) -> str:
        """Where it answers."""
        address: str = self._cluster.address
        return address

    def add(self, name: str) -> None:
        """Start a node."""
        options = {"num_cpus": 4, "num_gpus": GPUS, "labels": {"rack": f"r-{name}"}}
        with _patience():
            self.nodes[name] = self._cluster.add_node(
                node_name=name, wait=False, object_store_memory=80 << 20, **options
            )

    def kill(self, name: str) -> None:
        """Kill a node as a power cut would: its raylet at once, and what it ran with it."""
        raylet = self.nodes.pop(name).all_processes["raylet"][0].process
        raylet.kill()
        raylet.wait()  # its workers look whether it is there, and would take a zombie for it

    def held(self, owner: str) -> dict[str, dict[str, dict[str, float]]]:
        """What Ray itself says is reserved for the runs of a data directory: by job, by node."""
        if self._asker is None:
            self._asker = subprocess.Popen(
                [sys.executable, "-c", _HELD, self.address],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._asker.stdin is not None
        assert self._asker.stdout is not None
        print(owner, file=self._asker.stdin, flush=True)
        said = next(line for line in self._asker.stdout if line.startswith("held "))
        held: dict[str, dict[str, dict[str, float]]] = json.loads(said.removeprefix("held "))
        return held

    def close(self) -> None:
        """End all of it."""
        if self._asker is not None:
            self._asker.kill()
            self._asker.communicate()
        self._cluster.shutdown()  # type: ignore[no-untyped-call]


def run_gangs(kit: RayKit, gangs: int) -> dict[str, Any]:
    """Gangs of two or three workers, submitted at once, through the deciding loop: how long it
    took, and what was decided and told."""
    role = Resources(gpu_milli=WHOLE_GPU, cpu_milli=500)
    specs = []
    for n in range(gangs):
        workers = 2 + n % 2
        resources = {"gpus": 1, "cpus": 0.5}
        kit.write_job(f"gang-{n}", command="true", workers=workers, resources=resources)
        spread = Placement.SPREAD if n % 3 else Placement.PACK
        roles = (Role("worker", role, workers, workers),)
        specs.append(JobSpec(f"gang-{n}", roles, placement=spread))
    executor, store = kit.executor(), MemoryStore()
    engine = Engine(registry.build("fifo"), StablePredictor(), check_every=1)
    facts: list[ev.Fact] = [ev.NodeUp(node) for node in executor.nodes()]
    facts += [ev.JobSubmitted(spec) for spec in specs]
    began = time.monotonic()
    most = 0
    while facts or engine.state.active or engine.state.pending:
        assert time.monotonic() - began < PATIENCE_S, "the gangs got stuck"
        step(engine, executor, store, time.time(), facts)
        most = max(most, len(engine.state.active))
        facts = []
        executor.wait(0.05)
    seconds = time.monotonic() - began
    executor.poll(time.time())  # what was told is written down
    told = Counter(
        type(fact).__name__ if not isinstance(fact, ev.JobExited) else str(fact.outcome)
        for _, facts, _ in store.steps()
        for fact in facts
    )
    return {"seconds": seconds, "at_once": most, "told": told}


class RayKit(LocalKit):
    """Jobs are files under the data directory; workers are processes below the nodes' agents."""

    timeout_s = PATIENCE_S

    def __init__(self, data: Path, cluster: RayCluster, link: RayLink, **options: Any) -> None:
        super().__init__(data)
        self._cluster = cluster
        self.link = link
        self._ray_options = options
        self._ray_executors: list[RayExecutor] = []

    def executor(self) -> RayExecutor:  # type: ignore[override]  # another kind of executor
        """A new executor; one before it just stops being used."""
        executor = RayExecutor(self.data, self.link, **self._ray_options)
        self._ray_executors.append(executor)
        return executor

    def add_job(self, job: str, *roles: RoleWork, **options: Any) -> tuple[Worker, ...]:
        """Write the file of a job; its workers are spread over the nodes."""
        super().add_job(job, *roles, **options)
        workers: list[Worker] = []
        names = list(self._cluster.nodes)
        used = 0
        for number, role in enumerate(roles):
            for index in range(max(role.workers, role.most)):
                node = names[len(workers) % len(names)]
                workers.append(Worker(number, index, node, tuple(range(used, used + role.gpus))))
                used += role.gpus
        return tuple(workers)

    def wait(self, executor: Executor, timeout_s: float) -> None:
        """Until the driver calls."""
        assert isinstance(executor, RayExecutor)
        executor.wait(timeout_s)

    def worker_pids(self, job: str, attempt: int = 1) -> list[int]:
        """The first processes of the workers, by rank."""
        marks = f"PRESAGE_JOB_ID={job}".encode(), f"PRESAGE_ATTEMPT={attempt}".encode()
        ranks: dict[int, int] = {}
        for pid in self.processes(job):
            found = environment(pid).split(b"\0")
            stat = read_stat(pid)
            if all(mark in found for mark in marks) and stat and stat.session == pid:
                rank = next(e for e in found if e.startswith(b"PRESAGE_RANK=")).partition(b"=")[2]
                ranks[int(rank)] = pid
        return [ranks[rank] for rank in sorted(ranks)]

    def processes(self, job: str) -> list[int]:
        """Everything that runs for a job, the guardians included."""
        found = []
        for pid in all_pids():
            mark = environment(pid).partition(b"\0PRESAGE_RUN=")[2].partition(b"\0")[0].decode()
            if mark.startswith(f"{ROOT}/") and f"/{self.owner}/{job}/" in mark:
                stat = read_stat(pid)
                if stat and stat.state != "Z":
                    found.append(pid)
        return found

    def leftovers(self, job: str) -> list[str]:
        """Processes and files, on the server and on the nodes."""
        runs = self.data / "runs"
        files = [str(path) for path in runs.glob("*") if path.name == job or path.name[0] == "."]
        files += map(str, ROOT.glob(f"*/{self.owner}/{job}/*"))
        return [*map(str, self.processes(job)), *files]

    @property
    def owner(self) -> str:
        """The name under which nodes keep the runs of this data directory."""
        with suppress(FileNotFoundError):
            return (self.data / "ray-owner").read_text()
        return ""

    def close(self) -> None:
        """Let go of every executor, and end what a failed test left running."""
        for executor in self._ray_executors:
            executor.close()
        for job in (self.data / "runs").glob("*"):
            for pid in self.processes(job.name):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
