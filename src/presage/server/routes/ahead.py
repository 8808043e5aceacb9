"""What is ahead: why a job waits and what would help, what would become of a new one, and what
another policy would have done."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from presage.control.accounts import UserRole, may_see, require
from presage.control.advisors.starts import eta_view
from presage.control.board import status_of
from presage.control.dependencies import settle_dependencies
from presage.core.engine import Engine
from presage.edge import parse_yaml
from presage.manifest import LIMITS, parse_submission, to_spec
from presage.model.answers import DryRun, Explanation
from presage.model.errors import ConfigError, Conflict, NeverFits, NotLeading, PresageError
from presage.model.event import JobSubmitted
from presage.model.job import JobSpec
from presage.model.server_answers import ExportedTrace, WhatIf
from presage.plugins import is_file
from presage.policy import registry
from presage.policy.config import ConfigFile, PolicyConfig
from presage.policy.own import OwnPolicy, find_own
from presage.server.routes.common import Me, Parts
from presage.server.routes.jobs import MANIFEST_BODY, clean, why
from presage.server.service import Service
from presage.server.views import estimates_view
from presage.sim.ahead import Start
from presage.store.records import JobRow, User

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["foresight"])

_HELP_S = 10.0
_DRY_RUN_S = 20.0
_AHEAD_SHOWN = 20
_AHEAD_LOOKED_AT = 200


class WhatIfRequest(BaseModel):
    """A question to the journal."""

    model_config = ConfigDict(extra="forbid", strict=True)

    policies: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=100)]],
        Field(min_length=1, max_length=16),
    ]
    """Names of policies: those there always are, and those of `config`."""
    since_s: Annotated[float, Field(gt=0, le=1e10)] | None = None
    """How far back to look, in seconds; null: all of the journal."""
    config: Annotated[str, Field(max_length=1 << 20)] | None = None
    """Policies and queues, as the YAML that `presage serve --config` reads."""
    foreseen: bool = False
    """Whether policies go by what was foreseen of jobs, and not by the run times they had."""


class ExportBody(BaseModel):
    """Which part of the journal to take."""

    model_config = ConfigDict(extra="forbid", strict=True)

    since_s: Annotated[float, Field(gt=0, le=1e10)] | None = None
    whole: bool = False
    """Whether to add what a trace has no columns for (`journal`)."""


class PolicyList(BaseModel):
    """Policies by name."""

    policies: list[str]
    own: list[str]
    """Names of the one that decides here; empty when it has none of these names."""


@router.get("/jobs/{job_id}/explain", response_model=Explanation)
async def explain(job_id: str, service: Parts, me: Me) -> JSONResponse:
    """Why a job is where it is; of one that waits, who is ahead, when it starts, and what would
    help."""
    row = await asyncio.to_thread(service.seen, clean(job_id), me)
    reason = await asyncio.to_thread(why, service, row)
    ahead = await _ahead(service, row)
    helps: list[dict[str, Any]] | None = []
    if row.status == "QUEUED":
        helps = await _helps(service, row.id)
    shown = await asyncio.to_thread(_visible, service, me, ahead or [])
    waits = row.status == "QUEUED"
    after = await _awaited(service, row) if waits else []
    return JSONResponse(
        {
            "id": row.id,
            "status": row.status,
            "reason": reason,
            "ahead": None if ahead is None else len(ahead),
            "ahead_jobs": shown,
            "eta_s": service.starts.eta(row.id) if waits else None,
            "helps": helps,
            "estimates": estimates_view(row),
            **({"after": after} if after else {}),
        }
    )


async def _awaited(service: Service, row: JobRow) -> list[dict[str, Any]]:
    """What a job still waits for, and when that is expected to end."""

    def question(engine: Engine) -> list[dict[str, Any]]:
        state = engine.state
        job = state.gates.blocked.get(row.id)
        found = []
        for one in job.spec.after if job is not None else ():
            other, array = state.jobs.get(one.job), state.gates.arrays.get(one.job)
            left = len(array.members) if array is not None else 0
            status = status_of(other) if other is not None else f"{left} jobs left"
            ends = service.starts.end(one.job)
            found.append({"id": one.job, "on": str(one.on), "status": status, "ends_s": ends})
        return found

    with suppress(PresageError):
        known: list[dict[str, Any]] = await service.ask(question)
        return known
    return []


@router.post("/jobs/dry-run", response_model=DryRun, openapi_extra=MANIFEST_BODY)
async def dry_run(request: Request, service: Parts, me: Me) -> JSONResponse:
    """What would become of a manifest if it was submitted now: where and when it would start.

    Nothing is kept. Of a sweep, this is its first job. A job that no state of the cluster could
    hold is refused with the reason.
    """
    require(me, UserRole.USER)
    kind = request.headers.get("content-type", "application/yaml")
    manifest = parse_submission(await request.body(), kind).first
    service.requests.check(manifest, me)
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
    return JSONResponse(
        {
            "name": manifest.name,
            "queue": manifest.queue,
            "starts_now": start is not None and start.p90_s == 0.0,
            "nodes": [] if start is None else list(start.nodes),
            "eta_s": None if start is None else eta_view(start, outlook.made_at, time.time()),
        }
    )


def _waiting(service: Service, spec: JobSpec) -> JobSpec:
    """A job with what it would still have to wait for."""
    facts = service.live.ask(
        lambda engine: settle_dependencies([JobSubmitted(spec)], engine.state, service.store)
    )
    if isinstance(facts, PresageError):
        raise facts
    waiting: JobSpec = facts[0].spec
    return waiting


@router.get("/policies", response_model=PolicyList)
async def policies(service: Parts, me: Me) -> JSONResponse:
    """The policies there are by name, and those that are what this server decides by."""
    known = _known(service, ConfigFile())
    return JSONResponse({"policies": list(known), "own": _own(service, known)})


@router.post("/what-if", response_model=WhatIf)
async def what_if(body: WhatIfRequest, service: Parts, me: Me) -> JSONResponse:
    """What other policies would have done with the jobs of the journal.

    One question at a time; it is worked on by a process of its own and given up after ten
    minutes.
    """
    require(me, UserRole.OPERATOR)
    chosen = _chosen(service, body)
    answer = await _replay(
        service,
        since_s=body.since_s,
        policies={name: _packed(policy) for name, policy in chosen.items()},
        own=_packed(service.deciders.started.policy),
        own_names=_own(service, chosen),
        foreseen=body.foreseen,
    )
    return JSONResponse(answer)


@router.post("/what-if/trace", response_model=ExportedTrace)
async def export_trace(body: ExportBody, service: Parts, me: Me) -> JSONResponse:
    """The jobs of the journal as a trace that `presage simulate` reads, and their nodes."""
    require(me, UserRole.OPERATOR)
    asked = {"since_s": body.since_s, "whole": body.whole}
    return JSONResponse(await _replay(service, policies=None, **asked))


async def _replay(service: Service, *, since_s: float | None, **question: Any) -> Any:
    if service.what_if.locked():
        raise Conflict("a what-if is being worked out; ask again when it is done")
    from presage.control import replay  # what it imports, the process that replays needs

    async with service.what_if:
        return await replay.ask(
            {
                "db": service.settings.database,
                "since": None if since_s is None else time.time() - since_s,
                **question,
            }
        )


def _chosen(service: Service, body: WhatIfRequest) -> dict[str, PolicyConfig | OwnPolicy]:
    """The policies by name, with the queues of the server unless the configuration has its own."""
    file = ConfigFile()
    if body.config is not None:
        file = parse_yaml(body.config, ConfigFile, ConfigError, "config", LIMITS)
    known = _known(service, file)
    chosen: dict[str, PolicyConfig | OwnPolicy] = {}
    for name in dict.fromkeys(body.policies):
        found = known.get(name)
        if found is None and not is_file(name):  # code of the machine that asks stays there
            found = find_own(name, {}, service.settings.queues)
        if found is None:
            raise ConfigError(f"unknown policy {name!r}; there are: {', '.join(known)}")
        chosen[name] = found
    return chosen


def _known(service: Service, file: ConfigFile) -> dict[str, PolicyConfig | OwnPolicy]:
    """Policies by name: those there always are, the server's own, and those of a file."""
    queues = {**service.settings.queues, **file.queues}
    pipelines = registry.pipelines(file.model_copy(update={"queues": queues}))
    known: dict[str, PolicyConfig | OwnPolicy] = dict(pipelines)
    for decider in (service.deciders.started, service.deciders.now):
        if decider.name and decider.name not in file.policies:
            known[decider.name] = decider.policy
    return known


def _own(service: Service, known: Mapping[str, PolicyConfig | OwnPolicy]) -> list[str]:
    """Which of these decides here."""
    decides = service.deciders.now.policy
    return [name for name, policy in known.items() if policy == decides]


def _packed(policy: PolicyConfig | OwnPolicy) -> dict[str, Any]:
    """For the process that replays."""
    if isinstance(policy, OwnPolicy):
        return {"own": policy.packed()}
    return policy.model_dump(mode="json")


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
