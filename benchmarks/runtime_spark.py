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

Three truths. Two are list schedules of measured stages, which a model that simulates shares the
form of: with the CPU time of tasks, which says what a query costs whatever else the machine does,
and with their time from launch to end. The third is the wall time of the query; to what is
foreseen of it the median time is added that the other sizes spent between and around their stages.

Then `tune`, at the first size: the settings that `presage tune -- spark-submit` varies, six
trials, the first with Spark's own values; each is a JVM of its own and counts the sum of the six
queries' median wall times. The default and the choice are measured again in one JVM, by turns.

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
_Place = tuple[str, float, int]
"""Query, size, cores."""
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
            spark.sparkContext.setJobDescription("tables")
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
            logs = [log for some in each for log in some]
            for cpu_time in (True, False):
                _foresee_all([_read(log, cpu_time) for log in logs], sizes, cpu_time)
        if asked.only != "foresee":
            _tune(place, sizes[0])


# -- sessions -------------------------------------------------------------------------------------


def _turned(values: Sequence[Any], by: int) -> list[Any]:
    by %= len(values)
    return [*values[by:], *values[:by]]


def _block(
    place: Path, number: int, sizes: Sequence[float], cores: Sequence[int], rounds: int
) -> list[Path]:
    """One JVM: a session to warm it, then one for each number of cores."""
    order = _turned(cores, number)
    mine = [(count, _FIXED, _turned(sizes, number + n), rounds) for n, count in enumerate(order)]
    warm = (order[-1], _FIXED, sizes[:1], 3)
    return _sessions(place, f"block{number}", [warm, *mine])


def _sessions(
    place: Path,
    name: str,
    asked: Sequence[tuple[int, Mapping[str, str], Sequence[float], int]],
) -> list[Path]:
    """The logs of all sessions of one JVM but the first."""
    count, kept = len(asked) - 1, place / "kept"
    logs = [kept / f"{name}-{n}" for n in range(count)]
    if not all(log.exists() for log in logs):
        lines = "".join(f"ask{(c, dict(conf), list(s), n)}\n" for c, conf, s, n in asked)
        for log, made in zip(logs, run_spark(_ASK + lines, place, timeout_s=900)[1:], strict=True):
            made.rename(log)
    return logs


def _read(log: Path, cpu_time: bool = False) -> SparkRun:
    """A log whose descriptions name turn, query and size, without the first run of each query."""
    whole, said = read_spark_log(log, cpu_time=cpu_time), pl.col("query").str.split(" ").list
    size = said.get(2).cast(pl.Float64)
    stages, edges, queries = (
        table.filter(said.first() == "run").with_columns(query=said.get(1), scale_gb=size)
        for table in (whole.stages, whole.edges, whole.queries)
    )
    return SparkRun(stages, edges, queries)


# -- foreseen -------------------------------------------------------------------------------------


def _foresee_all(runs: Sequence[SparkRun], sizes: Sequence[float], cpu_time: bool) -> None:
    """How far runs are from one another, then each size left out."""
    took = pl.concat([run.queries for run in runs])
    stages = pl.concat([run.stages for run in runs])
    edges = pl.concat([run.edges for run in runs]).select("query", "from_stage", "to_stage")
    edges = edges.unique()
    print(f"tasks by their {'CPU time' if cpu_time else 'time from launch to end'}:", flush=True)
    _repeats("schedules", [_schedules(run.stages, edges) for run in runs])
    if not cpu_time:
        _repeats("wall times", [_wall(run.queries) for run in runs])
    for left_out in sizes:
        _foresee(stages, edges, None if cpu_time else _wall(took), left_out)


def _schedules(stages: pl.DataFrame, edges: pl.DataFrame) -> dict[_Place, float]:
    """Seconds of each query at each place, after its stages."""
    made = {
        (name, *place): measured_total(query, *place)
        for name, query in read_queries(stages, edges).items()
        for place in query.places()
    }
    return {place: one.total_s for place, one in made.items() if one is not None}


def _wall(runs: pl.DataFrame) -> dict[_Place, float]:
    """Seconds of each query at each place, the median of its runs."""
    each = runs.group_by("query", "scale_gb", "executors").agg(pl.col("elapsed_ms").median())
    return {(name, size, cores): ms / 1000 for name, size, cores, ms in each.iter_rows()}


def _repeats(what: str, runs: Sequence[Mapping[_Place, float]]) -> None:
    """How long all queries take, and how much one session differs from the others."""
    found: dict[_Place, list[float]] = {}
    for run in runs:
        for place, took_s in run.items():
            found.setdefault(place, []).append(took_s)
    sums: dict[tuple[int, float], float] = {}
    for (_, size, cores), times in found.items():
        sums[cores, size] = sums.get((cores, size), 0.0) + float(np.median(times))
    said = ", ".join(
        f"{s:.2f} s ({cores} × {size:g} M)" for (cores, size), s in sorted(sums.items())
    )
    apart = [
        abs(times[n] / np.median(np.delete(times, n)) - 1)
        for times in found.values()
        for n in range(len(times) if len(times) > 1 else 0)
    ]
    scatter = f"; one run is {_off(apart)} from the median of the others" if apart else ""
    print(f"  {what}, all queries: {said}{scatter}", flush=True)


def _foresee(
    stages: pl.DataFrame, edges: pl.DataFrame, wall: Mapping[_Place, float] | None, left_out: float
) -> None:
    """Learn the other sizes, foresee this one."""
    model = QueryModel.fit(stages.filter(pl.col("scale_gb") != left_out), edges)
    truth = _schedules(stages, edges)
    rest: dict[str, list[float]] = {}
    for place, took_s in (wall or {}).items():
        if place[1] != left_out:
            rest.setdefault(place[0], []).append(took_s - truth[place])
    off, whole = [], []
    for (name, size, cores), took_s in truth.items():
        if size != left_out:
            continue
        said, _ = model.total(model.queries[name], size, cores)
        off.append(abs(said.total_s / took_s - 1))
        if wall is not None:
            expected = said.total_s + float(np.median(rest[name]))
            whole.append(abs(expected / wall[name, size, cores] - 1))
    also = f", of wall times {_off(whole)}" if whole else ""
    print(f"  {left_out:g} M rows left out, {len(off)} places: {_off(off)}{also}", flush=True)


def _off(errors: Sequence[float]) -> str:
    return f"{100 * np.mean(errors):.1f} % (median {100 * np.median(errors):.1f} %)"


# -- tuned ----------------------------------------------------------------------------------------


def _tune(place: Path, size: float) -> None:
    """Six trials over six settings, then the default and the choice again, by turns."""
    values = {name: said.split(",") for name, said in SPARK_SETTINGS.items()}
    points = [dict(zip(values, one, strict=True)) for one in product(*values.values())]
    ahead, _ = trials_ahead(pl.DataFrame(points), None, "elapsed_time")

    def session(number: int, rounds: int) -> tuple[int, Mapping[str, str], list[float], int]:
        return _TUNE_CORES, points[number], [size], rounds

    def measure(number: int) -> float:
        (log,) = _sessions(place, f"tune{number}", [session(number, 1), session(number, 2)])
        return sum(_wall(_read(log).queries).values())

    taught = teach(None, ahead.configs.height)
    search = ConfigSearch(ahead, list(range(len(points))), taught)
    done = search.run(
        measure, 6, told=lambda pick: print(f"  {pick.took:.2f} s: {pick.config}", flush=True)
    )
    chosen = points.index({name: str(value) for name, value in done.chosen.items()})
    turns = [session(number, 1) for _ in range(_AGAIN) for number in (0, chosen)]
    logs = _sessions(place, f"again{chosen}", [session(0, 1), *turns])
    again = [sum(_wall(_read(log).queries).values()) for log in logs]
    default, best = again[0::2], again[1::2]
    print(
        f"tune, {len(done.picks)} trials of {len(points)} configurations: {done.picks[0].took:.2f}"
        f" s with Spark's own values, {done.took:.2f} s with the choice; measured again, by turns:"
        f" {_listed(default)} s and {_listed(best)} s"
        f" ({np.median(default) / np.median(best):.2f} × faster): {done.chosen}"
    )


def _listed(times: Sequence[float]) -> str:
    return ", ".join(f"{one:.2f}" for one in times)


if __name__ == "__main__":
    main()
