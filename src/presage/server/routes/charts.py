"""What pages draw: the cluster device by device, and how it and its jobs were over time."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from presage.control.accounts import UserRole, may_see
from presage.control.charts import chart_lines, worker_order, worker_series
from presage.control.cluster_map import hide_others, map_of
from presage.core.engine import Engine
from presage.model.answers import WaitingJob
from presage.model.errors import NotLeading, UserError
from presage.server.routes.common import Me, Parts
from presage.server.service import Service
from presage.server.views import ApiView
from presage.store.records import JobRow, User

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["charts"])

_MOST_WORKERS = 64
_HOLDS = ("DOWNLOADING", "PROCESSING", "STORING")


class MapJob(ApiView):
    """A job that holds something; its number never changes."""

    number: int
    id: str
    owner: str
    queue: str


class MapNode(ApiView):
    """A node. Each device has the share that is held and the numbers of the jobs on it; -1 is a
    job that you may not know of."""

    name: str
    state: str
    gpu_type: str
    devices: list[tuple[float, list[int]]]
    cpus_held: float | None
    """Share of the cores that is held; null when they are not counted."""
    jobs: list[int]


class ClusterMap(ApiView):
    """Who is where."""

    jobs: list[MapJob]
    nodes: list[MapNode]


class Utilization(ApiView):
    """The cluster over time: one value of each list is one moment."""

    at: list[float]
    nodes: list[float]
    gpus: list[float]
    gpus_held: list[float]
    pending: list[float]
    running: list[float]
    cpus_asked: list[float]
    cpus_used: list[float]
    memory_asked_mib: list[float]
    memory_used_mib: list[float]
    gpus_busy: list[float]
    """By the driver, where it could be asked; the busy share of each GPU that a job has, added
    up."""


class WorkerSeries(ApiView):
    """What one worker of one attempt used."""

    attempt: int
    worker: str
    at: list[float]
    cpu_cores: list[float]
    rss_mib: list[float]
    threads: list[float]
    read_bytes: list[float]
    write_bytes: list[float]
    gpu_util_pct: list[float]
    gpu_memory_mib: list[float]
    """On the fullest of its GPUs; 0 where the driver could not be asked."""


class Limits(ApiView):
    """What each worker of the first role was held to from a time on, and why."""

    at: list[float]
    cpu_cores: list[float]
    memory_mib: list[float]
    why: list[str]


class JobTelemetry(ApiView):
    """What the workers of a job used; `left_out` more workers are not in the list."""

    series: list[WorkerSeries]
    left_out: int
    limits: Limits
    """Empty when nobody right-sized the job."""


class ProgressSeries(ApiView):
    """A job over time: how many workers it had and what it reported."""

    at: list[float]
    attempt: list[int]
    workers: list[int]
    metrics: dict[str, list[float | None]]


class WaitingList(ApiView):
    """Those of the jobs asked for that wait."""

    waiting: list[WaitingJob]


class LogFile(ApiView):
    """The output of a worker."""

    attempt: int
    worker: str
    bytes: int


class LogFiles(ApiView):
    """The outputs of a job, the newest attempt first."""

    files: list[LogFile]


@router.get("/cluster-map", response_model=ClusterMap)
async def cluster_map(service: Parts, me: Me) -> JSONResponse:
    """Every device of every node and who is on it; whose jobs you may not see stay unnamed."""
    picture = await service.ask(map_of)
    if me.role == UserRole.USER:
        known = await asyncio.to_thread(_known, service, me)
        hide_others(picture, known)
    return JSONResponse(picture)


@router.get("/utilization", response_model=Utilization)
async def utilization(
    service: Parts,
    me: Me,
    hours: Annotated[float, Query(gt=0, le=24 * 60)] = 24.0,
    points: Annotated[int, Query(ge=2, le=2000)] = 300,
) -> JSONResponse:
    """The cluster over the last hours: what there is, what is held, what is used of it."""
    since = time.time() - hours * 3600
    return JSONResponse(await asyncio.to_thread(service.history.since, since, points))


@router.get("/jobs/{job_id}/telemetry", response_model=JobTelemetry)
def telemetry(
    job_id: str,
    service: Parts,
    me: Me,
    attempt: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
    points: Annotated[int, Query(ge=2, le=2000)] = 300,
) -> JSONResponse:
    """What the workers of a job used over time; without an attempt, of all of them."""
    row = _seen(service, job_id, me)
    home = service.layout.telemetry(row.id, 1).parent
    numbers = sorted(int(p.stem) for p in home.glob("*.jsonl") if p.stem.isdigit())
    wanted = [number for number in numbers if attempt in (None, number)][-16:]
    series: list[dict[str, Any]] = []
    for number in wanted:
        series += worker_series(number, home / f"{number}.jsonl", points)
    shown = series[-_MOST_WORKERS:]
    lines = chart_lines(service.knowledge, row.id, "limits")
    held = [line for line in lines if attempt in (None, line["attempt"])]
    limits = {
        "at": [line["at"] for line in held],
        "cpu_cores": [line["cpu_milli"] / 1000 for line in held],
        "memory_mib": [line["memory_mib"] for line in held],
        "why": [line["why"] for line in held],
    }
    return JSONResponse({"series": shown, "left_out": len(series) - len(shown), "limits": limits})


@router.get("/jobs/{job_id}/progress", response_model=ProgressSeries)
def progress(job_id: str, service: Parts, me: Me) -> JSONResponse:
    """What a job reported and how many workers it had, over time."""
    row = _seen(service, job_id, me)
    lines = chart_lines(service.knowledge, row.id, "progress")
    reports = [line.get("progress") or {} for line in lines]
    names = list(dict.fromkeys(name for report in reports for name in report))
    return JSONResponse(
        {
            "at": [line["at"] for line in lines],
            "attempt": [line["attempt"] for line in lines],
            "workers": [line["workers"] for line in lines],
            "metrics": {name: [_number(report.get(name)) for report in reports] for name in names},
        }
    )


@router.get("/jobs/{job_id}/log-files", response_model=LogFiles)
def log_files(job_id: str, service: Parts, me: Me) -> JSONResponse:
    """Whose output is there, and how long it is."""
    row = _seen(service, job_id, me)
    home = service.layout.logs(row.id, 1).parent
    logs = []
    for path in home.glob("*/*.log"):
        if path.parent.name.isdigit():
            logs.append((int(path.parent.name), path.stem, path.stat().st_size))
    logs.sort(key=lambda item: (-item[0], worker_order(item[1])))
    files = [{"attempt": a, "worker": w, "bytes": size} for a, w, size in logs]
    return JSONResponse({"files": files})


@router.get("/waiting", response_model=WaitingList)
async def waiting(
    service: Parts, me: Me, job: Annotated[list[str], Query(min_length=1, max_length=100)]
) -> JSONResponse:
    """What each of these jobs waits for at this moment; jobs that do not wait are left out, and
    all of them while this server does not decide."""
    wanted = dict.fromkeys(item for item in job if "\0" not in item)
    if me.role == UserRole.USER:
        rows = await asyncio.to_thread(lambda: [service.store.jobs.get(name) for name in wanted])
        wanted = dict.fromkeys(row.id for row in rows if row is not None and may_see(me, row))

    def question(engine: Engine) -> list[dict[str, Any]]:
        pending = engine.state.pending
        before: dict[str, list[int]] = {}
        for other in pending.values():
            before.setdefault(other.spec.queue, []).append(other.seq)
        for numbers in before.values():
            numbers.sort()
        waiting = []
        for name in wanted:
            mine = pending.get(name)
            reason = engine.explain(name) if mine is not None else None
            if mine is not None and reason is not None:
                ahead = bisect_left(before[mine.spec.queue], mine.seq)
                why = {"code": reason.code, "text": reason.text}
                waiting.append({"id": name, "reason": why, "ahead": ahead})
        return waiting

    try:
        found = await service.ask(question)
    except NotLeading:  # what is stored has to do
        found = []
    return JSONResponse({"waiting": found})


def _known(service: Service, me: User) -> set[str]:
    """Jobs that hold something and that a user may know of."""
    whose = {"team": me.team} if me.team else {"owner": me.name}
    known: set[str] = set()
    after = None
    while True:
        rows = service.store.jobs.list(statuses=_HOLDS, limit=1000, after=after, **whose)
        known |= {row.id for row in rows}
        if len(rows) < 1000:
            return known
        after = rows[-1].seq


def _seen(service: Service, job_id: str, me: User) -> JobRow:
    if "\0" in job_id:
        raise UserError("a name has no NUL characters")
    return service.seen(job_id, me)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
