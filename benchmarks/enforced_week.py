"""Enforced shares in simulated weeks: `colocate` as it is, and with jobs that ask for what holds
their promise, in a world that enforces it.

    python -m benchmarks.enforced_week [--others] [--turn-cost 0.05]

Lucid's week of 2,088 jobs on 240 GPUs (`presage reproduce lucid-week`), then with `--others` weeks
that it was not made for. Each job that may share asks for the part of a GPU that its profile says
it needs in order to take at most 1.5 times as long, the bound that the policy has for what it
foresees. What is promised is 1.5 ÷ (1 - turn cost). Slowdowns are of the time that jobs ran; the
40 s of each move are not in them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from benchmarks._data import data_dir
from presage.foresee.adapter import EnforcedSlowdowns, EstimatePredictor
from presage.model.cluster import WHOLE_GPU, Resources
from presage.model.estimate import Estimate, Estimates
from presage.model.job import JobSpec, Role
from presage.model.parts import ENFORCED, TURN_COST
from presage.policy.registry import NAMED, build
from presage.policy.sharing import SharingRules
from presage.reproduce._pairs import MeasuredPairs, measured_pairs, read_table
from presage.reproduce.lucid_week import (
    RESTART_COST_S,
    SHARERS,
    WEEK,
    Week,
    given_week,
    itp_week,
    philly_week,
    profiles,
)
from presage.sim.result import SimResult
from presage.sim.run import simulate
from presage.sim.world import WorldRules

BOUND = SharingRules().max_slowdown
_LEAST_MILLI = 10
_RETRIES = 3


def requests(week: Week, measured: MeasuredPairs, promise: float) -> dict[str, JobSpec]:
    """The jobs of a week as their owners would submit them."""
    found = {}
    rows = week.trace.jobs.select("job_id", "gpu_milli").rows()
    for (job, milli), name in zip(rows, week.workloads, strict=True):
        busy = measured.alone[name].util_pct / 100
        part = max(_LEAST_MILLI, min(WHOLE_GPU - 1, -int(-WHOLE_GPU * busy // promise)))
        role = Role("worker", Resources(gpu_milli=part), milli // WHOLE_GPU, milli // WHOLE_GPU)
        marks = {ENFORCED: "1"}
        found[job] = JobSpec(job, (role,), max_retries=_RETRIES, model=name, labels=marks)
    return found


def play(
    week: Week, measured: MeasuredPairs, specs: Mapping[str, JobSpec] | None, turn_cost: float
) -> SimResult:
    """The week under `colocate`; with specs, in a world that enforces what they ask for."""
    jobs = week.trace.jobs
    busy = [measured.alone[name].util_pct / 100 for name in week.workloads]
    seen = [
        Estimates(
            "profiles of the peer",
            runtime_s=Estimate.exact(runtime, "s", "estimate_s"),
            memory_mib=Estimate.exact(measured.alone[name].memory_mib, "MiB", "profile"),
            utilization=Estimate.exact(one, "share", "profile"),
        )
        for name, one, runtime in zip(week.workloads, busy, jobs["estimate_s"], strict=True)
    ]
    trace = replace(week.trace, jobs=jobs.with_columns(utilization=pl.Series(busy)))
    told = EnforcedSlowdowns(measured.predictions(), turn_cost)
    return simulate(
        trace,
        week.nodes,
        build(NAMED["colocate"]),
        name="colocate",
        rules=WorldRules(
            restart_cost_s=RESTART_COST_S, beside=measured.slowdown, turn_cost=turn_cost
        ),
        models=week.workloads,
        estimates=seen,
        sharers=SHARERS if specs is None else 1,
        specs=specs,
        foresee=lambda world: EstimatePredictor(told, world),
    )


def figures(week: Week, result: SimResult, promised: float) -> dict[str, Any]:
    """What came out."""
    ends = result.jobs.join(week.trace.jobs.select("job_id", "duration_s"), "job_id")
    ran = pl.col("jct_s") - pl.col("wait_s") - RESTART_COST_S * pl.col("preemptions")
    slow = ends.filter(pl.col("status") == "finished").select(ran / pl.col("duration_s"))
    times = slow.to_series()
    quantiles = {f"slowdown_p{round(100 * q)}": times.quantile(q) for q in (0.5, 0.95, 0.99, 1.0)}
    return {
        **{name: result.summary[name] for name in ("avg_jct_s", "p99_jct_s", "avg_wait_s")},
        "moved": result.preemptions,
        "unfinished": int(result.summary["jobs"] or 0) - int(result.summary["finished"] or 0),
        **quantiles,
        "slowed_more_than_promised": int((times > promised * 1.001).sum()),
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description="Enforced shares in simulated weeks.")
    parser.add_argument("--others", action="store_true")
    parser.add_argument("--turn-cost", type=float, default=TURN_COST)
    parser.add_argument("--promise", type=float, default=BOUND)
    options = parser.parse_args()
    data = data_dir()
    table = read_table(data, WEEK)
    measured = measured_pairs(data, profiles(table))
    weeks = [given_week(data, table)]
    if options.others:
        ratios = (table["estimate_s"] / table["duration"]).to_numpy()
        weeks = [
            philly_week(data, 7, measured, ratios),
            philly_week(data, 9, measured, ratios),
            itp_week(data, "cluster07", 2, measured, ratios),
        ]
    promised = options.promise / (1 - options.turn_cost)
    found = {}
    for week in weeks:
        ways = {"today": None, "enforced": requests(week, measured, options.promise)}
        found[week.name] = {
            name: figures(week, play(week, measured, specs, options.turn_cost), promised)
            for name, specs in ways.items()
        }
    print(json.dumps({"promised": promised, "weeks": found}, indent=2))


if __name__ == "__main__":
    main()
