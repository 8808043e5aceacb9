"""What is ahead of a job: why it waits, for whom, until when, and what would help; and what would
become of one that is not submitted yet. Nothing is kept of what is asked.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from presage.control.advisors.starts import eta_view
from presage.control.board import ENDED, status_of
from presage.control.dependencies import settle_dependencies
from presage.control.people.accounts import UserRole, may_see
from presage.control.site.service import Service
from presage.control.views.jobs import estimates_view
from presage.core.engine import Engine
from presage.manifest import Manifest, to_spec
from presage.model.codec import encode
from presage.model.errors import NeverFits, NotLeading, PresageError
from presage.model.event import JobSubmitted
from presage.model.job import JobSpec
from presage.sim.ahead import Start
from presage.store.records import JobRow, User

__all__ = ["explain_job", "failure_view", "try_out", "what_jobs_wait_for", "why"]


_HELP_S = 10.0


_DRY_RUN_S = 20.0


_AHEAD_SHOWN = 20


_AHEAD_LOOKED_AT = 200


async def _awaited(service: Service, row: JobRow) -> list[dict[str, Any]]:
    """What a job still waits for, and when that is expected to end."""

    def question(engine: Engine) -> list[dict[str, Any]]:
        state = engine.state
        job = state.gates.blocked.get(row.id)
        awaited = []
        for one in job.spec.after if job is not None else ():
            other, array = state.jobs.get(one.job), state.gates.arrays.get(one.job)
            left = len(array.members) if array is not None else 0
            status = status_of(other) if other is not None else f"{left} jobs left"
            ends = service.starts.end(one.job)
            awaited.append({"id": one.job, "on": str(one.on), "status": status, "ends_s": ends})
        return awaited

    with suppress(PresageError):
        known: list[dict[str, Any]] = await service.ask(question)
        return known
    return []


def _waiting(service: Service, spec: JobSpec) -> JobSpec:
    """A job with what it would still have to wait for."""
    facts = service.live.ask(
        lambda engine: settle_dependencies([JobSubmitted(spec)], engine.state, service.store)
    )
    if isinstance(facts, PresageError):
        raise facts
    waiting: JobSpec = facts[0].spec
    return waiting


async def _helps(service: Service, job_id: str) -> list[dict[str, Any]] | None:
    """What would help a waiting job; None when that takes too long or nobody decides."""
    try:
        asked = service.starts.what_helps(job_id, list(service.settings.queues))
        _, options = await _in_time(asked, _HELP_S)
    except PresageError:
        return None
    now = time.time()
    return [
        {"change": option.change, "eta_s": eta_view(option.start, now, now)} for option in options
    ]


async def _in_time(asked: Any, most_s: float) -> Any:
    try:
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(asked)), most_s)
    except TimeoutError:
        raise NotLeading("too much is being foreseen at the moment; try again") from None


async def _ahead(service: Any, row: JobRow) -> list[str] | None:
    """The jobs of its queue that were submitted before it and wait, the first of them first; None
    for a job that does not wait, or when nobody decides."""

    def question(engine: Engine) -> list[str] | None:
        job = engine.state.pending.get(row.id)
        if job is None:
            return None
        seq, queue = job.seq, job.spec.queue
        waiting = engine.state.pending.values()
        return [
            name
            for _, name in sorted(
                (other.seq, other.spec.id)
                for other in waiting
                if other.seq < seq and other.spec.queue == queue
            )
        ]

    with suppress(PresageError):
        names: list[str] | None = await service.ask(question)
        return names
    return None


def _visible(service: Service, me: User, jobs: list[str]) -> list[str]:
    """The first of these jobs that a user may know of."""
    if me.role != UserRole.USER:
        return jobs[:_AHEAD_SHOWN]
    shown: list[str] = []
    for job_id in jobs[:_AHEAD_LOOKED_AT]:
        row = service.store.jobs.get(job_id)
        if row is not None and may_see(me, row):
            shown.append(job_id)
            if len(shown) == _AHEAD_SHOWN:
                break
    return shown


def why(service: Service, row: JobRow) -> dict[str, Any]:
    """The reason from the state of this moment; what is stored when nobody decides."""
    reason = None
    with suppress(PresageError):
        reason = service.live.ask(lambda engine: engine.explain(row.id))
    if reason is None:
        return {"code": row.reason_code, "text": row.reason_text}
    return {"code": reason.code, "text": reason.text}


def failure_view(service: Service, row: JobRow) -> dict[str, Any] | None:
    """How likely a job that is not over fails; None where nobody can say."""
    stored = row if row.manifest is not None else service.store.jobs.get(row.id)
    if row.status in ENDED or stored is None or stored.manifest is None:
        return None
    spec = to_spec(Manifest.from_json(stored.manifest), row.id, row.owner)
    forecast = service.failing.forecast(spec, row.submitted_at, row.started_at, time.time())
    return None if forecast is None else {**encode(forecast), "text": forecast.text}


async def explain_job(service: Service, row: JobRow, me: User) -> dict[str, Any]:
    """Why a job is where it is; of one that waits, who is ahead, when it starts, and what would
    help."""
    reason = await asyncio.to_thread(why, service, row)
    ahead = await _ahead(service, row)
    helps: list[dict[str, Any]] | None = []
    if row.status == "QUEUED":
        helps = await _helps(service, row.id)
    shown = await asyncio.to_thread(_visible, service, me, ahead or [])
    waits = row.status == "QUEUED"
    after = await _awaited(service, row) if waits else []
    opened = await asyncio.to_thread(service.health.book.of_job, row.id)
    alerts = [f"{one.finding.kind}: {one.finding.text}" for one in opened]
    fails = await asyncio.to_thread(failure_view, service, row)
    return {
        "id": row.id,
        "status": row.status,
        "reason": reason,
        "ahead": None if ahead is None else len(ahead),
        "ahead_jobs": shown,
        "eta_s": service.starts.eta(row.id) if waits else None,
        "helps": helps,
        "estimates": estimates_view(row),
        **({"after": after} if after else {}),
        **({"alerts": alerts} if alerts else {}),
        **({"failure": fails["text"]} if fails else {}),
    }


async def try_out(service: Service, manifest: Manifest, me: User) -> dict[str, Any]:
    """What would become of a manifest if it was submitted now; a job that no state of the cluster
    could hold is refused with the reason."""
    service.requests.check(manifest, me)
    manifest = service.requests.with_shares(manifest)
    name = f"{manifest.name}-{secrets.token_hex(5)}"
    manifest, _ = await service.requests.foresee(manifest, to_spec(manifest, name, me.name), None)
    if manifest.after is not None:
        after = await service.requests.resolved(manifest.after, me)
        manifest = manifest.model_copy(update={"after": after})
    spec = to_spec(manifest, name, me.name)
    if spec.after:
        spec = await asyncio.to_thread(_waiting, service, spec)
    outlook = await _in_time(service.starts.try_out(spec), _DRY_RUN_S)
    if outlook.refused is not None:
        raise NeverFits(manifest.name, outlook.refused.text)
    start: Start | None = outlook.start
    return {
        "name": manifest.name,
        "queue": manifest.queue,
        "starts_now": start is not None and start.p90_s == 0.0,
        "nodes": [] if start is None else list(start.nodes),
        "eta_s": None if start is None else eta_view(start, outlook.made_at, time.time()),
    }


async def what_jobs_wait_for(
    service: Service, jobs: Sequence[str], me: User
) -> list[dict[str, Any]]:
    """What each of these jobs waits for at this moment; jobs that do not wait are left out, and
    all of them while this server does not decide."""
    wanted = dict.fromkeys(jobs)
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
        waits: list[dict[str, Any]] = await service.ask(question)
    except NotLeading:  # what is stored has to do
        waits = []
    return waits
