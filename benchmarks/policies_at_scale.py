"""What each policy costs at scale, and whether another checkout decides the same.

`python -m benchmarks.policies_at_scale [--src DIR] [--only TITLE] [--quick] [--json]`. CPU seconds
are the simulation's own (`cpu_s`); each run has a process of its own. With `--src` every run is
done with that checkout's `src` as well, right after, and the hashes of both journals are compared:
time, facts and decisions of every step.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks._data import shared
from presage.model.event import JobSubmitted
from presage.policy import registry
from presage.sim.clusters import read_cluster
from presage.sim.generate import make_trace
from presage.sim.run import simulate
from presage.sim.traces import Trace, read_trace

PHILLY = "traces/philly_jobs.parquet"
CLUSTER = "40x8"
GPUS = 320
WEEK_FROM_S, WEEK_JOBS = 26 * 86_400, 10_650
"""The jobs of seven days, nearly: those submitted from the 27th day on."""
LOADS = (0.8, 1.2, 2.0, 10.0)
POLICIES = ("fifo", "sjf", "backfill", "tiresias", "srtf")

Case = tuple[str, str, int, float]
"""Policy, input (`philly`, `week` or `made`), jobs at most, and the load of a made trace."""


class Journal:
    """Keeps what happened, to be hashed when the clock has stopped."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, Sequence[Any], Sequence[Any]]] = []

    def append(
        self, now: float, facts: Sequence[Any], decisions: Sequence[Any], *, lease: int = 0
    ) -> None:
        """Add a step."""
        self.steps.append((now, facts, decisions))

    def read(self, since: int = 0) -> Iterator[Any]:
        """Nothing: nobody folds it."""
        return iter(())

    def hash(self) -> str:
        """Of everything. Of a submission its id: specs gain fields from version to version."""
        found = hashlib.sha256()
        for now, facts, decisions in self.steps:
            told = [f.spec.id if isinstance(f, JobSubmitted) else f for f in facts]
            found.update(repr((now, told, list(decisions))).encode())
        return found.hexdigest()[:16]


def jobs_of(source: str, most: int, load: float) -> Trace:
    """The trace of a case."""
    if source == "made":
        return make_trace("poisson", most, 0, gpus=GPUS, load=load)
    trace = read_trace(shared(PHILLY))
    jobs = trace.jobs
    if source == "week":
        jobs = jobs.filter(jobs["submit_s"] >= WEEK_FROM_S)
    return replace(trace, jobs=jobs.head(most))


def one(case: Case) -> dict[str, Any]:
    """One run, here."""
    policy, source, most, load = case
    trace, journal = jobs_of(source, most, load), Journal()
    nodes = read_cluster(CLUSTER)
    result = simulate(trace, nodes, registry.build(policy), name=policy, store=journal)
    return {
        "policy": policy,
        "input": source,
        "jobs": trace.jobs.height,
        "longest_queue": result.series["queued"].max(),
        "steps": len(journal.steps),
        "decisions": sum(len(decisions) for _, _, decisions in journal.steps),
        "cpu_s": result.cpu_s,
        "us_per_job": 1e6 * result.cpu_s / trace.jobs.height,
        "journal": journal.hash(),
    }


def run(case: Case, src: Path | None) -> dict[str, Any]:
    """One run in a process of its own, with the code of a checkout."""
    root = Path(__file__).resolve().parents[1]
    env = {**os.environ, "PYTHONPATH": str(src or root / "src")}
    command = [sys.executable, "-m", "benchmarks.policies_at_scale", "--one", json.dumps(case)]
    done = subprocess.run(command, cwd=root, env=env, stdout=subprocess.PIPE, check=True)
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def compare(case: Case, other: Path | None) -> dict[str, Any]:
    """A run, and the same with the other checkout."""
    row = run(case, None)
    if other is not None:
        theirs = run(case, other)
        row["other_cpu_s"] = theirs["cpu_s"]
        row["identical"] = theirs["journal"] == row["journal"]
    return row


def cases(quick: bool) -> dict[str, list[Case]]:
    """What is run."""
    most, made, week = (5_000, 2_000, 500) if quick else (1_000_000, 20_000, WEEK_JOBS)
    return {
        "Philly": [(policy, "philly", most, 0.0) for policy in POLICIES],
        "a week": [("colocate", "week", week, 0.0)],
        "by queue": [
            (policy, "made", made, load)
            for policy in (*POLICIES, "qssf")
            for load in (LOADS[1:3] if quick else LOADS)
        ],
    }


def table(title: str, rows: Iterable[dict[str, Any]]) -> None:
    """Print rows as they come."""
    print(
        f"\n{title:<10} {'jobs':>8} {'queue':>7} {'steps':>8} {'CPU s':>8} {'us/job':>8} "
        f"{'other':>8} {'journals':>9}"
    )
    for row in rows:
        line = (
            f"{row['policy']:<10} {row['jobs']:>8,} {row['longest_queue']:>7,} {row['steps']:>8,} "
            f"{row['cpu_s']:>8.2f} {row['us_per_job']:>8.1f}"
        )
        if "identical" in row:
            same = "identical" if row["identical"] else "DIFFERENT"
            line += f" {row['other_cpu_s']:>8.2f} {same:>9}"
        print(line, flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--src", type=Path, help="the src of another checkout, to run as well")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a few thousand jobs at most")
    parser.add_argument("--only", choices=list(cases(True)), help="one table")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(tuple(json.loads(options.one)))))
        return
    wanted = cases(options.quick)
    tables = {
        title: (compare(case, options.src) for case in some)
        for title, some in wanted.items()
        if options.only in (None, title)
    }
    if options.json:
        print(json.dumps({"policies_at_scale": {title: list(t) for title, t in tables.items()}}))
        return
    for title, rows in tables.items():
        table(title, rows)


if __name__ == "__main__":
    main()
