"""The DLaaS experiment (IBM): PACK against SPREAD, gang against none, at three loads.

100 machines × 4 GPUs × 32 cores × 128 GB and 4,000 jobs of 1–8 learners with 1–4 GPUs each.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import numpy as np
import polars as pl

from presage.policy.config import PolicyConfig
from presage.policy.registry import build
from presage.reproduce.result import Progress, ReproducedFigure, Reproduction
from presage.sim.clusters import read_cluster
from presage.sim.generate import make_trace
from presage.sim.result import SimResult
from presage.sim.run import simulate

__all__ = ["CLUSTER", "LOADS", "VARIANTS", "measure", "rows", "run"]

CLUSTER = "100x4:32c:128g"
JOBS = 4000
LOADS = (0.7, 0.9, 1.1)
VARIANTS = {
    "pack, gang": PolicyConfig(placement="pack", mode="greedy"),
    "spread, gang": PolicyConfig(placement="spread", mode="greedy"),
    "pack, no gang": PolicyConfig(placement="pack", mode="greedy", gang=False),
    "spread, no gang": PolicyConfig(placement="spread", mode="greedy", gang=False),
}
_MOST_SEEDS = 3


def run(data: Path, *, seeds: int, progress: Progress) -> Reproduction:
    """Every load and variant. Jobs are generated: the data is not needed."""
    measured = rows(JOBS, min(seeds, _MOST_SEEDS), progress)
    lines = []
    for load in LOADS:
        at = {row["variant"]: row for row in measured if row["load"] == load}
        pack, spread = at["pack, gang"], at["spread, gang"]
        waited = float(pack["mean_wait_h"]), float(spread["mean_wait_h"])
        lines.append(
            ReproducedFigure.at_most(
                f"load {load:g}: mean wait, pack ÷ spread", waited[0] / waited[1], 1.0
            )
        )
        for name, row in at.items():
            lines += [
                ReproducedFigure(
                    f"load {load:g}, {name}: jobs in the queue", float(row["mean_queue"])
                ),
                ReproducedFigure(
                    f"load {load:g}, {name}: idle GPU time held",
                    float(row["held_share_pct"]),
                    unit="%",
                ),
            ]
        held = float(pack["held_share_pct"]) + float(spread["held_share_pct"])
        lines.append(
            ReproducedFigure.at_most(
                f"load {load:g}: idle GPU time held with gang", held, 0.0, unit="%"
            )
        )
    return Reproduction(
        "dlaas",
        "Packing, spreading and gangs on 400 GPUs",
        "IBM Deep Learning as a Service (FfDL)",
        tuple(lines),
        (
            "Jobs are generated with the shapes that were published; their arrivals, durations "
            "and loads are ours, so only the direction of the effects is compared.",
            "A target says what was reported in words: packing waits less than spreading, and "
            "gangs never hold GPUs that they cannot use.",
        ),
    )


def rows(jobs: int, seeds: int, progress: Progress | None = None) -> list[dict[str, float | str]]:
    """Every load and variant, averaged over the seeds."""
    nodes = read_cluster(CLUSTER)
    gpus = sum(len(node.devices) for node in nodes)
    table: list[dict[str, float | str]] = []
    for load in LOADS:
        traces = [make_trace("dlaas", jobs, seed, gpus=gpus, load=load) for seed in range(seeds)]
        for name, config in VARIANTS.items():
            figures = [
                measure(
                    simulate(trace, nodes, build(config), name=name),
                    float(trace.jobs["submit_s"].to_numpy().max()),
                )
                for trace in traces
            ]
            averaged = {key: mean(f[key] for f in figures) for key in figures[0]}
            table.append({"load": load, "variant": name, **averaged})
            if progress is not None:
                progress(len(table), len(LOADS) * len(VARIANTS))
    return table


def measure(result: SimResult, last_arrival_s: float) -> dict[str, float]:
    """What the experiment asks of one run."""
    jobs, series = result.jobs, result.series
    t = series["t_s"].to_numpy()
    until = np.clip(np.append(t[1:], t[-1]), None, last_arrival_s)
    spans = np.maximum(0.0, until - np.minimum(t, last_arrival_s))
    return {
        "makespan_h": result.makespan_s / 3600,
        "jobs_that_waited": jobs.filter(pl.col("wait_s") > 0).height,
        "mean_queue": float((series["queued"].to_numpy() * spans).sum() / spans.sum()),
        "mean_wait_h": (result.summary["avg_wait_s"] or 0.0) / 3600,
        "held_gpu_h": result.held_gpu_seconds / 3600,
        "held_share_pct": 100 * result.held_gpu_seconds / result.gpu_seconds,
        "unfinished": jobs.filter(pl.col("status") == "unfinished").height,
        "cpu_s": result.cpu_s,
    }
