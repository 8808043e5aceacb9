"""Sign in with a token, or with the server's identity provider. A token goes into a cookie that no
script can read, never into an address."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse, Response
from nicegui import ui

from presage.model.errors import ApiError
from presage.web.backend import COOKIE, HOME
from presage.web.frame import Tag, Visit, notice

__all__ = ["install"]

_WORKING_DAY_S = 12 * 3600
_TICKET = "presage_sign_in"
"""The cookie that keeps what ends a sign-in which this browser began."""
_PROVIDER_S = 600


def install(pages: FastAPI) -> None:
    """Add the routes that forms are sent to."""
    for path, handler in (
        ("/session", _enter),
        ("/session/end", _leave),
        ("/session/provider", _go_to_provider),
    ):
        pages.add_api_route(path, handler, methods=["POST"], include_in_schema=False)
    pages.add_api_route("/session/callback", _come_back, methods=["GET"], include_in_schema=False)


async def _enter(request: Request) -> Response:
    fields = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=10)
    token = fields.get("token", [""])[0].strip()
    wanted = _own(fields.get("next", [""])[0])
    try:
        # As a header would: what is no text in a header is no token either.
        await request.app.state.backend.call("GET", "/api/v1/me", token)
    except (ApiError, UnicodeEncodeError):
        return RedirectResponse(f"{HOME}/sign-in?wrong=1", 303)
    answer = RedirectResponse(wanted, 303)
    _set_cookie(request, answer, COOKIE, token, _WORKING_DAY_S)
    return answer


def _set_cookie(request: Request, answer: Response, name: str, value: str, age_s: int) -> None:
    secure = request.url.scheme == "https"
    answer.set_cookie(
        name, value, max_age=age_s, path=HOME, httponly=True, samesite="lax", secure=secure
    )


async def _go_to_provider(request: Request) -> Response:
    """Begin a sign-in; the browser keeps the ticket where no script and no address has it."""
    fields = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=10)
    redirect = f"{request.url.scheme}://{request.url.netloc}{HOME}/session/callback"
    backend = request.app.state.backend
    try:
        begun = await backend.call("POST", "/api/v1/sign-in", "", json={"redirect_uri": redirect})
    except ApiError as error:
        return _refused(error)
    body = begun.json()
    answer = RedirectResponse(body["url"], 303)
    wanted = quote(_own(fields.get("next", [""])[0]), safe="")
    _set_cookie(request, answer, _TICKET, f"{body['ticket']}:{wanted}", _PROVIDER_S)
    return answer


async def _come_back(
    request: Request, code: str = "", state: str = "", error: str = ""
) -> Response:
    """End a sign-in that this very browser began."""
    ticket, _, wanted = request.cookies.get(_TICKET, "").partition(":")
    answer: Response
    try:
        if error or not (ticket and code and state):
            said = error[:100] or "the sign-in was begun elsewhere or took too long"
            raise ApiError(401, "unauthorized", f"not signed in: {said}")
        finished = await request.app.state.backend.call(
            "POST",
            "/api/v1/sign-in/finish",
            "",
            json={"ticket": ticket, "code": code[:4096], "state": state[:4096]},
        )
    except ApiError as problem:
        answer = _refused(problem)
    else:
        answer = RedirectResponse(_own(unquote(wanted)), 303)
        _set_cookie(request, answer, COOKIE, finished.json()["token"], _WORKING_DAY_S)
    answer.delete_cookie(_TICKET, path=HOME, httponly=True, samesite="lax")
    return answer


def _refused(error: ApiError) -> Response:
    return RedirectResponse(f"{HOME}/sign-in?said={quote(str(error)[:300], safe='')}", 303)


async def _leave(request: Request) -> Response:
    token = request.cookies.get(COOKIE, "")
    with suppress(ApiError, UnicodeEncodeError):  # it was not good any more
        if token and (await _offer(request))["oidc"]:
            await request.app.state.backend.call("POST", "/api/v1/sign-out", token)
    answer = RedirectResponse(f"{HOME}/sign-in", 303)
    answer.delete_cookie(COOKIE, path=HOME, httponly=True, samesite="lax")
    return answer


@ui.page("/sign-in")
async def sign_in(request: Request, wrong: str = "", next: str = "", said: str = "") -> None:
    """A way to the identity provider, if there is one, and a form for a token."""
    visit = Visit(request.app.state.backend, request)
    offer = await _offer(request)
    with visit.page("Sign in"), ui.element("section").classes("card sign-in"):
        if wrong:
            notice("This token is not known, was revoked or has expired.", "error")
        if offer["oidc"]:
            if said:
                notice(said[:300], "error")
            with ui.element("form") as form:
                form.props["method"], form.props["action"] = "post", f"{HOME}/session/provider"
                Tag("input", type="hidden", name="next", value=_own(next))
                Tag("button", f"Sign in with {offer['host']}", "primary", type="submit")
        with ui.element("form") as form:
            form.props["method"], form.props["action"] = "post", f"{HOME}/session"
            Tag("input", type="hidden", name="next", value=_own(next))
            with Tag("label", "Token", "field"):
                Tag(
                    "input",
                    type="password",
                    name="token",
                    required="required",
                    maxlength="500",
                    autocomplete="current-password",
                    autofocus="autofocus",
                )
            Tag("button", "Sign in", "primary", type="submit")
        Tag("p", "An admin makes one with: presage users add NAME", "soft")


async def _offer(request: Request) -> dict[str, Any]:
    """How one signs in."""
    try:
        answer = await request.app.state.backend.call("GET", "/api/v1/sign-in", "")
    except ApiError:
        return {"oidc": False, "host": ""}
    body = answer.json()
    return {**body, "host": urlsplit(body["issuer"]).hostname or ""}


def _own(address: str) -> str:
    """An address of these pages, or the first of them."""
    ours = address.startswith(f"{HOME}/") and "\\" not in address and "//" not in address
    return address if ours and address.isprintable() else f"{HOME}/"
