"""Spark's event log as a table of stages and one of edges: what the model of queries learns from.

    run = read_spark_log("spark-events/eventlog_v2_app-1/", scale_gb=2.0)
    run.stages, run.edges, run.queries

A query is one SQL execution with all the jobs it became (adaptive execution makes a job of each
part of the plan); without SQL it is a job group, else a job. A stage that a later job lists only
to skip it, because its shuffle files are there, is the stage that wrote them: both have the same
last RDD. Stages count from 0 within their query: by depth, then by what they read, then by the
number of their plan, which are the same in every run. The ids and RDDs of stages side by side, and
which of them begins first, are not.

Waves have the names of the TPC-H measurements: `first_wave` are the tasks that began before any
of their stage had ended on the same executor, at most one a core; `rest_wave` all others; and
`fresh_durations` those of the first wave that were the first of all on their core. Tasks that
failed or lost against their speculative copy do not count, nor do queries that failed, or had not
ended when the log does.

Must not: start Spark, guess times that are not in the log, or hold a whole log in memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from presage.model.errors import TelemetryError

__all__ = ["SparkRun", "read_spark_log"]

STAGES: dict[str, type[pl.DataType]] = {
    "scale_gb": pl.Float64,
    "query": pl.String,
    "stage": pl.Int64,
    "wave": pl.String,
    "executors": pl.Int64,
    "tasks": pl.Int64,
    "mean_ms": pl.Float64,
    "sum_ms": pl.Float64,
    "max_ms": pl.Float64,
}
EDGES: dict[str, type[pl.DataType]] = {
    "scale_gb": pl.Float64,
    "query": pl.String,
    "from_stage": pl.Int64,
    "to_stage": pl.Int64,
}
QUERIES: dict[str, type[pl.DataType]] = {
    "scale_gb": pl.Float64,
    "query": pl.String,
    "executors": pl.Int64,
    "started_ms": pl.Int64,
    "elapsed_ms": pl.Float64,
}


_PLAN = re.compile(r'"id":"spark_plan_(\d+)"')


@dataclass(frozen=True, slots=True)
class SparkRun:
    """What one application did."""

    stages: pl.DataFrame
    """A row for each wave of each stage: tasks, and the mean, sum and maximum of their times."""
    edges: pl.DataFrame
    """Which stage reads what which other one wrote."""
    queries: pl.DataFrame
    """From its first job's submission to its last job's end: how long each query took."""
    failed: tuple[str, ...] = ()
    """Queries that are not in the tables, as they failed or did not end."""


@dataclass(slots=True)
class _SparkTask:
    executor: str
    launched_ms: int
    finished_ms: int
    took_ms: float


@dataclass(slots=True)
class _SparkStage:
    """What is known of a stage while the log is read."""

    id: int
    last_rdd: int
    plan: int
    """The last node of the plan that it runs; 0 where the log does not tell."""
    parents: tuple[int, ...]
    tasks: dict[int, _SparkTask] = field(default_factory=dict)
    """The attempt that did the work, by partition."""


@dataclass(slots=True)
class _SparkQuery:
    name: str
    began_ms: int
    ended_ms: int = 0
    running: set[int] = field(default_factory=set)
    """Jobs that have not ended."""
    failed: bool = False
    stages: dict[int, _SparkStage] = field(default_factory=dict)
    """Those that ran or were skipped, by id."""


@dataclass(slots=True)
class _SparkLog:
    """All that is kept of a log."""

    queries: dict[str, _SparkQuery] = field(default_factory=dict)
    query_of_job: dict[int, _SparkQuery] = field(default_factory=dict)
    stages: dict[int, _SparkStage] = field(default_factory=dict)
    cores: dict[str, int] = field(default_factory=dict)
    """Of the executors that are there."""
    all_cores: dict[str, int] = field(default_factory=dict)
    """Of all that ever were."""
    most_cores: int = 0
    cpu_time: bool = False
    """Whether a task takes what it had of its core, and not from its launch to its end."""
    first_launches: dict[str, list[int]] = field(default_factory=dict)
    """Of each executor, as many as it has cores."""


def read_spark_log(path: str | Path, *, scale_gb: float = 0.0, cpu_time: bool = False) -> SparkRun:
    """Read one application's log: a file, or the directory of a log that was rolled.

    With `cpu_time` a task takes the CPU time that its thread used: right for a log from a machine
    that others used, too, but blind to disks and networks. The time of queries stays as it was.
    """
    log = _SparkLog(cpu_time=cpu_time)
    for event in _events(Path(path)):
        reader = _READERS.get(event.get("Event", ""))
        if reader is not None:
            try:
                reader(log, event)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise TelemetryError(
                    f"{path}: an event {event['Event']} is not as Spark writes it: {error!r}"
                ) from None
    lost = [query for query in log.queries.values() if query.failed or query.running]
    done = [one for one in log.queries.values() if one not in lost and _ran(one)]
    if not done:
        also = f"; {len(lost)} failed or did not end" if lost else ""
        raise TelemetryError(f"{path}: no query of this log ran a task to its end{also}")
    names = _names(done)
    stages, edges, queries = [], [], []
    for query, name in zip(done, names, strict=True):
        key = (scale_gb, name)
        ran = {stage.last_rdd: stage for stage in _ran(query)}
        links = _links(query, ran)
        number = _numbers(ran, links)
        for rdd, place in number.items():
            stages += _waves(log, ran[rdd], (*key, place))
        edges += sorted((*key, number[before], number[then]) for before, then in links)
        took = max(query.ended_ms - query.began_ms, 0)
        queries.append((*key, log.most_cores, query.began_ms, float(took)))
    return SparkRun(
        pl.DataFrame(stages, STAGES, orient="row"),
        pl.DataFrame(edges, EDGES, orient="row"),
        pl.DataFrame(queries, QUERIES, orient="row"),
        tuple(query.name or "(no name)" for query in lost),
    )


# -- files ----------------------------------------------------------------------------------------


def _events(path: Path) -> Iterator[Mapping[str, Any]]:
    for file in _files(path):
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                for magic, unpack in _COMPRESSED.items() if number == 1 else ():
                    if line.startswith(magic):
                        raise TelemetryError(
                            f"{file} is compressed: {unpack}, or set spark.eventLog.compress=false"
                        )
                try:
                    event = json.loads(line)
                except ValueError:
                    if not line.endswith(b"\n"):
                        return  # the application still writes, or was killed while it did
                    raise TelemetryError(f"{file}, line {number}: not Spark's event log") from None
                if not isinstance(event, dict):
                    raise TelemetryError(f"{file}, line {number}: not Spark's event log")
                yield event


_COMPRESSED = {
    b"\x28\xb5\x2f\xfd": "run `zstd -d` on it",
    b"\x1f\x8b": "run `gunzip` on it",
    b"LZ4Block": "Spark's own form of lz4 cannot be read; write it with zstd",
    b"\x82SNAPPY": "Spark's own form of snappy cannot be read; write it with zstd",
    b"ZV": "lzf cannot be read; write it with zstd",
}


def _files(path: Path) -> list[Path]:
    """The parts of a log in the order of their numbers; a compacted one holds all before it."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise TelemetryError(f"{path}: no such file or directory")
    parts: dict[int, Path] = {}
    for file in sorted(path.glob("events_*_*")):
        number = file.name.split("_")[1]
        if number.isdecimal():
            parts[int(number)] = file
    if not parts:
        raise TelemetryError(
            f"{path}: no events_* files; name one application's log, not the folder of all"
        )
    compact = [turn for turn, file in parts.items() if ".compact" in file.suffixes]
    turns = range(max(compact, default=1), max(parts) + 1)
    for turn in turns:
        if turn not in parts:
            raise TelemetryError(f"{path}: the part events_{turn}_* of this log is missing")
    return [parts[turn] for turn in turns]


# -- events ---------------------------------------------------------------------------------------


def _executor_added(log: _SparkLog, event: Mapping[str, Any]) -> None:
    cores = int(event["Executor Info"]["Total Cores"])
    log.cores[event["Executor ID"]] = log.all_cores[event["Executor ID"]] = cores
    log.most_cores = max(log.most_cores, sum(log.cores.values()))


def _executor_removed(log: _SparkLog, event: Mapping[str, Any]) -> None:
    log.cores.pop(event["Executor ID"], None)


def _job_start(log: _SparkLog, event: Mapping[str, Any]) -> None:
    job, said = int(event["Job ID"]), event.get("Properties") or {}
    execution = said.get("spark.sql.execution.root.id") or said.get("spark.sql.execution.id")
    group = said.get("spark.jobGroup.id")
    key = f"job {job}"
    if execution is not None:
        key = f"sql {execution}"
    elif group is not None:
        key = f"group {group}"
    at = int(event["Submission Time"])
    name = said.get("spark.job.description") or group or ""
    query = log.queries.setdefault(key, _SparkQuery(str(name), at))
    query.running.add(job)
    log.query_of_job[job] = query
    for info in event["Stage Infos"]:
        rdds = [int(rdd["RDD ID"]) for rdd in info["RDD Info"]]
        parents = tuple(map(int, info["Parent IDs"]))
        stage = _SparkStage(int(info["Stage ID"]), max(rdds), _plan(info["RDD Info"]), parents)
        query.stages.setdefault(stage.id, stage)
        log.stages.setdefault(stage.id, stage)


def _plan(rdds: list[Mapping[str, Any]]) -> int:
    nodes = [_PLAN.search(rdd.get("Scope") or "") for rdd in rdds]
    return max((int(node[1]) for node in nodes if node), default=0)


def _job_end(log: _SparkLog, event: Mapping[str, Any]) -> None:
    query = log.query_of_job.get(int(event["Job ID"]))
    if query is not None:
        query.ended_ms = max(query.ended_ms, int(event["Completion Time"]))
        query.running.discard(int(event["Job ID"]))
        query.failed |= event.get("Job Result", {}).get("Result") == "JobFailed"


def _sql_end(log: _SparkLog, event: Mapping[str, Any]) -> None:
    """A plan may succeed without some of its jobs; older versions of Spark do not tell."""
    query = log.queries.get(f"sql {event['executionId']}")
    if query is not None and "errorMessage" in event:
        query.failed = bool(event["errorMessage"])


def _task_end(log: _SparkLog, event: Mapping[str, Any]) -> None:
    info, stage = event["Task Info"], log.stages.get(int(event["Stage ID"]))
    launched, finished = int(info["Launch Time"]), int(info["Finish Time"])
    task = _SparkTask(info["Executor ID"], launched, finished, float(finished - launched))
    cores = log.all_cores.setdefault(task.executor, 1)
    launches = [*log.first_launches.get(task.executor, ()), task.launched_ms]
    log.first_launches[task.executor] = sorted(launches)[:cores]
    if stage is None or info.get("Failed") or info.get("Killed"):
        return
    if event["Task End Reason"]["Reason"] == "Success":
        if log.cpu_time:
            used = event["Task Metrics"]
            cpu_ns = used["Executor CPU Time"] + used["Executor Deserialize CPU Time"]
            task.took_ms = cpu_ns / 1e6
        stage.tasks[int(info["Index"])] = task


_READERS = {
    "SparkListenerExecutorAdded": _executor_added,
    "SparkListenerExecutorRemoved": _executor_removed,
    "SparkListenerJobStart": _job_start,
    "SparkListenerJobEnd": _job_end,
    "SparkListenerTaskEnd": _task_end,
    "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionEnd": _sql_end,
}


# -- tables ---------------------------------------------------------------------------------------


def _names(queries: list[_SparkQuery]) -> list[str]:
    """What each is called: its description, else its number; where a name was there before, with
    a number behind."""
    names: list[str] = []
    for number, query in enumerate(queries):
        name, turn = query.name or str(number), 2
        made = name
        while made in names:
            made, turn = f"{name} ({turn})", turn + 1
        names.append(made)
    return names


def _ran(query: _SparkQuery) -> list[_SparkStage]:
    """One stage for each last RDD: the one that did its work."""
    best: dict[int, _SparkStage] = {}
    for stage in query.stages.values():
        if stage.tasks and len(stage.tasks) > len(
            best[stage.last_rdd].tasks if stage.last_rdd in best else ()
        ):
            best[stage.last_rdd] = stage
    return list(best.values())


def _links(query: _SparkQuery, ran: Mapping[int, _SparkStage]) -> set[tuple[int, int]]:
    """Which stage reads what which other wrote, by their last RDDs."""
    links = set()
    for stage in query.stages.values():
        for parent in stage.parents:
            before = query.stages.get(parent)
            if before is not None and before.last_rdd in ran and stage.last_rdd in ran:
                links.add((before.last_rdd, stage.last_rdd))
    return links


def _numbers(ran: Mapping[int, _SparkStage], links: set[tuple[int, int]]) -> dict[int, int]:
    """The number of each stage, by its last RDD, in the order of the numbers."""
    reads = {rdd: {before for before, then in links if then == rdd} for rdd in ran}
    number: dict[int, int] = {}
    while len(number) < len(ran):
        ready = [
            (sorted(number[one] for one in reads[rdd]), stage.plan, rdd)
            for rdd, stage in ran.items()
            if rdd not in number and reads[rdd] <= number.keys()
        ]
        if not ready:
            raise TelemetryError("the stages of this log wait for one another in a cycle")
        number |= {rdd: len(number) + n for n, (_, _, rdd) in enumerate(sorted(ready))}
    return number


def _waves(
    log: _SparkLog, stage: _SparkStage, key: tuple[float, str, int]
) -> list[tuple[object, ...]]:
    waves: dict[str, list[float]] = {"fresh_durations": [], "first_wave": [], "rest_wave": []}
    for executor in sorted({task.executor for task in stage.tasks.values()}):
        tasks = [task for task in stage.tasks.values() if task.executor == executor]
        tasks.sort(key=lambda task: task.launched_ms)
        over = min(task.finished_ms for task in tasks)
        # A core is free a little before the driver notes the end: hence the bound on the number.
        for turn, task in enumerate(tasks):
            first = task.launched_ms < over and turn < log.all_cores[executor]
            waves["first_wave" if first else "rest_wave"].append(task.took_ms)
            if first and task.launched_ms <= log.first_launches[executor][-1]:
                waves["fresh_durations"].append(task.took_ms)
    cores = log.most_cores
    return [
        (*key, wave, cores, len(ms), sum(ms) / len(ms), sum(ms), max(ms))
        for wave, ms in waves.items()
        if ms
    ]
