"""What a simulated run leaves behind, and the figures people compare.

Holds values only: drawing and printing them is `sim.report`'s work.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

__all__ = ["JOB_COLUMNS", "SERIES_COLUMNS", "SimResult"]

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


def _stat(frame: pl.DataFrame, expression: pl.Expr) -> float | None:
    value = frame.select(expression).item()
    return None if value is None else float(value)
