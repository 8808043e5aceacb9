"""What a simulated run leaves behind, several side by side, and the figures people compare.

Values that show themselves in a notebook. How they are drawn is in `sim._charts`, files are
written by `sim.report`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from presage.model.cluster import Node
from presage.model.errors import UserError
from presage.page import html_table
from presage.sim import _charts
from presage.sim._compare import lines
from presage.sim.traces import Trace

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["JOB_COLUMNS", "SERIES_COLUMNS", "Accuracy", "AdviceScore", "Comparison", "SimResult"]

JOB_COLUMNS: dict[str, pl.DataType | type[pl.DataType]] = {
    "job_id": pl.String,
    "submit_s": pl.Float64,
    "start_s": pl.Float64,  # first start; null when it never ran
    "end_s": pl.Float64,  # null when it did not finish
    "wait_s": pl.Float64,  # all time queued
    "jct_s": pl.Float64,
    "nodes": pl.List(pl.String),  # where it ran last
    "gpus": pl.Float64,  # GPUs asked for
    "preemptions": pl.Int64,
    "status": pl.String,  # finished | rejected | failed | cancelled | unfinished
    "reason": pl.String,
}
SERIES_COLUMNS: dict[str, pl.DataType | type[pl.DataType]] = {
    "t_s": pl.Float64,
    "queued": pl.Int64,
    "used_gpus": pl.Float64,
    "held_gpus": pl.Float64,
}


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How well some jobs were foreseen; None where none was."""

    jobs: int
    error_pct: float | None
    """The median distance of the estimate from the truth."""
    inside_pct: float | None
    """Truths between p10 and p90."""


@dataclass(frozen=True, slots=True)
class AdviceScore:
    """How good the advice was that a run got."""

    resizes: int
    out_of_memory: int
    """Runs that a limit ended."""
    saved_pct: Mapping[str, float]
    """Resource -> the part of what was asked for that nobody held."""
    met_pct: Mapping[str, float]
    """Resource -> samples at which a worker had all it wanted."""
    foreseen: Mapping[str, Sequence[Accuracy]]
    """Quantity -> each quarter of the jobs, in the order of their ends."""

    def lines(self) -> list[str]:
        """For people."""
        said = [f"{self.resizes:,} resizes, {self.out_of_memory:,} runs out of memory"]
        for resource, saved in self.saved_pct.items():
            met = self.met_pct[resource]
            said.append(f"{resource}: {saved:.1f} % of what was asked for saved, {met:.2f} % met")
        for quantity, quarters in self.foreseen.items():
            told = [
                "-" if one.error_pct is None else f"{one.error_pct:.0f} % ({one.inside_pct:.0f} %)"
                for one in quarters
            ]
            said.append(f"{quantity}: off by (inside p10–p90), by quarter: {', '.join(told)}")
        return said


@dataclass(frozen=True, eq=False, repr=False)
class SimResult:
    """One policy on one trace and cluster. Times are seconds from the first submission."""

    policy: str
    jobs: pl.DataFrame
    series: pl.DataFrame
    gpus: int
    preemptions: int
    makespan_s: float
    gpu_seconds: float
    """GPU time held by jobs that were starting or running."""
    held_gpu_seconds: float
    """The part of it held by jobs that could not start for want of the rest of their workers."""
    cpu_s: float
    """Process time of the simulation itself."""
    advice: AdviceScore | None = None
    """Of a run with advisors."""
    notes: tuple[str, ...] = ()
    """What the policy finds odd about these jobs."""

    @cached_property
    def summary(self) -> dict[str, float | int | None]:
        """The figures of the JSON report; a figure over no jobs is None."""
        done = self.jobs.filter(pl.col("status") == "finished")
        capacity = self.gpus * self.makespan_s
        worked = self.gpu_seconds - self.held_gpu_seconds
        return {
            "jobs": self.jobs.height,
            "finished": done.height,
            "rejected": self.jobs.filter(pl.col("status") == "rejected").height,
            "avg_jct_s": _stat(done, pl.col("jct_s").mean()),
            "p50_jct_s": _stat(done, pl.col("jct_s").quantile(0.5, "linear")),
            "p99_jct_s": _stat(done, pl.col("jct_s").quantile(0.99, "linear")),
            "avg_wait_s": _stat(done, pl.col("wait_s").mean()),
            "p99_wait_s": _stat(done, pl.col("wait_s").quantile(0.99, "linear")),
            "makespan_s": self.makespan_s,
            "gpu_utilization": worked / capacity if capacity else 0.0,
            "preemptions": self.preemptions,
            "cpu_s": self.cpu_s,
        }

    def to_polars(self) -> pl.DataFrame:
        """A row for each job, with the columns of `JOB_COLUMNS`."""
        return self.jobs

    def plot(self, what: str = "jct") -> Figure:
        """A chart: jct, wait, queue, utilization, or gantt for a few jobs."""
        return _charts.draw([self], what)

    def __repr__(self) -> str:
        return f"SimResult({self.policy}: {self.jobs.height:,} jobs on {self.gpus:,} GPUs)"

    def _repr_html_(self) -> str:
        return _table([self], f"{self.jobs.height:,} jobs on {self.gpus:,} GPUs")


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Several policies on one trace and cluster, in the order they were given."""

    trace: Trace
    cluster: Sequence[Node]
    results: tuple[SimResult, ...]

    def __getitem__(self, policy: str) -> SimResult:
        for result in self.results:
            if result.policy == policy:
                return result
        names = ", ".join(result.policy for result in self.results)
        raise UserError(f"no policy {policy!r} was compared; there are: {names}")

    def __iter__(self) -> Iterator[SimResult]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    @cached_property
    def table(self) -> pl.DataFrame:
        """A row for each policy: its name and the figures of `SimResult.summary`."""
        rows = [{"policy": result.policy, **result.summary} for result in self.results]
        return pl.DataFrame(rows, infer_schema_length=None)

    def to_polars(self) -> pl.DataFrame:
        """The table."""
        return self.table

    def plot(self, what: str = "jct") -> Figure:
        """A chart with all policies: jct, wait, queue or utilization."""
        return _charts.draw(self.results, what)

    def write_html(self, path: str | Path) -> None:
        """The report of `presage simulate --report`: one page that needs no network."""
        from presage.sim.report import write_html

        write_html(self.results, self.trace, self.cluster, path)

    def __repr__(self) -> str:
        return repr(self.table)

    def _repr_html_(self) -> str:
        gpus = sum(len(node.devices) for node in self.cluster)
        jobs = self.trace.jobs.height
        title = f"{self.trace.name}: {jobs:,} jobs on {len(self.cluster):,} nodes, {gpus:,} GPUs"
        return _table(self.results, title)


def _table(results: Sequence[SimResult], title: str) -> str:
    """A row for each policy; ★ marks the best of several."""
    shown = list(lines(results))
    rows = [
        (result.policy, [line.texts[at] + " ★" * (at in line.winners) for line in shown])
        for at, result in enumerate(results)
    ]
    return html_table(title, ["policy", *(line.name for line in shown)], rows)


def _stat(frame: pl.DataFrame, expression: pl.Expr) -> float | None:
    value = frame.select(expression).item()
    return None if value is None else float(value)
