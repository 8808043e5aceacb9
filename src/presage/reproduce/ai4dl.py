"""AI4DL (HotCloud 2020): containers sized by phase against sized by their last window.

The authors' telemetry (VR, one long container, by time) and Scout (runs of data-processing jobs,
by workload). Phases are learned on the training part, margins set there; policies are compared on
the held-out part where each serves 95 % of the samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import polars as pl

from presage.model.errors import UserError
from presage.observe.phases import PhaseModel
from presage.provision.rightsize import rightsize
from presage.reproduce.result import Progress, ReproducedFigure, Reproduction
from presage.telemetry.readers import read_telemetry
from presage.telemetry.series import Series

__all__ = ["GENAI", "TARGET", "TARGETS", "Split", "at_equal_service", "measure", "run", "splits"]

Split = tuple[str, float, list[Series], list[Series]]
"""Name, window in seconds, pods to learn from, pods held out."""
TARGETS = (85.0, 92.0, 95.0, 97.0, 99.0)
TARGET = 95.0
GENAI = ("gpu_duty_cycle", "gpu_memory_used_bytes", "memory_util")
_POLICIES = ("dynamic", "adaptive", "phase", "forecast", "static")
_SHOWN = ("cpu", "memory")
_EVERY = 4
"""Of Scout's workloads, one in so many: the whole of it takes ten minutes."""


def run(data: Path, *, seeds: int, progress: Progress) -> Reproduction:
    """Both data sets. Nothing is drawn at random, so `seeds` changes nothing."""
    lines: list[ReproducedFigure] = []
    parts = list(splits(data, ("vr", "scout"), _EVERY))
    for at, (name, window_s, training, held_out) in enumerate(parts):
        progress(at, len(parts))
        for row in measure(name, window_s, training, held_out, _POLICIES):
            if row["resource"] in _SHOWN:
                lines += _lines(row)
    progress(1, 1)
    return Reproduction(
        name="ai4dl",
        title="Containers sized by phase",
        source="AI4DL, HotCloud 2020: up to 30 % less CPU and memory than adaptive, at least 95 % "
        "of the demand met, no more OOM",
        lines=tuple(lines),
        differs=(
            "The paper's production containers are not public; VR is the one series that its "
            "authors published, Scout is another kind of job.",
            "Phases come from change points, the default here, and not from a CRBM (ADR 0017).",
            "Policies are compared at equal service (95 % of the samples held out), not at equal "
            "margins: an allocation that is smaller because it serves less does not count.",
            "`phase` is the published policy; `forecast` is ours: it sizes by what it expects.",
            f"Scout: one workload in {_EVERY}; `python -m benchmarks.provisioning` takes all.",
        ),
    )


def _lines(row: dict[str, Any]) -> list[ReproducedFigure]:
    where = f"{row['data']}, {row['resource']}"
    equal, scores = row["equal"], row["scores"]
    figures = []
    for policy, paper in (("phase", 0.7), ("forecast", None)):
        if equal[policy] is None or equal["adaptive"] is None:
            continue
        ratio = equal[policy] / equal["adaptive"]
        what = f"{where}: allocation, {policy} ÷ adaptive"
        figures.append(
            ReproducedFigure.at_most(what, ratio, 1.0)
            if policy == "forecast"
            else ReproducedFigure(what, ratio, paper)
        )
    met = scores["forecast"]["fulfilment_pct"]
    figures.append(
        ReproducedFigure.at_least(
            f"{where}: served by forecast", met, TARGET, paper=95.0, unit="%"
        )
    )
    if row["resource"] == "memory":
        most = max(1, scores["adaptive"]["oom"])
        ooms = scores["forecast"]["oom"] / most
        figures.append(
            ReproducedFigure.at_most(f"{where}: OOM, forecast ÷ adaptive", ooms, 1.0, paper=1.0)
        )
    return figures


def splits(data: Path, names: Sequence[str], every: int = 1) -> Iterator[Split]:
    """Training and held-out pods of each data set; of Scout one workload in `every`."""
    if "scout" in names:
        runs = pl.read_parquet(_there(data / "runtime/scout_runs.parquet"))
        workload = dict(zip(runs["run"].cast(pl.String), runs["workload"], strict=True))
        pods = read_telemetry(_there(data / "telemetry/scout_runs_5s.parquet"))
        wanted = sorted({str(name) for name in workload.values()})[::every]
        long = [pod for pod in pods if len(pod) >= 24 and str(workload[pod.pod]) in wanted]
        yield "scout", 60.0, *by_key(long, [str(workload[pod.pod]) for pod in long])
    if "vr" in names:
        pod = read_telemetry(_there(data / "telemetry/ai4dl_vr.csv"))[0]
        cut = int(np.searchsorted(pod.times, pod.times[0] + 0.7 * np.ptp(pod.times)))
        yield "vr", 120.0, [part(pod, 0, cut)], [part(pod, cut, len(pod))]
    if "genai" in names:
        for kind in GENAI:
            pods = read_telemetry(_there(data / f"telemetry/genai_pod_{kind}.parquet"))
            yield f"genai {kind}", 600.0, *by_key(pods, [pod.pod for pod in pods])


def _there(path: Path) -> Path:
    if not path.is_file():
        raise UserError(f"{path} is not there; name the directory of the data with --data")
    return path


def by_key(pods: Sequence[Series], keys: Sequence[str]) -> tuple[list[Series], list[Series]]:
    """About three tenths of the keys are held out, by their checksum."""
    out = [crc32(f"{key}0".encode()) % 10 < 3 for key in keys]
    return (
        [pod for pod, held in zip(pods, out, strict=True) if not held],
        [pod for pod, held in zip(pods, out, strict=True) if held],
    )


def part(pod: Series, start: int, end: int) -> Series:
    """Some of a pod's samples."""
    return replace(pod, times=pod.times[start:end], values=pod.values[start:end], rows=None)


def measure(
    name: str,
    window_s: float,
    training: list[Series],
    held_out: list[Series],
    policies: Sequence[str],
) -> list[dict[str, Any]]:
    """A row for each resource: the curve of every policy, what it gives where it reaches 95 % on
    the held-out part, and its scores with margins for 95 %."""
    model = PhaseModel.fit(training)
    results = {
        target: rightsize(held_out, policies, window_s, model=model, target_pct=target)
        for target in TARGETS
    }
    rows = []
    for resource in next(iter(results[TARGET].sized.values())):
        scores = {
            policy: [results[target].sized[policy][resource].score for target in TARGETS]
            for policy in policies
        }
        at_target = {policy: of[TARGETS.index(TARGET)] for policy, of in scores.items()}
        curves = {
            policy: sorted((one.fulfilment_pct, one.alloc_over_use or np.nan) for one in of)
            for policy, of in scores.items()
        }
        rows.append(
            {
                "data": name,
                "resource": resource,
                "curves": curves,
                "equal": {policy: at_equal_service(curve) for policy, curve in curves.items()},
                "scores": {
                    policy: one.to_json() | {"worst_pod_pct": one.worst_pod_pct}
                    for policy, one in at_target.items()
                },
            }
        )
    return rows


def at_equal_service(curve: list[tuple[float, float]]) -> float | None:
    """The allocation at which a curve reaches 95 %, or where it begins if that is above already;
    None if it does not get there."""
    met, given = np.array(curve).T
    if met[-1] < TARGET:
        return None
    return float(np.interp(TARGET, met, given))
