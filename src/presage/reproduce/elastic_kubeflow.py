"""Elastic training on Kubernetes: static round-robin, DRAGON's triggers, and workers by gain.

Two workloads: a generated mix of trainings on a small cluster, and an ITP cluster at 90 % load.
Every job is a training that was measured at many sizes: the world runs at the measured step times
(a fitted one only where a size was not measured), while the policy sees nothing but the fitted
model and an estimate of the duration that is wrong by a random factor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import ceil, exp, sqrt
from pathlib import Path
from zlib import crc32

import numpy as np
import numpy.typing as npt
import polars as pl

from presage.core.ports import Predictor
from presage.foresee.scaling import StepModel, fit_steps
from presage.model.cluster import WHOLE_GPU, Worker
from presage.model.errors import UserError
from presage.model.estimate import Estimate
from presage.model.job import Job
from presage.policy.config import PolicyConfig
from presage.policy.registry import build
from presage.reproduce.result import Chart, Progress, ReproducedFigure, Reproduction
from presage.sim.clusters import read_cluster
from presage.sim.run import simulate
from presage.sim.speed import MeasuredSpeed
from presage.sim.traces import Trace, complete, read_trace
from presage.sim.world import WorldRules

__all__ = [
    "POLICIES",
    "ElasticFigures",
    "ElasticSetup",
    "itp_setup",
    "measure",
    "mix_setup",
    "run",
]

Floats = npt.NDArray[np.float64]

RESIZE_S = 40.0
"""What a checkpoint and a restart cost a job, as published simulators have it."""
ESTIMATE_ERROR = 0.5
"""Standard deviation of the logarithm of (estimated ÷ true duration)."""
MOST = 4
"""Elastic jobs have between what they ask for and so many times that."""
MIX_JOBS, MIX_CLUSTER, MIX_LOAD, MIX_MACHINES = 60, "8x4", 1.5, "aws"
MIX_WORKERS, MIX_MEDIAN_S, MIX_SIGMA = (1, 2, 4, 8), 1_800.0, 0.8
ITP_CLUSTER, ITP_LOAD, ITP_MACHINES = "cluster06", 0.9, "dgx-ext"
BUSY_CLUSTER = "cluster03"
OTHER_LOADS = (0.9, 1.2, 2.0)
MODEL_ERRORS = (0.25, 0.5, 1.0)
PAPER_RUN_PCT = 100 * (1 - (3 * 3600 + 16 * 60 + 54) / (4 * 3600 + 11 * 60 + 44))
PAPER_WAIT_PCT = 100 * (1 - (2 * 3600 + 57 * 60 + 37) / (4 * 3600 + 45 * 60 + 2))
RUN_TARGET_PCT, WAIT_TARGET_PCT = 22.0, 38.0

STATIC, TRIGGERS, BY_GAIN = "static round-robin", "triggers", "by gain"
POLICIES: dict[str, PolicyConfig] = {
    STATIC: PolicyConfig(placement="spread"),
    "static, packed": PolicyConfig(),
    "static, packed, backfilled": PolicyConfig(backfill=True),
    TRIGGERS: PolicyConfig(elastic=True, grow_by="fewest", shrink_after_s=30.0, grow_after_s=60.0),
    BY_GAIN: PolicyConfig(backfill=True, elastic=True, resize_cost_s=RESIZE_S),
}
"""What is compared. The static ones run each job on the workers it asks for."""


def run(data: Path, *, seeds: int, progress: Progress) -> Reproduction:
    """Every policy on both workloads; then loads, errors and a cluster where it is harder."""
    beside = 2 * len(OTHER_LOADS) + len(_VARIANTS) + len(MODEL_ERRORS)
    steps = seeds * (2 * len(POLICIES) + beside) + 2
    ticks = count(1)

    def measured(setup: ElasticSetup, name: str, error: float = 0.0) -> ElasticFigures:
        figures = measure(setup, POLICIES[name], error=error)
        progress(next(ticks), steps)
        return figures

    mixes = [mix_setup(data, seed) for seed in range(seeds)]
    itps = [itp_setup(data, seed) for seed in range(seeds)]
    mix, itp = (
        {name: [measured(one, name) for one in some] for name in POLICIES}
        for some in (mixes, itps)
    )
    lines = [*_lines("mix", mix), *_lines(f"ITP {ITP_CLUSTER}", itp)]
    for load in OTHER_LOADS:
        others = [mix_setup(data, seed, load=load) for seed in range(seeds)]
        by_policy = {name: [measured(one, name) for one in others] for name in (STATIC, BY_GAIN)}
        lines += _saved(f"mix at load {load:g}, {BY_GAIN}", by_policy[BY_GAIN], by_policy[STATIC])
    for words, change in _VARIANTS.items():
        changed = [measured(_changed(one, **change), BY_GAIN) for one in mixes]
        lines += _saved(f"mix, {BY_GAIN}, {words}", changed, mix[STATIC])
    for error in MODEL_ERRORS:
        wrong = [measured(one, BY_GAIN, error) for one in mixes]
        lines += _saved(f"mix, {BY_GAIN}, speeds wrong by e^±{error:g}", wrong, mix[STATIC])
    busy = itp_setup(data, 0, BUSY_CLUSTER)
    bursts = [[measured(busy, name)] for name in (BY_GAIN, STATIC)]
    lines += _saved(f"ITP {BUSY_CLUSTER}, {BY_GAIN}", *bursts)
    lines += [
        ReproducedFigure(
            f"ITP {name}: part of the run time while nobody waits, {STATIC}", part, unit="%"
        )
        for name, part in (
            (ITP_CLUSTER, float(np.mean([one.no_queue_pct for one in itp[STATIC]]))),
            (BUSY_CLUSTER, bursts[1][0].no_queue_pct),
        )
    ]
    return Reproduction(
        "elastic-kubeflow",
        "Elastic training: workers by gain, against static round-robin",
        "DRAGON (National Tsing Hua University), slides: run time and waiting with autoscaling",
        tuple(lines),
        _DIFFERS,
        (_chart(mix, itp),),
    )


def _lines(
    where: str, by_policy: Mapping[str, Sequence[ElasticFigures]]
) -> list[ReproducedFigure]:
    """The two figures of the paper with their targets, then what else there is to know."""
    static, gain = by_policy[STATIC], by_policy[BY_GAIN]
    run_pct, wait_pct = (_less(gain, static, key) for key in ("run_s", "wait_s"))
    lines = [
        ReproducedFigure.at_least(
            f"{where}: run time less, {BY_GAIN}",
            run_pct,
            RUN_TARGET_PCT,
            paper=PAPER_RUN_PCT,
            unit="%",
        ),
        ReproducedFigure.at_least(
            f"{where}: waiting less, {BY_GAIN}",
            wait_pct,
            WAIT_TARGET_PCT,
            paper=PAPER_WAIT_PCT,
            unit="%",
        ),
        ReproducedFigure(
            f"{where}: time until the last job ends less, {BY_GAIN}",
            _less(gain, static, "makespan_s"),
            unit="%",
        ),
        ReproducedFigure(
            f"{where}: mean completion time less, {BY_GAIN}",
            _less(gain, static, "jct_s"),
            unit="%",
        ),
    ]
    for name in POLICIES:
        if name not in (STATIC, BY_GAIN):
            lines += _saved(f"{where}, {name}", by_policy[name], static)
    waits = [one.wait_s / one.run_s for one in static]
    lines.append(
        ReproducedFigure(f"{where}: waiting ÷ run time, {STATIC}", float(np.mean(waits)), 1.13)
    )
    return lines


def _saved(
    what: str, ours: Sequence[ElasticFigures], static: Sequence[ElasticFigures]
) -> list[ReproducedFigure]:
    return [
        ReproducedFigure(f"{what}: run time less", _less(ours, static, "run_s"), unit="%"),
        ReproducedFigure(f"{what}: waiting less", _less(ours, static, "wait_s"), unit="%"),
    ]


def _less(ours: Sequence[ElasticFigures], static: Sequence[ElasticFigures], key: str) -> float:
    """By how many percent a figure is below that of static round-robin, mean over the seeds."""
    shares = [getattr(a, key) / getattr(b, key) for a, b in zip(ours, static, strict=True)]
    return 100 * (1 - float(np.mean(shares)))


def _chart(
    mix: Mapping[str, Sequence[ElasticFigures]], itp: Mapping[str, Sequence[ElasticFigures]]
) -> Chart:
    bars = [
        {
            "type": "bar",
            "name": f"{where}: {words}",
            "x": list(POLICIES),
            "y": [100 - _less(by_policy[name], by_policy[STATIC], key) for name in POLICIES],
        }
        for where, by_policy in (("mix", mix), ("ITP", itp))
        for words, key in (("run time", "run_s"), ("waiting", "wait_s"))
    ]
    layout = {"barmode": "group", "yaxis": {"title": {"text": f"% of {STATIC}"}}}
    return Chart("Run time and waiting", "Lower is better.", {"data": bars, "layout": layout})


def _changed(
    setup: ElasticSetup, *, half: bool = False, keeps_global_batch: bool = False
) -> ElasticSetup:
    """The same jobs, able to run on half of what they ask for, or with one batch for all."""
    jobs = setup.trace.jobs
    if half:
        jobs = jobs.with_columns(min_workers=(pl.col("workers") + 1) // 2)
    trainings = {
        job: replace(one, keeps_global_batch=keeps_global_batch)
        for job, one in setup.trainings.items()
    }
    return replace(setup, trace=replace(setup.trace, jobs=jobs), trainings=trainings)


_VARIANTS: dict[str, dict[str, bool]] = {
    "from half of what they ask for": {"half": True},
    "with a fixed global batch": {"keeps_global_batch": True},
}

_DIFFERS = (
    "The slides name neither the jobs nor the cluster. Here the mix is 60 trainings on 8 nodes of "
    "4 GPUs: a family of the measured ones drawn evenly, 1, 2, 4 or 8 workers, log-normal "
    "durations around 30 minutes, Poisson arrivals at 1.5 times what the cluster can do.",
    "The ITP trace has GPU counts and durations but no models: families are drawn evenly. The "
    "cluster has the fewest 8-GPU nodes that keep its mean load at most at 90 %.",
    "Not every ITP cluster has room to grow into: where the jobs come in bursts, little of their "
    "run time passes while nobody waits, and the targets are missed. The last lines compare "
    "cluster06 with such a one, cluster03.",
    "It is simulated. Jobs run at the step times that were measured (sia_step_sync_times: aws for "
    "the mix, dgx-ext for ITP), at fitted ones where a size was not measured.",
    "A worker keeps its batch when others come or go, as DRAGON's do; the samples to train on "
    "stay the same.",
    "An elastic job never has fewer workers than the static one, and at most 4 times as many. "
    "Where it may have half, hardly anybody waits, but jobs run longer: the lines say how much.",
    "A resize costs 40 s of work. The policy sees a fitted speed model, and durations that are "
    "wrong by e^±0.5.",
    "Static round-robin starts whole jobs (gang) in order and spreads them; without gang it could "
    "deadlock. DRAGON's triggers: here 60 s count from a job's last change of size.",
    "By gain also backfills; 'static, packed, backfilled' shows how much of it that is.",
    "Run time is from start to end, waiting is in the queue, each summed over the jobs.",
)


# -- measured steps -----------------------------------------------------------------------------


class MeasuredSteps:
    """Step times of one family on one kind of machine, as measured; fitted between the sizes."""

    def __init__(self, rows: pl.DataFrame, fitted: StepModel) -> None:
        self.fitted = fitted
        batches = rows["local_bsz"].to_numpy()
        self.middle_batch = sqrt(float(batches.min()) * float(batches.max()))
        shapes = rows.group_by("num_replicas", "num_nodes", "local_bsz").agg(
            pl.col("step_time").median()
        )
        self._steps: dict[tuple[int, int], tuple[Floats, Floats]] = {}
        for (replicas, nodes), group in shapes.group_by("num_replicas", "num_nodes"):
            ordered = group.sort("local_bsz")
            self._steps[int(replicas), int(nodes)] = (
                ordered["local_bsz"].to_numpy(),
                ordered["step_time"].to_numpy(),
            )

    def step_s(self, replicas: int, nodes: int, local_batch: float) -> float:
        """Seconds of one step."""
        known = self._steps.get((replicas, nodes))
        if known is None or not known[0][0] <= local_batch <= known[0][-1]:
            return self.fitted.step_s(replicas, nodes, local_batch)
        return float(np.interp(local_batch, *known))


def read_steps(data: Path, machines: str) -> dict[str, MeasuredSteps]:
    """The families that were measured on one kind of machine, with the model fitted to them."""
    path = data / "profiles" / "sia_step_sync_times.parquet"
    if not path.is_file():
        raise UserError(f"{path} is missing; name a directory that has it with --data")
    rows = pl.read_parquet(path).filter(
        (pl.col("cluster") == machines)
        & (pl.col("model") != "gpt_pmp")  # pipeline parallel: not this model
        & (pl.col("sync_time") < pl.col("step_time"))
    )
    model = fit_steps(rows, f"scaling-{machines}")
    families = {}
    for (family,), group in rows.group_by("model", maintain_order=True):
        families[str(family)] = MeasuredSteps(group, model.step_model(str(family)))
    return families


# -- workloads ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Training:
    """What a job trains, and on how many workers it asks to. A worker keeps its batch."""

    steps: MeasuredSteps
    asked: int
    node_gpus: int
    keeps_global_batch: bool = False
    """Whether its workers share one batch, instead of each keeping its own."""

    def true_s(self, workers: int, nodes: int) -> float:
        """Seconds for the same samples, as measured."""
        batch, each = self._batch(workers)
        return each * self.steps.step_s(workers, nodes, batch)

    def foreseen(self, workers: int, nodes: int) -> float:
        """How much longer it takes than as asked, as fitted."""
        return self._fitted_s(workers, nodes) / self._fitted_s(
            self.asked, ceil(self.asked / self.node_gpus)
        )

    def _fitted_s(self, workers: int, nodes: int) -> float:
        batch, each = self._batch(workers)
        return each * self.steps.fitted.step_s(workers, nodes, batch)

    def _batch(self, workers: int) -> tuple[float, float]:
        """Samples of a worker, and steps for the samples that one step has as asked."""
        ratio = self.asked / workers
        batch = self.steps.middle_batch
        return (batch * ratio, 1.0) if self.keeps_global_batch else (batch, ratio)


@dataclass(frozen=True)
class ElasticSetup:
    """One workload on one cluster."""

    trace: Trace
    cluster: str
    trainings: Mapping[str, Training]
    node_gpus: int


def mix_setup(data: Path, seed: int, jobs: int = MIX_JOBS, load: float = MIX_LOAD) -> ElasticSetup:
    """Trainings of the measured families, drawn from a seed."""
    families = read_steps(data, MIX_MACHINES)
    rng = np.random.default_rng(seed)
    gpus = sum(len(node.devices) for node in read_cluster(MIX_CLUSTER))
    workers = rng.choice(MIX_WORKERS, jobs)
    duration = np.ceil(np.clip(rng.lognormal(np.log(MIX_MEDIAN_S), MIX_SIGMA, jobs), 300, 14_400))
    span = float((workers * duration).sum()) / (gpus * load)
    submit = np.floor(np.concatenate(([0.0], np.cumsum(rng.exponential(span / jobs, jobs - 1)))))
    frame = pl.DataFrame({"submit_s": submit, "duration_s": duration, "workers": workers})
    return _setup("mix", frame, families, rng, MIX_CLUSTER)


def itp_setup(
    data: Path, seed: int, name: str = ITP_CLUSTER, load: float = ITP_LOAD
) -> ElasticSetup:
    """An ITP cluster on the fewest 8-GPU nodes that keep its mean load at most at this."""
    path = data / "traces" / "itp_jobs.parquet"
    if not path.is_file():
        raise UserError(f"{path} is missing; name a directory that has it with --data")
    families = read_steps(data, ITP_MACHINES)
    jobs = read_trace(path).jobs.filter(pl.col("queue") == name)
    if jobs.is_empty():
        raise UserError(f"{path} has no jobs of {name}")
    frame = jobs.select(
        "job_id", "submit_s", "duration_s", workers=pl.col("gpu_milli") // WHOLE_GPU
    )
    span = float(frame["submit_s"].to_numpy().max() - frame["submit_s"].to_numpy().min())
    work = float((frame["duration_s"] * frame["workers"]).sum())
    nodes = max(ceil(work / span / 8 / load), ceil(int(frame["workers"].to_numpy().max()) / 8))
    return _setup(name, frame, families, np.random.default_rng(seed), f"{nodes}x8")


def _setup(
    name: str,
    frame: pl.DataFrame,
    families: Mapping[str, MeasuredSteps],
    rng: np.random.Generator,
    cluster: str,
) -> ElasticSetup:
    """Give every job a family, and the bounds of its workers."""
    nodes = read_cluster(cluster)
    node_gpus = len(nodes[0].devices)
    names = sorted(families)
    drawn = [names[k] for k in rng.integers(0, len(names), frame.height)]
    ids = [f"{k}-{family}" for k, family in enumerate(drawn)]
    trainings = {}
    for job, family, asked in zip(ids, drawn, frame["workers"], strict=True):
        trainings[job] = Training(families[family], asked, node_gpus)
    noise = np.exp(rng.normal(0.0, ESTIMATE_ERROR, frame.height))
    full = frame.with_columns(
        job_id=pl.Series(ids),
        gpu_milli=pl.lit(WHOLE_GPU),
        min_workers=pl.col("workers"),
        max_workers=pl.col("workers") * MOST,
        estimate_s=pl.Series(frame["duration_s"].to_numpy() * noise),
    )
    return ElasticSetup(Trace(name, "native", complete(full)), cluster, trainings, node_gpus)


# -- one run ------------------------------------------------------------------------------------


class Fitted:
    """Foresees scaling from the fitted model, and durations from the trace's estimates.

    With `error`, each foreseen step is off by a factor: the exponential of a normal number with
    this standard deviation, drawn once for each job and size.
    """

    def __init__(self, base: Predictor, trainings: Mapping[str, Training], error: float) -> None:
        self.version = f"fitted, error {error:g}"
        self._base, self._trainings, self._error = base, trainings, error

    def runtime(self, job: Job, workers: Sequence[Worker] = ()) -> Estimate:
        """The estimate, scaled to the workers by the fitted model."""
        known = self._base.runtime(job)
        if not workers:
            return known
        shape = len(workers), len({worker.node for worker in workers})
        value = known.p50 * self._trainings[job.id].foreseen(*shape)
        if self._error:
            seed = crc32(f"{job.id} {shape}".encode())
            value *= exp(self._error * float(np.random.default_rng(seed).normal()))
        return Estimate.exact(value, "s", self.version)

    def utilization(self, job: Job) -> Estimate:
        """As the trace has it."""
        return self._base.utilization(job)

    def memory(self, job: Job) -> Estimate:
        """As the trace has it."""
        return self._base.memory(job)

    def slowdown(self, job: Job, neighbours: Sequence[Job]) -> Estimate:
        """As the world has it."""
        return self._base.slowdown(job, neighbours)


@dataclass(frozen=True)
class ElasticFigures:
    """What one run is judged by, in seconds."""

    run_s: float
    """From start to end, summed over the jobs."""
    wait_s: float
    """In the queue, summed over the jobs."""
    makespan_s: float
    jct_s: float
    """From submission to end, mean."""
    finished: int
    cpu_s: float
    no_queue_pct: float
    """Part of the run time that passed while nobody waited."""


def measure(setup: ElasticSetup, config: PolicyConfig, *, error: float = 0.0) -> ElasticFigures:
    """Run a workload under a policy."""
    trace = setup.trace
    if not config.elastic:
        rigid = [pl.lit(None, pl.Int64).alias(key) for key in ("min_workers", "max_workers")]
        trace = replace(trace, jobs=trace.jobs.with_columns(rigid))
    steps = {job: one.true_s for job, one in setup.trainings.items()}
    speed = MeasuredSpeed(steps=steps, node_gpus=setup.node_gpus)
    rules = WorldRules(restart_cost_s=RESIZE_S, resize_cost_s=RESIZE_S, speed=speed)
    result = simulate(
        trace,
        read_cluster(setup.cluster),
        build(config),
        name=trace.name,
        rules=rules,
        use_estimates=True,
        foresee=lambda oracle: Fitted(oracle, setup.trainings, error),
    )
    jobs = result.jobs.filter(pl.col("status") == "finished")
    wait, jct = float(jobs["wait_s"].sum()), float(jobs["jct_s"].sum())
    return ElasticFigures(
        jct - wait,
        wait,
        result.makespan_s,
        jct / jobs.height,
        jobs.height,
        result.cpu_s,
        _no_queue_pct(result.series, jobs),
    )


def _no_queue_pct(series: pl.DataFrame, jobs: pl.DataFrame) -> float:
    at, empty = series["t_s"].to_numpy(), series["queued"].to_numpy() == 0
    passed = np.concatenate(([0.0], np.cumsum(np.diff(at) * empty[:-1])))
    start, end = jobs["start_s"].to_numpy(), jobs["end_s"].to_numpy()
    inside = np.interp(end, at, passed) - np.interp(start, at, passed)
    return 100 * float(inside.sum() / (end - start).sum())
