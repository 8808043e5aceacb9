"""The DLaaS experiment: PACK against SPREAD, gang against none, at three loads.

100 machines × 4 GPUs × 32 cores × 128 GB and 4,000 jobs of 1–8 learners with 1–4 GPUs each. Run it
with `python -m benchmarks.dlaas [--jobs 4000] [--seeds 3] [--json]`. Figures are means over the
seeds.
"""

from __future__ import annotations

import argparse
import json
from statistics import mean

import numpy as np
import polars as pl

from presage.policy import registry
from presage.policy.config import PolicyConfig
from presage.sim.clusters import read_cluster
from presage.sim.generate import make_trace
from presage.sim.result import SimResult
from presage.sim.run import simulate

CLUSTER = "100x4:32c:128g"
LOADS = (0.7, 0.9, 1.1)
VARIANTS = {
    "pack, gang": PolicyConfig(placement="pack", mode="greedy"),
    "spread, gang": PolicyConfig(placement="spread", mode="greedy"),
    "pack, no gang": PolicyConfig(placement="pack", mode="greedy", gang=False),
    "spread, no gang": PolicyConfig(placement="spread", mode="greedy", gang=False),
}


def measure(result: SimResult, last_arrival_s: float) -> dict[str, float]:
    """What the experiment asks of one run."""
    jobs, series = result.jobs, result.series
    t = series["t_s"].to_numpy()
    until = np.clip(np.append(t[1:], t[-1]), None, last_arrival_s)
    spans = np.maximum(0.0, until - np.minimum(t, last_arrival_s))
    waited = jobs.filter(pl.col("wait_s") > 0).height
    return {
        "makespan_h": result.makespan_s / 3600,
        "jobs_that_waited": waited,
        "mean_queue": float((series["queued"].to_numpy() * spans).sum() / spans.sum()),
        "mean_wait_h": result.summary()["avg_wait_s"] / 3600,  # type: ignore[operator]
        "held_gpu_h": result.held_gpu_seconds / 3600,
        "held_share_pct": 100 * result.held_gpu_seconds / result.gpu_seconds,
        "unfinished": jobs.filter(pl.col("status") == "unfinished").height,
        "cpu_s": result.cpu_s,
    }


def run(jobs: int, seeds: int) -> list[dict[str, float | str]]:
    """Every load and variant, averaged over the seeds."""
    nodes = read_cluster(CLUSTER)
    gpus = sum(len(node.devices) for node in nodes)
    rows: list[dict[str, float | str]] = []
    for load in LOADS:
        traces = [make_trace("dlaas", jobs, seed, gpus=gpus, load=load) for seed in range(seeds)]
        for name, config in VARIANTS.items():
            figures = [
                measure(
                    simulate(trace, nodes, registry.build(config), name=name),
                    float(trace.jobs["submit_s"].max()),  # type: ignore[arg-type]
                )
                for trace in traces
            ]
            averaged = {key: mean(f[key] for f in figures) for key in figures[0]}
            rows.append({"load": load, "variant": name, **averaged})
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = run(options.jobs, options.seeds)
    if options.json:
        print(json.dumps({"dlaas": rows}))
        return
    print(
        f"{'load':>5} {'variant':<16} {'makespan':>9} {'waited':>7} {'queue':>7} {'wait':>7}",
        end="",
    )
    print(f" {'held GPU':>9} {'of all':>7} {'stuck':>6}")
    for row in rows:
        print(
            f"{row['load']:>5} {row['variant']:<16} {row['makespan_h']:>7.1f} h "
            f"{row['jobs_that_waited']:>7.0f} {row['mean_queue']:>7.1f} "
            f"{row['mean_wait_h']:>5.2f} h "
            f"{row['held_gpu_h']:>7.0f} h {row['held_share_pct']:>6.2f}% {row['unfinished']:>6.0f}"
        )


if __name__ == "__main__":
    main()
