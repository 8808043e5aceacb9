"""Alerts: trouble of jobs, workers, nodes and GPUs, open and over, and news of them as they come.

Who may not see all jobs sees the trouble of the jobs that are theirs, and no other job's name.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse, StreamingResponse

from presage.control.health.alerts import Alert
from presage.control.people.accounts import UserRole, may_see
from presage.control.site.service import Service
from presage.control.views.ahead import failure_view
from presage.core.state import State
from presage.model.codec import encode
from presage.model.errors import NotFound, PresageError
from presage.model.page_answers import OpenAlerts
from presage.model.server_answers import Diagnosis
from presage.observe.health.trouble import Trouble
from presage.server.routes.common import Me, Parts, clean
from presage.store.records import User

__all__ = ["alerts_of", "router"]

router = APIRouter(prefix="/api/v1", tags=["health"])

CLUSTER = "cluster"
_BEAT_S = 15.0
_LOOK_S = 1.0


@router.get("/health/alerts", response_model=OpenAlerts)
async def health_alerts(
    service: Parts, me: Me, over: Annotated[int, Query(ge=0, le=2000)] = 50
) -> JSONResponse:
    """All alerts that you may see."""

    def read() -> dict[str, Any]:
        book = service.health.book
        sees = _AlertSight(service, me)
        return {
            "open": [alert_view(one) for one in sees.those(book.open())],
            "over": [alert_view(one) for one in sees.those(book.over(over))],
        }

    return JSONResponse(await asyncio.to_thread(read))


@router.get("/diagnosis/{subject}", response_model=Diagnosis)
async def diagnosis(subject: str, service: Parts, me: Me) -> JSONResponse:
    """What is wrong with a job, a node, or with everything: `cluster`."""
    wanted = clean(subject)

    def read() -> dict[str, Any]:
        kind, name = _resolved(service, wanted, me)
        row = service.seen(name, me) if kind == "job" else None
        health, sees = service.health, _AlertSight(service, me)

        def about(trouble: Trouble) -> bool:
            if kind == CLUSTER:
                return True
            return name == (trouble.job if kind == "job" else trouble.node)

        opened = [one for one in sees.those(health.book.open()) if about(one.finding)]
        over = [one for one in sees.those(health.book.over()) if about(one.finding)]
        told = {one.finding.key for one in opened}
        suspected = [
            one
            for one in health.suspicions()
            if about(one) and one.key not in told and sees.one(one)
        ]
        suspected.sort(key=lambda one: -one.probability)
        return {
            "subject": name if kind == CLUSTER else f"{kind} {name}",
            "runs": health.watched()["runs"],
            "alerts": [alert_view(one) for one in opened],
            "suspected": [trouble_view(one) for one in suspected[:20]],
            "over": [alert_view(one) for one in over[:20]],
            "failure": failure_view(service, row) if row is not None else None,
        }

    return JSONResponse(await asyncio.to_thread(read))


@router.get(
    "/health/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}, "description": "News of alerts"}},
)
async def health_events(
    service: Parts, me: Me, job: Annotated[str | None, Query(max_length=200)] = None
) -> StreamingResponse:
    """Alerts as they appear and end, as server-sent events: first those that are open."""
    wanted = None
    if job is not None:
        wanted = (await asyncio.to_thread(service.seen, clean(job), me)).id
    return StreamingResponse(
        _stream(service, me, wanted),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _stream(service: Service, me: User, job: str | None) -> AsyncIterator[str]:
    yield "retry: 1000\n\n"
    book, quiet = service.health.book, 0.0
    since = book.latest

    def shown(alerts: Iterable[Alert]) -> list[str]:
        those = _AlertSight(service, me).those(alerts)
        return [_said(one) for one in those if job in (None, one.finding.job)]

    for text in await asyncio.to_thread(lambda: shown(book.open())):
        yield text
    while True:
        news = await asyncio.to_thread(book.news, since)
        if news:
            since, quiet = news[-1].number, 0.0
            for text in await asyncio.to_thread(shown, [one.alert for one in news]):
                yield text
        quiet += _LOOK_S
        if quiet >= _BEAT_S:
            quiet = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(_LOOK_S)


def _said(alert: Alert) -> str:
    kind = "alert" if alert.cleared_at is None else "alert_over"
    return f"event: {kind}\ndata: {json.dumps(alert_view(alert))}\n\n"


def alert_view(alert: Alert) -> dict[str, Any]:
    """An alert as the API answers with it."""
    return {
        **trouble_view(alert.finding),
        "id": alert.id,
        "raised_at": alert.raised_at,
        "seen_at": alert.seen_at,
        "cleared_at": alert.cleared_at,
        "cleared": alert.cleared,
        "done": list(alert.done),
    }


def trouble_view(trouble: Trouble) -> dict[str, Any]:
    """Trouble that is not told, or the trouble of an alert."""
    return {
        "id": "",
        "kind": trouble.kind.value,
        "subject": str(trouble.subject),
        "probability": round(trouble.probability, 4),
        "text": trouble.text,
        "action": trouble.action,
        "evidence": [{"at": [], "values": [], **encode(one)} for one in trouble.evidence],
        "job": trouble.job,
        "attempt": trouble.attempt,
        "node": trouble.node,
        **dict.fromkeys(("raised_at", "seen_at", "cleared_at")),
        "cleared": "",
        "done": [],
    }


def alerts_of(service: Service, job: str) -> list[dict[str, Any]]:
    """The open alerts of a job that somebody may see."""
    return [alert_view(one) for one in service.health.book.of_job(job)]


class _AlertSight:
    """What somebody may see."""

    def __init__(self, service: Service, me: User) -> None:
        self._service, self._me = service, me
        self._jobs: dict[str, bool] = {}

    def those(self, alerts: Iterable[Alert]) -> list[Alert]:
        return [one for one in alerts if self.one(one.finding)]

    def one(self, trouble: Trouble) -> bool:
        if self._me.role != UserRole.USER:
            return True
        job = trouble.job
        if job and job not in self._jobs:
            row = self._service.store.jobs.get(job)
            self._jobs[job] = row is not None and may_see(self._me, row)
        return bool(job) and self._jobs[job]


def _resolved(service: Service, subject: str, me: User) -> tuple[str, str]:
    if subject == CLUSTER:
        return CLUSTER, CLUSTER

    def nodes(state: State) -> set[str]:
        return set(state.capacity.index)

    try:
        if subject in service.live.read(nodes):
            return "node", subject
    except PresageError:
        pass  # this server does not decide
    try:
        return "job", service.seen(subject, me).id
    except NotFound as error:
        text = f"{error}; there is no node of that name either ('cluster' is everything)"
        raise NotFound(text) from None
