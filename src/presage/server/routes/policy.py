"""The policy that decides, and the choice of another while the server runs. Names and pipelines
come in here, never code."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from presage.control.accounts import UserRole, require
from presage.control.deciding import Decider
from presage.core.engine import Engine
from presage.edge import parse_yaml
from presage.manifest import LIMITS
from presage.model.errors import ConfigError
from presage.model.server_answers import PolicyStatus
from presage.policy.config import ConfigFile
from presage.policy.own import OwnPolicy
from presage.server.routes.common import Me, Parts
from presage.server.service import Service
from presage.store.records import AuditEntry

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["cluster"])

_SET, _RESET = "set policy", "reset policy"


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
    return JSONResponse(await _status(service))


@router.put("/policy", response_model=PolicyStatus)
async def set_policy(body: PolicyChoice, service: Parts, me: Me) -> JSONResponse:
    """Have another policy decide from now on, also after a restart; for admins. Nothing that runs
    is stopped by it."""
    require(me, UserRole.ADMIN)
    decider = await asyncio.to_thread(_wanted, service, body)
    rules = decider.rules()
    detail = {"policy": decider.name, "before": service.deciders.now.name}
    audit = AuditEntry(time.time(), me.name, _SET if decider.chosen else _RESET, "", detail)
    await service.requests.decide([rules], audit=audit)
    return JSONResponse(await _status(service))


def _wanted(service: Service, body: PolicyChoice) -> Decider:
    if body.name is None:
        return service.deciders.started
    file = None
    if body.config is not None:
        file = parse_yaml(body.config, ConfigFile, ConfigError, "config", LIMITS)
    return service.deciders.choice(body.name, file)


async def _status(service: Service) -> dict[str, Any]:
    def question(engine: Engine) -> Decider:
        return service.deciders.now  # while nothing is being decided

    now: Decider = await service.ask(question)
    entry = None
    if now.chosen:
        entry = await asyncio.to_thread(service.store.audit.latest, _SET)
    policy, config, origin = now.policy, None, ""
    if isinstance(policy, OwnPolicy):
        origin = policy.loaded.origin
    else:
        config = policy.model_dump(mode="json", exclude={"queues"})
    return {
        "name": now.name,
        "chosen": now.chosen,
        "by": entry.who if entry is not None else "",
        "at": entry.at if entry is not None else None,
        "started_with": service.deciders.started.name,
        "config": config,
        "origin": origin,
        "choices": service.deciders.names(),
    }
