"""What happened in a run, written down as it happens and turned into a `SimResult` at the end.

Memory is a few arrays over the jobs and a series that is thinned as it grows, however long the
run.
"""

from __future__ import annotations

from array import array
from math import nan

import numpy as np
import polars as pl

from presage.model.cluster import WHOLE_GPU
from presage.sim.result import JOB_COLUMNS, SERIES_COLUMNS, SimResult
from presage.sim.traces import Trace
from presage.sim.world import Task, World

__all__ = ["Recorder"]

_MOST_SAMPLES = 8192


class Recorder:
    """Results by row of the trace, and the cluster's load over time."""

    def __init__(self, jobs: int) -> None:
        self.done = 0
        self.steps: list[tuple[float, int, int, int]] = []
        """The load after each step: time, jobs queued, milli-GPUs used and held; `thin` empties
        it."""
        self._start = array("d", [nan]) * jobs
        self._end = array("d", [nan]) * jobs
        self._wait = array("d", [nan]) * jobs
        self._stops = array("q", [0]) * jobs
        self._status = ["unfinished"] * jobs
        self._reason: dict[int, str] = {}
        self._nodes: list[tuple[str, ...]] = [()] * jobs
        self._series: list[tuple[float, int, int, int]] = []
        self._every_s = 0.0
        self._next_s = 0.0

    def __len__(self) -> int:
        return len(self._status)

    def close(
        self, task: Task, now: float | None, status: str = "finished", reason: str = ""
    ) -> None:
        """A job's story is over; `now` is None when it did not finish."""
        row = task.row
        self.done += 1
        if now is not None:
            self._end[row] = now
        if task.started_at is not None:
            self._start[row] = task.started_at
        self._wait[row] = task.waited_s
        if task.stops:
            self._stops[row] = task.stops
        self._status[row] = status
        if reason:
            self._reason[row] = reason
        self._nodes[row] = task.ran_on

    def thin(self) -> None:
        """Take the steps into the series; the latest of an interval wins."""
        series, steps = self._series, self.steps
        if not self._every_s and len(series) + len(steps) < _MOST_SAMPLES:
            series += steps
            steps.clear()
            return
        for sample in steps:
            now = sample[0]
            if now < self._next_s:
                series[-1] = (series[-1][0], *sample[1:])
                continue
            series.append(sample)
            self._next_s = now + self._every_s
            if len(series) >= _MOST_SAMPLES:
                del series[1::2]
                self._every_s = max(2 * self._every_s, (now - series[0][0]) / _MOST_SAMPLES)
        steps.clear()

    def result(self, trace: Trace, policy: str, world: World, cpu_s: float) -> SimResult:
        """Everything as frames."""
        submit, end = trace.jobs["submit_s"], np.frombuffer(self._end)
        rows = len(self._status)
        reasons = [self._reason.get(row) for row in range(rows)] if self._reason else [None] * rows
        jobs = pl.DataFrame(
            {
                "job_id": trace.jobs["job_id"],
                "submit_s": submit,
                "start_s": np.frombuffer(self._start),
                "end_s": end,
                "wait_s": np.frombuffer(self._wait),
                "jct_s": end - submit.to_numpy(),
                "nodes": self._nodes,
                "gpus": trace.jobs["gpu_milli"] * trace.jobs["workers"].fill_null(1) / WHOLE_GPU,
                "preemptions": np.frombuffer(self._stops, dtype=np.int64),
                "status": self._status,
                "reason": reasons,
            },
            schema=JOB_COLUMNS,
        ).with_columns(pl.col("start_s", "end_s", "wait_s", "jct_s").fill_nan(None))
        t, queued, used, held = zip(*self._series, strict=True) if self._series else ((),) * 4
        series = pl.DataFrame(
            {
                "t_s": t,
                "queued": queued,
                "used_gpus": np.asarray(used) / WHOLE_GPU,
                "held_gpus": np.asarray(held) / WHOLE_GPU,
            },
            schema=SERIES_COLUMNS,
        )
        makespan_s = float(np.nanmax(end, initial=0.0))
        gpus = sum(len(node.devices) for node in world.all_nodes())
        return SimResult(
            policy,
            jobs,
            series,
            gpus,
            world.stops,
            makespan_s,
            world.gpu_seconds,
            world.held_gpu_seconds,
            cpu_s,
        )
