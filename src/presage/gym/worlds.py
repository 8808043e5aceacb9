"""Which worlds an agent lives in: traces and clusters, drawn anew for each episode, so that it
learns the rule and not the week.

A scene is a trace, a cluster and how the world behaves. The cluster is chosen so that the jobs
offer a drawn load while they arrive. Everything follows from the generator that is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import polars as pl

from presage.core.ports import Predictor
from presage.model.cluster import WHOLE_GPU, Node
from presage.model.errors import TraceError
from presage.model.estimate import Estimates
from presage.sim.clusters import Cluster
from presage.sim.generate import make_trace
from presage.sim.traces import Trace
from presage.sim.workload import Workload
from presage.sim.world import WorldRules

__all__ = ["Generated", "Mixed", "Scene", "Weeks", "Worlds", "of_queue", "sized", "weeks_of"]

WEEK_S = 7 * 86_400.0
_RULES = WorldRules(restart_cost_s=40.0, resize_cost_s=40.0)
"""What starting again from a checkpoint costs in published simulators."""
_GPUS = 8
_JOBS_OF_NODE = 50
_FEWEST = 50
"""Jobs below which a week is not worth an episode."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What one episode is about."""

    trace: Trace
    nodes: tuple[Node, ...]
    rules: WorldRules = _RULES
    models: tuple[str, ...] | None = None
    """What each row trains, where that matters."""
    estimates: tuple[Estimates, ...] | None = None
    """What is foreseen of each row."""
    sharers: int = 1
    """Jobs that may share a GPU."""
    foresee: Callable[[Predictor], Predictor] | None = None
    """Makes what policies know, given what looks into the world; without it, they know run times
    from the runs that ended."""

    def workload(self) -> Workload:
        """Its jobs."""
        return Workload(self.trace, self.nodes, self.models, self.estimates, self.sharers)


class Worlds(Protocol):
    """Where scenes come from."""

    def draw(self, rng: np.random.Generator) -> Scene:
        """Another one."""
        ...


@dataclass(frozen=True, slots=True)
class Generated:
    """Made traces (`sim.generate`) on clusters of random size."""

    kinds: tuple[str, ...] = ("poisson", "diurnal")
    jobs: tuple[int, int] = (300, 1500)
    nodes: tuple[int, int] = (4, 32)
    load: tuple[float, float] = (0.9, 1.5)
    rules: WorldRules = _RULES

    def draw(self, rng: np.random.Generator) -> Scene:
        """A trace of a kind, for a cluster of 8 GPUs a node; small where there are few jobs, since
        nobody would wait in a large one."""
        kind = self.kinds[int(rng.integers(len(self.kinds)))]
        jobs = int(rng.integers(self.jobs[0], self.jobs[1] + 1))
        most = max(min(self.nodes[1], jobs // _JOBS_OF_NODE), 1)
        nodes = Cluster(f"{int(rng.integers(min(self.nodes[0], most), most + 1))}x{_GPUS}")
        trace = make_trace(kind, jobs, rng, nodes.gpus, float(rng.uniform(*self.load)))
        return Scene(trace, nodes, self.rules)


@dataclass(frozen=True, slots=True)
class Weeks:
    """Weeks of traces; a part of one of at most so many jobs in a row."""

    traces: tuple[Trace, ...]
    jobs: int = 1500
    load: tuple[float, float] = (0.9, 1.5)
    rules: WorldRules = field(default=_RULES)

    def draw(self, rng: np.random.Generator) -> Scene:
        """A stretch of one of the weeks, and a cluster that is loaded as drawn."""
        trace = self.traces[int(rng.integers(len(self.traces)))]
        first = int(rng.integers(max(trace.jobs.height - self.jobs, 0) + 1))
        part = _from_zero(trace, trace.jobs.slice(first, self.jobs))
        return sized(part, float(rng.uniform(*self.load)), self.rules)


@dataclass(frozen=True, slots=True)
class Mixed:
    """Several kinds of worlds, each as often as the others."""

    worlds: tuple[Worlds, ...]

    def draw(self, rng: np.random.Generator) -> Scene:
        """Of one of them."""
        return self.worlds[int(rng.integers(len(self.worlds)))].draw(rng)


def weeks_of(trace: Trace, queue: str | None = None) -> list[Trace]:
    """The weeks of a trace that have jobs enough, counted from its first submission."""
    jobs = of_queue(trace, queue).jobs
    number = (jobs["submit_s"] // WEEK_S).cast(pl.Int64)
    weeks = []
    for week in number.unique().sort():
        part = jobs.filter(number == week)
        if part.height >= _FEWEST:
            name = f"{trace.name}-week{week}" + (f"-{queue}" if queue else "")
            weeks.append(_from_zero(replace(trace, name=name), part))
    return weeks


def of_queue(trace: Trace, queue: str | None) -> Trace:
    """The jobs of one queue; all of them without one."""
    jobs = trace.jobs if queue is None else trace.jobs.filter(pl.col("queue") == queue)
    if not jobs.height:
        raise TraceError(f"trace {trace.name} has no jobs of queue {queue}")
    return _from_zero(trace, jobs)


def sized(trace: Trace, load: float, rules: WorldRules = _RULES) -> Scene:
    """A trace on a cluster of nodes with 8 GPUs, never smaller than its largest job. The load is
    the part of the cluster's GPU time, from the first submission to the last, that the jobs would
    take if nobody waited: what long jobs need after that does not count."""
    jobs = trace.jobs
    gpus = (jobs["gpu_milli"] * jobs["workers"].fill_null(1) / WHOLE_GPU).to_numpy()
    submitted = jobs["submit_s"].to_numpy()
    span = max(float(submitted.max()), 1.0)
    inside = np.minimum(jobs["duration_s"].to_numpy(), span - submitted)
    nodes = max(round(float((gpus * inside).sum()) / span / load / _GPUS), 1)
    return Scene(trace, Cluster(f"{max(nodes, -int(-gpus.max() // _GPUS))}x{_GPUS}"), rules)


def _from_zero(trace: Trace, jobs: pl.DataFrame) -> Trace:
    first = jobs["submit_s"].min()
    return replace(trace, jobs=jobs.with_columns(pl.col("submit_s") - first))
