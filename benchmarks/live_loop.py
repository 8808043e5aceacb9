"""The closed loop, live: sharing by prediction, right-sizing by phase, learning from runs.

    python -m benchmarks.live_loop [sharing] [sizing] [learning] [--pairs 5] [--json]

Real servers on new data directories, real processes. `sharing`: 20 jobs with different duty cycles
on cores that are declared as devices, one job a device against sharing by what was learned of
each. `sizing`: a training that loads, trains, evaluates and saves; its first runs are unlimited,
the last one is right-sized. `learning`: 60 runs of 15 workloads, and how far estimates are off.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sqlite3
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

from presage.control.charts import chart_lines
from presage.foresee.champions import Champions, error_of
from presage.foresee.own import OwnRun, OwnRuns
from presage.layout import Layout
from presage.model import event as ev
from presage.store import open_store

DUTY = """
import os, sys, time
import presage.job as job
os.sched_setaffinity(0, {int(os.environ["CUDA_VISIBLE_DEVICES"].split(",")[0])})
duty, work_s = float(sys.argv[1]), float(sys.argv[2])
slot = 0.1
steps = max(1, round(work_s / (slot * duty)))
began = time.perf_counter()
for step in range(steps):
    until = time.process_time() + slot * duty
    while time.process_time() < until:
        pass
    time.sleep(slot * (1 - duty))
    job.step(step=step + 1, steps=steps)
print("took", time.perf_counter() - began)
"""
"""Keeps its core busy for a part of the time until its work is done."""

PHASES = """
import sys, time
import presage.job as job
rounds = int(sys.argv[1])
def busy(seconds, share):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        while time.perf_counter() - began < 0.05 * share:
            pass
        time.sleep(0.05 * (1 - share))
def filled(mib):
    data = bytearray(mib << 20)
    data[::4096] = b"x" * len(data[::4096])
    return data
for turn in range(rounds):
    data = filled(60)
    busy(10, 0.15)  # load
    more = filled(240)
    busy(20, 0.95)  # train
    del more
    busy(10, 0.5)  # evaluate
    with open("model.bin", "wb") as file:
        file.write(data)
    busy(8, 0.05)  # save
    del data
    job.step(step=turn + 1, steps=rounds)
"""
"""Load, train, evaluate, save: 48 seconds a round."""

TRAIN = """
import sys, torch
import presage.job as job
from presage.foresee.graph import zoo
name, batch, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(0)
entry = zoo.find(name)
model = entry.build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def sample(spec):
    shape = (batch, *spec.shape)
    if "int" in str(spec.dtype):
        return torch.zeros(shape, dtype=torch.int64)
    return torch.randn(shape)
def total(answer):
    if isinstance(answer, torch.Tensor):
        return answer.float().mean()
    parts = answer.values() if isinstance(answer, dict) else answer
    return sum(total(part) for part in parts if part is not None)
for step in range(steps):
    optimizer.zero_grad()
    total(model(*[sample(spec) for spec in entry.inputs])).backward()
    optimizer.step()
    job.step(step=step + 1, steps=steps)
"""
"""Trains a model of the zoo for some steps on random data."""

WORKLOADS = [
    *(("mlp", batch, 200) for batch in (64, 256, 1024)),
    *(("resnet18-cifar10", batch, 12) for batch in (4, 8, 16)),
    *(("mobilenetv2", batch, 10) for batch in (1, 2)),
    *(("squeezenet1-1", batch, 12) for batch in (1, 2)),
    *(("dcgan", batch, 12) for batch in (2, 8)),
    *(("td3", batch, 200) for batch in (64, 512)),
    ("resnet18", 1, 10),
]
RUNS = 60


@contextmanager
def served(home: Path, *options: str) -> Iterator[tuple[str, Path]]:
    """A server of its own: its address and data directory."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = Path(sys.executable).with_name("presage")
    environment = {key: value for key, value in os.environ.items() if "PRESAGE" not in key}
    environment["PATH"] = f"{program.parent}{os.pathsep}{environment['PATH']}"
    home.mkdir(parents=True, exist_ok=True)
    log = home / "server.log"
    with log.open("ab") as file:
        server = subprocess.Popen(
            [program, "serve", "--port", str(port), "--data", str(home / "data"), *options],
            env=environment,
            stdout=file,
            stderr=file,
            start_new_session=True,  # what interrupts us lets us end our jobs first
        )
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            assert server.poll() is None, log.read_text()
            try:
                if httpx.get(f"{url}/readyz").status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        yield url, home / "data"
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def submit(url: str, **manifest: Any) -> str:
    """A job's id."""
    answer = httpx.post(f"{url}/api/v1/jobs", json=manifest, timeout=30)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def ended(url: str, job: str) -> dict[str, Any]:
    """Wait until a job is over."""
    while True:
        found: dict[str, Any] = httpx.get(f"{url}/api/v1/jobs/{job}", timeout=30).json()
        if found["ended_at"] is not None:
            assert found["status"] == "COMPLETED", found
            return found
        time.sleep(0.5)


# -- sharing --------------------------------------------------------------------------------------


def sharing(home: Path, pairs: int) -> dict[str, Any]:
    """One job a device against sharing by what was learned."""
    cores = len(os.sched_getaffinity(0))
    random = np.random.default_rng(0)
    kinds = [(duty, work) for duty in (0.1, 0.2, 0.3, 0.5, 0.8) for work in (0.8, 1.6)]
    jobs = [kinds[i % len(kinds)] for i in range(20)]
    random.shuffle(jobs)

    def manifest(duty: float, work: float, gpus: float) -> dict[str, Any]:
        command = [sys.executable, "-c", DUTY, str(duty), str(work)]
        resources = {"gpus": gpus}
        return {"name": "duty", "command": command, "resources": resources}

    first = home / "learn"
    with served(first, "--nodes", f"1x{cores}:core") as (url, data):
        for _ in range(2):  # each kind alone, twice
            for duty, work in kinds:
                ended(url, submit(url, **manifest(duty, work, 1)))
        _wait_for_learning(data, "utilization", 2 * len(kinds))
    with _learned(data) as learned:
        learned.challenge("utilization", learned.runs("utilization"), time.time())
    ratios, slowdowns, makespans, off = [], [], [], []
    for turn in range(pairs):
        spans: dict[str, float] = {}
        took: dict[str, list[float]] = {}
        ways = [("alone", "fifo", 1.0), ("sharing", "colocate", 0.5)]
        for name, policy, gpus in ways if turn % 2 else ways[::-1]:
            place = home / f"{name}-{turn}"
            (place / "data").mkdir(parents=True)
            _copy_models(data, place / "data")
            with served(place, "--nodes", f"1x{cores}:core", "--policy", policy) as (url, _):
                ids = [submit(url, **manifest(duty, work, gpus)) for duty, work in jobs]
                found = [ended(url, job) for job in ids]
                logs = [httpx.get(f"{url}/api/v1/jobs/{job}/logs").text for job in ids]
            start = min(one["submitted_at"] for one in found)
            spans[name] = max(one["ended_at"] for one in found) - start
            took[name] = [float(text.split()[-1]) for text in logs]
            if name == "sharing":
                foreseen = predicted_slowdowns(place / "data")
                predicted = [foreseen[job] for job in ids]
        ratios.append(spans["sharing"] / spans["alone"])
        makespans.append(spans)
        pairs_of = zip(took["sharing"], took["alone"], strict=True)
        measured = [shared / alone for shared, alone in pairs_of]
        slowdowns += measured
        off += [p - m for p, m in zip(predicted, measured, strict=True)]
    return {
        "cores": cores,
        "pairs": pairs,
        "makespan_alone_s": round(median(one["alone"] for one in makespans), 1),
        "makespan_sharing_s": round(median(one["sharing"] for one in makespans), 1),
        "makespan_ratio": [round(one, 3) for one in ratios],
        "slowdown_mean": round(mean(slowdowns), 3),
        "slowdown_p95": round(float(np.quantile(slowdowns, 0.95)), 3),
        "predicted_minus_measured": round(mean(off), 3),
        "predicted_off_by": round(mean(map(abs, off)), 3),
    }


def predicted_slowdowns(data: Path) -> dict[str, float]:
    """By job: what time sharing foresees from the estimates it was submitted with and those of the
    jobs that were beside it, averaged over its run."""
    [database] = data.glob("*.db")
    busy: dict[str, float] = {}
    device: dict[str, tuple[str, int]] = {}
    spans: dict[str, list[float]] = {}
    store = open_store(f"sqlite:///{database}")
    for now, event in store.read():
        if isinstance(event, ev.JobSubmitted):
            known = event.estimates.utilization if event.estimates else None
            busy[event.spec.id] = known.p50 if known else 1.0
        elif isinstance(event, ev.Launch):
            device[event.job] = (event.workers[0].node, event.workers[0].devices[0])
        elif isinstance(event, ev.JobStarted):
            spans[event.job] = [now, now]
        elif isinstance(event, ev.JobExited):
            spans[event.job][1] = now
    store.close()
    found = {}
    for job, (start, end) in spans.items():
        beside = 0.0
        for other, (begins, ends) in spans.items():
            if other != job and device[other] == device[job]:
                beside += busy[other] * max(0.0, min(end, ends) - max(start, begins))
        found[job] = 1 + busy[job] * beside / max(end - start, 1e-9)
    return found


def _wait_for_learning(data: Path, quantity: str, runs: int) -> None:
    until = time.monotonic() + 30
    with _learned(data) as champions:
        while len(champions.runs(quantity)) < runs:
            assert time.monotonic() < until, "the runs were not learned from"
            time.sleep(0.5)


@contextmanager
def _learned(data: Path) -> Iterator[Champions]:
    store = open_store(f"sqlite:///{Layout(data).database}")
    yield Champions(store.knowledge)
    store.close()


def _copy_models(data: Path, to: Path) -> None:
    """Let another server answer with what this one learned."""
    open_store(f"sqlite:///{Layout(to).database}").close()
    with sqlite3.connect(Layout(to).database) as database:
        database.execute("ATTACH ? AS old", (str(Layout(data).database),))
        query = "INSERT INTO knowledge SELECT * FROM old.knowledge WHERE name LIKE 'models/%'"
        database.execute(query)


# -- right-sizing ---------------------------------------------------------------------------------


def sizing(home: Path) -> dict[str, Any]:
    """What a training got and used, unlimited and right-sized."""
    ask = {"cpus": 1, "memory": "512Mi"}
    command = [sys.executable, "-c", PHASES]
    found: dict[str, Any] = {}
    with served(home / "sizing", "--rightsize") as (url, data):
        for turn in range(4):
            rightsize = turn >= 2
            body = {"name": "phases", "command": [*command, "2"], "resources": ask}
            job = ended(url, submit(url, **body, rightsize=True))["id"]
            if turn < 2:
                until = time.monotonic() + 60
                while turn and not _phases_known(data):
                    assert time.monotonic() < until, "no phases were learned"
                    time.sleep(0.5)
            found[f"run {turn + 1}"] = _served_well(data, job, 1000, 512) | {
                "phases known": rightsize
            }
    return found


def _phases_known(data: Path) -> bool:
    with sqlite3.connect(Layout(data).database) as database:
        query = "SELECT count(*) FROM knowledge WHERE name LIKE 'phases/%/model'"
        (found,) = database.execute(query).fetchone()
    return bool(found)


def _served_well(data: Path, job: str, cpu_milli: int, memory_mib: int) -> dict[str, Any]:
    """Allocation against static, and the samples that had enough."""
    lines = (data / "jobs" / job / "telemetry" / "1.jsonl").read_text().splitlines()
    samples = [json.loads(line) for line in lines]
    store = open_store(f"sqlite:///{Layout(data).database}")
    limits = chart_lines(store.knowledge, job, "limits")
    store.close()
    given = []
    for sample in samples:
        before = [limit for limit in limits if limit["at"] <= sample["at"]]
        now = before[-1] if before else {"cpu_milli": cpu_milli, "memory_mib": memory_mib}
        given.append((now["cpu_milli"], now["memory_mib"]))
    table = np.array(given, dtype=np.float64)
    cpu = np.array([1000 * sample["cpu_cores"] for sample in samples])
    memory = np.array([sample["rss_mib"] for sample in samples])
    return {
        "samples": len(samples),
        "cpu_saved_pct": round(100 * (1 - table[:, 0].mean() / cpu_milli), 1),
        "memory_saved_pct": round(100 * (1 - table[:, 1].mean() / memory_mib), 1),
        "cpu_fulfilled_pct": round(100 * float(np.mean(cpu <= table[:, 0] * 1.02)), 1),
        "memory_fulfilled_pct": round(100 * float(np.mean(memory <= table[:, 1])), 1),
        "resizes": len(limits) - 1,
    }


# -- learning -------------------------------------------------------------------------------------


def learning(home: Path) -> dict[str, Any]:
    """Errors of estimates before and after runs, for workloads seen and new."""
    random = np.random.default_rng(0)
    order = [WORKLOADS[i % len(WORKLOADS)] for i in range(RUNS)]
    random.shuffle(order)
    with served(home / "learning") as (url, data):
        for name, batch, steps in order:
            command = [sys.executable, "-c", TRAIN, name, str(batch), str(steps)]
            model = {"ref": f"zoo:{name}", "batch": batch}
            body = {"name": "train", "command": command, "resources": {"cpus": 1}}
            ended(url, submit(url, **body, model=model))
        _wait_for_learning(data, "memory", RUNS)
        with _learned(data) as champions:
            found: dict[str, Any] = {"runs": RUNS, "workloads": len(WORKLOADS)}
            for quantity, unit in (("memory", "MiB"), ("step_time", "ms")):
                runs = champions.runs(quantity)
                found[quantity] = {
                    "before": _percent(error_of(OwnRuns(unit), runs)),
                    **{f"after {n}": _seen_and_new(runs, n, unit) for n in (20, 45, 60)},
                    "versions": [
                        (one.number, one.accepted) for one in champions.standing(quantity).versions
                    ],
                }
                bad = OwnRuns.fit([OwnRun(r.signature, r.device, r.at, 1.0) for r in runs], unit)
                version = champions.challenge(quantity, runs, time.time(), bad)
                found[quantity]["bad challenger refused"] = (
                    version is not None and not version.accepted
                )
    return found


def _seen_and_new(runs: list[OwnRun], first: int, unit: str) -> dict[str, float | None]:
    """Fitted on the first runs: errors on the later runs of workloads among them (leave one out
    when there are none later), and on workloads left out altogether."""
    past = runs[:first]
    known = {run.signature for run in past}
    again = [error_of(OwnRuns.fit(past, unit), [r]) for r in runs[first:] if r.signature in known]
    if not again:
        for i, run in enumerate(past):
            others = past[:i] + past[i + 1 :]
            if any(other.signature == run.signature for other in others):
                again.append(error_of(OwnRuns.fit(others, unit), [run]))
    new = []
    for name in sorted(known):
        model = OwnRuns.fit([run for run in past if run.signature != name], unit)
        new.append(error_of(model, [run for run in runs if run.signature == name]))

    def average(errors: list[float | None]) -> float | None:
        told = [error for error in errors if error is not None]
        return _percent(mean(told)) if told else None

    return {"seen": average(again), "new": average(new)}


def _percent(error: float | None) -> float | None:
    """A mean distance in logarithms as the percentage that a typical prediction is off."""
    return None if error is None else round(100 * (float(np.exp(error)) - 1), 1)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="The closed loop, live.")
    ways: dict[str, Callable[[Path, Any], dict[str, Any]]] = {
        "sharing": lambda home, options: sharing(home, options.pairs),
        "sizing": lambda home, options: sizing(home),
        "learning": lambda home, options: learning(home),
    }
    parser.add_argument("part", nargs="*", help=", ".join(ways))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if unknown := set(options.part) - set(ways):
        parser.error(f"unknown part {', '.join(unknown)}")
    with tempfile.TemporaryDirectory(prefix="presage-") as home:
        found = {}
        for part in options.part or ways:
            found[part] = ways[part](Path(home), options)
            if not options.json:
                print(part)
                for name, value in found[part].items():
                    print(f"  {name:24} {value}", flush=True)
    if options.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
