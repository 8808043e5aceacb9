"""Results that no simulator made, for tests of what is done with results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl

from presage.sim.result import JOB_COLUMNS, SERIES_COLUMNS, SimResult
from presage.sim.traces import Trace, read_trace

__all__ = ["made_up", "trace_of"]


def trace_of(rows: Sequence[tuple[float, float, float]]) -> Trace:
    """A trace of (submit, duration, GPUs), in the order of submission."""
    lines = [f"{k},{at},{long},{gpus}" for k, (at, long, gpus) in enumerate(sorted(rows))]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        path.write_text("\n".join(["job_id,submit_s,duration_s,gpus", *lines]) + "\n")
        return read_trace(path)


def made_up(
    policy: str,
    trace: Trace,
    *,
    wait_s: float = 60.0,
    gpus: int = 240,
    rejected: int = 0,
    held: bool = False,
) -> SimResult:
    """Every job waits `wait_s` times a random number; the first `rejected` of them never start."""
    rng = np.random.default_rng(7)
    submit = trace.jobs.get_column("submit_s").to_numpy()
    wait = np.round(rng.exponential(wait_s, submit.size))
    start = submit + wait
    end = start + trace.jobs.get_column("duration_s").to_numpy()
    size = trace.jobs.select(pl.col("gpu_milli") * pl.col("workers").fill_null(1) / 1000)
    jobs = pl.DataFrame(
        {
            "job_id": trace.jobs.get_column("job_id"),
            "submit_s": submit,
            "start_s": start,
            "end_s": end,
            "wait_s": wait,
            "jct_s": end - submit,
            "nodes": [[f"node-{job % 9}"] for job in range(submit.size)],
            "gpus": size.to_series(),
            "preemptions": 0,
            "status": ["rejected"] * rejected + ["finished"] * (submit.size - rejected),
            "reason": ["too <b>large</b>"] * rejected + [None] * (submit.size - rejected),
        },
        schema=JOB_COLUMNS,
    )
    times = [pl.col(name) for name in ("start_s", "end_s", "wait_s", "jct_s")]
    jobs = jobs.with_columns(pl.when(pl.col("status") == "finished").then(time) for time in times)
    clock = np.sort(np.concatenate([submit, start, end]))
    waiting = np.searchsorted(submit, clock, "right") - np.searchsorted(
        np.sort(start), clock, "right"
    )
    running = np.searchsorted(np.sort(start), clock, "right") - np.searchsorted(
        np.sort(end), clock, "right"
    )
    used = np.minimum(running, gpus).astype(float)
    series = pl.DataFrame(
        {"t_s": clock, "queued": waiting, "used_gpus": used, "held_gpus": used * (held / 2)},
        schema=SERIES_COLUMNS,
    )
    area = float((np.diff(clock) * used[:-1]).sum())
    makespan = float(end.max())
    return SimResult(policy, jobs, series, gpus, 3, makespan, area, area / 2 * held, 0.25)
