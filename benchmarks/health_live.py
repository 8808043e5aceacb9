"""Trouble on purpose, on real processes, among healthy runs: is it seen, how soon, with the right
subject and kind, and what does acting on it save?

    python -m benchmarks.health_live                    every kind once, some minutes
    python -m benchmarks.health_live --times 5          the whole, as in the table
    python -m benchmarks.health_live --only stuck,leak  some of them
    python -m benchmarks.health_live --cost             the CPU of the advisor with 1,000 runs
    python -m benchmarks.health_live --remedies         GPU time lost with actions on and off

Needs root for the disk and the network (a loop device, a network namespace with iptables); they
are left out, and said so, without. One hour of healthy work is so many healthy runs at once for a
shorter time. The pace of the detectors is 0.1, since jobs here live for minutes: it only changes
how long a GPU may be idle.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.live_loop import served, submit
from presage.executors.node.processes import all_pids, environment

TRAINING = Path(__file__).with_name("_health_training.py")
WAIT_S = 240.0
STEP_S = 0.5
WARM_STEPS = 24
CONFIG = """
health: {every_s: 2, pace: 0.1}
queues:
  default: {}
  acting: {remedies: [checkpoint, restart, cordon, memory]}
"""
NODES = "nodes:\n  - {name: n, gpus: 2, cpus: 8, memory_gib: 64, count: 6}\n"


@dataclass
class Case:
    """One injection, and what was said about it."""

    trouble: str
    job: str
    seen: bool = False
    seconds: float | None = None
    kind: str = ""
    subject: str = ""
    right_kind: bool = False
    right_subject: bool = False
    probability: float | None = None


class Cluster:
    """A server with healthy runs, and the trouble that is made on it."""

    def __init__(self, url: str, home: Path, env: dict[str, str]) -> None:
        self.url, self.home, self.env = url, home, env
        self.http = httpx.Client(base_url=url, timeout=30)
        self.wrong: set[str] = set()
        """Jobs that were made to be in trouble."""
        self.number = 0

    def train(
        self,
        mode: str,
        steps: int = 100_000,
        step_s: float = STEP_S,
        more: str = "",
        **manifest: Any,
    ) -> tuple[str, Path]:
        """A training, and the file that lets its trouble begin."""
        self.number += 1
        mark = self.home / f"wrong-{self.number}"
        command = f"exec {sys.executable} {TRAINING} {mode} {steps} {step_s} {mark} {more}"
        body = {"name": mode.replace("_", "-"), "command": command, "grace": "3s", **manifest}
        job = submit(self.url, **body)
        if mode != "healthy":
            self.wrong.add(job)
        return job, mark

    def until_warm(self, job: str, steps: int = WARM_STEPS) -> None:
        """Wait until it has made some steps."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            found = self.http.get(f"/api/v1/jobs/{job}").json()
            if ((found["progress"] or {}).get("step") or 0) >= steps:
                return
            time.sleep(0.5)
        raise AssertionError(f"{job} made no progress: {found}")

    def pids(self, job: str, worker: str = "") -> list[int]:
        """The processes of a job, or of one worker."""
        found = []
        for pid in all_pids():
            env = environment(pid).split(b"\0")
            if f"PRESAGE_JOB_ID={job}".encode() not in env:
                continue
            progress = next((e for e in env if e.startswith(b"PRESAGE_PROGRESS=")), b"")
            if not worker or progress.endswith(f"/{worker}.json".encode()):
                found.append(pid)
        return found

    def alerts(self) -> list[dict[str, Any]]:
        """All of them, open and over."""
        found = self.http.get("/api/v1/health/alerts?over=2000").json()
        return [*found["open"], *found["over"]]

    def nodes(self) -> list[str]:
        """The names of the nodes."""
        return [node["name"] for node in self.http.get("/api/v1/nodes").json()["nodes"]]

    def stop(self, job: str) -> None:
        """End a job."""
        for pid in self.pids(job):
            with suppress(OSError):
                os.kill(pid, signal.SIGCONT)
        self.http.post(f"/api/v1/jobs/{job}/stop")

    def await_alert(
        self, case: Case, began: float, kinds: tuple[str, ...], subjects: tuple[str, ...]
    ) -> Case:
        """Until there is an alert about the job or its subject; a right one goes before others."""
        end = time.monotonic() + WAIT_S
        first: dict[str, Any] | None = None
        while time.monotonic() < end:
            mine = [
                one
                for one in self.alerts()
                if one["raised_at"] >= began - 1
                and (one["job"] == case.job or one["subject"] in subjects)
            ]
            good = [one for one in mine if one["kind"] in kinds and one["subject"] in subjects]
            if good or mine:
                first = min(good or mine, key=lambda one: one["raised_at"])
            if good or (mine and time.monotonic() > end - WAIT_S / 2):
                break
            time.sleep(0.5)
        if first is not None:
            case.seen, case.seconds = True, round(first["raised_at"] - began, 1)
            case.kind, case.subject = first["kind"], first["subject"]
            case.right_kind = first["kind"] in kinds
            case.right_subject = first["subject"] in subjects
            case.probability = first["probability"]
        return case


# -- the kinds ------------------------------------------------------------------------------------


def _simple(mode: str, kinds: tuple[str, ...], **manifest: Any) -> Callable[[Cluster], Case]:
    def run(cluster: Cluster) -> Case:
        job, mark = cluster.train(mode, **manifest)
        cluster.until_warm(job)
        mark.touch()
        case = Case(mode, job)
        about: tuple[str, ...] = (f"job {job}", f"worker {job}/worker-0")
        if mode == "disk":
            about = tuple(f"node {name}" for name in cluster.nodes())
        try:
            return cluster.await_alert(case, time.time(), kinds, about)
        finally:
            cluster.stop(job)

    return run


def stopped(cluster: Cluster) -> Case:
    """SIGSTOP of a worker."""
    job, _ = cluster.train("steady")
    cluster.until_warm(job)
    for pid in cluster.pids(job):
        os.kill(pid, signal.SIGSTOP)
    try:
        about = (f"job {job}", f"worker {job}/worker-0")
        return cluster.await_alert(Case("SIGSTOP", job), time.time(), ("stuck",), about)
    finally:
        cluster.stop(job)


def stopped_in_gang(cluster: Cluster) -> Case:
    """SIGSTOP of one worker of three."""
    job, _ = cluster.train("steady", workers=3)
    cluster.until_warm(job)
    for pid in cluster.pids(job, "worker-1"):
        os.kill(pid, signal.SIGSTOP)
    try:
        about = (f"worker {job}/worker-1",)
        return cluster.await_alert(Case("SIGSTOP in a gang", job), time.time(), ("stuck",), about)
    finally:
        cluster.stop(job)


def straggler(cluster: Cluster) -> Case:
    """One worker of four becomes 2.5 times slower."""
    job, mark = cluster.train("straggler", workers=4)
    cluster.until_warm(job)
    mark.touch()
    try:
        about = (f"worker {job}/worker-1",)
        case = Case("straggler", job)
        return cluster.await_alert(case, time.time(), ("straggler",), about)
    finally:
        cluster.stop(job)


def crowded(cluster: Cluster) -> Case:
    """Others keep the core busy that a worker was given."""
    job, _ = cluster.train("crowded", resources={"cpus": 1})
    cluster.until_warm(job)
    (pid, *_) = cluster.pids(job)
    cores = os.sched_getaffinity(pid)
    burn = "import os\nos.sched_setaffinity(0, {cores})\nwhile True: pass"
    others = [subprocess.Popen([sys.executable, "-c", burn.format(cores=cores)]) for _ in range(2)]
    try:
        about = (f"worker {job}/worker-0",)
        return cluster.await_alert(Case("busy neighbour", job), time.time(), ("crowded",), about)
    finally:
        for one in others:
            one.kill()
            one.wait()
        cluster.stop(job)


def killed_server(cluster: Cluster) -> Case:
    """SIGKILL of a parameter server."""
    python = f"exec {sys.executable} {TRAINING} steady 100000 {STEP_S} /nonexistent"
    roles = {"ps": {"workers": 1, "command": python}, "worker": {"workers": 2, "command": python}}
    job = submit(cluster.url, name="with-ps", roles=roles, grace="3s")
    cluster.wrong.add(job)
    cluster.until_warm(job)
    for pid in cluster.pids(job, "ps-0"):
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    try:
        about = (f"worker {job}/ps-0",)
        case = Case("killed parameter server", job)
        return cluster.await_alert(case, time.time(), ("killed",), about)
    finally:
        cluster.stop(job)


def bad_node(cluster: Cluster) -> Case:
    """A node whose jobs die, among jobs that are well elsewhere."""
    cluster.number += 1
    folder = cluster.home / f"dies-{cluster.number}"
    folder.mkdir()
    command = f"exec {sys.executable} {TRAINING} dies 6 1 {folder}"
    node = ""  # that of the first of these jobs
    began = time.time()
    alive: dict[str, float] = {}
    case = Case("bad node", "")
    end = time.monotonic() + 150
    while time.monotonic() < end and not case.seen:
        jobs = cluster.http.get("/api/v1/jobs?limit=200&status=PROCESSING").json()["jobs"]
        for one in jobs:
            if one["id"].startswith("short") and one["nodes"]:
                node = node or one["nodes"][0]
                if node in one["nodes"]:
                    (folder / one["id"]).touch()
        short = [one for one in jobs if one["id"].startswith("short")]
        if len(short) < 12:
            for _ in range(4):
                job = submit(
                    cluster.url, name="short", command=command, resources={"cpus": 3}, grace="1s"
                )
                cluster.wrong.add(job)
                alive[job] = time.monotonic()
        for one in cluster.alerts():
            if one["kind"] == "bad_node" and one["raised_at"] >= began - 1:
                case.seen, case.seconds = True, round(one["raised_at"] - began, 1)
                case.kind, case.subject = one["kind"], one["subject"]
                case.probability = one["probability"]
                case.right_kind, case.right_subject = True, one["subject"] == f"node {node}"
        time.sleep(0.5)
    for job in alive:
        cluster.stop(job)
    return case


def xid(cluster: Cluster) -> Case:
    """A driver that reports Xid 79 of a GPU."""
    job, _ = cluster.train("steady", resources={"gpus": 1})
    cluster.until_warm(job)
    found = cluster.http.get(f"/api/v1/jobs/{job}").json()
    (device,) = {
        env.split(b"=")[1].decode()
        for pid in cluster.pids(job)
        for env in environment(pid).split(b"\0")
        if env.startswith(b"CUDA_VISIBLE_DEVICES=")
    }
    before = len(Path(cluster.env["FAKE_XIDS"]).read_text())
    with Path(cluster.env["FAKE_XIDS"]).open("a") as file:
        file.write(f"{device} 79\n")
    about = tuple(f"gpu {node}/{device}" for node in found["nodes"])
    try:
        return cluster.await_alert(Case("Xid 79", job), time.time(), ("gpu_error",), about)
    finally:
        os.truncate(cluster.env["FAKE_XIDS"], before)
        cluster.stop(job)


def gpu_idle(cluster: Cluster) -> Case:
    """A job that holds a GPU and uses none."""
    job, _ = cluster.train("gpu_idle", resources={"gpus": 1})
    try:
        about = (f"job {job}",)
        case = Case("idle GPU", job)
        return cluster.await_alert(case, time.time(), ("gpu_idle",), about)
    finally:
        cluster.stop(job)


def packet_loss(cluster: Cluster) -> Case:
    """A network namespace whose packets are lost on their way, three of ten."""
    cluster.number += 1
    space, inner, outer = (f"{word}{cluster.number}" for word in ("hl", "hli", "hlo"))
    net = 10 + cluster.number % 200

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    ip("netns", "add", space)
    listener, loses = socket.socket(), ""
    try:
        ip("link", "add", outer, "type", "veth", "peer", "name", inner)
        ip("link", "set", inner, "netns", space)
        ip("addr", "add", f"10.97.{net}.1/24", "dev", outer)
        ip("link", "set", outer, "up")
        ip("-n", space, "addr", "add", f"10.97.{net}.2/24", "dev", inner)
        ip("-n", space, "link", "set", inner, "up")
        listener.bind((f"10.97.{net}.1", 0))
        listener.listen(64)
        threading.Thread(target=_answer, args=(listener,), daemon=True).start()
        where = f"10.97.{net}.1:{listener.getsockname()[1]}"
        command = (
            f"exec ip netns exec {space} {sys.executable} {TRAINING} network 100000 {STEP_S} "
            f"/nonexistent {where}"
        )
        job = submit(cluster.url, name="network", command=command, grace="1s")
        cluster.wrong.add(job)
        cluster.until_warm(job, 10)
        # Where they arrive: of what is dropped before it leaves, TCP is told.
        loses = f"INPUT -i {outer} -p tcp -m statistic --mode random --probability 0.3 -j DROP"
        subprocess.run(["iptables", "-A", *loses.split()], check=True)
        try:
            about = (f"worker {job}/worker-0",)
            return cluster.await_alert(Case("packet loss", job), time.time(), ("network",), about)
        finally:
            cluster.stop(job)
    finally:
        listener.close()
        if loses:
            subprocess.run(["iptables", "-D", *loses.split()], check=False)
        subprocess.run(["ip", "link", "del", outer], check=False, stderr=subprocess.DEVNULL)
        ip("netns", "del", space)


def _answer(listener: socket.socket) -> None:
    def serve(link: socket.socket) -> None:
        with link, suppress(OSError):
            got = 0
            while data := link.recv(65536):
                got += len(data)
                while got >= 8000:
                    got -= 8000
                    link.sendall(b".")

    with suppress(OSError):
        while True:
            link, _ = listener.accept()
            threading.Thread(target=serve, args=(link,), daemon=True).start()


def full_disk(cluster: Cluster) -> Case:
    """A loop device that a job fills; it has a server of its own, whose data is there."""
    home = Path(tempfile.mkdtemp(prefix="presage-disk-"))
    image, mount = home / "image", home / "mount"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(400 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, mount], check=True)
    try:
        config = home / "server.yaml"
        config.write_text(CONFIG)
        with served(mount, "--nodes", "1x1", "--config", str(config)) as (url, _):
            own = Cluster(url, home, cluster.env)
            with own.http:
                return _simple("disk", ("disk",))(own)
    finally:
        time.sleep(1.0)
        subprocess.run(["umount", "-l", mount], check=False)
        shutil.rmtree(home, ignore_errors=True)


KINDS: dict[str, Callable[[Cluster], Case]] = {
    "sigstop": stopped,
    "gang": stopped_in_gang,
    "hang": _simple("hang", ("stuck",)),
    "spinning": _simple("spinning", ("spinning",)),
    "leak": _simple("leak", ("leak",), resources={"memory": "700Mi"}),
    "nan": _simple("nan", ("not_finite",)),
    "diverged": _simple("diverged", ("diverged",)),
    "straggler": straggler,
    "crowded": crowded,
    "killed": killed_server,
    "bad_node": bad_node,
    "xid": xid,
    "gpu_idle": gpu_idle,
    "network": packet_loss,
    "disk": full_disk,
}


# -- all of it ------------------------------------------------------------------------------------


@contextmanager
def cluster_with(home: Path) -> Iterator[Cluster]:
    """A server with a fake driver, and its data below a directory."""
    from tests.gpu_driver import build

    driver = home / "driver"
    driver.mkdir(parents=True)
    env = build(driver, lambda *names: next(filter(None, map(shutil.which, names))))
    os.environ.update(env)
    config, nodes = home / "server.yaml", home / "nodes.yaml"
    config.write_text(CONFIG)
    nodes.write_text(NODES)
    options = ("--nodes", str(nodes), "--config", str(config))
    with served(home / "server", *options) as (url, _):
        cluster = Cluster(url, home, env)
        try:
            yield cluster
        finally:
            left = cluster.http.get("/api/v1/jobs?limit=1000").json()["jobs"]
            for one in left:
                if one["ended_at"] is None:
                    cluster.stop(one["id"])
            cluster.http.close()
            time.sleep(5.0)


def healthy(cluster: Cluster, count: int) -> list[str]:
    """Runs of several kinds that are well."""
    started = []
    for number in range(count):
        manifest: dict[str, Any] = {"workers": 3} if number % 5 == 4 else {}
        if number % 5 == 0:
            manifest = {"resources": {"memory": "700Mi"}}
        if number % 10 == 3:
            manifest = {"resources": {"gpus": 1}}
        step_s = (0.5, 1.0, 2.0)[number % 3]
        started.append(cluster.train("healthy", step_s=step_s, **manifest)[0])
    return started


def false_alarms(cluster: Cluster, well: list[str]) -> list[dict[str, Any]]:
    """Alerts about runs that are well."""
    return [one for one in cluster.alerts() if one["job"] in well]


def inject(times: int, only: list[str], count: int, home: Path) -> dict[str, Any]:
    """Every kind so many times, among healthy runs."""
    cases: list[Case] = []
    left_out = []
    with cluster_with(home) as cluster:
        began = time.monotonic()
        well = healthy(cluster, count)
        for _ in range(times):
            for name in only or KINDS:
                if name in ("disk", "network") and os.geteuid() != 0:
                    left_out.append(name)
                    continue
                case = KINDS[name](cluster)
                cases.append(case)
                print(json.dumps(asdict(case)), flush=True)
        hours = (time.monotonic() - began) * len(well) / 3600
        wrong = false_alarms(cluster, well)
        figures = cluster.http.get("/metrics").text
    cost = {
        line.split()[0]: float(line.split()[1])
        for line in figures.splitlines()
        if line.startswith("presage_health_")
    }
    return {
        "injected": len(cases),
        "seen": sum(case.seen for case in cases),
        "right_kind": sum(case.right_kind for case in cases),
        "right_subject": sum(case.right_subject and case.right_kind for case in cases),
        "seconds": sorted(case.seconds for case in cases if case.seconds is not None),
        "healthy_runs": len(well),
        "healthy_hours": round(hours, 2),
        "false_alarms": [(one["kind"], one["subject"], one["text"]) for one in wrong],
        "left_out": left_out,
        "advisor": cost,
        "cases": [asdict(case) for case in cases],
    }


# -- what acting saves ----------------------------------------------------------------------------

_STEPS = 120
_CAP_S = 240.0


def remedies(home: Path) -> dict[str, Any]:
    """GPU time lost by jobs that hang, spin or stop, with remedies and without."""
    found: dict[str, Any] = {"needed_s": _STEPS * STEP_S}
    with cluster_with(home) as cluster:
        jobs = []
        for queue in ("default", "acting"):
            for mode in ("hang", "spinning", "sigstop"):
                kind = "steady" if mode == "sigstop" else mode
                manifest: dict[str, Any] = {"queue": queue, "resources": {"gpus": 1}}
                job, mark = cluster.train(kind, _STEPS, **manifest)
                jobs.append((queue, mode, job, mark))
        began = time.time()
        for _, mode, job, mark in jobs:
            cluster.until_warm(job)
            mark.touch()
            for pid in cluster.pids(job) if mode == "sigstop" else ():
                os.kill(pid, signal.SIGSTOP)
        ends: dict[str, float] = {}
        while time.time() - began < _CAP_S and len(ends) < len(jobs):
            for _, _, job, _ in jobs:
                about = cluster.http.get(f"/api/v1/jobs/{job}").json()
                if job not in ends and about["ended_at"] is not None:
                    ends[job] = about["ended_at"]
            time.sleep(1.0)
        for queue, mode, job, _ in jobs:
            about = cluster.http.get(f"/api/v1/jobs/{job}").json()
            held_s = (ends.get(job) or time.time()) - about["submitted_at"]
            found[f"{mode}, {queue}"] = {
                "ended": about["status"],
                "attempts": about["attempt"],
                "gpu_s_lost": round(held_s - _STEPS * STEP_S, 1),
            }
        text = cluster.http.get("/metrics").text.splitlines()
        found["remedies"] = [line for line in text if line.startswith("presage_remedies_total{")]
    for queue in ("default", "acting"):
        lost = [one["gpu_s_lost"] for name, one in found.items() if name.endswith(f", {queue}")]
        found[f"lost, {queue}"] = round(sum(lost), 1)
    return found


# -- cost -----------------------------------------------------------------------------------------


def cost(runs: int, home: Path, looks: int = 80) -> dict[str, Any]:
    """CPU time of the advisor: so many runs of one worker that write a row every five seconds."""
    import resource

    from presage.control.advisors.health import HealthAdvisor
    from presage.control.measured import StoredTelemetry
    from presage.core.state import State
    from presage.layout import Layout
    from presage.model import event as ev
    from presage.model.cluster import Device, Node, Resources, Worker
    from presage.model.job import JobSpec, Role
    from presage.store.memory import MemoryKnowledge
    from presage.telemetry.rows import Row, append

    layout, state = Layout(home), State()
    nodes = [Node(f"n{k}", (Device(),) * 8, 64_000, 1 << 19) for k in range((runs + 7) // 8)]
    ask = Resources(cpu_milli=4000, memory_mib=4096, gpu_milli=1000)
    began = 1e9
    state.apply_all(began, [ev.NodeUp(node) for node in nodes])
    for k in range(runs):
        job, worker = f"job-{k}", Worker(0, 0, nodes[k // 8].name, (k % 8,))
        spec = JobSpec(job, (Role(resources=ask),))
        facts: list[ev.Event] = [
            ev.JobSubmitted(spec),
            ev.Launch(job, 1, (worker,)),
            ev.JobStarted(job, 1),
        ]
        state.apply_all(began, facts)
    advisor = HealthAdvisor(MemoryKnowledge())
    telemetry = StoredTelemetry(layout)
    said: list[ev.Fact] = []

    def one_look(number: int) -> float:
        now = began + 5.0 * (number + 1)
        for k in range(runs):
            row = Row(now, "worker-0", 4.0 * number, 0.8, 500.0 + k % 7, 2, 9, 0, 0)
            extra: dict[str, Any] = {
                "gpu_util_pct": 70.0,
                "gpu_memory_mib": 9000.0,
                "stopped": 0,
                "wait_s": 0.1,
            }
            append(layout.telemetry(f"job-{k}", 1), row._replace(**extra, disk_free_mib=5e5))
        reports = [ev.Progress(f"job-{k}", 1, 0.001 * number) for k in range(runs)]
        advisor.hearing.heard(0, now, reports, len(reports), state)
        before = resource.getrusage(resource.RUSAGE_SELF)
        said.extend(advisor.look(now, lambda question: question(state), telemetry))
        after = resource.getrusage(resource.RUSAGE_SELF)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    times = [one_look(number) for number in range(looks)][looks // 2 :]
    mean = sum(times) / len(times)
    return {
        "runs": runs,
        "cpu_s_a_look": round(mean, 4),
        "share_of_a_core_at_5_s": round(mean / 5.0, 4),
        "alerts": len(said),
    }


def main() -> None:
    """Run what was asked for, and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--healthy", type=int, default=20)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--remedies", action="store_true")
    asked = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="presage-health-"))
    try:
        if asked.cost:
            result: dict[str, Any] = cost(1000, home)
        elif asked.remedies:
            result = remedies(home)
        else:
            only = [name for name in asked.only.split(",") if name]
            result = inject(asked.times, only, asked.healthy, home)
        print(json.dumps(result, indent=2))
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
