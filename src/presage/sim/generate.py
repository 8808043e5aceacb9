"""Make traces that look like a deep-learning cluster's, from a seed.

Three kinds: `poisson` and `diurnal` (a day and a week cycle) draw Philly-like GPU counts and
heavy-tailed durations; `dlaas` draws gangs of 1–8 learners. Everything comes from one generator in
a fixed order, so a seed names a trace. Nothing is read and no clock is looked at.

The arrival rate follows from the load: the work that was really drawn (GPU-seconds) is spread over
work ÷ (GPUs × load) seconds, so the offered load is right in expectation however heavy the tail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from presage.model.cluster import WHOLE_GPU
from presage.model.errors import TraceError
from presage.sim._files import replacing
from presage.sim.traces import COLUMNS, Trace

__all__ = ["KINDS", "TraceKind", "make_trace", "write_trace"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DAY_S = 86_400.0
WEEK_S = 7 * DAY_S
_MOST_JOBS = 100_000_000

GPU_SHARES = {1: 0.93, 2: 0.02, 4: 0.024, 8: 0.019, 16: 0.005, 32: 0.002}
"""How often a job asks for so many GPUs: the shares of the Philly jobs, rounded."""

BODY_MEDIAN_S, BODY_SIGMA = 1_200.0, 1.6
TAIL_SHARE, TAIL_START_S, TAIL_SHAPE, LONGEST_S = 0.05, 14_400.0, 1.3, 7 * DAY_S
"""Durations: a log-normal body and a Pareto tail from four hours, cut at a week."""

DLAAS_MEDIAN_S, DLAAS_SIGMA = 7_200.0, 1.0
DLAAS_MIB_PER_CORE = 4 * 1024


@dataclass(frozen=True)
class TraceKind:
    """How one kind of trace draws its jobs and their arrivals."""

    cluster: str
    """The cluster it is made for when none is named."""
    load: float
    """The offered load when none is asked for."""
    draw: Callable[[np.random.Generator, int, int], dict[str, Ints | Floats]]
    warp: Callable[[float], tuple[float, Callable[[Floats], Floats]]]
    """From the span to its length in operational time, and the way back."""


def make_trace(
    kind: str, jobs: int, seed: int | np.random.Generator, gpus: int, load: float | None = None
) -> Trace:
    """`jobs` jobs that offer `load` times the GPU time of `gpus` GPUs while they arrive."""
    chosen = _chosen(kind, jobs, gpus, load)
    rng = np.random.default_rng(seed)
    columns = chosen.draw(rng, jobs, gpus)
    workers = columns.get("workers", np.ones(1, dtype=np.int64))
    work = float((columns["gpu_milli"] * workers * columns["duration_s"]).sum()) / WHOLE_GPU
    span = work / (gpus * (chosen.load if load is None else load))
    columns["submit_s"] = _arrivals(rng, jobs, span, chosen)
    name = f"{kind}-{jobs}" + (f"-seed{seed}" if isinstance(seed, int) else "")
    return Trace(name, "native", _table(columns, jobs), integer_ids=True)


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write the native columns, whole or not at all: Parquet or CSV, by the name's ending."""
    target = Path(path)
    if target.suffix not in (".parquet", ".csv"):
        raise TraceError(f"cannot write {target.name}: end the name in .parquet or .csv")
    jobs = trace.jobs
    if trace.integer_ids:
        jobs = jobs.with_columns(pl.col("job_id").cast(pl.Int64))
    try:
        with replacing(target) as draft:
            if target.suffix == ".csv":
                jobs.write_csv(draft)
            else:
                jobs.write_parquet(draft)
    except OSError as error:
        raise TraceError(f"cannot write {target}: {error.strerror or error}") from None


def _chosen(kind: str, jobs: int, gpus: int, load: float | None) -> TraceKind:
    if kind not in KINDS:
        raise TraceError(f"unknown kind of trace {kind!r}; there are {', '.join(KINDS)}")
    if not 1 <= jobs <= _MOST_JOBS:
        raise TraceError(f"cannot make {jobs} jobs; ask for 1 to {_MOST_JOBS:,}")
    if gpus < 1:
        raise TraceError("cannot choose an arrival rate for a cluster without GPUs")
    if load is not None and not 0 < load <= 1000:
        raise TraceError(f"load must be above 0 and at most 1000, not {load:g}")
    return KINDS[kind]


def _table(columns: dict[str, Ints | Floats], jobs: int) -> pl.DataFrame:
    rest: dict[str, Any] = {"job_id": pl.arange(0, jobs, eager=True), "queue": "default"}
    rest |= dict.fromkeys(("gpu_types", "owner", "workload", "after"), "")
    zeros = ("cpu_milli", "memory_mib", "gpu_memory_mib", "priority")
    rest |= dict.fromkeys((*zeros, "ps_workers", "ps_cpu_milli", "ps_memory_mib"), 0)
    values = rest | columns
    return pl.DataFrame({"submit_s": values.pop("submit_s")}).select(
        pl.lit(values.get(name)).alias(name).cast(dtype) if name != "submit_s" else pl.col(name)
        for name, dtype in COLUMNS.items()
    )


def _arrivals(rng: np.random.Generator, jobs: int, span: float, kind: TraceKind) -> Floats:
    """Whole seconds from the first of `jobs` Poisson arrivals; the last is expected at `span`."""
    length, back = kind.warp(span)
    gaps = rng.exponential(length / max(jobs - 1, 1), jobs)
    gaps[0] = 0.0
    return np.floor(back(np.cumsum(gaps)))


def _philly_like(rng: np.random.Generator, jobs: int, gpus: int) -> dict[str, Ints | Floats]:
    sizes = np.array([size for size in GPU_SHARES if size <= gpus], dtype=np.int64)
    shares = np.array([GPU_SHARES[int(size)] for size in sizes])
    asked = rng.choice(sizes, jobs, p=shares / shares.sum())
    body = rng.lognormal(np.log(BODY_MEDIAN_S), BODY_SIGMA, jobs)
    tail = TAIL_START_S * (1 + rng.pareto(TAIL_SHAPE, jobs))
    duration = np.where(rng.random(jobs) < TAIL_SHARE, tail, body)
    return {"gpu_milli": asked * WHOLE_GPU, "duration_s": _seconds(duration)}


def _dlaas(rng: np.random.Generator, jobs: int, gpus: int) -> dict[str, Ints | Floats]:
    """Learners of 1–4 GPUs and 4–16 cores, 4 GiB a core; `gpus` only sets the arrival rate."""
    cores = rng.integers(4, 17, jobs)
    return {
        "workers": rng.integers(1, 9, jobs),
        "gpu_milli": rng.integers(1, 5, jobs) * WHOLE_GPU,
        "cpu_milli": cores * 1000,
        "memory_mib": cores * DLAAS_MIB_PER_CORE,
        "duration_s": _seconds(rng.lognormal(np.log(DLAAS_MEDIAN_S), DLAAS_SIGMA, jobs)),
    }


def _seconds(duration: Floats) -> Floats:
    return np.clip(np.ceil(duration), 1.0, LONGEST_S)


def _steady(span: float) -> tuple[float, Callable[[Floats], Floats]]:
    return span, lambda times: times


def _cycle(span: float) -> tuple[float, Callable[[Floats], Floats]]:
    """A week that starts on Monday at midnight; days peak at 15:00, weekends have half the jobs.

    Operational time runs as fast as jobs arrive. Arrivals are steady in it, so they are drawn
    there and taken back by interpolation.
    """
    clock = np.linspace(0.0, WEEK_S, 7 * 24 * 12 + 1)
    middle = (clock[1:] + clock[:-1]) / 2
    day = 1 + 0.6 * np.cos(2 * np.pi * (middle / DAY_S - 15 / 24))
    rate = day * np.where(middle < 5 * DAY_S, 1.0, 0.5)
    passed = np.concatenate(([0.0], np.cumsum(rate)))
    passed *= WEEK_S / passed[-1]

    def back(times: Floats) -> Floats:
        weeks = np.floor(times / WEEK_S)
        clock_s: Floats = weeks * WEEK_S + np.interp(times - weeks * WEEK_S, passed, clock)
        return clock_s

    weeks = span // WEEK_S
    return float(weeks * WEEK_S + np.interp(span - weeks * WEEK_S, clock, passed)), back


KINDS: dict[str, TraceKind] = {
    "poisson": TraceKind("30x8", 0.95, _philly_like, _steady),
    "diurnal": TraceKind("30x8", 0.95, _philly_like, _cycle),
    "dlaas": TraceKind("100x4:32c:128g", 1.1, _dlaas, _steady),
}
"""The kinds `make_trace` knows, by name."""
