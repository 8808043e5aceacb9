"""The executor `ray`: what every executor must keep, then what only a cluster can do."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import socket
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from presage.executors.fleet.place import bundles, what_is_missing
from presage.executors.fleet.run_log import RelayedRunLog
from presage.executors.node.messages import exited
from presage.executors.node.processes import environment, read_stat
from presage.executors.node.runspec import RoleSpec, RunSpec
from presage.executors.ray.executor import RayLink
from presage.executors.ray.nodes import name_nodes
from presage.layout import Layout
from presage.model import event as ev
from presage.model.cluster import Device, Node, Worker
from presage.model.errors import RayUnreachable
from presage.model.event import Outcome
from presage.model.job import ReasonCode
from presage.testing.executors import Counting, ExecutorKit, ExecutorSuite, RoleWork, Watcher
from tests.executors.ray_kit import RayCluster, RayKit, run_gangs, shared_cluster

pytestmark = [pytest.mark.engine, pytest.mark.slow]

LONG = "import time\nprint('up')\ntime.sleep(600)"
LOADED = """
import os, sys, time
loaded = "torch" in sys.modules
from presage import job
given, count = job.allocation(), 0
def save(directory): (directory / "count").write_text(str(count))
def load(directory):
    global count
    count = int((directory / "count").read_text())
job.checkpoint(save, load)
job.restore()
print("up", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], sys.argv, loaded, flush=True)
print("meets at", os.environ["MASTER_PORT"], flush=True)
while __name__ == "__main__":
    count += 1
    if given.rank == 0: print("step", count, flush=True)
    job.step(step=count)
    time.sleep(0.01)
"""
SAVING = """
import os, pathlib, sys, time
place = pathlib.Path(os.environ["PRESAGE_CHECKPOINT_DIR"])
saved = sorted(place.glob("step-*"))
step = int(saved[-1].name[5:]) if saved else 0
print("from", step, flush=True)
while step < int(os.environ.get("STEPS", "100000")):
    step += 1
    time.sleep(0.05)
    new = place / ".saving"
    new.mkdir()
    (new / "state").write_text(str(step) * 1000)
    new.rename(place / f"step-{step:06}")
    for old in sorted(place.glob("step-*"))[:-2]:
        old.rename(place / ".saving-old")
        (place / ".saving-old" / "state").unlink()
        (place / ".saving-old").rmdir()
    print("step", step, flush=True)
"""


@pytest.fixture(scope="module")
def cluster() -> RayCluster:
    """The cluster of this group of tests."""
    return shared_cluster()


@pytest.fixture(scope="module")
def link(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayLink]:
    """A driver; a server would have one of its own."""
    log = tmp_path_factory.mktemp("driver") / "log"
    link = RayLink(cluster.address, log=log)
    yield link
    link.close()


@pytest.fixture
def kit(tmp_path: Path, cluster: RayCluster, link: RayLink) -> Iterator[RayKit]:
    """An executor's kit on an empty data directory."""
    kit = RayKit(tmp_path / "server", cluster, link)
    yield kit
    kit.close()


@pytest.fixture
def watch(kit: RayKit) -> Watcher:
    """An executor with nothing to do."""
    return Watcher(kit)


class TestRay(ExecutorSuite):
    @pytest.fixture
    def kit(self, tmp_path: Path, cluster: RayCluster, link: RayLink) -> Iterator[ExecutorKit]:
        options = {"shared": tmp_path / "shared", "log_cap": self.log_cap}
        kit = RayKit(tmp_path / "server", cluster, link, **options)
        yield kit
        kit.close()


# -- where things run --------------------------------------------------------------------------


def test_nodes_are_those_of_the_cluster_that_take_jobs(kit: RayKit) -> None:
    nodes = {node.name: node for node in kit.executor().nodes()}
    assert set(nodes) == {"n0", "n1", "n2"}
    assert nodes["n1"].devices == (Device(),) * 4
    assert nodes["n1"].cpu_milli == 4000
    assert nodes["n1"].labels == {"rack": "r-n1"}
    assert 0 < nodes["n1"].memory_mib < 1 << 40


def test_workers_run_where_they_were_put_and_ray_knows_what_they_hold(
    kit: RayKit, watch: Watcher, cluster: RayCluster
) -> None:
    kit.write_job("half", command=["sleep", "600"], resources={"gpus": 0.5, "cpus": 1})
    kit.write_job("gang", command=["sleep", "600"], workers=3, resources={"gpus": 1})
    gang = (Worker(0, 0, "n2", (1,)), Worker(0, 1, "n2", (3,)), Worker(0, 2, "n0", (0,)))
    watch.executor.launch(ev.Launch("half", 1, (Worker(0, 0, "n2", (2,)),)))
    watch.executor.launch(ev.Launch("gang", 1, gang))
    watch.until_started("half")
    watch.until_started("gang")
    held = cluster.held(kit.owner)
    assert {job: set(held[job]) for job in held} == {"half": {"n2"}, "gang": {"n0", "n2"}}
    assert held["half"]["n2"]["GPU"] == 0.5
    assert held["half"]["n2"]["CPU"] == 1.0
    assert (held["gang"]["n2"]["GPU"], held["gang"]["n0"]["GPU"]) == (2.0, 1.0)
    devices = [_variable(pid, "CUDA_VISIBLE_DEVICES") for pid in kit.worker_pids("gang")]
    assert devices == ["1", "3", "0"]
    for job in ("half", "gang"):
        watch.stop(job)
        assert watch.end(job).outcome is Outcome.STOPPED
    assert cluster.held(kit.owner) == {}


def test_a_gang_that_no_state_of_the_cluster_can_hold_is_refused(
    kit: RayKit, watch: Watcher
) -> None:
    kit.write_job("huge", command="true", resources={"gpus": 5})
    watch.executor.launch(ev.Launch("huge", 1, (Worker(0, 0, "n1", tuple(range(5))),)))
    watch.until(lambda: watch.of("huge", ev.LaunchFailed), "refused")
    text = watch.of("huge", ev.LaunchFailed)[0].reason.text
    assert text == "the gang cannot be placed: node n1 has 4 GPUs; 5 GPUs are needed"
    kit.write_job("late", command="true")
    watch.executor.launch(ev.Launch("late", 1, (Worker(0, 0, "n9"),)))
    assert watch.end("late").outcome is Outcome.LOST  # it is tried again, on nodes that are there
    for job in ("huge", "late"):
        watch.assert_nothing_left(job)


@pytest.mark.soak
def test_fifty_gangs_pass_through_without_a_leak_or_a_deadlock(
    kit: RayKit, cluster: RayCluster
) -> None:
    said = run_gangs(kit, 50)
    assert said["told"]["succeeded"] == said["told"]["JobStarted"] == 50
    assert said["at_once"] > 4
    assert cluster.held(kit.owner) == {}
    for n in range(50):
        assert kit.leftovers(f"gang-{n}") == []


# -- what goes in and out ----------------------------------------------------------------------


def test_folder_secrets_checkpoints_results_and_telemetry(
    kit: RayKit, watch: Watcher, tmp_path: Path
) -> None:
    train = """
import os, pathlib, time
saved = pathlib.Path(os.environ["PRESAGE_CHECKPOINT_DIR"])
print("had", sorted(p.name for p in saved.iterdir()))
(saved / "step-1").mkdir()
(saved / "step-1" / "state").write_bytes(b"1" * 9_000_000)
for old in ("step-0/state", "plain"): (saved / old).unlink(missing_ok=True)
if (saved / "step-0").exists(): (saved / "step-0").rmdir()
pathlib.Path(os.environ["PRESAGE_RESULT_DIR"], "model").write_text("weights")
while not os.path.exists(os.environ["GATE"]): pass
raise SystemExit("the hub refused " + os.environ["HUB_TOKEN"])
"""
    _pack(kit.data / "folders" / "abc.tar.gz", {"train.py": train})
    (kit.data / "secrets").mkdir(parents=True)
    (kit.data / "secrets" / "hub").write_text("s3cr3t\n")
    gate, env = tmp_path / "gate", {"GATE": str(tmp_path / "gate")}
    secrets = {"HUB_TOKEN": "hub"}
    kit.write_job("whole", command="python train.py", folder="abc", secrets=secrets, env=env)
    job = kit.data / "jobs" / "whole"
    (job / "checkpoints" / "step-0").mkdir(parents=True)
    (job / "checkpoints" / "step-0" / "state").write_text("0")
    (job / "checkpoints" / "plain").write_text("x")
    watch.executor.launch(ev.Launch("whole", 1, (Worker(0, 0, "n1"),)))
    samples_at = job / "telemetry" / "1.jsonl"
    watch.until(lambda: samples_at.exists() and samples_at.read_text().count("\n") > 1, "sampled")
    gate.touch()
    exited = watch.end("whole")
    assert exited.reason is not None
    assert exited.reason.text == (
        "worker-0 ended with exit code 1: the hub refused ***; 1 result file (7 B)"
    )
    assert kit.log("whole", 1, "worker-0").startswith("had ['plain', 'step-0']\n")
    assert [p.name for p in (job / "checkpoints").iterdir()] == ["step-1"]
    assert (job / "checkpoints" / "step-1" / "state").stat().st_size == 9_000_000
    assert (job / "results" / "model").read_text() == "weights"
    lines = samples_at.read_text().splitlines()
    samples = [json.loads(line) for line in lines]
    assert len(samples) >= 2
    assert {sample["worker"] for sample in samples} == {"worker-0"}
    watch.assert_nothing_left("whole")


def test_results_of_all_nodes_and_attempts_are_kept(kit: RayKit, watch: Watcher) -> None:
    script = """
import os, pathlib
place, rank = pathlib.Path(os.environ["PRESAGE_RESULT_DIR"]), os.environ["PRESAGE_RANK"]
(place / "ranks").mkdir(exist_ok=True)
for name in ("plain-" + rank, "ranks/" + rank): (place / name).write_text(rank)
with (place / "same").open("a") as file: print("rank", rank, file=file)
pathlib.Path("model.pt").write_text("of rank " + rank)
pathlib.Path("common").write_text("alike")
pathlib.Path(".hidden").write_text("x") if rank == "0" else None
"""
    workers = watch.run("makers", RoleWork(script, workers=2))
    exited = watch.end("makers")
    assert exited.reason is not None
    assert exited.reason.text == "every worker ended well; 10 result files (42 B)"
    watch.settle()
    watch.executor.launch(ev.Launch("makers", 2, workers))
    watch.end("makers", 2)
    results = kit.data / "jobs" / "makers" / "results"
    found = {str(path.relative_to(results)) for path in results.rglob("*") if path.is_file()}
    second = workers[1].node
    assert found == {
        *("plain-0", "plain-1", "ranks/0", "ranks/1", "same", "model.pt", "common", ".hidden"),
        *(f"from-{second}/{name}" for name in ("model.pt", "same")),
    }
    assert (results / "same").read_text() == "rank 0\nrank 0\n"
    assert (results / "model.pt").read_text() == "of rank 0"
    assert (results / f"from-{second}" / "model.pt").read_text() == "of rank 1"
    note = json.loads((results.parent / "results.json").read_text())
    assert (note["files"], note["attempt"]) == (10, 2)
    watch.assert_nothing_left("makers")


def test_an_environment_that_is_not_on_the_node_is_refused(kit: RayKit, watch: Watcher) -> None:
    kit.write_job("no", command="python -c pass", environment="/opt/conda/envs/none")
    watch.executor.launch(ev.Launch("no", 1, (Worker(0, 0, "n1"),)))
    watch.until(lambda: watch.of("no", ev.LaunchFailed), "refused")
    reason = watch.of("no", ev.LaunchFailed)[0].reason
    assert reason.code is ReasonCode.LAUNCH_FAILED
    assert "environment /opt/conda/envs/none is not there" in reason.text
    watch.assert_nothing_left("no")


def test_a_secret_that_is_not_there_is_named(kit: RayKit, watch: Watcher) -> None:
    refs = {"poor": "nothing", "sly": "../jobs/sly/job.json"}
    for job, ref in refs.items():
        kit.write_job(job, command="true", secrets={"HUB_TOKEN": ref})
        watch.executor.launch(ev.Launch(job, 1, (Worker(0, 0, "n0"),)))
    watch.until(lambda: all(watch.of(job, ev.LaunchFailed) for job in refs), "refused")
    texts = [watch.of(job, ev.LaunchFailed)[0].reason.text for job in refs]
    assert "there is no secret 'nothing'" in texts[0]
    assert texts[1] == "'../jobs/sly/job.json' cannot be the name of a secret"


# -- when somebody dies ------------------------------------------------------------------------


def test_a_killed_driver_is_started_again_and_nothing_is_lost_or_told_twice(
    kit: RayKit, watch: Watcher, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    script = f"""
import os, time
n = 0
while not os.path.exists({str(gate)!r}):
    print("line", n, flush=True); n += 1; time.sleep(0.02)
print("end", n)
"""
    watch.run("steady", RoleWork(script, workers=2))
    watch.until_started("steady")
    watch.until_log("steady", "line 5")
    before = kit.link.pid
    os.kill(before, signal.SIGKILL)
    watch.run("next", RoleWork("print('ran')"))  # while nobody listens
    assert watch.end("next").outcome is Outcome.SUCCEEDED
    assert kit.link.pid != before
    gate.touch()
    assert watch.end("steady").outcome is Outcome.SUCCEEDED
    assert len(watch.of("steady", ev.JobStarted)) == 1
    for worker in ("worker-0", "worker-1"):
        lines = kit.log("steady", 1, worker).splitlines()
        assert lines == [*(f"line {n}" for n in range(len(lines) - 1)), f"end {len(lines) - 1}"]
    assert not [fact for fact in watch.facts if isinstance(fact, ev.NodeDown)]
    watch.assert_nothing_left("steady")


@pytest.mark.soak
def test_a_driver_that_is_killed_in_a_resize_leaves_it_to_the_next(
    kit: RayKit, watch: Watcher
) -> None:
    """Workers here and there share no files; what one saved is there for the others."""
    counting = Counting(watch)
    watch.resize("count", counting.workers[:3])
    watch.until(lambda: watch.of("count", ev.StageChanged), "resizing")
    os.kill(kit.link.pid, signal.SIGKILL)
    watch.until(lambda: watch.of("count", ev.JobResized), "resized")
    watch.until(lambda: counting.steps()[-1][1] == 3, "counting with 3")
    steps = [step for step, _ in counting.steps()]
    assert steps == list(range(1, len(steps) + 1))
    assert len({pid for pid in kit.worker_pids("count")}) == 3
    counting.end()


def test_workers_that_come_have_loaded_pytorch_before_those_there_stand_still(
    kit: RayKit, watch: Watcher, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOADED)
    kit.write_job(
        "warm",
        command=[sys.executable, str(script), "--lr", "1"],
        launcher="torchrun",
        workers="1..2",
        grace=60,
    )
    crew = (Worker(0, 0, "n0"), Worker(0, 1, "n1"))
    watch.executor.launch(ev.Launch("warm", 1, crew[:1]))
    watch.until_log("warm", "step")
    watch.resize("warm", crew)
    watch.until(lambda: watch.of("warm", ev.JobResized), "resized")
    names = ("worker-0", "worker-1")
    for rank, worker in enumerate(names):
        up = f"up {rank} of 2 ['{script}', '--lr', '1'] True"
        watch.until_log("warm", up, worker=worker)
    first = kit.log("warm", 1, "worker-0")
    assert first.startswith(f"up 0 of 1 ['{script}', '--lr', '1'] False\n")
    steps = [int(line.split()[1]) for line in first.splitlines() if line.startswith("step")]
    assert steps == list(range(1, len(steps) + 1))
    met = {kit.log("warm", 1, worker).split("meets at ")[-1].split()[0] for worker in names}
    assert len(met) == 1
    watch.stop("warm")
    assert watch.end("warm").outcome is Outcome.STOPPED
    watch.assert_nothing_left("warm")


def test_a_killed_guardian_or_agent_takes_its_run_along(kit: RayKit, watch: Watcher) -> None:
    watch.run("orphan", RoleWork(LONG, workers=2), grace_s=60.0)
    for worker in ("worker-0", "worker-1"):
        watch.until_log("orphan", "up", worker=worker)
    guardians = [_parent(pid) for pid in kit.worker_pids("orphan")]
    os.kill(guardians[0], signal.SIGKILL)
    assert watch.end("orphan").outcome is Outcome.LOST
    watch.assert_nothing_left("orphan")
    watch.run("orphan-2", RoleWork(LONG, workers=2), grace_s=60.0)
    watch.until_log("orphan-2", "up")
    os.kill(_parent(_parent(kit.worker_pids("orphan-2")[0])), signal.SIGKILL)
    exited = watch.end("orphan-2")
    assert exited.outcome is Outcome.LOST
    assert exited.reason is not None
    assert exited.reason.code is ReasonCode.NODE_LOST
    watch.assert_nothing_left("orphan-2")


@pytest.mark.soak  # in short through a server: tests/server/test_serve_ray.py
def test_a_job_goes_on_elsewhere_from_its_checkpoint_when_its_node_is_killed(
    kit: RayKit, watch: Watcher, cluster: RayCluster
) -> None:
    kit.write_job("mover", command=[sys.executable, "-c", SAVING], resources={"gpus": 1})
    watch.executor.launch(ev.Launch("mover", 1, (Worker(0, 0, "n2", (0,)),)))
    watch.until_log("mover", "step 40")
    steps_before = _last_step(kit.log("mover", 1, "worker-0"))
    cluster.kill("n2")
    exited = watch.end("mover")
    assert exited.outcome is Outcome.LOST
    assert exited.reason is not None
    assert "node n2 went away" in exited.reason.text
    watch.until(lambda: ev.NodeDown("n2") in watch.facts, "known to be down")
    watch.executor.launch(ev.Launch("mover", 2, (Worker(0, 0, "n1", (0,)),)))
    watch.until_log("mover", "step", attempt=2)
    went_on = int(kit.log("mover", 2, "worker-0").split()[1])
    assert went_on >= steps_before - 40  # at most two seconds of work are done again
    assert went_on > 0
    watch.stop("mover", 2)
    assert watch.end("mover", 2).outcome is Outcome.STOPPED
    cluster.add("n2")
    watch.until(lambda: [f for f in watch.facts if isinstance(f, ev.NodeUp)], "back")
    kit.add_job("again", RoleWork("print('ran')"))
    watch.executor.launch(ev.Launch("again", 1, (Worker(0, 0, "n2"),)))
    assert watch.end("again").outcome is Outcome.SUCCEEDED


@pytest.mark.soak
def test_a_cluster_that_disappears_and_returns_loses_no_job(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    cluster = RayCluster(nodes=0, head_cpus=2, port=port)
    link = RayLink(cluster.address)
    kit = RayKit(tmp_path / "server", cluster, link)
    watch = Watcher(kit)
    kit.write_job("patient", command=[sys.executable, "-c", SAVING])
    watch.executor.launch(ev.Launch("patient", 1, (Worker(0, 0, "head"),)))
    watch.until_log("patient", "step 40")
    cluster.close()
    watch.until(lambda: link.away_s() > 0, "out of reach")
    cluster = RayCluster(nodes=0, head_cpus=2, port=port)
    assert watch.end("patient").outcome is Outcome.LOST
    watch.until(lambda: {node.name for node in watch.executor.nodes()} == {"head"}, "back")
    watch.executor.launch(ev.Launch("patient", 2, (Worker(0, 0, "head"),)))
    watch.until_log("patient", "step", attempt=2)
    assert int(kit.log("patient", 2, "worker-0").split()[1]) >= 20
    kit.close()
    link.close()
    cluster.close()


# -- addresses ---------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["nonsense", "ray://127.0.0.1:10001", "127.0.0.1:port"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(RayUnreachable, match="is not the address of a Ray cluster"):
        RayLink(address)


def test_an_address_that_does_not_answer_is_refused_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(RayUnreachable, match="no Ray cluster answers at") as refusal:
            RayLink(address)
        assert len(str(refusal.value).splitlines()) == 1


# -- without a cluster -------------------------------------------------------------------------


def test_nodes_of_the_same_name_get_names_of_their_own() -> None:
    rows = [_row("a" * 8, "10.0.0.1"), _row("b" * 8, "10.0.0.1"), _row("c" * 8, "10.0.0.2")]
    names = {node.id[0]: node.name for node in name_nodes(rows, {"b" * 8: "10.0.0.1"})}
    assert names == {"a": "10.0.0.1-aaaaaa", "b": "10.0.0.1", "c": "10.0.0.2"}
    rows[2]["Alive"] = False
    assert len(name_nodes(rows, {})) == 2


def test_what_ray_says_of_a_node() -> None:
    row = _row("a", "n", {"GPU": 2.0, "CPU": 8.0, "memory": 4.0 * (1 << 30)})
    row["Labels"] |= {"ray.io/accelerator-type": "A100", "presage.gpu-memory-mib": "40960"}
    (node,) = name_nodes([row], {})
    device = Device("a100", 40960)
    labels = {"rack": "r1", "presage.gpu-memory-mib": "40960"}
    assert node.as_node() == Node("n", (device, device), 8000, 4096, labels)
    (head,) = name_nodes([_row("h", "head", {"memory": 1.0})], {})
    assert not head.works


def test_bundles_add_up_by_node_and_what_is_missing_is_named() -> None:
    roles = (
        RoleSpec("worker", ("x",), 3, 3, cpus=1.5, memory_mib=100, gpus=0.5),
        RoleSpec("ps", ("x",), 1, 1),
    )
    workers = [
        Worker(0, 0, "a", (0,)),
        Worker(0, 1, "a", (0,)),
        Worker(0, 2, "b", (3,)),
        Worker(1, 0, "b"),
    ]
    asked = bundles(RunSpec(roles), workers)
    mib = 1 << 20
    assert asked == {
        "a": {"CPU": 3.0, "GPU": 1.0, "memory": 200.0 * mib},
        "b": {"CPU": 1.5, "GPU": 0.5, "memory": 100.0 * mib},
    }
    alone = bundles(RunSpec((replace(roles[0], gpus=1.0), roles[1])), workers)
    assert [alone[name]["GPU"] for name in "ab"] == [2.0, 1.0]  # each holds the whole device
    rows = [_row(name, name, {"CPU": 2.0, "GPU": 1.0, "memory": 1e9}) for name in "ab"]
    nodes = {node.name: node for node in name_nodes(rows, {})}
    assert what_is_missing({"b": asked["b"]}, nodes) is None
    assert what_is_missing(asked, nodes) == "node a has 2 CPUs; 3 CPUs are needed"


def test_a_log_is_over_when_its_end_was_heard_and_its_directory_removed(
    tmp_path: Path,
) -> None:
    run = tmp_path / "runs" / "job" / "1"
    run.mkdir(parents=True)
    log = RelayedRunLog(Layout(tmp_path), "job", 1)
    log.end(exited("succeeded", "exited", "every worker ended well", 0))
    shutil.rmtree(run)  # whoever heard of it needs it no longer
    assert log.flush()
    assert log.over


def _row(id: str, name: str, resources: dict[str, float] | None = None) -> dict[str, Any]:
    return {
        "NodeID": id,
        "NodeName": name,
        "NodeManagerAddress": "10.0.0.1",
        "Alive": True,
        "Resources": resources or {"CPU": 1.0},
        "Labels": {"ray.io/node-id": id, "rack": "r1"},
    }


def _variable(pid: int, name: str) -> str:
    entries = environment(pid).decode().split("\0")
    return next(e for e in entries if e.startswith(f"{name}=")).partition("=")[2]


def _parent(pid: int) -> int:
    stat = read_stat(pid)
    assert stat is not None
    return stat.parent


def _last_step(log: str) -> int:
    return int(log.split()[-1])


def _pack(path: Path, files: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
