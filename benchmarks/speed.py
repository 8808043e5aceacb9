"""How fast the simulator is: runs that have a target, scaling curves, and where the time goes.

`python -m benchmarks.speed [--quick] [--json]`. CPU seconds are the simulation's own (`cpu_s`).
Memory is the peak of the process; each run has one of its own.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import resource
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks._data import shared
from presage.policy import registry
from presage.sim.clusters import read_cluster
from presage.sim.generate import make_trace
from presage.sim.run import simulate
from presage.sim.traces import Trace, read_trace

PHILLY = "traces/philly_jobs.parquet"
WEEK = "peers/lucid_sim_philly_week_240gpu.parquet"


def one(kind: str, jobs: int, cluster: str, load: float, policy: str = "fifo") -> dict[str, Any]:
    """A synthetic run."""
    nodes = read_cluster(cluster)
    gpus = sum(len(node.devices) for node in nodes)
    return _run(make_trace(kind, jobs, 0, gpus=gpus, load=load), cluster, policy)


def file(name: str, cluster: str, policy: str = "fifo") -> dict[str, Any]:
    """A run of a shared trace; the best of five for a short one."""
    trace = read_trace(shared(name))
    runs = [_run(trace, cluster, policy) for _ in range(5 if trace.jobs.height < 10_000 else 1)]
    return min(runs, key=lambda row: float(row["cpu_s"]))


def _run(trace: Trace, cluster: str, policy: str) -> dict[str, Any]:
    result = simulate(trace, read_cluster(cluster), registry.build(policy), name=policy)
    queued = result.series["queued"].max()
    return {
        "jobs": trace.jobs.height,
        "cluster": cluster,
        "policy": policy,
        "longest_queue": queued,
        "cpu_s": result.cpu_s,
        "us_per_job": 1e6 * result.cpu_s / trace.jobs.height,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def where(jobs: int = 50_000) -> dict[str, float]:
    """Share of the time by part of the system, from a profile of one run."""
    nodes = read_cluster("125x8")
    trace = make_trace("poisson", jobs, 0, gpus=1000, load=0.95)
    profile = cProfile.Profile()
    profile.runcall(simulate, trace, nodes, registry.build("fifo"), name="fifo")
    parts: dict[str, float] = defaultdict(float)
    stats: Any = pstats.Stats(profile)
    for (path, _, _), (_, _, own, _, _) in stats.stats.items():
        home = Path(path)
        package = home.parent.name if "presage" in home.parts else "python and libraries"
        parts[f"{package}/{home.name}" if "presage" in home.parts else package] += own
    total = sum(parts.values())
    return {name: 100 * own / total for name, own in sorted(parts.items(), key=lambda p: -p[1])}


def _alone(function: Callable[..., dict[str, Any]], *args: Any) -> dict[str, Any]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--quick", action="store_true", help="leave out the runs above 100,000 jobs"
    )
    options = parser.parse_args()
    most = 100_000 if options.quick else 1_000_000
    tables: dict[str, list[dict[str, Any]]] = {
        "targets": [_alone(file, WEEK, "30x8"), _alone(file, PHILLY, "40x8")],
        "by jobs": [
            _alone(one, "poisson", jobs, "1250x8", 0.95)
            for jobs in (10_000, 30_000, 100_000, 300_000, 1_000_000)
            if jobs <= most
        ],
        "by nodes": [
            _alone(one, "poisson", 50_000, f"{nodes}x8", 0.9) for nodes in (10, 100, 1_000, 10_000)
        ],
        "by queue": [
            _alone(one, "poisson", 50_000, "40x8", load, policy)
            for policy in ("fifo", "sjf")
            for load in (0.8, 1.2, 2.0, 10.0)
        ],
    }
    if options.json:
        print(json.dumps({"speed": tables, "where": where()}))
        return
    for title, rows in tables.items():
        print(
            f"\n{title:<10} {'cluster':>8} {'policy':>7} {'queue':>8} {'CPU s':>8} "
            f"{'us/job':>7} {'GiB':>5}"
        )
        for row in rows:
            print(
                f"{row['jobs']:>10,} {row['cluster']:>8} {row['policy']:>7} "
                f"{row['longest_queue']:>8,} "
                f"{row['cpu_s']:>8.2f} {row['us_per_job']:>7.1f} {row['peak_gib']:>5.2f}"
            )
    print("\nwhere the time goes (profiled)")
    for name, share in list(where().items())[:14]:
        print(f"{share:>6.1f}% {name}")


if __name__ == "__main__":
    main()
