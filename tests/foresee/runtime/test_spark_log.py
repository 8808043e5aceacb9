"""Event logs: of a real Spark where there is one, and hand-made where the order matters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from presage.foresee.runtime.spark_log import SparkRun, read_spark_log
from presage.model.errors import TelemetryError
from tests.conftest import missing
from tests.spark import missing_spark, run_spark

_QUERIES = """
spark = start(2)
spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
left = spark.range(0, 20000, 1, 5).selectExpr("id", "id % 100 as k", "rand(1) as v")
right = spark.range(0, 100, 1, 2).selectExpr("id as k", "id * 2 as w")
spark.sparkContext.setJobDescription("join")
for _ in range(3):
    left.join(right, "k").groupBy("w").sum("v").collect()
spark.sparkContext.setJobDescription("count")
left.groupBy("k").avg("v").count()
spark.stop()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SparkRun:
    why = missing_spark()
    if why:
        missing(why)
    (log,) = run_spark(_QUERIES, tmp_path_factory.mktemp("spark"), short=True)
    return read_spark_log(log, scale_gb=2)


@pytest.mark.engine
def test_queries_of_a_real_log_are_told_apart(run: SparkRun) -> None:
    names = ["join", "join (2)", "join (3)", "count"]
    assert run.queries["query"].to_list() == names
    assert run.queries["executors"].to_list() == [2] * 4
    assert (run.queries["elapsed_ms"] > 0).all()
    assert set(run.stages["query"]) == {*names}
    assert run.stages["scale_gb"].unique().to_list() == [2.0]


@pytest.mark.engine
def test_stages_of_a_real_log_are_a_dag_from_the_tables_to_the_result(run: SparkRun) -> None:
    join = run.edges.filter(pl.col("query") == "join")
    stages = run.stages.filter(pl.col("query") == "join")
    into = set(join["to_stage"])
    sources = sorted(set(stages["stage"]) - into)
    tasks = {
        stage: int(sum(rows["tasks"].to_list()))
        for (stage,), rows in stages.filter(pl.col("wave") != "fresh_durations").group_by("stage")
    }
    assert sorted(tasks[stage] for stage in sources) == [2, 5]  # partitions of both tables
    (joined,) = {
        to for to in into if set(join.filter(pl.col("to_stage") == to)["from_stage"]) == {*sources}
    }
    assert (join["from_stage"] < join["to_stage"]).all()
    assert joined in set(join["from_stage"])
    assert stages["stage"].n_unique() == max(into) + 1  # skipped ones are not counted again


@pytest.mark.engine
def test_stages_of_a_real_log_have_the_same_numbers_in_every_run(run: SparkRun) -> None:
    seen = []
    for name in ("join", "join (2)", "join (3)"):
        mine = pl.col("query") == name
        rows = run.stages.filter(mine, pl.col("wave") != "fresh_durations")
        tasks = rows.group_by("stage").agg(pl.col("tasks").sum()).sort("stage")
        edges = run.edges.filter(mine).select("from_stage", "to_stage").sort(pl.all())
        seen.append((tasks.rows(), edges.rows()))
    assert seen == [seen[0]] * 3


@pytest.mark.engine
def test_waves_of_a_real_log_fit_its_cores(run: SparkRun) -> None:
    first = run.stages.filter(pl.col("wave") == "first_wave")
    assert (first["tasks"] <= 2).all()
    assert (run.stages["mean_ms"] <= run.stages["max_ms"]).all()
    fresh = run.stages.filter(pl.col("wave") == "fresh_durations")
    assert fresh["tasks"].sum() in (1, 2)  # the one executor is fresh once
    busy = run.stages.filter(pl.col("wave") != "fresh_durations")["sum_ms"].sum()
    assert busy <= 2 * run.queries["elapsed_ms"].sum()


# -- hand-made logs -------------------------------------------------------------------------------


def _job(job: int, at: int, *stages: tuple[int, int, list[int]], **said: str) -> dict[str, Any]:
    infos = [
        {"Stage ID": stage, "Parent IDs": parents, "RDD Info": [{"RDD ID": 0}, {"RDD ID": rdd}]}
        for stage, rdd, parents in stages
    ]
    said = {key.replace("_", "."): value for key, value in said.items()}
    return {
        "Event": "SparkListenerJobStart", "Job ID": job, "Submission Time": at,
        "Stage Infos": infos, "Properties": said,
    }  # fmt: skip


def _task(stage: int, index: int, begin: int, end: int, **info: object) -> dict[str, Any]:
    return {
        "Event": "SparkListenerTaskEnd", "Stage ID": stage,
        "Task End Reason": {"Reason": "Success" if not info else "TaskKilled"},
        "Task Info": {"Index": index, "Executor ID": "1", "Launch Time": begin,
                      "Finish Time": end, **info},
    }  # fmt: skip


def _end(job: int, at: int, result: str = "JobSucceeded") -> dict[str, Any]:
    return {
        "Event": "SparkListenerJobEnd", "Job ID": job, "Completion Time": at,
        "Job Result": {"Result": result},
    }  # fmt: skip


_CORES = {
    "Event": "SparkListenerExecutorAdded",
    "Executor ID": "1",
    "Executor Info": {"Total Cores": 2},
}


def _write(path: Path, *events: Mapping[str, Any], tail: str = "") -> Path:
    path.write_text("".join(json.dumps(event) + "\n" for event in events) + tail)
    return path


def write_query(path: Path, names: tuple[str, ...], tasks: int) -> Path:
    """Queries on two cores: `tasks` of 60 ms on each row of a table, then one that joins them."""
    events, now = [_CORES], 0
    for job, name in enumerate(names):
        reads, joins = 2 * job, 2 * job + 1
        events.append(
            _job(job, now, (reads, 2 * job + 1, []), (joins, 2 * job + 2, [reads]),
                 spark_job_description=name)
        )  # fmt: skip
        for task in range(tasks):
            start = now + 60 * (task // 2)
            events.append(_task(reads, task, start, start + 60))
        now += 60 * -(-tasks // 2)
        events += [_task(joins, 0, now, now + 60), _end(job, now + 60)]
        now += 60
    return _write(path, *events)


def test_a_skipped_stage_is_the_one_that_wrote_its_files(tmp_path: Path) -> None:
    log = _write(
        tmp_path / "log",
        _CORES,
        _job(0, 100, (0, 5, []), spark_sql_execution_id="7"),
        _task(0, 0, 110, 200),
        _task(0, 1, 110, 150),
        _task(0, 2, 150, 210),
        _end(0, 210),
        _job(1, 220, (1, 5, []), (2, 9, [1]), spark_sql_execution_id="7"),
        _task(2, 0, 225, 300),
        _end(1, 310),
        tail='{"Event": "SparkListenerTaskEnd", "Sta',  # killed while it wrote
    )
    run = read_spark_log(log)
    assert run.edges.rows() == [(0.0, "0", 0, 1)]
    assert run.queries.rows() == [(0.0, "0", 2, 100, 210.0)]
    assert run.stages.select("stage", "wave", "tasks", "mean_ms", "sum_ms", "max_ms").rows() == [
        (0, "fresh_durations", 2, 65.0, 130.0, 90.0),
        (0, "first_wave", 2, 65.0, 130.0, 90.0),
        (0, "rest_wave", 1, 60.0, 60.0, 60.0),
        (1, "first_wave", 1, 75.0, 75.0, 75.0),
    ]


@pytest.mark.parametrize(("small", "large"), [(0, 1), (1, 0)])
def test_stages_have_the_same_numbers_whichever_began_first(
    tmp_path: Path, small: int, large: int
) -> None:
    log = _write(
        tmp_path / "log",
        _CORES,
        _job(0, 0, (small, 3, []), (large, 5, []), (2, 9, [0, 1])),
        _task(small, 0, small, small + 20),
        _task(large, 0, large, large + 40),
        _task(2, 0, 50, 110),
        _end(0, 110),
    )
    run = read_spark_log(log)
    assert run.edges.select("from_stage", "to_stage").rows() == [(0, 2), (1, 2)]
    first = run.stages.filter(pl.col("wave") == "first_wave")
    assert first.select("stage", "mean_ms").rows() == [(0, 20.0), (1, 40.0), (2, 60.0)]


def test_the_cpu_time_of_tasks_may_count(tmp_path: Path) -> None:
    task = _task(0, 0, 0, 90)
    task["Task Metrics"] = {"Executor CPU Time": 30e6, "Executor Deserialize CPU Time": 5e6}
    log = _write(tmp_path / "log", _CORES, _job(0, 0, (0, 1, [])), task, _end(0, 100))
    for cpu_time, took_ms in ((False, 90.0), (True, 35.0)):
        assert set(read_spark_log(log, cpu_time=cpu_time).stages["mean_ms"]) == {took_ms}


def test_lost_attempts_do_not_count(tmp_path: Path) -> None:
    log = _write(
        tmp_path / "log",
        _CORES,
        _job(0, 0, (0, 1, [])),
        _task(0, 0, 0, 50, Failed=True),
        _task(0, 0, 60, 90),
        _task(0, 0, 61, 95, Killed=True),
        _end(0, 100),
    )
    run = read_spark_log(log)
    assert run.stages.filter(pl.col("wave") == "first_wave")["sum_ms"].to_list() == [30.0]


def test_queries_that_failed_or_did_not_end_are_left_out(tmp_path: Path) -> None:
    events: list[Mapping[str, Any]] = [_CORES]
    for job, said in enumerate(({"spark_job_description": "a"}, {"spark_job_description": "b"},
                                {"spark_sql_execution_id": "7"}, {})):  # fmt: skip
        events += [_job(job, job, (job, job, []), **said), _task(job, 0, job, 50)]
    sql = "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionEnd"
    events += [_end(0, 60), _end(1, 60, "JobFailed"), _end(2, 60, "JobFailed")]
    events += [{"Event": sql, "executionId": 7, "errorMessage": ""}]  # it went on without the job
    run = read_spark_log(_write(tmp_path / "log", *events))
    assert run.queries["query"].to_list() == ["a", "1"]
    assert run.failed == ("b", "(no name)")
    assert set(run.stages["query"]) == {"a", "1"}
    with pytest.raises(TelemetryError, match="1 failed or did not end"):
        read_spark_log(_write(tmp_path / "log", *events[:3]))


def test_queries_keep_their_names_beside_others_that_have_none(tmp_path: Path) -> None:
    log = write_query(tmp_path / "log", ("", "a b", "c", "a b", ""), tasks=2)
    assert read_spark_log(log).queries["query"].to_list() == ["0", "a b", "c", "a b (2)", "4"]


def test_a_rolled_log_is_read_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    folder = tmp_path / "eventlog_v2_app"
    folder.mkdir()
    _write(folder / "events_10_app", _task(0, 0, 10, 30), _end(0, 40))
    _write(folder / "events_9_app", _CORES, _job(0, 0, (0, 1, []), spark_job_description="a"))
    with pytest.raises(TelemetryError, match="events_1_"):
        read_spark_log(folder)
    (folder / "events_9_app").rename(folder / "events_9_app.compact")  # all before it, too
    _write(folder / "events_9_app", _job(9, 0, (9, 9, [])))
    assert read_spark_log(folder).queries["query"].to_list() == ["a"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x28\xb5\x2f\xfd\x00", "zstd -d"),
        (b"\x1f\x8b\x08\x00", "gunzip"),
        (b"LZ4Block\x16", "lz4 cannot be read"),
        (b"hello\n", "line 1: not Spark's event log"),
        (b"[1]\n", "line 1: not Spark's event log"),
        (b'{"Event": "SparkListenerJobStart"}\n', "is not as Spark writes it"),
        (b"", "no query"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    with pytest.raises(TelemetryError, match=says) as refused:
        read_spark_log(path)
    assert "\n" not in str(refused.value)


def test_folders_that_are_no_log_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TelemetryError, match="name one application's log"):
        read_spark_log(tmp_path)
    with pytest.raises(TelemetryError, match="no such file"):
        read_spark_log(tmp_path / "none")
