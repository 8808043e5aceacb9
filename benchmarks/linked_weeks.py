"""Weeks of Philly and ITP on nodes with links: is it worth it to place jobs by what they talk?

    python -m benchmarks.linked_weeks [--policy sjf] [--weight 2] [--seeds 8] [--choose] [--json]

A job of several GPUs has a worker for each of them. Where one node has not room enough, it is
spread over several and loads their links for a share of its step, which is drawn for each job
from those of `benchmarks/data/bursts` (1 Gbit/s, all-reduce of two workers). Durations and shares
count as measured on links of 10 Gbit/s, durations on as few nodes as possible. The weeks have
clusters of 8-GPU nodes that are sized for a load of 0.85.

`pack` is compared with `pack` and `links` added, at the same policy, and with `pack` where all
jobs interleave (`link_phase: interleaved`), which is what a coordinator could reach at most.
`--choose` runs weeks that are not reported, for several weights: the weight was chosen there.
Average JCT in seconds, means over seeds with the standard error of the gain; a gain above 0 is
better.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev
from time import process_time
from typing import Any

import polars as pl

from benchmarks._data import shared
from presage.model.cluster import WHOLE_GPU, Device, Node
from presage.policy.config import PolicyConfig
from presage.policy.registry import NAMED, build
from presage.sim.links import LinkPhase, LinkRules
from presage.sim.result import SimResult
from presage.sim.run import simulate
from presage.sim.traces import Trace, complete
from presage.sim.world import WorldRules

MEASURED_GBIT = 10.0
GBITS = (25.0, 10.0, 2.5)
WEIGHTS = (0.25, 1.0, 4.0)
_WEEK_S = 7 * 86_400
_LONGEST_S = 86_400.0
_LOAD = 0.85
_NODE_GPUS = 8
REPORTED = (("philly", "", 7), ("philly", "", 9), ("itp", "cluster07", 2))
CHOSEN_ON = (("philly", "", 4), ("itp", "cluster04", 3))


@dataclass(frozen=True, slots=True)
class LinkedWeek:
    """Jobs on a cluster of nodes with links."""

    name: str
    nodes: Sequence[Node]
    trace: Trace

    def run(self, config: PolicyConfig, links: LinkRules | None, seed: int) -> SimResult:
        """The week under a policy; the seed draws what jobs talk."""
        rules = WorldRules(links=links)
        return simulate(self.trace, self.nodes, build(config), name="it", rules=rules, seed=seed)


def read_week(source: str, cluster: str, week: int) -> LinkedWeek:
    """A week of Philly, or of a cluster of ITP."""
    table = pl.read_parquet(shared(f"traces/{source}_jobs.parquet"))
    if source == "philly":
        at = (pl.col("submit_time") - pl.col("submit_time").min()).dt.total_seconds()
        jobs = table.select(submit_s=at, duration_s="duration_s", gpus="num_gpus")
    else:
        table = table.filter(pl.col("cluster") == cluster)
        jobs = table.select(submit_s="submission_time", duration_s="duration", gpus="num_gpu")
    start = week * _WEEK_S
    jobs = jobs.filter(pl.col("submit_s").is_between(start, start + _WEEK_S, closed="left"))
    jobs = jobs.sort("submit_s", maintain_order=True).with_columns(
        job_id=pl.int_range(pl.len()).cast(pl.String),
        submit_s=(pl.col("submit_s") - start).cast(pl.Float64),
        duration_s=pl.col("duration_s").cast(pl.Float64).clip(1.0, _LONGEST_S).round(),
        workers="gpus",
        gpu_milli=WHOLE_GPU,
    )
    work = float((jobs["duration_s"] * jobs["gpus"]).sum())
    most = int(jobs["gpus"].to_numpy().max())
    count = max(round(work / _WEEK_S / _LOAD / _NODE_GPUS), -(-most // _NODE_GPUS))
    nodes = [Node(f"n{at}", (Device(),) * _NODE_GPUS) for at in range(count)]
    title = f"{source} {cluster}".strip() + f", week {week}, {jobs.height} jobs on {count}x8"
    return LinkedWeek(title, nodes, Trace("week", "native", complete(jobs)))


def placed(policy: str, weight: float | None) -> PolicyConfig:
    """A named policy that packs, with links added by a weight."""
    placement: Any = "pack" if weight is None else {"pack": 1.0, "links": weight}
    return NAMED[policy].model_copy(update={"placement": placement})


def jct_s(result: SimResult, only: set[str] | None = None) -> float:
    """The average, of some of the jobs."""
    jobs = result.jobs if only is None else result.jobs.filter(pl.col("job_id").is_in(only))
    return float(jobs["jct_s"].to_numpy().mean())


def spread_jobs(result: SimResult) -> tuple[set[str], set[str]]:
    """Jobs that ran on several nodes, and those that met another of them on a link. Of policies
    that stop nobody: a job has one run."""
    by_node: dict[str, list[tuple[float, float, str]]] = {}
    several = set()
    for job, start, end, nodes in result.jobs.select("job_id", "start_s", "end_s", "nodes").rows():
        if len(nodes) > 1:
            several.add(job)
            for node in nodes:
                by_node.setdefault(node, []).append((start, end, job))
    met: set[str] = set()
    for runs in by_node.values():
        there: list[tuple[float, str]] = []
        for start, end, job in sorted(runs):
            there = [(until, other) for until, other in there if until > start]
            if there:
                met |= {job, *(other for _, other in there)}
            there.append((end, job))
    return several, met


def compared(
    week: LinkedWeek, policy: str, weights: Sequence[float], gbit: float, seeds: int
) -> list[dict[str, Any]]:
    """One week at one speed; a row for each weight."""
    rules = LinkRules(gbit, MEASURED_GBIT)
    calm = replace(rules, phase=LinkPhase.INTERLEAVED)
    rows: dict[float, list[dict[str, float]]] = {weight: [] for weight in weights}
    for seed in range(seeds):
        packed = week.run(placed(policy, None), rules, seed)
        interleaved = week.run(placed(policy, None), calm, seed)
        several, met = spread_jobs(packed)
        share = 100 / packed.jobs.height
        gangs = set(week.trace.jobs.filter(pl.col("workers") > 1)["job_id"])
        for weight in weights:
            apart = week.run(placed(policy, weight), rules, seed)
            several_apart, met_apart = spread_jobs(apart)
            rows[weight].append(
                {
                    "pack_s": jct_s(packed),
                    "links_s": jct_s(apart),
                    "interleaved_s": jct_s(interleaved),
                    "gain_pct": 100 * (1 - jct_s(apart) / jct_s(packed)),
                    "ran_gain_pct": 100 * (1 - ran_s(apart, gangs) / ran_s(packed, gangs)),
                    "several_pct": share * len(several),
                    "met_pct": share * len(met),
                    "several_links_pct": share * len(several_apart),
                    "met_links_pct": share * len(met_apart),
                }
            )
    return [_means(week, gbit, weight, rows[weight]) for weight in weights]


def ran_s(result: SimResult, only: set[str]) -> float:
    """Seconds that some of the jobs ran, from start to end, on average."""
    jobs = result.jobs.filter(pl.col("job_id").is_in(only))
    return float((jobs["end_s"] - jobs["start_s"]).to_numpy().mean())


def _means(
    week: LinkedWeek, gbit: float, weight: float, rows: list[dict[str, float]]
) -> dict[str, Any]:
    gains = [row["gain_pct"] for row in rows]
    error = stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else None
    means = {name: mean(row[name] for row in rows) for name in rows[0]}
    return {"week": week.name, "gbit": gbit, "weight": weight, **means, "gain_error": error}


def main() -> None:
    """A line for each week and speed."""
    parser = argparse.ArgumentParser(description="Weeks on nodes with links.")
    parser.add_argument("--policy", default="sjf", choices=list(NAMED))
    parser.add_argument("--weight", type=float, default=2.0)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows, start = [], process_time()
    weights = WEIGHTS if options.choose else (options.weight,)
    for name in CHOSEN_ON if options.choose else REPORTED:
        week = read_week(*name)
        if not options.json:
            free = jct_s(week.run(placed(options.policy, None), None, 0))
            print(f"{week.name}; JCT without links {free:,.0f} s", flush=True)
        for gbit in GBITS:
            for row in compared(week, options.policy, weights, gbit, options.seeds):
                rows.append(row)
                if not options.json:
                    print(_line(row), flush=True)
    if options.json:
        print(json.dumps({"linked_weeks": rows}))
    else:
        print(f"{process_time() - start:.0f} s of CPU")


def _line(row: dict[str, Any]) -> str:
    error = "" if row["gain_error"] is None else f" ± {row['gain_error']:.2f}"
    cells = (
        f"{row['gbit']:g} Gbit/s, weight {row['weight']:g}: pack {row['pack_s']:,.0f}",
        f"links {row['links_s']:,.0f} ({row['gain_pct']:+.2f}{error} %)",
        f"interleaved {row['interleaved_s']:,.0f}",
        f"jobs of several GPUs ran {row['ran_gain_pct']:+.1f} % shorter",
        f"on several nodes {row['several_pct']:.1f} % → {row['several_links_pct']:.1f} %",
        f"met {row['met_pct']:.1f} % → {row['met_links_pct']:.1f} %",
    )
    return "  " + ", ".join(cells)


if __name__ == "__main__":
    main()
