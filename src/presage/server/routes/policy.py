"""The policy that decides, and the choice of another while the server runs. Names and pipelines
come in here, never code."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from presage.control.orders import choose_policy
from presage.control.views.policy import policy_view
from presage.model.server_answers import PolicyStatus
from presage.server.routes.common import Me, Parts

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
    await choose_policy(service, me, body.name, body.config)
    return JSONResponse(await policy_view(service))
