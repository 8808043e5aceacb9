"""Users, tokens and the audit log; for admins."""

from __future__ import annotations

import re
import time
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from presage.model.answers import NewUser, UserInfo
from presage.model.errors import NotFound, UserError
from presage.server.auth import UserRole, require
from presage.server.routes.common import Me, Parts
from presage.server.views import (
    AuditList,
    UserList,
    audit_view,
    user_view,
)
from presage.store.records import AuditEntry

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["users"])

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


class UserRequest(BaseModel):
    """Somebody to be let in."""

    model_config = ConfigDict(extra="forbid")
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
    role: UserRole = UserRole.USER
    team: Annotated[str, Field(pattern=r"^([a-z0-9][a-z0-9._-]{0,62})?$")] = ""


@router.get("/me", response_model=UserInfo)
def who_am_i(me: Me) -> JSONResponse:
    """Who you are to this server."""
    return JSONResponse(user_view(me))


@router.get("/users", response_model=UserList)
def list_users(service: Parts, me: Me) -> JSONResponse:
    """Everybody who may use this server."""
    require(me, UserRole.ADMIN)
    return JSONResponse({"users": [user_view(user) for user in service.accounts.all()]})


@router.post("/users", status_code=201, response_model=NewUser)
def add_user(body: UserRequest, service: Parts, me: Me) -> JSONResponse:
    """Let somebody in, or give a new role and token. The token is shown this once; older tokens
    of the user stop working."""
    require(me, UserRole.ADMIN)
    token = service.accounts.add(body.name, body.role, body.team)
    service.store.audit.add(
        AuditEntry(time.time(), me.name, "add user", detail={"user": body.name, "role": body.role})
    )
    return JSONResponse(
        {"name": body.name, "role": body.role, "team": body.team, "token": token},
        201,
        {"Cache-Control": "no-store"},
    )


@router.delete("/users/{name}", response_model=UserInfo)
def remove_user(name: str, service: Parts, me: Me) -> JSONResponse:
    """Take somebody's access away; the jobs stay."""
    require(me, UserRole.ADMIN)
    matches = [user for user in service.accounts.all() if user.name == name]
    if not _NAME.fullmatch(name) or not matches or not service.accounts.remove(name):
        raise NotFound(f"there is no user {name[:80]}")
    service.store.audit.add(AuditEntry(time.time(), me.name, "remove user", detail={"user": name}))
    return JSONResponse(user_view(matches[0]))


@router.get("/audit", response_model=AuditList)
def audit(
    service: Parts,
    me: Me,
    job: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> JSONResponse:
    """Who did what, newest first."""
    require(me, UserRole.ADMIN)
    if job and "\0" in job:
        raise UserError("a name has no NUL characters")
    entries = service.store.audit.list(job=job, limit=limit)
    return JSONResponse({"entries": [audit_view(entry) for entry in entries]})
