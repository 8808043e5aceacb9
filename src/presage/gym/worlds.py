"""Which worlds an agent lives in: traces and clusters, drawn anew for each episode, so that it
learns the rule and not the week.

A scene is a trace, a cluster and how the world behaves. The cluster is chosen so that the jobs
offer a drawn load while they arrive. Everything follows from the generator that is given.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import polars as pl

from presage.model.cluster import WHOLE_GPU, Node
from presage.model.errors import TraceError
from presage.sim.clusters import Cluster
from presage.sim.generate import make_trace
from presage.sim.traces import Trace
from presage.sim.world import WorldRules

__all__ = ["Generated", "Mixed", "Scene", "Weeks", "Worlds", "elastic", "sized", "weeks_of"]

WEEK_S = 7 * 86_400.0
_RULES = WorldRules(restart_cost_s=40.0, resize_cost_s=40.0)
"""What starting again from a checkpoint costs in published simulators."""
_GPUS = 8
_FEWEST = 50
"""Jobs below which a week is not worth an episode."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What one episode is about."""

    trace: Trace
    nodes: tuple[Node, ...]
    rules: WorldRules = _RULES


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
    elastic: bool = False
    """Whether jobs may run with fewer or more workers."""
    rules: WorldRules = _RULES

    def draw(self, rng: np.random.Generator) -> Scene:
        """A trace of a kind, for a cluster of 8 GPUs a node."""
        kind = self.kinds[int(rng.integers(len(self.kinds)))]
        nodes = Cluster(f"{int(rng.integers(self.nodes[0], self.nodes[1] + 1))}x{_GPUS}")
        jobs = int(rng.integers(self.jobs[0], self.jobs[1] + 1))
        trace = make_trace(kind, jobs, rng, nodes.gpus, float(rng.uniform(*self.load)))
        return Scene(elastic(trace, rng) if self.elastic else trace, nodes, self.rules)


@dataclass(frozen=True, slots=True)
class Weeks:
    """Weeks of traces; a part of one of at most so many jobs in a row."""

    traces: tuple[Trace, ...]
    jobs: int = 1500
    load: tuple[float, float] = (0.9, 1.5)
    elastic: bool = False
    rules: WorldRules = field(default=_RULES)

    def draw(self, rng: np.random.Generator) -> Scene:
        """A stretch of one of the weeks, and a cluster that is loaded as drawn."""
        trace = self.traces[int(rng.integers(len(self.traces)))]
        first = int(rng.integers(max(trace.jobs.height - self.jobs, 0) + 1))
        part = _from_zero(trace, trace.jobs.slice(first, self.jobs))
        if self.elastic:
            part = elastic(part, rng)
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
    jobs = trace.jobs if queue is None else trace.jobs.filter(pl.col("queue") == queue)
    if not jobs.height:
        raise TraceError(f"trace {trace.name} has no jobs of queue {queue}")
    number = (jobs["submit_s"] // WEEK_S).cast(pl.Int64)
    found = []
    for week in number.unique().sort():
        part = jobs.filter(number == week)
        if part.height >= _FEWEST:
            name = f"{trace.name}-week{week}" + (f"-{queue}" if queue else "")
            found.append(_from_zero(replace(trace, name=name), part))
    return found


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


def elastic(trace: Trace, rng: np.random.Generator, share: float = 0.6) -> Trace:
    """The same jobs, of which a share may run on a half to twice their GPUs, one each worker."""
    jobs = trace.jobs
    gpus = np.maximum(jobs["gpu_milli"].to_numpy() // WHOLE_GPU, 1)
    workers = gpus * jobs["workers"].fill_null(1).to_numpy()
    may = rng.random(jobs.height) < share
    least = np.where(may, np.maximum(workers // 2, 1), workers)
    most = np.where(may, workers * 2, workers)
    columns = {"workers": workers, "min_workers": least, "max_workers": most}
    made = jobs.with_columns(
        gpu_milli=pl.lit(WHOLE_GPU, pl.Int64),
        **{name: pl.Series(name, value, pl.Int64) for name, value in columns.items()},
    )
    return replace(trace, jobs=made)


def _from_zero(trace: Trace, jobs: pl.DataFrame) -> Trace:
    first = jobs["submit_s"].min()
    return replace(trace, jobs=jobs.with_columns(pl.col("submit_s") - first))
