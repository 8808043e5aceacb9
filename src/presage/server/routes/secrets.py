"""Secrets of users and teams: kept, listed by name, removed. Their content is never answered."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse

from presage.control.orders import drop_secret, keep_secret
from presage.control.people.accounts import UserRole, require
from presage.control.people.secrets import MOST_SECRET, secret_of, secret_view
from presage.model.errors import TooLarge
from presage.model.page_answers import SecretList
from presage.model.server_answers import SecretInfo
from presage.server.routes.common import Me, Parts

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["secrets"])

_CONTENT = {
    "requestBody": {
        "required": True,
        "content": {
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
        },
    }
}
Name = Annotated[str, Path(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
Team = Annotated[str | None, Query(max_length=63)]


@router.get("/secrets", response_model=SecretList)
def list_secrets(service: Parts, me: Me) -> JSONResponse:
    """The secrets that your jobs may use, by name: your own, your team's, and everybody's."""
    require(me, UserRole.USER)
    known = service.secret_files.listed(me.name, me.team)
    return JSONResponse({"secrets": [secret_view(secret) for secret in known]})


@router.put("/secrets/{name}", status_code=201, response_model=SecretInfo, openapi_extra=_CONTENT)
async def set_secret(
    name: Name, request: Request, service: Parts, me: Me, team: Team = None
) -> JSONResponse:
    """Keep a secret of yours, or of your team; the body is its content. One of the same name is
    replaced."""
    secret = secret_of(name, team, me)
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > MOST_SECRET:
            raise TooLarge(f"a secret has at most {MOST_SECRET} bytes")
    await asyncio.to_thread(keep_secret, service, me, secret, content)
    return JSONResponse(secret_view(secret), 201)


@router.delete("/secrets/{name}", response_model=SecretInfo)
def remove_secret(name: Name, service: Parts, me: Me, team: Team = None) -> JSONResponse:
    """Take a secret away; jobs that name it are not started any more."""
    secret = secret_of(name, team, me)
    drop_secret(service, me, secret)
    return JSONResponse(secret_view(secret))
