"""Jobs beside each other, and what was measured of a job, to be put beside what was foreseen.

Reads what was kept; it measures nothing itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from presage.control.charts import chart_lines
from presage.control.measured import StoredTelemetry
from presage.core.ports import Knowledge
from presage.layout import Layout
from presage.store.records import JobRow

__all__ = ["differences", "foreseen_and_measured", "measured_of", "metric_curves"]

_MOST_POINTS = 500
_MOST_KEYS = 60
_COUNTERS = ("at", "done", "step", "steps", "epoch", "epochs", "step_s")


def differences(manifests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The keys whose values are not the same in all manifests, `resources.gpus` for one inside
    another."""
    flat = [dict(_flat(manifest)) for manifest in manifests]
    keys = dict.fromkeys(key for one in flat for key in one)
    rows = [{"key": key, "values": [one.get(key) for one in flat]} for key in keys]
    return [row for row in rows if len(set(row["values"])) > 1][:_MOST_KEYS]


def _flat(value: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for key, item in value.items():
        name = f"{before}{key}"
        if item in ({}, [], None) or name == "name":  # what a job is called is no parameter
            continue
        if isinstance(item, Mapping):
            pairs += _flat(item, f"{name}.")
        else:
            text = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
            pairs.append((name, text))
    return pairs


def metric_curves(knowledge: Knowledge, rows: Sequence[JobRow]) -> dict[str, list[dict[str, Any]]]:
    """Curves by metric: of what a program reported, without what only counts."""
    metrics: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        lines = chart_lines(knowledge, row.id, "progress")
        start = row.started_at or row.submitted_at
        reports = [(line["at"] - start, line.get("progress") or {}) for line in lines]
        names = dict.fromkeys(name for _, report in reports for name in report)
        for name in names:
            if name in _COUNTERS:
                continue
            points = [
                (seconds, _number(report.get("step")), report[name])
                for seconds, report in reports
                if _number(report.get(name)) is not None
            ]
            every = -(-len(points) // _MOST_POINTS)
            few = [*points[::every], *points[-1:]] if every > 1 else points
            if few:
                seconds, step, values = (list(column) for column in zip(*few, strict=True))
                curve = {"job": row.id, "seconds": seconds, "step": step, "values": values}
                metrics.setdefault(name, []).append(curve)
    return metrics


def _number(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and abs(value) < 1e300 else None


def measured_of(layout: Layout, row: JobRow) -> dict[str, float]:
    """What telemetry and the job itself say: its fullest GPU, how busy they were on average."""
    figures: dict[str, float] = {}
    memory, busy = 0.0, list[float]()
    for sample in StoredTelemetry(layout).of(row.id):
        memory = max(memory, sample.gpu_memory_mib or 0.0)
        if sample.gpu_util_pct is not None:
            busy.append(sample.gpu_util_pct / 100)
    if memory:
        figures["memory_mib"] = memory
    if busy:
        figures["utilization"] = sum(busy) / len(busy)
    step_s = _number((row.progress or {}).get("step_s"))
    if step_s:
        figures["step_s"] = step_s
    if row.status == "COMPLETED" and row.started_at and row.ended_at:
        figures["runtime_s"] = row.ended_at - row.started_at
    return figures


def foreseen_and_measured(layout: Layout, row: JobRow) -> list[dict[str, Any]]:
    """What was foreseen of a job when it was submitted, beside what was measured."""
    said = row.estimates or {}
    known = {name: said[name] for name in _NAMES if said.get(name)}
    measured = measured_of(layout, row) if known else {}
    return [
        {
            "name": _NAMES[name],
            "unit": about["unit"],
            **{end: about[end] for end in ("p10", "p50", "p90")},
            "origin": about.get("origin", ""),
            "measured": measured.get(name),
        }
        for name, about in known.items()
    ]


_NAMES = {
    "runtime_s": "run time",
    "memory_mib": "GPU memory",
    "utilization": "GPU utilization",
    "step_s": "time of a step",
}
