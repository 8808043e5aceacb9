"""Sharing, live, on the stand-in device (tests/standin): one job a device, sharing by prediction,
and the same with shares that are enforced.

    python -m benchmarks.shares_live [--turns 1] [--priority]

A real server with real processes each time. 20 jobs on two devices, of five duty cycles: half of
them launch 40 ms of kernels and wait for them, half launch 400 ms ahead, and so make everybody
wait who is beside them. Each asks for what it needs in order to take at most 1.5 times as long,
the bound of the policy. How busy a job keeps a device is told by the device's own counters, from a
run of its own before. Slowdowns are of the time from a job's first call of the driver to its last,
against the same job with a device to itself.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np

from benchmarks.live_loop import ended, served, submit
from presage.foresee.champions import Champions
from presage.foresee.own import OwnRun
from presage.layout import Layout
from presage.manifest import parse_manifest
from presage.manifest.spec import to_spec
from presage.model.parts import TURN_COST
from presage.model.workload import same_needs
from presage.policy.sharing import SharingRules
from presage.store import open_store
from tests.standin import Machine, StandIn, answer, build, start

DEVICES = 2
BOUND = SharingRules().max_slowdown
PROMISED = BOUND / (1 - TURN_COST)
_KERNEL_MS = 2
_DUTIES = (0.1, 0.2, 0.3, 0.5, 0.8)
_WORKS_S = (0.8, 1.6)
_JOBS = 20
_OWN_RUNS = 3
_NAMES = ("STANDIN_GPU", "STANDIN_LIBRARY", "LD_LIBRARY_PATH")


def _command(built: StandIn, duty: float, work_s: float, burst_ms: int) -> list[str]:
    """Bursts of kernels and pauses between them, until the work is done."""
    pause_us = round(1000 * burst_ms * (1 - duty) / duty)
    every, count = burst_ms // _KERNEL_MS, round(1000 * work_s / _KERNEL_MS)
    words = (_KERNEL_MS * 1000, 600, "--count", count, "--every", every, "--think", pause_us)
    return [str(built.tenant), *map(str, words)]


def _jobs(built: StandIn) -> list[list[str]]:
    """Their commands; the same order each time."""
    kinds = [
        _command(built, duty, work, 40 if (i + j) % 2 else 400)
        for i, duty in enumerate(_DUTIES)
        for j, work in enumerate(_WORKS_S)
    ]
    jobs = [kinds[i % len(kinds)] for i in range(_JOBS)]
    np.random.default_rng(0).shuffle(jobs)
    return jobs


def _duties(built: StandIn, home: Path, kinds: set[tuple[str, ...]]) -> dict[str, float]:
    """How busy each kind keeps a device that it has for itself."""
    running = {}
    for number, kind in enumerate(sorted(kinds)):
        machine = Machine(home / f"alone-{number}")
        running[kind] = machine, start(kind, machine.environment(built))
    found = {}
    for kind, (machine, process) in running.items():
        said = answer(process, 120.0)
        busy, _ = machine.times()
        found[" ".join(kind)] = busy / said["wall_ns"]
    return found


def _teach(data: Path, jobs: list[list[str]], duties: Mapping[str, float]) -> None:
    """Let a server know of each kind of job how busy it keeps a device."""
    data.mkdir(parents=True)
    store = open_store(f"sqlite:///{Layout(data).database}")
    champions, now = Champions(store.knowledge), time.time()
    for _ in range(_OWN_RUNS):
        for command in jobs:
            body = json.dumps({"name": "duty", "command": command, "resources": {"gpus": 1}})
            spec = to_spec(parse_manifest(body, "application/json"), "duty", "")
            now += 1e-3
            run = OwnRun(same_needs(spec), "core", now, duties[" ".join(command)])
            champions.add("utilization", run)
    version = champions.challenge("utilization", champions.runs("utilization"), now)
    assert version is not None
    assert version.accepted
    store.close()


def _play(
    home: Path, built: StandIn, jobs: list[list[str]], duties: Mapping[str, float], way: str
) -> tuple[float, list[float]]:
    """How long all of them took, and each."""
    place = home / way
    _teach(place / "data", jobs, duties)
    environment = Machine(place / "machine", DEVICES).environment(built)
    env = {name: environment[name] for name in _NAMES}
    policy = "fifo" if way == "alone" else "colocate"
    ids = []
    with served(place, "--nodes", f"1x{DEVICES}:core", "--policy", policy) as (url, _):
        for command in jobs:
            request = round(max(0.01, min(0.99, duties[" ".join(command)] / BOUND)), 3)
            asks: dict[str, dict[str, Any]] = {
                "alone": {"gpus": 1},
                "sharing": {"gpus": request},
                "enforced": {"gpu": {"request": request}},
            }
            ids.append(submit(url, name="duty", command=command, resources=asks[way], env=env))
        found = [ended(url, job) for job in ids]
        logs = [httpx.get(f"{url}/api/v1/jobs/{job}/logs").text for job in ids]
    span = max(one["ended_at"] for one in found) - min(one["submitted_at"] for one in found)
    return span, [json.loads(text.splitlines()[-1])["wall_ns"] / 1e9 for text in logs]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Enforced shares, live.")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument(
        "--priority", action="store_true", help="everything before other work on the machine"
    )
    options = parser.parse_args()
    if options.priority:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    spans: dict[str, list[float]] = {"alone": [], "sharing": [], "enforced": []}
    slow: dict[str, list[float]] = {"sharing": [], "enforced": []}
    with tempfile.TemporaryDirectory(prefix="shares-") as name:
        home = Path(name)
        (home / "gpu").mkdir()
        built = build(home / "gpu")
        jobs = _jobs(built)
        duties = _duties(built, home, {tuple(job) for job in jobs})
        for turn in range(options.turns):
            took = {}
            for way in spans:
                span, took[way] = _play(home / str(turn), built, jobs, duties, way)
                spans[way].append(span)
            for way, times in slow.items():
                times += [a / b for a, b in zip(took[way], took["alone"], strict=True)]
    print(
        json.dumps(
            {
                "makespan_s": {way: round(median(each), 1) for way, each in spans.items()},
                "makespan_ratio": {
                    way: round(median(spans[way]) / median(spans["alone"]), 3) for way in slow
                },
                "promised": round(PROMISED, 3),
                "slowdown": {
                    way: {
                        "median": round(median(times), 3),
                        "p95": round(float(np.quantile(times, 0.95)), 3),
                        "worst": round(max(times), 3),
                        "beyond_promise": sum(one > PROMISED for one in times),
                        "jobs": len(times),
                    }
                    for way, times in slow.items()
                },
                "duties": sorted(round(one, 3) for one in duties.values()),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
