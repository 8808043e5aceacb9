"""A real Spark: queries foreseen at a size nobody has run, and six of its settings tuned.

`python -m benchmarks.runtime_spark [--sizes 1,2,4] [--cores 1,2,4] [--only tune]`.

PySpark in local mode (`tools/engine-spark`), on tables that it makes itself: six queries (scans,
groups, joins, a window, distinct counts) at three sizes (million rows) with three core counts.
Each query runs twice in a session; the first warms the JVM and does not count. Its event log is
read as `presage runtime stages` does. Models learn two sizes and foresee the third; joins are not
broadcast and plans not adapted, so that a query has the same stages at every size.

Two truths: the list schedule of the measured stages, which a model that simulates shares the form
of, and the wall time of the query. To that the median time that the other sizes spent between and
around their stages is added.

Then `tune`: the settings that `presage tune -- spark-submit` varies, six trials, the first with
Spark's own values; each is the sum of the six queries' wall times. The default and the choice are
measured again, by turns. `--data` keeps tables and logs, and takes them where they
are, so that a run can be cut short; `--only foresee` and `--only tune` do one of both.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

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
}
_MAKE = """
for size in {sizes}:
    rows = spark.range(0, int(size * 1e6), 1, max(2, int(4 * size)))
    rows.selectExpr("id", "hash(id) % 5000 as k", "hash(id + 7) % 2000 as c", "rand(1) as v",
                    "cast(id % 90 as int) as day").write.parquet("sales{{}}".format(size))
spark.range(-5000, 5000, 1, 2).selectExpr("id as k", "id % 40 as brand").write.parquet("items")
spark.range(-2000, 2000, 1, 2).selectExpr("id as c", "id % 12 as region").write.parquet("people")
"""
_ASK = """
sales = spark.read.parquet("sales{size}")
items, people = spark.read.parquet("items"), spark.read.parquet("people")
for name, table in dict(sales=sales, items=items, people=people).items():
    table.createOrReplaceTempView(name)
queries = {{
    "total": "select count(*), sum(v) from sales where v > 0.25",
    "by_key": "select k, avg(v), max(v) from sales group by k",
    "by_brand": "select brand, sum(v) from sales join items using (k) group by brand",
    "by_region": "select region, brand, sum(v) from sales join items using (k)"
                 " join people using (c) group by region, brand",
    "top": "select day, k, v from (select day, k, v, row_number() over (partition by k"
           " order by v desc) as n from sales) where n <= 2 order by v desc limit 100",
    "distinct": "select day, count(distinct k), count(distinct c) from sales group by day",
}}
for turn in ("warm", "run"):
    for name, text in queries.items():
        spark.sparkContext.setJobDescription(turn + " " + name)
        spark.sql(text).collect()
"""


def main() -> None:
    """Run Spark, then print what was foreseen of it and what tuning gained."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="1,2,4")
    parser.add_argument("--cores", default="1,2,4")
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--only", choices=("foresee", "tune", ""), default="")
    asked = parser.parse_args()
    if why := missing_spark():
        raise SystemExit(why)
    sizes = [float(one) for one in asked.sizes.split(",")]
    cores = [int(one) for one in asked.cores.split(",")]
    with tempfile.TemporaryDirectory(prefix="presage-spark-") as made:
        place: Path = (asked.data or Path(made)).absolute()
        place.mkdir(parents=True, exist_ok=True)
        if not (place / "people" / "_SUCCESS").exists():
            run_spark(_MAKE.format(sizes=sizes), place, cores=2, timeout_s=900)
        if asked.only != "tune":
            _foresee_all(place, sizes, cores)
        if asked.only != "foresee":
            _tune(place, sizes[1])


def _foresee_all(place: Path, sizes: Sequence[float], cores: Sequence[int]) -> None:
    """Each size at each number of cores, then each size left out."""
    runs = []
    for size, count in product(sizes, cores):
        runs.append(_session(place, size, count, _FIXED, f"{size:g}-{count}"))
        took = runs[-1].queries["elapsed_ms"].sum() / 1000
        print(f"  {size:g} M rows, {count} cores: {took:.1f} s", flush=True)
    for left_out in sizes:
        _foresee(runs, left_out)


def _session(
    place: Path, size: float, cores: int, conf: Mapping[str, str], name: str = ""
) -> SparkRun:
    """One Spark: what the second turn of each query left in its log."""
    log = place / "kept" / name
    if not name or not log.exists():
        log = run_spark(_ASK.format(size=size), place, cores=cores, conf=conf, timeout_s=900)
        if name:
            (place / "kept").mkdir(exist_ok=True)
            log = log.rename(place / "kept" / name)
    said = read_spark_log(log, scale_gb=size)
    mine = pl.col("query").str.starts_with("run ")
    tables = (one.filter(mine) for one in (said.stages, said.edges, said.queries))
    return SparkRun(*tables)


def _foresee(runs: Sequence[SparkRun], left_out: float) -> None:
    """Learn the other sizes, foresee this one."""
    stages = pl.concat([run.stages for run in runs])
    edges = pl.concat([run.edges for run in runs]).select("query", "from_stage", "to_stage")
    took = pl.concat([run.queries for run in runs])
    queries, other = read_queries(stages, edges.unique()), pl.col("scale_gb") != left_out
    model = QueryModel.fit(stages.filter(other), edges.unique())
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
        f"{left_out:g} M rows left out, {len(off)} runs: {100 * np.mean(off):.1f} % of the list"
        f" schedule of their stages (median {100 * np.median(off):.1f} %),"
        f" {100 * np.mean(whole):.1f} % of their wall time (median"
        f" {100 * np.median(whole):.1f} %)",
        flush=True,
    )


def _tune(place: Path, size: float) -> None:
    """Six trials over six settings, then the default and the choice again."""
    values = {name: said.split(",") for name, said in SPARK_SETTINGS.items()}
    points = [dict(zip(values, one, strict=True)) for one in product(*values.values())]
    ahead, _ = trials_ahead(pl.DataFrame(points), None, "elapsed_time")

    def measure(number: int) -> float:
        run = _session(place, size, 2, points[number])
        return float(run.queries["elapsed_ms"].sum()) / 1000

    taught = teach(None, ahead.configs.height)
    search = ConfigSearch(ahead, list(range(len(points))), taught)
    done = search.run(
        measure, 6, told=lambda pick: print(f"  {pick.took:.2f} s: {pick.config}", flush=True)
    )
    chosen = points.index({name: str(value) for name, value in done.chosen.items()})
    again = [(measure(0), measure(chosen)) for _ in range(2)]
    default, best = (float(np.mean(one)) for one in zip(*again, strict=True))
    print(
        f"tune, {len(done.picks)} trials of {len(points)} configurations: {done.picks[0].took:.2f}"
        f" s with Spark's own values, {done.took:.2f} s with the choice; measured again, by turns,"
        f" {default:.2f} s and {best:.2f} s ({default / best:.2f} × faster): {done.chosen}"
    )


if __name__ == "__main__":
    main()
