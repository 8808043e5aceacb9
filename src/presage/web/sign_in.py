"""Sign in with a token. It goes from a form into a cookie that no script can read, never into an
address."""

from __future__ import annotations

from urllib.parse import parse_qs

from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse, Response
from nicegui import ui

from presage.model.errors import ApiError
from presage.web.backend import COOKIE, HOME
from presage.web.frame import Tag, Visit, notice

__all__ = ["install"]

_WORKING_DAY_S = 12 * 3600


def install(pages: FastAPI) -> None:
    """Add the routes that forms are sent to."""
    for path, handler in (("/session", _enter), ("/session/end", _leave)):
        pages.add_api_route(path, handler, methods=["POST"], include_in_schema=False)


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
    answer.set_cookie(
        COOKIE,
        token,
        max_age=_WORKING_DAY_S,
        path=HOME,
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )
    return answer


async def _leave() -> Response:
    answer = RedirectResponse(f"{HOME}/sign-in", 303)
    answer.delete_cookie(COOKIE, path=HOME, httponly=True, samesite="lax")
    return answer


@ui.page("/sign-in")
async def sign_in(request: Request, wrong: str = "", next: str = "") -> None:
    """A form for the token."""
    visit = Visit(request.app.state.backend, request)
    with visit.page("Sign in"), ui.element("section").classes("card sign-in"):
        if wrong:
            notice("This token is not known or was revoked.", "error")
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


def _own(address: str) -> str:
    """An address of these pages, or the first of them."""
    ours = address.startswith(f"{HOME}/") and "\\" not in address and "//" not in address
    return address if ours and address.isprintable() else f"{HOME}/"
