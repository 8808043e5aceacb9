"""Secrets of users and teams: kept, listed by name, removed. Their content is never answered."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse

from presage.control.people.accounts import UserRole, require
from presage.control.people.secrets import MOST_SECRET, check_secret, secret_of
from presage.executors.node.secrets import SecretName
from presage.model.errors import NoSpace, NotFound, TooLarge
from presage.model.page_answers import SecretList
from presage.model.server_answers import SecretInfo
from presage.server.routes.common import Me, Parts
from presage.store.records import AuditEntry, User

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
    return JSONResponse({"secrets": [_view(secret) for secret in known]})


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
    check_secret(content)
    try:
        await asyncio.to_thread(service.secret_files.put, secret, content)
    except OSError as error:
        raise NoSpace(f"the secret could not be kept: {error.strerror or error}") from None
    await asyncio.to_thread(service.store.audit.add, _entry(me, "set secret", secret))
    return JSONResponse(_view(secret), 201)


@router.delete("/secrets/{name}", response_model=SecretInfo)
def remove_secret(name: Name, service: Parts, me: Me, team: Team = None) -> JSONResponse:
    """Take a secret away; jobs that name it are not started any more."""
    secret = secret_of(name, team, me)
    if not service.secret_files.remove(secret):
        of = f"team {team}" if team else me.name
        raise NotFound(f"there is no secret {name} of {of}")
    service.store.audit.add(_entry(me, "remove secret", secret))
    return JSONResponse(_view(secret))


def _entry(me: User, what: str, secret: SecretName) -> AuditEntry:
    return AuditEntry(
        time.time(), me.name, what, detail={"secret": secret.name, "team": secret.team}
    )


def _view(secret: SecretName) -> dict[str, str]:
    return {"name": secret.name, "user": secret.user, "team": secret.team}
