"""A real Spark: queries foreseen at a size nobody has run, and six of its settings tuned.

`python -m benchmarks.runtime_spark [--data DIR] [--only foresee|tune]`.

PySpark in local mode (`tools/engine-spark`), on tables that it makes itself: six queries (scans,
groups, joins, a window, distinct counts) at three sizes (million rows) on 1, 2 and 4 cores. Models
learn two sizes and foresee the third. Joins are not broadcast, plans not adapted and files read in
parts of 4 MiB, so that a query has the same stages at every size, and the same tasks on any number
of cores.

So that drift of the machine hits all alike, a block is one JVM that goes through all core counts,
sizes and queries; the order of cores and sizes turns from block to block. The JVM is warmed by a
session that does not count, and so is the first run of each query in each session. Medians of all
other runs are learned and judged by; how far single runs are from them is told beside the error.

Two truths: the list schedule of the measured stages, which a model that simulates shares the form
of, and the wall time of the query. To that the median time that the other sizes spent between and
around their stages is added.

Then `tune`: the settings that `presage tune -- spark-submit` varies, six trials, the first with
Spark's own values; each is a JVM of its own and counts the sum of the six queries' median wall
times. The default and the choice are measured again in one JVM, by turns.

`--data` keeps tables and logs, and takes them where they are: a run that was cut short goes on.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from presage.cli.tune_jobs import SPARK_SETTINGS
from presage.foresee.runtime.queries import QueryModel
from presage.foresee.runtime.search import ConfigSearch, teach
from presage.foresee.runtime.spark_log import SparkRun, read_spark_log
from presage.foresee.runtime.stages import measured_total, read_queries
from presage.foresee.runtime.trials import trials_ahead
from tests.spark import missing_spark, run_spark

_FIXED = {
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.files.maxPartitionBytes": "4m",
    "spark.sql.files.openCostInBytes": "1m",
}
_TUNE_CORES = 2
_AGAIN = 4
"""Times that the default and the choice are measured once more."""
_MAKE = """
spark = start(2)
for size in {sizes}:
    rows = spark.range(0, int(size * 1e6), 1, max(2, int(4 * size)))
    rows.selectExpr("id", "hash(id) % 5000 as k", "hash(id + 7) % 2000 as c", "rand(1) as v",
                    "cast(id % 90 as int) as day").write.parquet("sales{{}}".format(size))
spark.range(-5000, 5000, 1, 2).selectExpr("id as k", "id % 40 as brand").write.parquet("items")
spark.range(-2000, 2000, 1, 2).selectExpr("id as c", "id % 12 as region").write.parquet("people")
spark.stop()
"""
_ASK = """
queries = {
    "total": "select count(*), sum(v) from sales where v > 0.25",
    "by_key": "select k, avg(v), max(v) from sales group by k",
    "by_brand": "select brand, sum(v) from sales join items using (k) group by brand",
    "by_region": "select region, brand, sum(v) from sales join items using (k)"
                 " join people using (c) group by region, brand",
    "top": "select day, k, v from (select day, k, v, row_number() over (partition by k"
           " order by v desc) as n from sales) where n <= 2 order by v desc limit 100",
    "distinct": "select day, count(distinct k), count(distinct c) from sales group by day",
}
def ask(cores, conf, sizes, rounds):
    spark = start(cores, conf)
    for turn in ["warm"] + ["run"] * rounds:
        for size in sizes:
            for name in ("items", "people"):
                spark.read.parquet(name).createOrReplaceTempView(name)
            spark.read.parquet(f"sales{size}").createOrReplaceTempView("sales")
            for name, text in queries.items():
                spark.sparkContext.setJobDescription(f"{turn} {name} {size}")
                spark.sql(text).collect()
    spark.stop()
"""


def main() -> None:
    """Run Spark, then print what was foreseen of it and what tuning gained."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="1,2,4")
    parser.add_argument("--cores", default="1,2,4")
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=1, help="runs of a query in a session")
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--only", choices=("foresee", "tune", ""), default="")
    asked = parser.parse_args()
    if why := missing_spark():
        raise SystemExit(why)
    sizes = [float(one) for one in asked.sizes.split(",")]
    cores = [int(one) for one in asked.cores.split(",")]
    with tempfile.TemporaryDirectory(prefix="presage-spark-") as made:
        place: Path = (asked.data or Path(made)).absolute()
        (place / "kept").mkdir(parents=True, exist_ok=True)
        if not (place / "people" / "_SUCCESS").exists():
            run_spark(_MAKE.format(sizes=sizes), place, timeout_s=900)
        if asked.only != "tune":
            blocks = range(asked.blocks)
            each = [_block(place, n, sizes, cores, asked.rounds) for n in blocks]
            _foresee_all([run for runs in each for run in runs], sizes)
        if asked.only != "foresee":
            _tune(place, sizes[1])


# -- sessions -------------------------------------------------------------------------------------


def _turned(values: Sequence[Any], by: int) -> list[Any]:
    by %= len(values)
    return [*values[by:], *values[:by]]


def _block(
    place: Path, number: int, sizes: Sequence[float], cores: Sequence[int], rounds: int
) -> list[SparkRun]:
    """One JVM: a session to warm it, then one for each number of cores."""
    order = _turned(cores, number)
    mine = [(count, _FIXED, _turned(sizes, number + n), rounds) for n, count in enumerate(order)]
    warm = (order[-1], _FIXED, sizes[:1], 3)
    return _sessions(place, f"block{number}", [warm, *mine])


def _sessions(
    place: Path,
    name: str,
    asked: Sequence[tuple[int, Mapping[str, str], Sequence[float], int]],
) -> list[SparkRun]:
    """What all sessions of one JVM but the first left, without the first run of each query."""
    count, kept = len(asked) - 1, place / "kept"
    logs = [kept / f"{name}-{n}" for n in range(count)]
    if not all(log.exists() for log in logs):
        lines = "".join(f"ask{(c, dict(conf), list(s), n)}\n" for c, conf, s, n in asked)
        for log, made in zip(logs, run_spark(_ASK + lines, place, timeout_s=900)[1:], strict=True):
            made.rename(log)
    return [_read(log) for log in logs]


def _read(log: Path) -> SparkRun:
    """A log whose descriptions name turn, query and size."""
    whole, said = read_spark_log(log), pl.col("query").str.split(" ").list
    size = said.get(2).cast(pl.Float64)
    tables = (
        table.filter(said.first() == "run").with_columns(query=said.get(1), scale_gb=size)
        for table in (whole.stages, whole.edges, whole.queries)
    )
    return SparkRun(*tables)


# -- foreseen -------------------------------------------------------------------------------------


def _foresee_all(runs: Sequence[SparkRun], sizes: Sequence[float]) -> None:
    """How far runs are from one another, then each size left out."""
    took = pl.concat([run.queries for run in runs])
    where = ["query", "scale_gb", "executors"]
    for (cores,), rows in took.group_by("executors", maintain_order=True):
        whole = rows.group_by("scale_gb", "query").agg(pl.col("elapsed_ms").median())
        sums = whole.group_by("scale_gb").agg(pl.col("elapsed_ms").sum() / 1000).sort("scale_gb")
        print(f"  {cores} cores: " + ", ".join(f"{s:g} M rows {t:.1f} s" for s, t in sums.rows()))
    apart = []
    for _, rows in took.group_by(where):
        times = rows["elapsed_ms"].to_numpy()
        for n in range(len(times) if len(times) > 2 else 0):
            apart.append(abs(times[n] / np.median(np.delete(times, n)) - 1))
    if apart:
        print(
            f"{took.height} runs; one is {100 * np.mean(apart):.1f} % from the median of the"
            f" others at its place (median {100 * np.median(apart):.1f} %)",
            flush=True,
        )
    stages = pl.concat([run.stages for run in runs])
    edges = pl.concat([run.edges for run in runs]).select("query", "from_stage", "to_stage")
    for left_out in sizes:
        _foresee(stages, edges.unique(), took, left_out)


def _foresee(
    stages: pl.DataFrame, edges: pl.DataFrame, runs: pl.DataFrame, left_out: float
) -> None:
    """Learn the other sizes, foresee this one."""
    took = runs.group_by("query", "scale_gb", "executors", maintain_order=True).agg(
        pl.col("elapsed_ms").median()
    )
    queries, other = read_queries(stages, edges), pl.col("scale_gb") != left_out
    model = QueryModel.fit(stages.filter(other), edges)
    rest: dict[str, list[float]] = {}
    for row in took.filter(other).iter_rows(named=True):
        made = measured_total(queries[row["query"]], row["scale_gb"], row["executors"])
        assert made is not None
        rest.setdefault(row["query"], []).append(row["elapsed_ms"] / 1000 - made.total_s)
    off, whole = [], []
    for row in took.filter(~other).iter_rows(named=True):
        name, place = row["query"], (row["scale_gb"], row["executors"])
        truth = measured_total(queries[name], *place)
        assert truth is not None
        said, _ = model.total(model.queries[name], *place)
        around = float(np.median(rest[name]))
        off.append(abs(said.total_s / truth.total_s - 1))
        whole.append(abs((said.total_s + around) / (row["elapsed_ms"] / 1000) - 1))
    print(
        f"{left_out:g} M rows left out, {len(off)} places: {100 * np.mean(off):.1f} % of the list"
        f" schedule of their stages (median {100 * np.median(off):.1f} %),"
        f" {100 * np.mean(whole):.1f} % of their wall time (median"
        f" {100 * np.median(whole):.1f} %)",
        flush=True,
    )


# -- tuned ----------------------------------------------------------------------------------------


def _tune(place: Path, size: float) -> None:
    """Six trials over six settings, then the default and the choice again, by turns."""
    values = {name: said.split(",") for name, said in SPARK_SETTINGS.items()}
    points = [dict(zip(values, one, strict=True)) for one in product(*values.values())]
    ahead, _ = trials_ahead(pl.DataFrame(points), None, "elapsed_time")

    def session(number: int, rounds: int) -> tuple[int, Mapping[str, str], list[float], int]:
        return _TUNE_CORES, points[number], [size], rounds

    def measure(number: int) -> float:
        warm = session(number, 2)
        (run,) = _sessions(place, f"tune{number}", [warm, session(number, 3)])
        return _whole(run.queries)

    taught = teach(None, ahead.configs.height)
    search = ConfigSearch(ahead, list(range(len(points))), taught)
    done = search.run(
        measure, 6, told=lambda pick: print(f"  {pick.took:.2f} s: {pick.config}", flush=True)
    )
    chosen = points.index({name: str(value) for name, value in done.chosen.items()})
    turns = [session(number, 1) for _ in range(_AGAIN) for number in (0, chosen)]
    runs = _sessions(place, f"again{chosen}", [session(0, 2), *turns])
    again = [_whole(run.queries) for run in runs]
    default, best = again[0::2], again[1::2]
    print(
        f"tune, {len(done.picks)} trials of {len(points)} configurations: {done.picks[0].took:.2f}"
        f" s with Spark's own values, {done.took:.2f} s with the choice; measured again, by turns:"
        f" {_listed(default)} s and {_listed(best)} s"
        f" ({np.median(default) / np.median(best):.2f} × faster): {done.chosen}"
    )


def _whole(runs: pl.DataFrame) -> float:
    """Seconds of all queries, the median run of each."""
    each = runs.group_by("query").agg(pl.col("elapsed_ms").median())
    return float(each["elapsed_ms"].sum()) / 1000


def _listed(times: Sequence[float]) -> str:
    return ", ".join(f"{one:.2f}" for one in times)


if __name__ == "__main__":
    main()
