"""What is ahead: why a job waits and what would help, what would become of a new one, and what
another policy would have done."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from presage.control.people.accounts import UserRole, require
from presage.control.views.ahead import explain_job, try_out
from presage.control.views.what_if import ask_policies, policy_names, replay_journal
from presage.edge import parse_yaml
from presage.manifest import LIMITS, parse_submission
from presage.model.answers import DryRun, Explanation
from presage.model.errors import ConfigError
from presage.model.page_answers import PolicyList
from presage.model.server_answers import ExportedTrace, WhatIf
from presage.policy.config import ConfigFile
from presage.server.routes.common import Me, Parts, clean
from presage.server.routes.jobs import MANIFEST_BODY

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["foresight"])


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


@router.get("/jobs/{job_id}/explain", response_model=Explanation)
async def explain(job_id: str, service: Parts, me: Me) -> JSONResponse:
    """Why a job is where it is; of one that waits, who is ahead, when it starts, and what would
    help."""
    row = await asyncio.to_thread(service.seen, clean(job_id), me)
    return JSONResponse(await explain_job(service, row, me))


@router.post("/jobs/dry-run", response_model=DryRun, openapi_extra=MANIFEST_BODY)
async def dry_run(request: Request, service: Parts, me: Me) -> JSONResponse:
    """What would become of a manifest if it was submitted now: where and when it would start.

    Nothing is kept. Of a sweep, this is its first job. A job that no state of the cluster could
    hold is refused with the reason.
    """
    require(me, UserRole.USER)
    kind = request.headers.get("content-type", "application/yaml")
    manifest = parse_submission(await request.body(), kind).first
    return JSONResponse(await try_out(service, manifest, me))


@router.get("/policies", response_model=PolicyList)
async def policies(service: Parts, me: Me) -> JSONResponse:
    """The policies there are by name, and those that are what this server decides by."""
    return JSONResponse(policy_names(service))


@router.post("/what-if", response_model=WhatIf)
async def what_if(body: WhatIfRequest, service: Parts, me: Me) -> JSONResponse:
    """What other policies would have done with the jobs of the journal.

    One question at a time; it is worked on by a process of its own and given up after ten
    minutes.
    """
    require(me, UserRole.OPERATOR)
    if body.config is not None:
        file = parse_yaml(body.config, ConfigFile, ConfigError, "config", LIMITS)
    else:
        file = ConfigFile()
    answer = await ask_policies(
        service, body.policies, file, since_s=body.since_s, foreseen=body.foreseen
    )
    return JSONResponse(answer)


@router.post("/what-if/trace", response_model=ExportedTrace)
async def export_trace(body: ExportBody, service: Parts, me: Me) -> JSONResponse:
    """The jobs of the journal as a trace that `presage simulate` reads, and their nodes."""
    require(me, UserRole.OPERATOR)
    asked = {"since_s": body.since_s, "whole": body.whole}
    return JSONResponse(await replay_journal(service, policies=None, **asked))
