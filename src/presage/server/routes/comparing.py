"""Jobs beside each other, and what was foreseen of a job beside what was measured."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from presage.control.charts import chart_lines
from presage.control.measured import StoredTelemetry
from presage.model.answers import JobSummary
from presage.model.errors import BadRequest
from presage.server.routes.common import Me, Parts
from presage.server.routes.jobs import clean
from presage.server.service import Service
from presage.server.views import ApiView, summary_view
from presage.store.records import JobRow

__all__ = ["differences", "router"]

router = APIRouter(prefix="/api/v1", tags=["charts"])

_MOST_JOBS = 12
_MOST_POINTS = 500
_MOST_KEYS = 60
_COUNTERS = ("at", "done", "step", "steps", "epoch", "epochs", "step_s")


class Parameter(ApiView):
    """A key of manifests that is not the same in all; null where a manifest lacks it."""

    key: str
    values: list[str | None]


class MetricCurve(ApiView):
    """A metric of one job; `step` is null where it reported none."""

    job: str
    seconds: list[float]
    """Since the job started."""
    step: list[float | None]
    values: list[float]


class JobComparison(ApiView):
    """Jobs beside each other."""

    jobs: list[JobSummary]
    parameters: list[Parameter]
    """In the order of the jobs."""
    metrics: dict[str, list[MetricCurve]]


class ForeseenQuantity(ApiView):
    """What was foreseen, and what it turned out to be; null when it is not known (yet)."""

    name: str
    unit: str
    p10: float
    p50: float
    p90: float
    origin: str
    measured: float | None


class ForeseenList(ApiView):
    """Of one job."""

    quantities: list[ForeseenQuantity]


@router.get("/compare", response_model=JobComparison)
async def compare(
    service: Parts, me: Me, job: Annotated[list[str], Query(min_length=1, max_length=_MOST_JOBS)]
) -> JSONResponse:
    """Up to 12 jobs: what differs in their manifests, and their metrics over time and steps."""

    def read() -> dict[str, Any]:
        found = [service.seen(clean(name), me) for name in job]
        rows = list({row.id: row for row in found}.values())
        return {
            "jobs": [summary_view(row, eta_s=service.starts.eta(row.id)) for row in rows],
            "parameters": differences([row.manifest or {} for row in rows]),
            "metrics": _metrics(service, rows),
        }

    if not all(job):
        raise BadRequest("job: names of jobs, one for each `job=`")
    return JSONResponse(await asyncio.to_thread(read))


@router.get("/jobs/{job_id}/foreseen", response_model=ForeseenList)
async def foreseen(job_id: str, service: Parts, me: Me) -> JSONResponse:
    """What was foreseen of a job when it was submitted, beside what was measured."""

    def read() -> list[dict[str, Any]]:
        row = service.seen(clean(job_id), me)
        said = row.estimates or {}
        known = {name: said[name] for name in _NAMES if said.get(name)}
        measured = _measured(service, row) if known else {}
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

    return JSONResponse({"quantities": await asyncio.to_thread(read)})


_NAMES = {
    "runtime_s": "run time",
    "memory_mib": "GPU memory",
    "utilization": "GPU utilization",
    "step_s": "time of a step",
}


def differences(manifests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The keys whose values are not the same in all manifests, `resources.gpus` for one inside
    another."""
    flat = [dict(_flat(manifest)) for manifest in manifests]
    keys = dict.fromkeys(key for one in flat for key in one)
    rows = [{"key": key, "values": [one.get(key) for one in flat]} for key in keys]
    return [row for row in rows if len(set(row["values"])) > 1][:_MOST_KEYS]


def _flat(value: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, item in value.items():
        name = f"{before}{key}"
        if item in ({}, [], None) or name == "name":  # what a job is called is no parameter
            continue
        if isinstance(item, Mapping):
            found += _flat(item, f"{name}.")
        else:
            text = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
            found.append((name, text))
    return found


def _metrics(service: Service, rows: Sequence[JobRow]) -> dict[str, list[dict[str, Any]]]:
    """Curves by metric: of what a program reported, without what only counts."""
    metrics: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        lines = chart_lines(service.knowledge, row.id, "progress")
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


def _measured(service: Service, row: JobRow) -> dict[str, float]:
    """What telemetry and the job itself say: its fullest GPU, how busy they were on average."""
    found: dict[str, float] = {}
    memory, busy = 0.0, list[float]()
    for sample in StoredTelemetry(service.layout).of(row.id):
        memory = max(memory, sample.gpu_memory_mib or 0.0)
        if sample.gpu_util_pct is not None:
            busy.append(sample.gpu_util_pct / 100)
    if memory:
        found["memory_mib"] = memory
    if busy:
        found["utilization"] = sum(busy) / len(busy)
    step_s = _number((row.progress or {}).get("step_s"))
    if step_s:
        found["step_s"] = step_s
    if row.status == "COMPLETED" and row.started_at and row.ended_at:
        found["runtime_s"] = row.ended_at - row.started_at
    return found
