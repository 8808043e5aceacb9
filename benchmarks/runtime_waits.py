"""Waiting under sjf and backfill: run times from history alone, beside the truth and the users'.

`python -m benchmarks.runtime_waits [--jobs 4000] [--only philly] [--json]`.

Each virtual cluster of Philly and each cluster of ITP on the fewest 8-GPU nodes that carry a mean
load of 85 %, the first `--jobs` jobs of each (on the nodes it had, Philly hardly waits).

What a policy is told of a run time:

- `oracle`: the truth;
- `history`: `RuntimeHistory`, what a server foresees: the runs of the same virtual cluster and
  size that were over when the job came, and nothing else (the traces name no owner, no command);
- `user`: these traces have no estimates of users, so they are made as in studies of such
  estimates: the truth times a factor drawn evenly from 1 to 5, up to the next usual limit (10
  minutes, 1, 2, 4, 8, 12 hours, 1, 2, 4, 7, 14, 30 days). They contain the truth, so they are
  a bound rather than a peer;
- `none`: 24 hours for every job, as a server says of a job without a time limit.

Waits are means over all jobs of all clusters of a trace; `fifo` without backfilling is beside.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import polars as pl

from benchmarks._data import shared
from benchmarks.eta import fewest_nodes
from presage.core.ports import Policy
from presage.model.cluster import Node
from presage.policy import registry
from presage.sim.clusters import read_cluster
from presage.sim.foreseen import FromHistory
from presage.sim.result import SimResult
from presage.sim.run import simulate
from presage.sim.traces import Trace, read_trace

TELLS = ("oracle", "history", "user", "none")
POLICIES = ("sjf", "backfill")
_HOUR_S, _DAY_S = 3600.0, 86_400.0
_LIMITS = np.array(
    [600.0, *(_HOUR_S * h for h in (1, 2, 4, 8, 12)), *(_DAY_S * d for d in (1, 2, 4, 7, 14, 30))]
)
_MOST_FACTOR = 5.0
_LEAST_JOBS = 100


def main() -> None:
    """Print the mean waits of each trace."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=4000)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = []
    for source in ("philly", "itp"):
        if not source.startswith(asked.only):
            continue
        found: dict[tuple[str, str], list[SimResult]] = {}
        for name, trace, nodes in clusters(source, asked.jobs):
            for case in [("fifo", "oracle"), *((p, t) for p in POLICIES for t in TELLS)]:
                found.setdefault(case, []).append(run(trace, nodes, *case))
            print(f"  {source} {name}: {trace.jobs.height} jobs, {len(nodes)} nodes", flush=True)
        for (policy, told), results in found.items():
            waits = pl.concat([one.jobs["wait_s"].drop_nulls() for one in results])
            jcts = pl.concat([one.jobs["jct_s"].drop_nulls() for one in results])
            short = pl.concat([_short_waits(one.jobs) for one in results])
            rows.append(
                {
                    "trace": source,
                    "policy": policy,
                    "told": told,
                    "jobs": len(waits),
                    "wait_h": float(waits.mean() or 0.0) / 3600,  # type: ignore[arg-type]
                    "p50_wait_h": float(waits.median() or 0.0) / 3600,  # type: ignore[arg-type]
                    "p99_wait_h": float(waits.quantile(0.99, "linear") or 0.0) / 3600,
                    "short_wait_h": float(short.mean() or 0.0) / 3600,  # type: ignore[arg-type]
                    "jct_h": float(jcts.mean() or 0.0) / 3600,  # type: ignore[arg-type]
                }
            )
            print(_line(rows[-1]), flush=True)
    if asked.json:
        print(json.dumps(rows))


def clusters(source: str, most: int) -> Iterator[tuple[str, Trace, list[Node]]]:
    """Every cluster of a trace: its first jobs, with what users would say, and its nodes."""
    whole = read_trace(shared(f"traces/{source}_jobs.parquet"))
    rng = np.random.default_rng(0)
    for name in sorted(whole.jobs["queue"].unique()):
        jobs = whole.jobs.filter(pl.col("queue") == name).sort("submit_s").head(most)
        if jobs.height < _LEAST_JOBS:
            continue
        said = jobs["duration_s"].to_numpy() * rng.uniform(1.0, _MOST_FACTOR, jobs.height)
        limit = _LIMITS[np.minimum(np.searchsorted(_LIMITS, said), len(_LIMITS) - 1)]
        jobs = jobs.with_columns(estimate_s=pl.Series(np.maximum(limit, said)))
        yield str(name), replace(whole, jobs=jobs), list(read_cluster(f"{fewest_nodes(jobs)}x8"))


def run(trace: Trace, nodes: list[Node], policy: str, told: str) -> SimResult:
    """One simulation."""
    built: Policy = registry.build(policy)
    if told == "history":
        history = FromHistory()
        return simulate(
            trace, nodes, built, name=policy, advise=history, foresee=history.predictor
        )
    if told == "none":
        jobs = trace.jobs.with_columns(estimate_s=pl.lit(_DAY_S))
        trace = replace(trace, jobs=jobs)
    return simulate(trace, nodes, built, name=policy, use_estimates=told in ("user", "none"))


def _short_waits(jobs: pl.DataFrame) -> pl.Series:
    """Waits of the half of the jobs that run shortest."""
    ran = jobs["jct_s"] - jobs["wait_s"]
    return jobs.filter(ran <= ran.median())["wait_s"].drop_nulls()


def _line(row: Mapping[str, object]) -> str:
    numbers = ", ".join(
        f"{name} {row[name]:.2f}"
        for name in ("wait_h", "p50_wait_h", "p99_wait_h", "short_wait_h")
    )
    return f"{row['trace']} {row['policy']}, {row['told']}: {row['jobs']:,} jobs: {numbers}"


if __name__ == "__main__":
    main()
