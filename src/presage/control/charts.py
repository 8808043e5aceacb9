"""What charts of a job are drawn from: its progress and its limits over time, in what a server
knows, and what its workers used. Nothing is decided on them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from presage.core.ports import Entry, Knowledge
from presage.telemetry.rows import Row, rows, spread

__all__ = ["chart_entry", "chart_lines", "worker_order", "worker_series"]

Chart: TypeAlias = Literal["progress", "limits"]
_MOST: dict[Chart, int] = {"progress": 20_000, "limits": 5000}
"""Lines of a job that are kept, the latest."""

_MEASURED = (
    "cpu_cores",
    "rss_mib",
    "threads",
    "read_bytes",
    "write_bytes",
    "gpu_util_pct",
    "gpu_memory_mib",
    "gpu_request",
    "gpu_limit",
    "gpu_got",
    "gpu_waited",
)


def chart_entry(job: str, chart: Chart, line: Mapping[str, Any]) -> Entry:
    """A line to keep."""
    return Entry(f"jobs/{job}/{chart}", json.dumps(line).encode(), _MOST[chart])


def chart_lines(knowledge: Knowledge, job: str, chart: Chart) -> list[dict[str, Any]]:
    """The lines of a job, oldest first."""
    return [json.loads(line) for line in knowledge.tail(f"jobs/{job}/{chart}", _MOST[chart])]


def worker_series(attempt: int, path: Path, points: int) -> list[dict[str, Any]]:
    """One series a worker, of at most so many points."""
    by_worker: dict[str, list[Row]] = {}
    for row in rows(spread(path)):
        by_worker.setdefault(row.worker, []).append(row)
    series = []
    for worker in sorted(by_worker, key=worker_order):
        own = by_worker[worker]
        chosen = np.unique(np.linspace(0, len(own) - 1, min(points, len(own))).astype(int))
        few = [own[k] for k in chosen]
        columns = {name: [float(getattr(row, name) or 0.0) for row in few] for name in _MEASURED}
        at = [float(row.at) for row in few]
        series.append({"attempt": attempt, "worker": worker, "at": at, **columns})
    return series


def worker_order(name: str) -> tuple[str, int]:
    """Sorts names of workers by role, then by number."""
    role, _, number = name.rpartition("-")
    return (role, int(number)) if number.isdigit() else (name, 0)
