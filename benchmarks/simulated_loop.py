"""Right-sizing and learning in the simulator, on telemetry that was recorded elsewhere.

Runs of Scout (Spark and Hadoop jobs on virtual machines; public, MIT) arrive one after the other.
Each asks for the machine it was recorded on, and uses again what it used then, every 5 s. Sizing
holds it to what its phases need; learning foresees memory and run time from the runs before it.
Workloads are repeated, so the first quarter of the jobs shows what it is to know nothing.

    python -m benchmarks.simulated_loop [--jobs 1000] [--seed 0] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import polars as pl

import presage
from benchmarks._data import shared

SIZES = {"large": 2, "xlarge": 4, "2xlarge": 8}
GIB_PER_CORE = {"c3": 1.875, "c4": 1.875, "m3": 3.75, "m4": 4.0, "r3": 7.625, "r4": 7.625}
"""Of the virtual machines, as their vendor lists them."""
CLUSTER = "20x0:64c:512g"
_LEAST_SAMPLES = 24


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate with and without advice, and print both."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    trace = presage.read_trace(scout(options.jobs, options.seed))
    plain = presage.simulate(trace, CLUSTER, "backfill")
    advised = presage.simulate(
        trace,
        CLUSTER,
        "backfill",
        telemetry=shared("telemetry/scout_runs_5s.parquet"),
        advise=["sizing", "learning"],
    )
    assert advised.advice is not None
    if options.json:
        found = {
            "plain": plain.summary,
            "advised": advised.summary,
            "advice": asdict(advised.advice),
        }
        print(json.dumps(found, indent=1))
        return 0
    print(f"{trace.jobs.height:,} runs, {advised.cpu_s:.0f} s of CPU time")
    for name, one in (("plain", plain.summary), ("advised", advised.summary)):
        print(f"{name}: {one['finished']:,} finished, average JCT {one['avg_jct_s']:,.0f} s")
    print(*advised.advice.lines(), sep="\n")
    return 0


def scout(count: int, seed: int) -> pl.DataFrame:
    """A trace of workloads drawn at random, each with all its runs, in any order."""
    table = pl.read_parquet(shared("runtime/scout_runs.parquet"))
    machine = pl.col("vm").str.split_exact(".", 1)
    table = table.filter(pl.col("completed") & (pl.col("samples") >= _LEAST_SAMPLES)).with_columns(
        machine.struct.field("field_1")
        .replace_strict(SIZES, return_dtype=pl.Int64)
        .alias("cores"),
        machine.struct.field("field_0")
        .replace_strict(GIB_PER_CORE, return_dtype=pl.Float64)
        .alias("gib"),
    )
    table = table.filter(pl.col("nodes") == 1).with_columns(
        pl.concat_str("workload", "datasize", "framework", "vm", separator=" ").alias("work")
    )
    rng = np.random.default_rng(seed)
    works = rng.permutation(table["work"].unique().sort().to_numpy())
    counts = dict(table["work"].value_counts().iter_rows())
    enough = np.cumsum([counts[work] for work in works]) <= count
    table = table.filter(pl.col("work").is_in(works[enough].tolist()))
    table = table[rng.permutation(table.height)]
    return table.select(
        pl.col("run").alias("job_id"),
        pl.Series("submit_s", np.cumsum(rng.exponential(15.0, table.height))),
        pl.col("elapsed_time").alias("duration_s"),
        pl.lit(1).alias("workers"),
        pl.lit(0).alias("gpu_milli"),
        (1000 * pl.col("cores")).alias("cpu_milli"),
        (1024 * pl.col("cores") * pl.col("gib")).cast(pl.Int64).alias("memory_mib"),
        pl.col("work").alias("workload"),
    )


if __name__ == "__main__":
    sys.exit(main())
