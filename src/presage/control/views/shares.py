"""Enforced shares of GPUs as values for pages: what each worker asked for, got and waited for, by
its latest row of telemetry. It changes no share."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from presage.control.measured import StoredTelemetry
from presage.control.people.accounts import UserRole
from presage.control.site.service import Service
from presage.control.views.charts import known_runs
from presage.core.engine import Engine
from presage.model.cluster import WHOLE_GPU
from presage.store.records import User
from presage.telemetry.rows import Row

__all__ = ["STALE_S", "share_views"]

STALE_S = 30.0
"""A row that is older says nothing of now."""


async def share_views(service: Service, me: User) -> list[dict[str, Any]]:
    """The shares of the jobs that somebody may see."""

    def question(engine: Engine) -> list[tuple[str, int, int]]:
        return [
            (job.id, job.attempt, len(job.allocation))
            for job in engine.state.active.values()
            if any(0 < role.resources.gpu_milli <= WHOLE_GPU for role in job.spec.roles)
        ]

    runs = await service.ask(question)
    return await asyncio.to_thread(_measured, service, me, runs)


def _measured(
    service: Service, me: User, runs: list[tuple[str, int, int]]
) -> list[dict[str, Any]]:
    if runs and me.role == UserRole.USER:
        known = known_runs(service, me)
        runs = [run for run in runs if run[0] in known]
    telemetry, since = StoredTelemetry(service.layout), time.time() - STALE_S
    return [
        _view(job, row)
        for job, attempt, workers in runs
        for row in telemetry.latest(job, attempt, workers, since)
        if row.gpu_request is not None
    ]


def _view(job: str, row: Row) -> dict[str, Any]:
    return {
        "job": job,
        "worker": row.worker,
        "at": row.at,
        "request": row.gpu_request,
        "limit": row.gpu_limit,
        "got": row.gpu_got,
        "waited": row.gpu_waited,
        "memory_mib": row.gpu_memory_mib,
        "memory_limit_mib": row.gpu_memory_limit_mib,
    }
