"""Jobs for the tasks that need more of them than a trace tells: elastic ones for scale, and ones
that can share a GPU for share.

What a trace says is kept. What it does not say is drawn: how well each job scales, how busy it
keeps a GPU and how much memory it needs. Everything follows from the generator that is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from presage.core.ports import Predictor
from presage.foresee.adapter import EstimatePredictor, TimeSharing
from presage.gym.worlds import Generated, Mixed, Scene, Weeks, Worlds
from presage.learn import Floats
from presage.model.cluster import WHOLE_GPU, Node
from presage.model.errors import TraceError
from presage.model.estimate import Estimate, Estimates
from presage.policy.learned.net import Task
from presage.sim.foreseen import FromHistory
from presage.sim.speed import MeasuredSpeed
from presage.sim.traces import Trace

__all__ = ["ElasticJobs", "SharingJobs", "elastic", "for_task", "scene_for", "sharing", "usual"]

MOST = 4
"""An elastic job has between what it asks for and so many times that."""
_SYNC, _SYNC_SPREAD, _ACROSS = 0.05, 1.0, 2.0
"""What another worker costs a step, as a share of it: the median, the spread of its logarithm, and
how many times as much another node costs."""
_NODE_GPUS = 8
SHARERS = 3
_MEMORY_MIB = 24_000
"""Of a GPU that is shared, where the cluster does not say."""
_OFF_UTILIZATION, _OFF_MEMORY, _OFF_RUNTIME = 0.2, 0.15, 0.5
"""How wrong estimates are: the standard deviation of the logarithm."""
_P90 = 1.2816
LOADS: dict[Task, tuple[float, float]] = {
    "order": (0.9, 1.5),
    "scale": (0.5, 1.1),
    "share": (0.7, 1.3),
}
"""Between these; where more work comes, no GPU is left to scale into."""


# -- elastic ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DrawnStep:
    """How a job scales (`sim.speed.StepTime`)."""

    sync: float
    """What each further worker costs, as a share of a worker's step."""
    across: float
    """What each further node does."""

    def __call__(self, workers: int, nodes: int) -> float:
        """Seconds for the same piece of work."""
        return (1.0 + self.sync * (workers - 1) + self.across * (nodes - 1)) / workers


@dataclass(frozen=True, slots=True)
class ElasticJobs:
    """Scenes of other worlds, with elastic jobs."""

    worlds: Worlds
    most: int = MOST
    told: float = 1.0
    """In how many of them policies know estimates of run times; in the others, what the runs that
    ended tell."""

    def draw(self, rng: np.random.Generator) -> Scene:
        """One of theirs."""
        return elastic(self.worlds.draw(rng), rng, self.most, told=bool(rng.random() < self.told))


def elastic(
    scene: Scene, rng: np.random.Generator, most: int = MOST, *, told: bool = True
) -> Scene:
    """A scene whose jobs can grow: a job of so many GPUs has as many workers of one GPU, and may
    have up to `most` times as many; parts of a GPU stay as they are. A trace that has elastic jobs
    keeps its own. How each job scales is drawn, and known; with `told`, run times are known with
    errors."""
    jobs = scene.trace.jobs
    if not is_elastic(scene.trace):
        had, whole = pl.col("workers").fill_null(1), pl.col("gpu_milli") >= WHOLE_GPU
        gpus = pl.col("gpu_milli") // WHOLE_GPU * had
        changed = {name: pl.col(name) * had // gpus for name in ("cpu_milli", "memory_mib")}
        changed |= {"gpu_milli": pl.lit(WHOLE_GPU, pl.Int64), "workers": gpus}
        changed |= {"min_workers": gpus, "max_workers": gpus * most}
        jobs = jobs.with_columns(
            pl.when(whole).then(new).otherwise(pl.col(name)).alias(name)
            for name, new in changed.items()
        )
    trace = replace(scene.trace, jobs=jobs)
    if not is_elastic(trace):
        raise TraceError(f"no job of {trace.name} asks for a whole GPU, so none can be elastic")
    sync = np.clip(_SYNC * np.exp(_SYNC_SPREAD * rng.standard_normal(jobs.height)), 0.0, 0.5)
    steps = {
        job: DrawnStep(float(cost), _ACROSS * float(cost))
        for job, cost in zip(jobs["job_id"], sync, strict=True)
    }
    speed = MeasuredSpeed(steps=steps, node_gpus=_NODE_GPUS)
    made = replace(scene, trace=trace, rules=replace(scene.rules, speed=speed))
    if not told:
        return made
    runtime = _seen(jobs["duration_s"].to_numpy(), _OFF_RUNTIME, rng)
    estimates = tuple(Estimates("drawn errors", runtime_s=_estimate(a, "s")) for a in runtime)
    return replace(made, estimates=estimates, foresee=as_submitted)


def as_submitted(world: Predictor) -> Predictor:
    """Run times as foreseen at submission, in proportion to what workers change."""
    return FromHistory().predictor(world)


def is_elastic(trace: Trace) -> bool:
    """Whether any of its jobs is."""
    return bool((trace.jobs["min_workers"] < trace.jobs["max_workers"]).any())


# -- sharing ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SharingJobs:
    """Scenes of other worlds, with jobs that can share GPUs."""

    worlds: Worlds

    def draw(self, rng: np.random.Generator) -> Scene:
        """One of theirs."""
        return sharing(self.worlds.draw(rng), rng)


def sharing(scene: Scene, rng: np.random.Generator) -> Scene:
    """A scene whose jobs have a use of the GPU and memory, drawn where the trace has none, and in
    which policies know all of a job with errors."""
    jobs, count = scene.trace.jobs, scene.trace.jobs.height
    part = (pl.col("gpu_milli") > 0) & (pl.col("gpu_milli") < WHOLE_GPU)
    if jobs.filter(part | pl.col("workers").is_null()).is_empty():
        raise TraceError(
            f"no job of {scene.trace.name} can share a GPU: they have workers of whole GPUs"
        )
    if not any(node.devices for node in scene.nodes):
        raise TraceError("sharing needs a cluster with GPUs")
    nodes = tuple(map(_with_memory, scene.nodes))
    room = min(device.memory_mib for node in nodes for device in node.devices)
    drawn_use = np.clip(rng.beta(1.6, 1.6, count), 0.05, 1.0)
    drawn_mib = np.clip(0.2 * np.exp(0.6 * rng.standard_normal(count)), 0.03, 0.95) * room
    use = jobs["utilization"].fill_null(pl.Series(drawn_use)).to_numpy()
    told = jobs["gpu_memory_mib"].to_numpy()
    memory = np.where(told > 0, told, np.ceil(drawn_mib)).astype(np.int64)
    jobs = jobs.with_columns(utilization=pl.Series(use), gpu_memory_mib=pl.Series(memory))
    runtime = _seen(jobs["duration_s"].to_numpy(), _OFF_RUNTIME, rng)
    need = _seen(memory, _OFF_MEMORY, rng)
    busy = np.clip(_seen(use, _OFF_UTILIZATION, rng), 0.01, 1.0)
    estimates = tuple(
        Estimates(
            "drawn errors",
            runtime_s=_estimate(a, "s"),
            memory_mib=_estimate(b, "MiB"),
            utilization=_estimate(c, "share"),
        )
        for a, b, c in zip(runtime, need, busy, strict=True)
    )
    return replace(
        scene,
        trace=replace(scene.trace, jobs=jobs),
        nodes=nodes,
        estimates=estimates,
        sharers=SHARERS,
        foresee=taking_turns,
    )


def taking_turns(world: Predictor) -> Predictor:
    """What is foreseen of jobs at their submission; beside each other they take turns."""
    return EstimatePredictor(TimeSharing(), world)


def _with_memory(node: Node) -> Node:
    devices = tuple(
        one if one.memory_mib else replace(one, memory_mib=_MEMORY_MIB) for one in node.devices
    )
    return replace(node, devices=devices)


def _seen(values: npt.NDArray[Any], off: float, rng: np.random.Generator) -> Floats:
    """p10, p50 and p90 of each, around a middle that is wrong."""
    middle = values * np.exp(off * rng.standard_normal(len(values)))
    wide = np.exp(_P90 * off * np.array([-1.0, 0.0, 1.0]))
    quantiles: Floats = np.multiply.outer(middle, wide)
    return quantiles


def _estimate(three: Floats, unit: str) -> Estimate:
    low, middle, high = map(float, three)
    return Estimate(low, middle, high, unit, "drawn error")


# -- by task ------------------------------------------------------------------------------------

_WRAPPED: dict[Task, Callable[[Worlds], Worlds]] = {
    "order": lambda worlds: worlds,
    "scale": ElasticJobs,
    "share": SharingJobs,
}


def scene_for(task: Task, scene: Scene, seed: int) -> Scene:
    """A scene in which a task can be judged; what the trace does not say is drawn."""
    rng = np.random.default_rng(seed)
    if task == "order":
        return scene
    return elastic(scene, rng) if task == "scale" else sharing(scene, rng)


def usual(task: Task, jobs: tuple[int, int] = (300, 1500), nodes: int = 32) -> Worlds:
    """Made traces for a task."""
    made = Generated(jobs=jobs, nodes=(min(4, nodes), nodes), load=LOADS[task])
    return _WRAPPED[task](made)


def for_task(task: Task, made: Generated, weeks: tuple[Trace, ...], jobs: int) -> Worlds:
    """Made traces, and weeks of others as often."""
    made = replace(made, load=LOADS[task])
    if not weeks:
        return _WRAPPED[task](made)
    return _WRAPPED[task](Mixed((made, Weeks(weeks, jobs, LOADS[task]))))
