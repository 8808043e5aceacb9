"""`presage serve --executor ray`: a real server on a real cluster, and either of them killed."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from presage.executors.ray.executor import RayHead
from tests.executors.ray_kit import RayCluster, shared_cluster
from tests.server.kit import PATIENCE_S, Server, Zygote, eventually, free_port, gone

pytestmark = [pytest.mark.engine, pytest.mark.slow]

COUNT = """\
import os, time
from presage import job

count = 0
given = job.allocation()

def save(directory):
    (directory / "count").write_text(str(count))

def load(directory):
    global count
    count = int((directory / "count").read_text())

job.checkpoint(save, load, every_s=0.2)
job.restore()
print("on gpu", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
while not os.path.exists(os.environ["GATE"]):
    count += 1
    print("step", count, "of", given.workers, "attempt", given.attempt, flush=True)
    job.step(step=count, epoch=count // 50)
    time.sleep(0.02)
"""
"""Counts until the gate is there; rank 0 keeps the count."""


ECHO = """\
import os, socket, time
if os.environ["PRESAGE_RANK"] == "1":
    door = socket.create_server(("127.0.0.1", int(os.environ["PORT"])))
    print("listening", flush=True)
    while True:
        link, _ = door.accept()
        while data := link.recv(65536):
            link.sendall(data)
        link.close()
time.sleep(3600)
"""
"""Rank 1 echoes at the port."""


class RayServer(Server):
    """A server whose nodes are those of a Ray cluster."""

    def __init__(self, zygote: Zygote, data: Path, address: str, *options: str) -> None:
        super().__init__(zygote, data)
        self._options = ("--executor", "ray", "--ray-address", address, *options)

    def count(self, gate: Path, **manifest: Any) -> str:
        """Submit a job that counts until `gate` is there."""
        env = {"GATE": str(gate)}
        return self.submit(["python", "-c", COUNT], env=env, grace=10, **manifest)

    def steps(self, job: str, attempt: int) -> list[tuple[int, int]]:
        """What the first worker counted in an attempt, and with how many workers."""
        file = self.data / "jobs" / job / "logs" / str(attempt) / "worker-0.log"
        lines = file.read_text().splitlines() if file.exists() else []
        found = [line.split() for line in lines if line.startswith("step")]
        return [(int(line[1]), int(line[3])) for line in found if len(line) == 6]

    def saved(self, job: str) -> int:
        """The last count of a job that was kept, as far as the server has it."""
        kept = 0
        for file in (self.data / "jobs" / job / "checkpoints").glob("checkpoint-*/count"):
            with suppress(OSError, ValueError):  # being copied or removed
                kept = max(kept, int(file.read_text()))
        return kept


@pytest.fixture(scope="module")
def cluster() -> RayCluster:
    """The cluster of this group of tests."""
    return shared_cluster()


@pytest.fixture(scope="module")
def server(
    zygote: Zygote, cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RayServer]:
    """A server that the tests share; one that kills it starts it again."""
    data = tmp_path_factory.mktemp("ray") / "data"
    server = RayServer(zygote, data, cluster.address)
    server.start()
    yield server
    server.stop_everything()
    server.close()


def test_gangs_run_on_the_nodes_of_the_cluster(server: RayServer, tmp_path: Path) -> None:
    nodes = server.http.get("/api/v1/nodes").json()["nodes"]
    assert {node["name"] for node in nodes} == {"n0", "n1", "n2"}
    script = "import os; print('rank', os.environ['PRESAGE_RANK'])"
    command = ["python", "-c", script]
    job = server.submit(command, workers=2, placement="spread", resources={"gpus": 1})
    assert server.wait(job)["status"] == "COMPLETED"
    assert server.logs(job, worker="worker-1") == "rank 1\n"
    assert "3 nodes, 12 GPUs" in server.log()


def test_a_job_is_resized_by_plan_and_by_its_owner_and_no_step_is_lost(
    server: RayServer, tmp_path: Path
) -> None:
    job = server.count(
        tmp_path / "gate",
        workers="2..3",
        placement="spread",
        resources={"gpus": 3},  # the ranks are on different nodes, which share no files
        elastic={"at epoch 1": "2 workers"},
    )
    _reaches(server, job, 3)
    _reaches(server, job, 2)
    assert server.presage("scale", job, "3", "--yes").code == 0
    _reaches(server, job, 3)
    (tmp_path / "gate").touch()
    status = server.wait(job)
    assert (status["status"], status["attempt"]) == ("COMPLETED", 1)
    steps = server.steps(job, 1)
    assert [count for count, _ in steps] == list(range(1, len(steps) + 1))
    assert [size for size, _ in groupby(size for _, size in steps)] == [3, 2, 3]


def test_commands_and_ports_reach_workers_on_their_nodes(
    server: RayServer, tmp_path: Path
) -> None:
    port = free_port()
    job = server.submit(
        ["python", "-c", ECHO],
        env={"PORT": str(port), "MINE": "a variable of the job"},
        ports=[port],
        workers=2,
        placement="spread",
        resources={"gpus": 3},
        grace=1,
    )
    eventually(lambda: "listening" in server.logs(job, worker="worker-1"))
    server.wait(job, "PROCESSING")
    for worker in ("0", "worker-1"):
        script = "echo $PRESAGE_RANK $MINE; echo err >&2; exit 7"
        done = server.presage("exec", job, "--worker", worker, "--", "sh", "-c", script)
        rank = worker[-1]
        assert (done.code, done.out, done.err) == (7, f"{rank} a variable of the job\n", "err\n")
    (tmp_path / "in").write_bytes(data := os.urandom(3 << 20))
    with (tmp_path / "in").open("rb") as given, (tmp_path / "out").open("wb") as out:
        files = (given.fileno(), out.fileno(), 2)
        assert server.begin_with("exec", job, "--", "cat", files=files).wait(PATIENCE_S) == 0
    assert (tmp_path / "out").read_bytes() == data
    refused = server.presage("exec", job, "--", "nonsense")
    assert (refused.code, refused.err.count("\n")) == (127, 1)

    (tmp_path / "pid").touch()
    with (tmp_path / "pid").open("wb") as out, Path(os.devnull).open() as nothing:
        files = (nothing.fileno(), out.fileno(), 2)
        command = server.begin_with(
            "exec", job, "--", "sh", "-c", "echo $$; exec sleep 600", files=files
        )
    pid = int(eventually(lambda: (tmp_path / "pid").read_text()))
    os.kill(command.pid, signal.SIGKILL)
    assert command.wait(PATIENCE_S) == -9
    assert gone(pid)  # it ends with its client

    said = tmp_path / "said"
    with said.open("wb") as out, Path(os.devnull).open() as nothing:
        argv = ("forward", job, f"{port}:0", "--worker", "1")
        command = server.begin_with(*argv, files=(nothing.fileno(), out.fileno(), out.fileno()))
    local = int(eventually(lambda: said.read_text().partition(":")[2].split())[0])
    with socket.create_connection(("127.0.0.1", local)) as link:
        link.settimeout(PATIENCE_S)
        link.sendall(b"over the tunnel" * 1000)
        link.shutdown(socket.SHUT_WR)
        echoed = b"".join(iter(lambda: link.recv(65536), b""))
    assert echoed == b"over the tunnel" * 1000
    os.kill(command.pid, signal.SIGTERM)
    assert command.wait(PATIENCE_S) == -15

    done = server.presage("run", "--no-folder", "--", "sh", "-c", "echo $PRESAGE_RANK; exit 5")
    assert (done.code, done.out) == (5, "0\n")
    server.kill()
    server.start()
    eventually(lambda: server.presage("exec", job, "--", "echo", "here").out == "here\n")
    server.tell(job, "stop")
    server.wait(job)


def test_jobs_share_a_gpu_by_prediction_and_ray_counts_their_shares(
    zygote: Zygote, cluster: RayCluster, tmp_path: Path
) -> None:
    server = RayServer(zygote, tmp_path / "data", cluster.address, "--policy", "colocate")
    gate = tmp_path / "gate"
    asks = {"resources": {"gpus": 0.33}, "model": {"ref": "zoo:mlp", "batch": 8, "steps": 1000}}
    try:
        server.start()
        server.count(gate, workers=2, resources={"gpus": 4})
        wide = server.count(gate, resources={"gpus": 2})
        eventually(lambda: server.steps(wide, 1))  # two GPUs are left
        jobs = [server.count(gate, **asks, **more) for more in ({"share": False}, {}, {})]
        eventually(lambda: all(server.steps(job, 1) for job in jobs))
        alone, first, second = (_gpu(server, job) for job in jobs)
        assert first == second
        assert alone != first
        held = cluster.held((server.data / "ray-owner").read_text())
        shares = [held[job][_gpu(server, job)[0]]["GPU"] for job in jobs]
        assert shares == [1.0, 0.33, 0.33]
        gate.touch()
        assert {server.wait(job)["status"] for job in jobs} == {"COMPLETED"}
        owner = (server.data / "ray-owner").read_text()
        eventually(lambda: not cluster.held(owner))  # the two wide jobs end when they see the gate
    finally:
        server.stop_everything()
        server.close()


def test_a_job_goes_on_elsewhere_when_its_node_is_killed(
    server: RayServer, cluster: RayCluster, tmp_path: Path
) -> None:
    job = server.count(tmp_path / "gate", resources={"gpus": 1})
    eventually(lambda: server.saved(job) > 20)
    (node,) = server.job(job)["nodes"]
    cluster.kill(node)
    eventually(lambda: server.steps(job, 2))
    assert server.steps(job, 2)[0][0] > 20  # from its checkpoint
    cluster.add(node)
    (tmp_path / "gate").touch()
    assert server.wait(job)["status"] == "COMPLETED"
    eventually(lambda: _state(server, node) == "up")


def test_a_server_that_was_killed_takes_its_runs_over(server: RayServer, tmp_path: Path) -> None:
    job = server.count(tmp_path / "gate", workers=2, placement="spread", resources={"gpus": 1})
    eventually(lambda: len(server.steps(job, 1)) > 10)
    server.kill()
    before = len(server.steps(job, 1))
    server.start()
    eventually(lambda: len(server.steps(job, 1)) > before + 10)
    (tmp_path / "gate").touch()
    status = server.wait(job)
    assert (status["status"], status["attempt"]) == ("COMPLETED", 1)
    steps = [count for count, _ in server.steps(job, 1)]
    assert steps == list(range(1, len(steps) + 1))


def test_a_cluster_that_disappears_and_returns_loses_no_job(
    zygote: Zygote, tmp_path: Path
) -> None:
    """With `local`, the server itself starts the cluster, and starts it again."""
    data = tmp_path / "data"
    server, head = RayServer(zygote, data, "local"), RayHead(data)
    try:
        server.start()
        jobs = [server.count(tmp_path / "gate", resources={"cpus": 0.5}) for _ in range(2)]
        eventually(lambda: all(server.saved(job) > 20 for job in jobs))
        before = head.pid
        assert before is not None
        os.killpg(before, signal.SIGKILL)
        eventually(lambda: "is out of reach" in server.log())
        waiting = server.submit("true", resources={"cpus": 0.5})  # it still takes jobs
        eventually(lambda: "is back," in server.log())
        assert head.pid not in (None, before)
        eventually(lambda: all(server.steps(job, 2) for job in jobs))
        (tmp_path / "gate").touch()
        for job in (*jobs, waiting):
            assert server.wait(job)["status"] == "COMPLETED"
        for job in jobs:
            assert server.steps(job, 2)[0][0] > 20  # from its checkpoint
    finally:
        server.close()
        if head.pid is not None:
            os.killpg(head.pid, signal.SIGKILL)


# -- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--ray-address", "nonsense"), "'nonsense' is not the address of a Ray cluster"),
        (("--ray-address", "ray://127.0.0.1:1"), "is not the address of a Ray cluster"),
        (("--ray-address", "127.0.0.1:1"), "no Ray cluster answers at 127.0.0.1:1"),
        (("--nodes", "2x4"), "the nodes are those of the cluster"),
        (("--ray-shared", "/nowhere"), "--ray-shared /nowhere is not a directory"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(
    zygote: Zygote, tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    _refused(zygote, tmp_path, "--executor", "ray", *options, says=says)


def test_an_address_where_something_else_answers_is_refused(
    zygote: Zygote, server: RayServer, tmp_path: Path
) -> None:
    address = f"127.0.0.1:{server.port}"
    says = f"what answers at {address} is not a Ray cluster"
    _refused(zygote, tmp_path, "--executor", "ray", "--ray-address", address, says=says)


def test_an_address_that_never_answers_is_refused_in_time(zygote: Zygote, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        says = f"no Ray cluster answers at {address} (timed out)"
        _refused(zygote, tmp_path, "--executor", "ray", "--ray-address", address, says=says)


def test_an_address_without_the_executor_is_refused(zygote: Zygote, tmp_path: Path) -> None:
    _refused(zygote, tmp_path, "--ray-address", "auto", says="go with --executor ray")


def test_limits_that_nobody_would_hold_are_refused(zygote: Zygote, tmp_path: Path) -> None:
    options = ("--executor", "ray", "--rightsize")
    _refused(zygote, tmp_path, *options, says="--rightsize goes with --executor local")


def _refused(zygote: Zygote, data: Path, *options: str, says: str) -> None:
    done = zygote.run("serve", "--port", "0", "--data", str(data), *options)
    assert done.code == 2
    assert says in done.err
    assert len(done.err.splitlines()) == 1


def _reaches(server: RayServer, job: str, workers: int) -> None:
    """Wait until it counts with so many workers, and the server says so."""

    def there() -> bool:
        steps = server.steps(job, 1)
        return bool(steps) and steps[-1][1] == workers

    try:
        eventually(there)
        eventually(lambda: server.job(job)["workers"] == workers)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{json.dumps(server.job(job))}\n{server.log()}") from None


def _gpu(server: RayServer, job: str) -> tuple[str, str]:
    """The node and the device on which the one worker of a job runs."""
    (node,) = server.job(job)["nodes"]
    said = server.logs(job).splitlines()[0].split()
    return node, said[said.index("gpu") + 1]


def _state(server: RayServer, node: str) -> str:
    nodes = server.http.get("/api/v1/nodes").json()["nodes"]
    return next((str(found["state"]) for found in nodes if found["name"] == node), "unknown")
