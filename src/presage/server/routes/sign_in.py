"""Sign-in with an identity provider: begun, finished with a token, and ended."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from presage.control.people.oidc import SignIns
from presage.control.site.service import Service
from presage.model.errors import UserError
from presage.model.server_answers import NewUser, SignInOffer, SignInStart
from presage.server.routes.common import Me, Parts

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["sign-in"])

Short = Annotated[str, Field(min_length=1, max_length=4096)]


class StartRequest(BaseModel):
    """Where the provider is to send the person back to."""

    model_config = ConfigDict(extra="forbid")
    redirect_uri: Short


class FinishRequest(BaseModel):
    """What the provider sent back, and the ticket that the sign-in was begun with."""

    model_config = ConfigDict(extra="forbid")
    ticket: Short
    state: Short
    code: Short


@router.get("/sign-in", response_model=SignInOffer)
async def offer(service: Parts) -> JSONResponse:
    """How one signs in here; for everybody."""
    issuer = service.settings.oidc.issuer
    return JSONResponse({"oidc": bool(issuer), "issuer": issuer})


@router.post("/sign-in", response_model=SignInStart)
def start(body: StartRequest, service: Parts) -> JSONResponse:
    """Begin a sign-in: open `url` in a browser; keep the ticket to yourself."""
    url, ticket = _sign_ins(service).begin(body.redirect_uri)
    return JSONResponse({"url": url, "ticket": ticket}, headers={"Cache-Control": "no-store"})


@router.post("/sign-in/finish", response_model=NewUser)
def finish(body: FinishRequest, service: Parts) -> JSONResponse:
    """End a sign-in: a token, shown this once, that expires."""
    user = _sign_ins(service).finish(body.ticket, body.state, body.code)
    token = service.accounts.sign_in(user, service.settings.oidc.hours * 3600)
    answer = {"name": user.name, "role": user.role, "team": user.team, "token": token}
    return JSONResponse(answer, headers={"Cache-Control": "no-store"})


@router.post("/sign-out", status_code=204, response_class=Response)
def sign_out(request: Request, service: Parts, me: Me) -> Response:
    """Revoke the token that this request carries."""
    service.accounts.sign_out(request.headers.get("authorization"))
    return Response(status_code=204)


def _sign_ins(service: Service) -> SignIns:
    if service.sign_ins is None:
        raise UserError("this server has no identity provider: use a token (PRESAGE_TOKEN)")
    return service.sign_ins
