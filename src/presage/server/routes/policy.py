"""The policy that decides, and the choice of another while the server runs. Names and pipelines
come in here, never code."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from presage.control.deciding import Decider
from presage.control.people.accounts import UserRole, require
from presage.control.site.service import Service
from presage.control.views.policy import RESET_POLICY, SET_POLICY, policy_view
from presage.edge import parse_yaml
from presage.manifest import LIMITS
from presage.model.errors import ConfigError
from presage.model.server_answers import PolicyStatus
from presage.policy.config import ConfigFile
from presage.server.routes.common import Me, Parts
from presage.store.records import AuditEntry

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["cluster"])


class PolicyChoice(BaseModel):
    """The policy that is to decide."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Annotated[str, Field(max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")] | None
    """One of `choices`, or of `config`; null: the one that the server was started with."""
    config: Annotated[str, Field(max_length=1 << 20)] | None = None
    """Policies as YAML, as `presage serve --config` reads them, without queues."""


@router.get("/policy", response_model=PolicyStatus)
async def policy(service: Parts, me: Me) -> JSONResponse:
    """The policy that decides, who chose it, and which others can be chosen."""
    return JSONResponse(await policy_view(service))


@router.put("/policy", response_model=PolicyStatus)
async def set_policy(body: PolicyChoice, service: Parts, me: Me) -> JSONResponse:
    """Have another policy decide from now on, also after a restart; for admins. Nothing that runs
    is stopped by it."""
    require(me, UserRole.ADMIN)
    decider = await asyncio.to_thread(_wanted, service, body)
    rules = decider.rules()
    detail = {"policy": decider.name, "before": service.deciders.now.name}
    audit = AuditEntry(
        time.time(), me.name, SET_POLICY if decider.chosen else RESET_POLICY, "", detail
    )
    await service.requests.decide([rules], audit=audit)
    return JSONResponse(await policy_view(service))


def _wanted(service: Service, body: PolicyChoice) -> Decider:
    if body.name is None:
        return service.deciders.started
    file = None
    if body.config is not None:
        file = parse_yaml(body.config, ConfigFile, ConfigError, "config", LIMITS)
    return service.deciders.choice(body.name, file)
