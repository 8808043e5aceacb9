"""The openb experiment: how many GPUs six placements allocate, against the published figures.

The pods of a workload arrive one by one in random order, followed by clones of pods drawn from it
until 1.3 times the GPUs of the cluster are asked for; none leaves, and one that does not fit is
dropped. The figure is the share of all GPUs that is allocated when the GPUs asked for so far equal
the cluster's (mean over the arrivals that round to 100 %), as published for 10 seeds.

Nodes join in random order as well: the study numbers them at random in each run, and that order
breaks its ties. Drives the real core; needs the shared data (`$PRESAGE_DATA` or ../shared/data).

    python -m benchmarks.openb                          default workload, 10 seeds
    python -m benchmarks.openb --variant all --seeds 2 --json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean

import numpy as np
import polars as pl

from benchmarks._data import data_dir
from presage.core.plan import Plan
from presage.core.state import State
from presage.core.workers import missing
from presage.model.cluster import Device, Node, Resources
from presage.model.event import CancelRequested, JobSubmitted, NodeUp
from presage.model.job import JobSpec, Role
from presage.policy.fragmentation import Typical, fragmentation
from presage.policy.openb import BestFit, DotProduct, Fgd, GpuClustering, GpuPacking, Random
from presage.policy.placer import Placer
from presage.policy.request import Score

LOAD = 1.3
"""GPUs asked for at the end, relative to those there are."""

POPULAR = 0.95
"""Share of the pods that the typical shapes of the study cover."""

POLICIES: dict[str, tuple[str, Callable[[list[Typical]], Score]]] = {
    "fgd": ("06-FGD", Fgd),
    "best_fit": ("05-BestFit", lambda _: BestFit()),
    "gpu_packing": ("04-GpuPacking", lambda _: GpuPacking()),
    "gpu_clustering": ("03-GpuClustering", lambda _: GpuClustering()),
    "dot_product": ("02-DotProd", lambda _: DotProduct()),
    "random": ("01-Random", lambda _: Random()),
}
"""Our name → the published name and what makes the score, given the typical shapes."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run."""

    workload: str
    policy: str
    seed: int
    allocated_pct: float
    """GPUs allocated, in percent of all, at 100 % arrival."""
    fragmentation_pct: float
    """Idle GPUs that typical pods cannot use, in percent of the idle ones, at the same moment."""
    arrived: int
    dropped: int
    cpu_s: float


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was asked for and print it."""
    options = _options(argv)
    data = data_dir()
    workloads = published_workloads(data) if options.variant == "all" else [options.variant]
    tasks = [
        (workload, policy, seed)
        for workload in workloads
        for policy in options.policies
        for seed in range(options.seeds)
    ]
    outcomes = []
    fresh = get_context("spawn")  # Polars has threads by now: a forked child would hang
    with ProcessPoolExecutor(options.processes, fresh) as pool:
        for outcome in pool.map(_run_task, tasks):
            outcomes.append(outcome)
            print(
                f"{len(outcomes)}/{len(tasks)} {outcome.workload} {outcome.policy}"
                f" seed {outcome.seed}: {outcome.allocated_pct:.2f} %, {outcome.cpu_s:.1f} s CPU",
                file=sys.stderr,
            )
    rows = summary(outcomes, data)
    if options.json:
        print(json.dumps({"summary": rows, "runs": [asdict(outcome) for outcome in outcomes]}))
    else:
        _print_table(rows)
    return 0


def experiment(data: Path, workload: str, policy: str, seed: int) -> Outcome:
    """One run of the experiment."""
    pods = read_pods(data, workload)
    nodes = read_nodes(data)
    order = np.random.default_rng(seed)
    typical = typical_pods(pods)
    placer = Placer({POLICIES[policy][1](typical): 1.0})
    capacity_milli = 1000 * sum(len(node.devices) for node in nodes)
    arrivals = draw_arrivals(pods, int(LOAD * capacity_milli), order)
    began = time.process_time()
    state = State(seed)
    for n in order.permutation(len(nodes)):
        state.apply(0.0, NodeUp(nodes[n]))
    arrived_milli, dropped, wasted = 0, 0, None
    allocated: list[float] = []
    for n, role in enumerate(arrivals):
        dropped += not arrive(state, placer, n, role)
        arrived_milli += role.resources.gpu_milli
        if round(100 * arrived_milli / capacity_milli) == 100:
            free = state.capacity.free_milli
            allocated.append(100 * (1 - free / capacity_milli))
            if wasted is None and arrived_milli >= capacity_milli:
                wasted = 100 * fragmentation(state.capacity, typical) / free
    cpu_s = time.process_time() - began
    state.check()
    return Outcome(
        workload, policy, seed, fmean(allocated), wasted or 0.0, len(arrivals), dropped, cpu_s
    )


def arrive(state: State, placer: Placer, n: int, role: Role) -> bool:
    """Let one pod arrive and place it, or drop it; says whether it was placed."""
    name = f"pod-{n}"
    state.apply_all(float(n), (JobSubmitted(JobSpec(name, (role,))),))
    job, plan = state.jobs[name], Plan(state)
    workers = placer.find(job, plan, missing(job))
    if workers is None:
        state.apply(float(n), CancelRequested(name))
    else:
        plan.place(job, workers)
    return workers is not None


def typical_pods(pods: list[Role]) -> list[Typical]:
    """The most frequent shapes that together make up 95 % of the pods, as in the study."""
    shapes = Counter(
        (role.resources.cpu_milli, role.resources.gpu_milli, role.gpu_types) for role in pods
    )
    found: list[Typical] = []
    covered = 0
    for (cpu, milli, types), count in sorted(shapes.items(), key=lambda s: (-s[1], s[0])):
        if covered >= POPULAR * len(pods):
            break
        found.append((Resources(cpu, 0, milli), types, count))
        covered += count
    return found


def draw_arrivals(pods: list[Role], most_milli: int, order: np.random.Generator) -> list[Role]:
    """All pods in random order, then clones of random ones until the load is reached."""
    arrivals = [pods[n] for n in order.permutation(len(pods))]
    asked = sum(role.resources.gpu_milli for role in pods)
    while asked < most_milli:
        arrivals.append(pods[order.integers(len(pods))])
        asked += arrivals[-1].resources.gpu_milli
    return arrivals


def read_nodes(data: Path) -> list[Node]:
    """The nodes with GPUs."""
    table = pl.read_parquet(data / "traces" / "openb_nodes_gpu.parquet")
    return [
        Node(row["sn"], (Device(row["model"]),) * row["gpu"], row["cpu_milli"], row["memory_mib"])
        for row in table.iter_rows(named=True)
    ]


def read_pods(data: Path, workload: str) -> list[Role]:
    """The pods of a workload, each as the one role of a job."""
    if workload == "default":
        table = pl.read_parquet(data / "traces" / "openb_pods_default.parquet")
    else:
        table = pl.read_parquet(data / "traces" / "openb_pods_variants.parquet")
        table = table.filter(pl.col("variant") == workload)
    if table.is_empty():
        raise SystemExit(f"no pods of a workload named '{workload}'")
    return [
        Role(
            resources=Resources(
                row["cpu_milli"], row["memory_mib"], row["num_gpu"] * row["gpu_milli"]
            ),
            gpu_types=tuple(sorted(set((row["gpu_spec"] or "").split("|")) - {""})),
        )
        for row in table.iter_rows(named=True)
    ]


def published_workloads(data: Path) -> list[str]:
    """The workloads that have published figures, the default one first."""
    names = pl.read_parquet(data / "peers" / "openb_expected_allocated.parquet")["workload"]
    found = sorted({name.removeprefix("openb_pod_list_") for name in names})
    return sorted(found, key=lambda name: name != "default")


def published(data: Path, file: str, column: str) -> dict[tuple[str, str], float]:
    """The mean over seeds at 100 % arrival, by workload and published policy name."""
    table = pl.read_parquet(data / "peers" / file).filter(pl.col("arrived_pct") == 100)
    means = table.group_by("workload", "sc_policy").agg(pl.col(column).mean())
    return {
        (workload.removeprefix("openb_pod_list_"), policy): value
        for workload, policy, value in means.iter_rows()
    }


def summary(outcomes: list[Outcome], data: Path) -> list[dict[str, object]]:
    """One row for each workload and policy: ours, theirs, the difference."""
    theirs = published(data, "openb_expected_allocated.parquet", "gpu_allocated_pct")
    wasted = published(data, "openb_expected_fragmentation.parquet", "gpu_fragmentation_pct")
    rows: list[dict[str, object]] = []
    grouped: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        grouped.setdefault((outcome.workload, outcome.policy), []).append(outcome)
    for (workload, policy), runs in grouped.items():
        ours = fmean(run.allocated_pct for run in runs)
        key = (workload, POLICIES[policy][0])
        expected = theirs.get(key)
        rows.append(
            {
                "workload": workload,
                "policy": policy,
                "seeds": len(runs),
                "allocated_pct": round(ours, 2),
                "published_pct": _rounded(expected),
                "difference": _rounded(None if expected is None else ours - expected),
                "fragmentation_pct": round(fmean(run.fragmentation_pct for run in runs), 2),
                "published_fragmentation_pct": _rounded(wasted.get(key)),
                "cpu_s": round(fmean(run.cpu_s for run in runs), 2),
                "max_cpu_s": round(max(run.cpu_s for run in runs), 2),
            }
        )
    return rows


def _run_task(task: tuple[str, str, int]) -> Outcome:
    return experiment(data_dir(), *task)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _print_table(rows: list[dict[str, object]]) -> None:
    names = {
        "workload": "workload",
        "policy": "policy",
        "seeds": "seeds",
        "allocated_pct": "allocated %",
        "published_pct": "published %",
        "difference": "difference",
        "fragmentation_pct": "fragmented %",
        "published_fragmentation_pct": "published %",
        "cpu_s": "CPU s",
    }
    table = [list(names.values()), *([str(row[name]) for name in names] for row in rows)]
    widths = [max(len(row[n]) for row in table) for n in range(len(names))]
    for row in table:
        left = [cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)]
        right = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
        print("  ".join(left + right))


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--variant", default="default", help="workload, or 'all' published ones")
    parser.add_argument(
        "--policies", type=_policies, default=list(POLICIES), help="names, with commas between"
    )
    parser.add_argument("--seeds", type=int, default=10, help="how many (default 10)")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="runs at a time")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser.parse_args(argv)


def _policies(text: str) -> list[str]:
    chosen = text.split(",")
    if unknown := [name for name in chosen if name not in POLICIES]:
        raise argparse.ArgumentTypeError(f"no {unknown[0]}; there are: {', '.join(POLICIES)}")
    return chosen


if __name__ == "__main__":
    sys.exit(main())
