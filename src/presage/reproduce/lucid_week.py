"""A week of Philly on 240 GPUs as Lucid's simulator (ASPLOS 2023) ran it, with jobs that share
GPUs by prediction; then the same policy on weeks and clusters it was not tuned on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from presage.foresee.adapter import EstimatePredictor
from presage.foresee.interference import JobAlone
from presage.learn import Floats
from presage.model.cluster import WHOLE_GPU, Node
from presage.model.estimate import Estimate, Estimates
from presage.page import COLOURS, short
from presage.policy.registry import NAMED, build
from presage.reproduce._pairs import (
    DEVICE,
    KNOWS,
    MeasuredPairs,
    measured_pairs,
    read_table,
    unseen,
    workload_names,
)
from presage.reproduce.result import Chart, Progress, ReproducedFigure, Reproduction
from presage.sim.result import SimResult
from presage.sim.run import simulate
from presage.sim.traces import Trace, complete
from presage.sim.world import WorldRules

__all__ = ["Week", "given_week", "itp_week", "philly_week", "run", "simulate_week"]

WEEK = "peers/lucid_sim_philly_week_240gpu.parquet"
RESTART_COST_S = 40.0
SHARERS = 3
_WEEK_S = 7 * 86_400
_LONGEST_S = 86_400.0
_LOAD = 0.85
"""GPU time asked for ÷ GPU time there is, in the week of the peer as in the others."""
_NODE_GPUS = 8
_PEER = "lucid_patched"
_OTHERS = ("fifo", "sjf", "tiresias")
"""What the policy is compared with on other weeks, each with the same knowledge."""


@dataclass(frozen=True, slots=True, eq=False)
class Week:
    """Jobs on a cluster, the workload of each, and how long it was thought to take."""

    name: str
    nodes: Sequence[Node]
    trace: Trace
    workloads: Sequence[str]


def run(data: Path, *, seeds: int, progress: Progress) -> Reproduction:
    """The given week, then others: Philly's and one of ITP, with workloads drawn for each seed."""
    table = read_table(data, WEEK)
    measured = measured_pairs(data, profiles(table))
    ratios = (table["estimate_s"] / table["duration"]).to_numpy()
    others_weeks: list[Callable[[int], Week]] = [
        lambda seed: philly_week(data, 7, measured, ratios, seed),
        lambda seed: philly_week(data, 9, measured, ratios, seed),
        lambda seed: itp_week(data, "cluster07", 2, measured, ratios, seed),
    ]
    repeats = min(seeds, _MOST_REPEATS)
    total, done = 1 + len(KNOWS) + len(others_weeks) * repeats, 0
    given = given_week(data, table)
    ours = simulate_week(given, measured)
    real = {}
    for name in KNOWS:
        done += 1
        progress(done, total)
        real[name] = simulate_week(given, unseen(measured, data, name))
    others: dict[str, list[dict[str, SimResult]]] = {}
    for make in others_weeks:
        for seed in range(repeats):
            week = make(seed)
            results = {"colocate": simulate_week(week, measured)}
            results |= {name: baseline(week, name) for name in _OTHERS}
            others.setdefault(week.name, []).append(results)
            done += 1
            progress(done, total)
    return Reproduction(
        "lucid-week",
        "Sharing GPUs by prediction on a week of Philly",
        "Hu et al., Lucid, ASPLOS 2023; the outcome of the authors' simulator",
        (*_given_lines(table, ours), *_known_lines(table, real), *_unseen_lines(others)),
        _DIFFERS,
        (_chart(table, ours),),
    )


_MOST_REPEATS = 2
"""Weeks are large: their averages hardly differ from draw to draw."""
_DIFFERS = (
    "Pairs have the speeds that were measured, at most 1; pairs that were not measured (32 of the "
    "66 workloads are in none) have those of the fitted model.",
    "The policy sees predictions for workloads that the model was not fitted on, with errors as "
    "large where no pair was measured, and estimate_s as the only knowledge of durations.",
    "Up to 3 jobs share a GPU; Lucid lets two. Triples were not measured: what each neighbour "
    "adds to the time of a step is added up.",
    "GPUs have the memory of an RTX 3090; a job that does not fit beside others runs out of it.",
    "A job of several GPUs goes as fast as its slowest GPU; a move to other GPUs costs 40 s.",
    "Unseen workloads: the given week by a policy that knows no profile. Utilization is foreseen "
    "from graphs by what was fitted without the workload's model (of workloads without a graph, "
    "with an error drawn from those), pairs by what they want beyond the GPU. 'Its loader': "
    "utilization is off by 0.2 (spread of the logarithm). Memory and durations are known as "
    "before.",
    "On the other weeks, where the paper column holds the best of fifo, sjf and tiresias with the "
    "same knowledge, workloads and errors of estimates are drawn from those of the given week. "
    "The cluster is sized for the same load.",
)


def simulate_week(week: Week, measured: MeasuredPairs, policy: str = "colocate") -> SimResult:
    """The week under a policy that shares."""
    jobs = week.trace.jobs
    known = measured.believed or measured.alone
    seen = [
        Estimates(
            "profiles of the peer",
            runtime_s=Estimate.exact(runtime, "s", "estimate_s"),
            memory_mib=Estimate.exact(known[name].memory_mib, "MiB", "profile"),
            utilization=Estimate.exact(known[name].util_pct / 100, "share", "profile"),
        )
        for name, runtime in zip(week.workloads, jobs["estimate_s"], strict=True)
    ]
    predictions = measured.predictions()
    return simulate(
        week.trace,
        week.nodes,
        build(NAMED[policy]),
        name=policy,
        rules=WorldRules(restart_cost_s=RESTART_COST_S, beside=measured.slowdown),
        models=week.workloads,
        estimates=seen,
        sharers=SHARERS,
        foresee=lambda world: EstimatePredictor(predictions, world),
    )


def baseline(week: Week, policy: str) -> SimResult:
    """The week under a policy that gives whole GPUs and knows the same of durations."""
    rules = WorldRules(restart_cost_s=RESTART_COST_S)
    return simulate(
        week.trace, week.nodes, build(policy), name=policy, rules=rules, use_estimates=True
    )


# -- weeks --------------------------------------------------------------------------------------


def profiles(table: pl.DataFrame) -> dict[str, JobAlone]:
    """What the peer knew of each workload."""
    return {
        name: JobAlone(row["gpu_util"], row["gmem_util"], row["gmem"])
        for name, row in zip(workload_names(table), table.iter_rows(named=True), strict=True)
    }


def given_week(data: Path, table: pl.DataFrame | None = None) -> Week:
    """The week of the peer."""
    table = (read_table(data, WEEK) if table is None else table).sort("order")
    jobs = table.select(
        job_id=pl.col("job_id").cast(pl.String),
        submit_s="submit_time",
        duration_s="duration",
        gpus="gpu_num",
        estimate_s="estimate_s",
    )
    names = workload_names(table)
    memory = table["gmem"].ceil()
    return Week("the given week", nodes(30), _trace(jobs, memory), names)


def philly_week(
    data: Path, week: int, measured: MeasuredPairs, ratios: Floats, seed: int = 0
) -> Week:
    """Another week of Philly."""
    table = read_table(data, "traces/philly_jobs.parquet").sort("submit_time")
    at = (pl.col("submit_time") - pl.col("submit_time").min()).dt.total_seconds()
    jobs = table.select(submit_s=at, duration_s="duration_s", gpus="num_gpus")
    return _drawn(f"Philly, week {week}", jobs, week, measured, ratios, seed)


def itp_week(
    data: Path, cluster: str, week: int, measured: MeasuredPairs, ratios: Floats, seed: int = 0
) -> Week:
    """A week of a cluster of ITP."""
    table = read_table(data, "traces/itp_jobs.parquet").filter(pl.col("cluster") == cluster)
    jobs = table.sort("submission_time").select(
        submit_s=pl.col("submission_time"), duration_s="duration", gpus="num_gpu"
    )
    return _drawn(f"ITP {cluster}, week {week}", jobs, week, measured, ratios, seed)


def _drawn(
    name: str, jobs: pl.DataFrame, week: int, measured: MeasuredPairs, ratios: Floats, seed: int
) -> Week:
    """One week of a trace, with workloads and errors of estimates drawn for its jobs."""
    chance = np.random.default_rng([seed, week])
    start = week * _WEEK_S
    jobs = jobs.filter(pl.col("submit_s").is_between(start, start + _WEEK_S, closed="left"))
    jobs = jobs.with_columns(
        pl.col("submit_s") - start,
        pl.col("duration_s").cast(pl.Float64).clip(1.0, _LONGEST_S).round(),
    )
    work = float((jobs["duration_s"] * jobs["gpus"]).sum())
    count = max(round(work / _WEEK_S / _LOAD / _NODE_GPUS), _nodes_of(jobs))
    off = chance.choice(ratios, jobs.height)
    known = list(measured.alone)
    names = [known[k] for k in chance.integers(len(known), size=jobs.height)]
    jobs = jobs.with_columns(
        job_id=pl.int_range(pl.len()).cast(pl.String), estimate_s=pl.col("duration_s") * off
    )
    memory = pl.Series([np.ceil(measured.alone[one].memory_mib) for one in names])
    return Week(f"{name} on {count}×{_NODE_GPUS}", nodes(count), _trace(jobs, memory), names)


def _nodes_of(jobs: pl.DataFrame) -> int:
    """Nodes that the largest job needs."""
    return -(-int(jobs["gpus"].to_numpy().max()) // _NODE_GPUS)


def nodes(count: int) -> list[Node]:
    """Machines of 8 GPUs."""
    return [Node(f"n{i}", (DEVICE,) * _NODE_GPUS) for i in range(count)]


def _trace(jobs: pl.DataFrame, memory: pl.Series) -> Trace:
    """Jobs as the simulator takes them."""
    gpus = pl.col("gpus") * WHOLE_GPU
    given = ("job_id", "submit_s", "duration_s", "estimate_s")
    return Trace(
        "week", "lucid", complete(jobs.select(*given, gpu_milli=gpus, gpu_memory_mib=memory))
    )


# -- what came out ------------------------------------------------------------------------------


def _given_lines(table: pl.DataFrame, ours: SimResult) -> list[ReproducedFigure]:
    figures = ours.summary
    peer = {name: table[f"{_PEER}_{name}"] for name in ("jct", "queue")}
    p99 = _number(peer["jct"].quantile(0.99, "linear"))
    lost = figures["jobs"] - figures["finished"]  # type: ignore[operator]  # both are counts
    return [
        ReproducedFigure.at_most(
            "average JCT, against Lucid",
            _number(figures["avg_jct_s"]),
            17_000.0,
            paper=_number(peer["jct"].mean()),
            unit="s",
        ),
        ReproducedFigure.at_most(
            "average queue time, against Lucid",
            _number(figures["avg_wait_s"]),
            1_000.0,
            paper=_number(peer["queue"].mean()),
            unit="s",
        ),
        ReproducedFigure.at_most(
            "p99 of JCT, against Lucid", _number(figures["p99_jct_s"]), p99, paper=p99, unit="s"
        ),
        *(
            ReproducedFigure(
                f"average JCT, against {name}",
                _number(figures["avg_jct_s"]),
                _number(table[f"{name}_jct"].mean()),
                "s",
            )
            for name in ("tiresias", "qssf", "fifo")
        ),
        ReproducedFigure("jobs that did not finish", _number(lost)),
        ReproducedFigure("jobs moved", float(ours.preemptions)),
        ReproducedFigure("CPU of the simulation", ours.cpu_s, None, "s"),
    ]


def _known_lines(table: pl.DataFrame, real: dict[str, SimResult]) -> list[ReproducedFigure]:
    """The given week with workloads that nobody has measured; the paper column has Lucid, which
    profiled each."""
    return [
        ReproducedFigure(
            f"unseen workloads, known by {name}: average JCT, against Lucid",
            _number(result.summary["avg_jct_s"]),
            _number(table[f"{_PEER}_jct"].mean()),
            "s",
        )
        for name, result in real.items()
    ]


def _unseen_lines(others: dict[str, list[dict[str, SimResult]]]) -> list[ReproducedFigure]:
    """The paper column holds what another policy gets with the same knowledge."""
    lines = []
    for week, repeats in others.items():
        mean = {
            name: {
                what: float(np.mean([_number(one[name].summary[what]) for one in repeats]))
                for what in ("avg_jct_s", "p99_jct_s")
            }
            for name in repeats[0]
        }
        ours = mean.pop("colocate")
        for what, words in (("avg_jct_s", "average JCT"), ("p99_jct_s", "p99 of JCT")):
            best = min(mean, key=lambda name: mean[name][what])
            theirs = mean[best][what]
            text = f"{week}: {words}, against {best}"
            lines.append(
                ReproducedFigure.at_most(text, ours[what], theirs, paper=theirs, unit="s")
            )
    return lines


def _chart(table: pl.DataFrame, ours: SimResult) -> Chart:
    """How many jobs had ended by which time after their submission."""
    curves = {"Presage, colocate": ours.jobs["jct_s"].drop_nulls(), "Lucid": table[f"{_PEER}_jct"]}
    curves |= {name: table[f"{name}_jct"] for name in ("tiresias", "fifo")}
    shares = np.linspace(0.0, 1.0, 201)
    figure = {
        "data": [
            {
                "type": "scatter",
                "name": name,
                "x": short(np.quantile(np.maximum(jct.to_numpy(), 1.0), shares)),
                "y": short(100 * shares),
                "line": {"color": COLOURS[at]},
            }
            for at, (name, jct) in enumerate(curves.items())
        ],
        "layout": {
            "xaxis": {"type": "log", "title": {"text": "seconds from submission to end"}},
            "yaxis": {"title": {"text": "jobs that ended, %"}},
        },
    }
    return Chart("How long jobs took", "The given week. Further left and up is better.", figure)


def _number(value: object) -> float:
    """A figure that is there: averages over jobs of which at least one finished."""
    assert isinstance(value, int | float)
    return float(value)
