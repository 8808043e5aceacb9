"""The control plane under load: submissions, reads, the step, starting, memory, overhead.

    python -m benchmarks.control_plane [load] [paced] [step] [start] [memory] [overhead]
        [--seconds 60] [--clients 32] [--rate 500] [--runs 10] [--beside DIR/src]
        [--json]

Without a part, all of them. `start` also measures another checkout in turns with this one when
`--beside` names its sources; CPU time says more than wall time while others use the machine.
`load` submits as fast as answers come, `paced` at the rate. Servers are real processes on a new
data directory with SQLite (`synchronous=FULL`); clients are processes of their own, each with one
connection and one HTTP request for each submission. `--at DIR` says where the data directory is
made.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Any

import httpx
import numpy as np
import psutil

from presage.control.advisors.starts import Declared
from presage.control.board import changes_of
from presage.core.engine import Engine
from presage.core.state import State
from presage.model import event as ev
from presage.model.cluster import Resources
from presage.model.job import JobSpec, Reason, ReasonCode, Role
from presage.policy import registry
from presage.sim.clusters import read_cluster
from presage.store import open_store
from presage.store.records import JobChange, JobRow

CLIENT = r"""
import json, socket, sys, time
host, port, begin, until, pause, kind, number = sys.argv[1:8]
begin, until, pause = float(begin), float(until), float(pause)
link = socket.create_connection((host, int(port)))
link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
took, bad = [], 0
def ask(head, body=b""):
    link.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    got = b""
    while b"\r\n\r\n" not in got:
        got += link.recv(65536)
    top, _, rest = got.partition(b"\r\n\r\n")
    lines = top.lower().split(b"\r\n")
    length = int(next(line for line in lines if line.startswith(b"content-length"))[15:])
    while len(rest) < length:
        rest += link.recv(65536)
    return top[9:12]
host_line = b"Host: 127.0.0.1\r\n"
if kind == "submit":
    body = json.dumps({"name": "load-" + number, "command": "python train.py --epochs 3",
        "workers": "2..4", "resources": {"cpus": 1, "memory": "512Mi", "gpus": 1},
        "checkpoint": {"dir": "ckpt", "every": "60s"}}).encode()
    heads = [b"POST /api/v1/jobs HTTP/1.1\r\n" + host_line + b"Content-Type: application/json\r\n"]
    good = b"201"
else:
    body, good = b"", b"200"
    heads = [b"GET %s HTTP/1.1\r\n" % path.encode() + host_line for path in sys.argv[8:]]
turn = 0
time.sleep(max(0.0, begin - time.time()))  # all begin together, once all are there
begin = time.time()
while time.time() < until:
    head = heads[turn % len(heads)]
    turn += 1
    began = time.perf_counter()
    bad += ask(head, body) != good
    took.append(time.perf_counter() - began)
    time.sleep(max(0.0, begin + turn * pause - time.time()))
json.dump({"took": took, "bad": bad}, sys.stdout)
"""


@contextmanager
def served(
    data: Path, *options: str, source: Path | None = None, end: signal.Signals = signal.SIGTERM
) -> Iterator[tuple[str, psutil.Process, dict[str, float]]]:
    """A server: its address, its process, and how long after exec it answered, decided, and gave
    an answer of its API, which it imports while it decides."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = Path(sys.executable).with_name("presage")
    environment = {key: value for key, value in os.environ.items() if "PRESAGE" not in key}
    # As installed: modules are compiled once, not at every start.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPYCACHEPREFIX"] = str(data.parent / "bytecode")
    if source is not None:
        environment["PYTHONPATH"] = str(source)
    began = time.perf_counter()
    with (data.parent / "server.log").open("ab") as log:
        process = subprocess.Popen(
            [program, "serve", "--port", str(port), "--data", str(data), *options],
            env=environment,
            stdout=log,
            stderr=log,
        )
    url = f"http://127.0.0.1:{port}"
    took: dict[str, float] = {}
    try:
        while "decides_s" not in took:
            try:
                body = httpx.get(f"{url}/healthz").json()
                took.setdefault("up_s", time.perf_counter() - began)
                if body["leading"]:
                    took["decides_s"] = time.perf_counter() - began
                    used = psutil.Process(process.pid).cpu_times()
                    took["cpu_s"] = used.user + used.system
            except httpx.TransportError:
                assert process.poll() is None, (data.parent / "server.log").read_text()
            time.sleep(0.01)
        httpx.get(f"{url}/api/v1/jobs", timeout=60).raise_for_status()
        took["api_s"] = time.perf_counter() - began
        yield url, psutil.Process(process.pid), took
    finally:
        process.send_signal(end)
        process.wait(60)


def quantiles(seconds: Any) -> dict[str, float]:
    """Median, 99th percentile and largest, in milliseconds."""
    found = np.percentile(np.asarray(seconds) * 1000, [50, 99, 100])
    return {name: round(float(v), 2) for name, v in zip(("p50", "p99", "max"), found, strict=True)}


# -- load -----------------------------------------------------------------------------------------


def load(home: Path, seconds: float, clients: int, rate: float | None) -> dict[str, Any]:
    """Submissions a second, as many as possible or at a rate, with readers beside the
    submitters."""
    with served(home / f"load-{rate}", "--nodes", "1x4") as (url, process, _):
        blocker = {"name": "blocker", "command": "sleep 3600", "resources": {"gpus": 4}}
        job = httpx.post(f"{url}/api/v1/jobs", json=blocker).json()["id"]
        waiting = {**blocker, "name": "waiting"}
        queued = httpx.post(f"{url}/api/v1/jobs", json=waiting).json()["id"]
        port = url.rpartition(":")[2]
        begin = time.time() + 3.0
        until = begin + seconds

        def client(kind: str, number: int, pause: float, *paths: str) -> subprocess.Popen[bytes]:
            words = ["127.0.0.1", port, str(begin), str(until), str(pause), kind, str(number)]
            words += paths
            return subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", CLIENT, *words], stdout=subprocess.PIPE
            )

        paths = [f"/api/v1/jobs/{job}", f"/api/v1/jobs/{queued}", "/api/v1/jobs?limit=20"]
        paths += ["/api/v1/nodes", "/healthz"]
        before = process.cpu_times()
        running = [client("submit", i, clients / rate if rate else 0.0) for i in range(clients)]
        readers = [client("read", i, 0.05, *paths) for i in range(2)]
        found = [json.loads(one.communicate()[0]) for one in running]
        took = time.time() - begin
        reads = [json.loads(one.communicate()[0]) for one in readers]
        after = process.cpu_times()
        submitted = sum(len(one["took"]) - one["bad"] for one in found)
        rss = process.memory_info().rss
        text = httpx.get(f"{url}/metrics").text
        pending = float(re.findall(r"^presage_pending (.*)$", text, re.MULTILINE)[0])
        for name in (queued, job):
            httpx.post(f"{url}/api/v1/jobs/{name}/stop")
    assert pending == submitted + 1, f"{submitted} were accepted, {pending - 1} wait"
    cpu = after.user + after.system - before.user - before.system
    return {
        "submissions": submitted,
        "seconds": round(took, 1),
        "per_second": round(submitted / took),
        "refused": sum(one["bad"] for one in found),
        "submit_ms": quantiles(np.concatenate([one["took"] for one in found])),
        "read_ms": quantiles(np.concatenate([one["took"] for one in reads])),
        "reads": sum(len(one["took"]) for one in reads),
        "reads_refused": sum(one["bad"] for one in reads),
        "server_cpu_ms_each": round(1000 * cpu / max(1, submitted), 3),
        "server_rss_mib": rss >> 20,
    }


# -- the scheduling step --------------------------------------------------------------------------


def _spec(number: int, random: np.random.Generator) -> JobSpec:
    gpus = int(random.choice([1, 1, 2, 4])) * 1000
    role = Role(resources=Resources(cpu_milli=1000, memory_mib=512, gpu_milli=gpus))
    return JobSpec(f"job-{number}", (role,), owner=f"u{number % 50}")


def step(policies: tuple[str, ...] = ("fifo", "sjf", "fair_share")) -> dict[str, Any]:
    """A turn of the engine with 10,000 pending jobs and 1,000 full nodes: one run ends, one job is
    submitted, and the next is launched."""
    found = {}
    for policy in policies:
        random = np.random.default_rng(0)
        engine = Engine(registry.build(registry.NAMED[policy]), Declared())
        engine.handle(0.0, [ev.NodeUp(node) for node in read_cluster("1000x4:32c:128g")])
        number, now = 0, 1.0
        while len(engine.state.pending) < 10_000:
            batch = [ev.JobSubmitted(_spec(number + i, random)) for i in range(1000)]
            number += 1000
            launched = engine.handle(now, batch)
            started = [ev.JobStarted(d.job, d.attempt) for d in launched if type(d) is ev.Launch]
            engine.handle(now, started)
            now += 1.0
        took = []
        for _ in range(500):
            job = next(iter(engine.state.active.values()))
            facts: list[ev.Fact] = [
                ev.JobExited(job.id, job.attempt, ev.Outcome.SUCCEEDED),
                ev.JobSubmitted(_spec(number, random)),
            ]
            number, now = number + 1, now + 1.0
            began = time.perf_counter()
            decisions = engine.handle(now, facts)
            changes_of(now, engine.state, facts, decisions)
            took.append(time.perf_counter() - began)
            started = [ev.JobStarted(d.job, d.attempt) for d in decisions if type(d) is ev.Launch]
            engine.handle(now, started)
        found[policy] = {"pending": len(engine.state.pending), **quantiles(took)}
    return found


# -- a long journal -------------------------------------------------------------------------------


def _fill(data: Path, jobs: int, *, ended: bool, snapshot: bool) -> None:
    """A journal with so many jobs, written as a server does, 500 at a time."""
    data.mkdir(parents=True)
    store = open_store(f"sqlite:///{data / 'presage.db'}")
    state = State()
    node = read_cluster("1x4")[0]
    reason = Reason(ReasonCode.EXITED, "every worker ended well")
    manifest = {"name": "job", "command": "true", "resources": {"gpus": 1}}
    events = 0

    def append(now: float, facts: list[ev.Fact], **rest: Any) -> None:
        nonlocal events
        for fact in facts:
            state.apply(now, fact)
        store.append(now, facts, [], **rest)
        events += len(facts)

    began = time.time() - jobs
    append(began, [ev.NodeUp(node), ev.NodeDraining(node.name)])  # every job waits
    random = np.random.default_rng(0)
    for first in range(0, jobs, 500):
        now = began + first
        specs = [_spec(first + i, random) for i in range(min(500, jobs - first))]
        rows = [
            JobRow(id=s.id, name="job", owner=s.owner, submitted_at=now, manifest=manifest)
            for s in specs
        ]
        append(now, [ev.JobSubmitted(s) for s in specs], jobs=rows)
        if ended:
            changes = [
                JobChange(
                    job=s.id,
                    at=now,
                    status="CANCELLED",
                    reason_code=reason.code,
                    reason_text=reason.text,
                    ended_at=now,
                )
                for s in specs
            ]
            append(now, [ev.CancelRequested(s.id) for s in specs], changes=changes)
    if snapshot:
        store.save_snapshot(events, state.now, state.snapshot())
    store.close()


def start(home: Path, runs: int, beside: Path | None) -> dict[str, Any]:
    """From exec to the first decision, the best and the median of some runs: on an empty
    directory, and after `kill -9` with 17,000 waiting jobs, which come from a snapshot or from the
    journal alone. Another checkout is beside it on the empty directory alone: it may not know the
    tables of this one."""
    cases = {"empty": None, "17,000 from a snapshot": True, "17,000 from the journal": False}
    found: dict[str, Any] = {}
    for case, snapshot in cases.items():
        sources: dict[str, Path | None] = {"here": None}
        if beside is not None and snapshot is None:
            sources = {"beside": beside, **sources}
        took: dict[str, list[dict[str, float]]] = {name: [] for name in sources}
        for name in sources:
            if snapshot is not None:
                _fill(home / case / name, 17_000, ended=False, snapshot=snapshot)
        for turn in range(runs + 1):  # the first compiles modules, and is not counted
            for name, source in sources.items():
                data = home / case / (f"{name} {turn}" if snapshot is None else name)
                data.parent.mkdir(exist_ok=True)
                with served(data, "--nodes", "1x4", source=source, end=signal.SIGKILL) as one:
                    took[name] += [one[2]] if turn else []
        for name, all_of in took.items():
            found[f"{case}, {name}"] = {
                key: [round(f(one[key] for one in all_of), 2) for f in (min, median)]
                for key in ("decides_s", "api_s", "cpu_s")
            }
    return found


def memory(home: Path) -> dict[str, Any]:
    """Memory of a server with 100,000 finished jobs, after every page of them was read."""
    found: dict[str, Any] = {}
    for jobs in (0, 100_000):
        data = home / f"finished-{jobs}"
        _fill(data, jobs, ended=True, snapshot=True)
        with served(data, "--nodes", "1x4") as (url, process, _), httpx.Client() as http:
            fresh = process.memory_info().rss
            after, seen = None, 0
            while True:
                query = {"limit": 1000, **({} if after is None else {"after": after})}
                page = http.get(f"{url}/api/v1/jobs", params=query).json()
                seen, after = seen + len(page["jobs"]), page["next"]
                if after is None:
                    break
            assert seen == jobs
            found[f"{jobs:,} finished"] = {
                "rss_mib": fresh >> 20,
                "rss_after_reading_all_mib": process.memory_info().rss >> 20,
                "database_mib": round((data / "presage.db").stat().st_size / 2**20, 1),
            }
    return found


# -- overhead -------------------------------------------------------------------------------------

TRAINING = """
import time
import numpy as np
rng = np.random.default_rng(0)
began = time.perf_counter()
x, w = rng.normal(size=(256, 256)), rng.normal(size=(256, 256))
for step in range({steps}):
    x = np.tanh(x @ w / 16)
print(time.perf_counter() - began, float(x.sum()))
"""


def overhead(home: Path, runs: int) -> dict[str, Any]:
    """The same training bare and under Presage, in turns; wall time of its steps, and from start
    to end."""
    steps = 8000
    command = [sys.executable, "-c", TRAINING.format(steps=steps)]
    env = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    steps_s: dict[str, list[float]] = {"bare": [], "presage": []}
    whole_s: dict[str, list[float]] = {"bare": [], "presage": []}
    with served(home / "overhead", "--nodes", "1x1") as (url, _, _), httpx.Client() as http:

        def bare() -> tuple[float, float]:
            began = time.perf_counter()
            done = subprocess.run(
                command, env={**os.environ, **env}, capture_output=True, text=True, check=True
            )
            return float(done.stdout.split()[0]), time.perf_counter() - began

        def presage() -> tuple[float, float]:
            body = {"name": "train", "command": command, "env": env, "resources": {"cpus": 1}}
            job = http.post(f"{url}/api/v1/jobs", json=body).json()["id"]
            while (found := http.get(f"{url}/api/v1/jobs/{job}").json())["ended_at"] is None:
                time.sleep(0.2)
            assert found["status"] == "COMPLETED", found
            text = http.get(f"{url}/api/v1/jobs/{job}/logs").text
            return float(text.split()[0]), found["ended_at"] - found["submitted_at"]

        ways: dict[str, Callable[[], tuple[float, float]]] = {"bare": bare, "presage": presage}
        for turn in range(runs):
            for name in sorted(ways, reverse=bool(turn % 2)):
                inside, whole = ways[name]()
                steps_s[name].append(inside)
                whole_s[name].append(whole)
    ratios = [p / b for p, b in zip(steps_s["presage"], steps_s["bare"], strict=True)]
    return {
        "runs": runs,
        "bare_s": round(median(steps_s["bare"]), 3),
        "presage_s": round(median(steps_s["presage"]), 3),
        "overhead_pct": round(100 * (median(ratios) - 1), 2),
        "overhead_mean_pct": round(100 * (mean(ratios) - 1), 2),
        "start_and_end_ms": round(
            1000 * (median(whole_s["presage"]) - median(whole_s["bare"])), 0
        ),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="The control plane under load.")
    parts = ("load", "paced", "step", "start", "memory", "overhead")
    parser.add_argument("part", nargs="*", help=", ".join(parts))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rate", type=float, default=500, help="of the part paced")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--beside", type=Path, help="sources of another checkout, for start")
    parser.add_argument("--at", type=Path, help="where to make the data directory")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if unknown := set(options.part) - set(parts):
        parser.error(f"unknown part {', '.join(unknown)}")
    wanted = options.part or parts
    with tempfile.TemporaryDirectory(prefix="presage-", dir=options.at) as home:
        ways: dict[str, Callable[[], dict[str, Any]]] = {
            "load": lambda: load(Path(home), options.seconds, options.clients, None),
            "paced": lambda: load(Path(home), options.seconds, options.clients, options.rate),
            "step": step,
            "start": lambda: start(Path(home), options.runs, options.beside),
            "memory": lambda: memory(Path(home)),
            "overhead": lambda: overhead(Path(home), options.runs),
        }
        found = {}
        for part in wanted:
            found[part] = ways[part]()
            if not options.json:
                lines = [f"  {name:24} {value}" for name, value in found[part].items()]
                print("\n".join([part, *lines]), flush=True)
    if options.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
