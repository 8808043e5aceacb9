"""Figures of the server in Prometheus's text format."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

from presage.control.board import STATUSES
from presage.control.measured import StoredTelemetry
from presage.control.site.service import Service
from presage.control.views.shares import STALE_S
from presage.core.engine import Engine
from presage.model.cluster import WHOLE_GPU
from presage.model.errors import PresageError
from presage.observe.health.trouble import TroubleKind
from presage.telemetry.rows import Row

__all__ = ["exposition"]

_MIB = 1 << 20


async def exposition(service: Service, *, workers: bool) -> str:
    """Everything, as it is now; with `workers` also what each worker of a job uses."""
    live = service.live
    page = _Page()
    counts = await asyncio.to_thread(service.store.jobs.count_by_status)
    page.add(
        "presage_jobs",
        "gauge",
        "Jobs by status",
        [({"status": status}, counts.get(status, 0)) for status in STATUSES],
    )
    page.add(
        "presage_leading", "gauge", "1 on the server that decides", int(live.leading.is_set())
    )
    page.add("presage_requests_waiting", "gauge", "Requests no turn has taken yet", live.waiting())
    page.add("presage_decisions_total", "counter", "Decisions since the start", live.decided)
    turns = sorted(live.turns)
    if turns:
        spots = {q: turns[min(len(turns) - 1, int(q * len(turns)))] for q in (0.5, 0.9, 0.99)}
        page.add(
            "presage_turn_seconds",
            "gauge",
            "Time of a turn of the deciding loop, of the latest 1,000",
            [({"quantile": str(q)}, value) for q, value in spots.items()],
        )
    _starts(service, page)
    _learning(service, page)
    _health(service, page)
    try:
        await _cluster(service, page)
        if workers:
            _alerts(service, page)
            await _workers(service, page)
    except PresageError:
        page.note("this server does not decide, so it does not know the cluster")
    return page.text()


def _starts(service: Service, page: _Page) -> None:
    known = service.starts
    page.add("presage_forecasts_total", "counter", "Forecasts since the start", known.made)
    page.add("presage_forecast_cpu_seconds_total", "counter", "CPU time of them", known.cpu_s)
    page.add("presage_forecast_samples", "gauge", "Runs of the latest forecast", known.samples())
    page.add("presage_history_runs", "gauge", "Run times learned from", known.runs_known())
    age = known.age_s()
    if age is not None:
        page.add("presage_forecast_age_seconds", "gauge", "Age of the latest forecast", age)


def _learning(service: Service, page: _Page) -> None:
    """How far estimates were off; nothing until some were judged."""
    drift = service.learner.drift()
    for name, about, of in (
        ("error", "Mean distance of the latest estimates from the truth, in logarithms", "error"),
        ("inside", "Share of truths between p10 and p90", "inside"),
        ("drift", "1 when estimates are off by far more than their model promised", "drifted"),
    ):
        rows = [({"quantity": key}, float(getattr(one, of))) for key, one in drift.items()]
        page.add(f"presage_estimate_{name}", "gauge", about, rows)
    if service.sizing is not None:
        count = service.sizing.resizes
        page.add("presage_limits_advised_total", "counter", "Limits that were advised", count)


def _health(service: Service, page: _Page) -> None:
    """Alerts, by kind and by subject, and what watching for them costs."""
    health = service.health
    kinds = Counter(one.finding.kind.value for one in health.book.open())
    page.add(
        "presage_alerts",
        "gauge",
        "Open alerts by kind",
        [({"kind": kind.value}, kinds.get(kind.value, 0)) for kind in TroubleKind],
    )
    raised = [({"kind": kind.value}, count) for kind, count in health.book.total.items()]
    page.add("presage_alerts_raised_total", "counter", "Alerts since the start", raised)
    used = [({"remedy": name}, count) for name, count in sorted(health.remedies_used.items())]
    page.add("presage_remedies_total", "counter", "What was done about alerts", used)
    page.add("presage_health_looks_total", "counter", "Looks at all runs", health.looks)
    about = "CPU time of looking whether runs are well"
    page.add("presage_health_cpu_seconds_total", "counter", about, round(health.cpu_s, 4))


def _alerts(service: Service, page: _Page) -> None:
    """Each open alert with its probability, for those who may see all jobs."""
    rows = [
        (
            {
                **{"kind": one.finding.kind.value, "subject": str(one.finding.subject)},
                **{"job_id": one.finding.job, "node": one.finding.node},
            },
            one.finding.probability,
        )
        for one in service.health.book.open()
    ]
    page.add("presage_alert_probability", "gauge", "How likely the trouble is", rows)


async def _cluster(service: Service, page: _Page) -> None:
    def question(engine: Engine) -> dict[str, Any]:
        state, capacity = engine.state, engine.state.capacity
        total = sum(len(node.devices) for node in capacity.nodes if node.name in capacity.index)
        return {
            "gpus": total,
            "free": capacity.free_milli / WHOLE_GPU,
            "pending": len(state.pending),
            "active": len(state.active),
            "queues": {name: milli / WHOLE_GPU for name, milli in state.usage.items()},
            "nodes": {
                "up": len(capacity.index) - len(state.down) - len(state.draining),
                "draining": len(state.draining),
                "down": len(state.down),
            },
        }

    counts = await service.ask(question)
    page.add("presage_gpus", "gauge", "GPUs of the cluster", counts["gpus"])
    page.add("presage_gpus_free", "gauge", "GPUs nobody holds", counts["free"])
    page.add("presage_pending", "gauge", "Jobs that wait", counts["pending"])
    page.add("presage_active", "gauge", "Jobs that hold something", counts["active"])
    nodes = [({"state": state}, count) for state, count in counts["nodes"].items()]
    page.add("presage_nodes", "gauge", "Nodes by state", nodes)
    queues = [({"queue": queue}, gpus) for queue, gpus in sorted(counts["queues"].items())]
    page.add("presage_queue_gpus", "gauge", "GPUs held by each queue", queues)


async def _workers(service: Service, page: _Page) -> None:
    """What workers use by their telemetry; `presage rightsize --prometheus` knows these names."""

    def question(engine: Engine) -> list[tuple[str, int, int]]:
        jobs = engine.state.active.values()
        return [(job.id, job.attempt, len(job.allocation)) for job in jobs]

    runs, since = await service.ask(question), time.time() - STALE_S
    measured = StoredTelemetry(service.layout)

    def read() -> list[tuple[dict[str, str], Row]]:
        return [
            ({"job_id": job, "worker": row.worker}, row)
            for job, attempt, workers in runs
            for row in measured.latest(job, attempt, workers, since)
        ]

    latest = await asyncio.to_thread(read)
    for name, about, field, unit in (
        ("cpu_cores", "Cores that a worker keeps busy", "cpu_cores", 1),
        ("memory_bytes", "Memory that the processes of a worker hold", "rss_mib", _MIB),
        ("gpu_util_pct", "How busy the GPUs of a worker are", "gpu_util_pct", 1),
        ("gpu_memory_bytes", "Memory that a worker holds on GPUs", "gpu_total_mib", _MIB),
        ("gpu_request", "The part of a GPU that a worker is to get", "gpu_request", 1),
        ("gpu_limit", "The part of a GPU that a worker never passes", "gpu_limit", 1),
        ("gpu_got", "The part of a GPU that a worker had of late", "gpu_got", 1),
        ("gpu_waited", "Seconds in each second waited for turns on a GPU", "gpu_waited", 1),
        ("gpu_memory_limit_bytes", "Memory it may hold", "gpu_memory_limit_mib", _MIB),
    ):
        rows = [
            (labels, value * unit)
            for labels, row in latest
            if (value := getattr(row, field)) is not None
        ]
        page.add(f"presage_worker_{name}", "gauge", about, rows)


class _Page:
    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(
        self, name: str, kind: str, about: str, values: float | list[tuple[dict[str, str], Any]]
    ) -> None:
        rows = values if isinstance(values, list) else [({}, values)]
        if not rows:
            return
        self._lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
        for labels, value in rows:
            inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            self._lines.append(f"{name}{{{inside}}} {value}" if inside else f"{name} {value}")

    def note(self, text: str) -> None:
        self._lines.append(f"# {text}")

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
