"""Users, tokens and the audit log; for admins."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from presage.control.people.accounts import UserRole, require
from presage.control.views.jobs import audit_view, user_view
from presage.model.errors import NotFound
from presage.model.page_answers import AuditList, UserList
from presage.model.server_answers import NewUser, UserInfo
from presage.server.routes.common import Me, Parts, clean
from presage.store.records import User

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["users"])

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


class UserRequest(BaseModel):
    """Somebody to be let in."""

    model_config = ConfigDict(extra="forbid")
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
    role: UserRole = UserRole.USER
    team: Annotated[str, Field(pattern=r"^([a-z0-9][a-z0-9._-]{0,62})?$")] = ""


class UserChange(BaseModel):
    """What is to be different about somebody; what is left out stays."""

    model_config = ConfigDict(extra="forbid")
    role: UserRole | None = None
    team: Annotated[str, Field(pattern=r"^([a-z0-9][a-z0-9._-]{0,62})?$")] | None = None


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
    """Let somebody in. The token is shown this once. A user who is there already stays as is."""
    require(me, UserRole.ADMIN)
    token = service.accounts.add(body.name, body.role, body.team, by=me.name)
    return _shown_once(User(body.name, body.role, body.team, 0.0), token)


@router.patch("/users/{name}", response_model=UserInfo)
def set_user(name: str, body: UserChange, service: Parts, me: Me) -> JSONResponse:
    """Give somebody another role or team; tokens stay good. The last admin stays one."""
    require(me, UserRole.ADMIN)
    return JSONResponse(
        user_view(service.accounts.set(_named(name), body.role, body.team, by=me.name))
    )


@router.post("/users/{name}/token", status_code=201, response_model=NewUser)
def new_token(name: str, service: Parts, me: Me, keep: bool = False) -> JSONResponse:
    """A new token for somebody, shown this once; those before stop working unless `keep`. Admins
    for anybody, others for themselves."""
    if name != me.name:
        require(me, UserRole.ADMIN)
    user, token = service.accounts.new_token(_named(name), keep=keep, by=me.name)
    return _shown_once(user, token)


@router.delete("/users/{name}", response_model=UserInfo)
def remove_user(name: str, service: Parts, me: Me) -> JSONResponse:
    """Take somebody's access away; the jobs stay, and so does the last admin."""
    require(me, UserRole.ADMIN)
    return JSONResponse(user_view(service.accounts.remove(_named(name), by=me.name)))


def _named(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise NotFound(f"there is no user {name[:80]}")
    return name


def _shown_once(user: User, token: str) -> JSONResponse:
    body = {"name": user.name, "role": user.role, "team": user.team, "token": token}
    return JSONResponse(body, 201, {"Cache-Control": "no-store"})


@router.get("/audit", response_model=AuditList)
def audit(
    service: Parts,
    me: Me,
    job: Annotated[str | None, Query(max_length=200)] = None,
    who: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[int | None, Query(ge=1, le=2**53)] = None,
) -> JSONResponse:
    """Who did what, newest first; `before` is the number of the last entry of the page before."""
    require(me, UserRole.ADMIN)
    clean(job or "", who)
    entries = service.store.audit.list(job=job, who=who, limit=limit, before=before)
    return JSONResponse({"entries": [audit_view(entry) for entry in entries]})
