"""Reads what was measured: `runs.jsonl` (or `runs.jsonl.gz`), a line for each run of a workload.

A line has `workload` (model, input, batch, optimizer), `setting`, `repeat` and `labels`, the
twelve numbers by name. One that failed has none and is left out, as is one with bursts that no
such link carries. Graphs are traced once for each
model, input and optimizer, and kept beside the file.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from presage.foresee.bursts.graphs import GraphInput, graph_input
from presage.foresee.bursts.settings import NETWORKS, Setting
from presage.foresee.bursts.steps import MeasuredStep, measured_steps
from presage.foresee.graph import zoo
from presage.foresee.graph.load import load_graph
from presage.foresee.graph.opgraph import OpGraph
from presage.learn import Floats
from presage.model.errors import UserError
from presage.telemetry.bursts import TARGETS
from presage.telemetry.rows import objects

__all__ = ["MeasuredSetting", "measured_runs", "noise_of", "read_runs", "settings_of", "step_rows"]


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredSetting:
    """The workloads of one setting, each with the mean of its repeats."""

    setting: Setting
    workloads: list[dict[str, Any]]
    families: list[str]
    labels: Floats
    """(n, 12), in the order of `TARGETS`."""
    repeats: list[Floats]
    """Of each workload, (times, 12)."""
    step_ms: Floats = field(default_factory=lambda: np.zeros(0))
    """Of each workload, the mean of its repeats; nan where it was not measured."""

    def inputs(
        self, cache: Path, say: Callable[[str], object] = lambda text: None
    ) -> list[GraphInput]:
        """The graph of each workload; traced where `cache` does not have it yet."""
        graphs = graphs_of(self.workloads, cache, say)
        sizes = [int(work["batch"]) for work in self.workloads]
        return [graph_input(graph, batch) for graph, batch in zip(graphs, sizes, strict=True)]


def graphs_of(
    workloads: Sequence[dict[str, Any]],
    cache: Path,
    say: Callable[[str], object] = lambda text: None,
) -> list[OpGraph]:
    """The graph of each workload; traced where `cache` does not have it yet."""
    traced: dict[str, OpGraph] = {}
    out = []
    for work in workloads:
        name = json.dumps([work["model"], work.get("input"), work.get("optimizer", "sgd")])
        if name not in traced:
            traced[name] = _graph(work, cache, name, say)
        out.append(traced[name])
    return out


def step_rows(
    directory: Path, cache: Path, say: Callable[[str], object] = lambda text: None
) -> list[MeasuredStep]:
    """What all runs of a directory tell of steps."""
    runs = list(measured_runs(directory))
    works = {json.dumps(run["workload"], sort_keys=True): run["workload"] for run in runs}
    graphs = graphs_of(list(works.values()), cache, say)
    slopes = {name: 4.0 * graph.trainable for name, graph in zip(works, graphs, strict=True)}
    families = {work["model"]: zoo.find(work["model"]).family for work in works.values()}
    return measured_steps(runs, slopes, families)


def settings_of(directory: Path) -> list[Setting]:
    """The settings that a directory has runs of, in the order in which they come."""
    names = dict.fromkeys(str(run["setting"]) for run in measured_runs(directory))
    return [Setting.parse(name) for name in names]


def measured_runs(directory: Path) -> Iterator[dict[str, Any]]:
    """Every run in a directory that has labels."""
    path = directory / "runs.jsonl"
    packed = path.with_suffix(".jsonl.gz")
    if not path.is_file() and not packed.is_file():
        raise UserError(f"{directory} has no runs.jsonl: measure with benchmarks.bursts_collect")
    with path.open("rb") if path.is_file() else gzip.open(packed) as file:
        for run in objects(file):
            if "labels" in run and "setting" in run:
                yield run


def read_runs(directory: Path, setting: Setting | str) -> MeasuredSetting:
    """What a directory's runs tell of a setting."""
    wanted = Setting.parse(setting) if isinstance(setting, str) else setting
    measured: dict[str, list[list[float]]] = {}
    steps: dict[str, list[float]] = {}
    works: dict[str, dict[str, Any]] = {}
    for run in measured_runs(directory):
        if run["setting"] != str(wanted):
            continue
        labels = _labels(run, directory)
        if _beyond(labels, wanted):
            continue
        name = json.dumps(run["workload"], sort_keys=True)
        works[name] = run["workload"]
        measured.setdefault(name, []).append(labels)
        steps.setdefault(name, []).append(float(run.get("step_ms", np.nan)))
    if not measured:
        raise UserError(f"{directory} has no run of {wanted}")
    repeats = [np.array(measured[name]) for name in works]
    return MeasuredSetting(
        wanted,
        list(works.values()),
        [zoo.find(work["model"]).family for work in works.values()],
        np.stack([each.mean(0) for each in repeats]),
        repeats,
        np.array([np.mean(steps[name]) for name in works]),
    )


def noise_of(measured: MeasuredSetting) -> Floats | None:
    """By label, the mean of |a run − the mean of its repeats| over the mean of the labels, of
    what was measured more than once; corrected for the mean being made of the same runs."""
    many = [each for each in measured.repeats if len(each) > 1]
    if not many:
        return None
    spread = [
        np.abs(each - each.mean(0)).mean(0) * (len(each) / (len(each) - 1)) ** 0.5 for each in many
    ]
    level = np.concatenate(many).mean(0)
    noise: Floats = np.mean(spread, axis=0) / np.maximum(level, 1e-9)
    return noise


def _labels(run: dict[str, Any], path: Path) -> list[float]:
    try:
        labels = [float(run["labels"][name]) for name in TARGETS]
        fits = np.all(np.isfinite(labels)) and min(labels) >= 0 and run["workload"]["model"]
    except (KeyError, TypeError, ValueError):
        fits = False
    if not fits:
        raise UserError(f"{path}: a run of {run.get('setting')} lacks one of its twelve labels")
    return labels


def _beyond(labels: Sequence[float], setting: Setting) -> bool:
    """Whether bursts are twice what a link carries, so that something went wrong in measuring."""
    rate = NETWORKS[setting.network]
    heights = [labels[TARGETS.index(f"{which}_burst_mib_s")] for which in ("sent", "received")]
    return rate is not None and max(heights) > 2 * rate / 8 / (1 << 20)


def _graph(work: dict[str, Any], cache: Path, name: str, say: Callable[[str], object]) -> OpGraph:
    place = cache / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.npz"
    if place.is_file():
        return OpGraph.from_bytes(place.read_bytes())
    say(f"tracing {work['model']}")
    options = {"optimizer": work.get("optimizer", "sgd")}
    graph = load_graph(f"zoo:{work['model']}", inputs=work.get("input"), **options)
    cache.mkdir(parents=True, exist_ok=True)
    draft = place.with_suffix(".part")
    draft.write_bytes(graph.to_bytes())
    draft.replace(place)
    return graph
