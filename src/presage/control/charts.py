"""What charts of a job are drawn from: its progress and its limits over time, in what a server
knows. Nothing is decided on them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from presage.core.ports import Entry, Knowledge

__all__ = ["chart_entry", "chart_lines"]

Chart: TypeAlias = Literal["progress", "limits"]
_MOST: dict[Chart, int] = {"progress": 20_000, "limits": 5000}
"""Lines of a job that are kept, the latest."""


def chart_entry(job: str, chart: Chart, line: Mapping[str, Any]) -> Entry:
    """A line to keep."""
    return Entry(f"jobs/{job}/{chart}", json.dumps(line).encode(), _MOST[chart])


def chart_lines(knowledge: Knowledge, job: str, chart: Chart) -> list[dict[str, Any]]:
    """The lines of a job, oldest first."""
    return [json.loads(line) for line in knowledge.tail(f"jobs/{job}/{chart}", _MOST[chart])]
