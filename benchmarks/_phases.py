"""What the benchmarks of phases share: telemetry that is split into training and test."""

from __future__ import annotations

import numpy as np
import polars as pl

from benchmarks._data import shared
from presage.telemetry.readers import read_telemetry
from presage.telemetry.series import Series

__all__ = ["GENAI", "genai_by_pod", "scout_by_workload", "vr_by_time"]

Split = tuple[list[Series], list[Series]]
GENAI = ("gpu_duty_cycle", "gpu_memory_used_bytes", "memory_util")


def scout_by_workload(seed: int = 0, least: int = 24) -> Split:
    """Three quarters of the workloads against the others; runs of at least so many samples."""
    runs = pl.read_parquet(shared("runtime/scout_runs.parquet")).select("run", "workload")
    workload = dict(runs.iter_rows())
    names = sorted({name for name in workload.values() if name is not None})
    held = set(np.random.default_rng(seed).permutation(names)[: len(names) // 4])
    series = [
        pod
        for pod in read_telemetry(shared("telemetry/scout_runs_5s.parquet"))
        if len(pod) >= least and workload.get(pod.pod) is not None
    ]
    train = [pod for pod in series if workload[pod.pod] not in held]
    return train, [pod for pod in series if workload[pod.pod] in held]


def vr_by_time(part: float = 0.6) -> Split:
    """The first part of the VR service against the rest."""
    (pod,) = read_telemetry(shared("telemetry/ai4dl_vr.csv"))
    cut = int(part * len(pod))
    halves = [
        Series(
            f"{pod.pod} {name}",
            pod.times[rows],
            pod.values[rows],
            pod.features,
            pod.units,
            pod.resources,
        )
        for name, rows in (("before", slice(None, cut)), ("after", slice(cut, None)))
    ]
    return halves[:1], halves[1:]


def genai_by_pod(name: str, seed: int = 0) -> Split:
    """Three quarters of the serving pods of one file against the others."""
    series = read_telemetry(shared(f"telemetry/genai_pod_{name}.parquet"))
    order = np.random.default_rng(seed).permutation(len(series))
    cut = 3 * len(series) // 4
    return [series[at] for at in order[:cut]], [series[at] for at in order[cut:]]
