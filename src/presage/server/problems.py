"""Errors as HTTP answers: the one place that maps the exception tree to status codes."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from presage.manifest import ManifestError
from presage.model.errors import PresageError, UserError
from presage.server.auth import Denied, Unauthorized
from presage.server.live import NotLeading
from presage.server.views import Problem
from presage.store.database import StoreUnavailable

__all__ = [
    "RESPONSES",
    "BadRequest",
    "Conflict",
    "NoSpace",
    "NotFound",
    "TooLarge",
    "install",
    "problem",
]

log = logging.getLogger("presage.server")


class NotFound(PresageError):
    """There is no such thing, or none that this user may know of."""

    code = "not_found"


class BadRequest(PresageError):
    """A part of the request is not what it must be."""

    code = "bad_request"


class Conflict(PresageError):
    """It cannot be done in the state that things are in."""

    code = "conflict"


class TooLarge(PresageError):
    """More was sent than is taken."""

    code = "too_large"


class NoSpace(PresageError):
    """There is no room on the disk of the server."""

    code = "no_space"


_CODES: tuple[tuple[type[PresageError], int], ...] = (
    (Unauthorized, 401),
    (Denied, 403),
    (NotFound, 404),
    (Conflict, 409),
    (TooLarge, 413),
    (BadRequest, 422),
    (ManifestError, 422),
    (UserError, 400),
    (NotLeading, 503),
    (StoreUnavailable, 503),
    (NoSpace, 507),
)

RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "The request makes no sense"},
    401: {"model": Problem, "description": "No token, or not a known one"},
    403: {"model": Problem, "description": "The role does not allow it"},
    404: {"model": Problem, "description": "No such thing"},
    405: {"model": Problem, "description": "No such method here"},
    409: {"model": Problem, "description": "Not possible in the present state"},
    413: {"model": Problem, "description": "Too much was sent"},
    415: {"model": Problem, "description": "Neither JSON nor YAML"},
    422: {"model": Problem, "description": "The input is not valid"},
    503: {"model": Problem, "description": "Not possible at the moment; ask again"},
    507: {"model": Problem, "description": "No room on the disk of the server"},
}


def problem(status: int, code: str, text: str) -> JSONResponse:
    """An answer that says what is wrong."""
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    if status == 503:
        headers = {"Retry-After": "1"}
    body = {"error": {"code": code, "text": " ".join(text.split())}}
    return JSONResponse(body, status, headers)


def install(app: FastAPI) -> None:
    """Have every error answered in the same shape."""

    @app.exception_handler(PresageError)
    async def said(request: Request, error: PresageError) -> JSONResponse:
        for kind, status in _CODES:
            if isinstance(error, kind):
                return problem(status, error.code, str(error))
        log.error("%s %s: %s", request.method, request.url.path, error)
        return problem(500, error.code, "Presage broke one of its own rules; see the server's log")

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return problem(422, "bad_request", f"{where}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        answer = problem(error.status_code, _NAMES.get(error.status_code, "error"), error.detail)
        for name, value in (error.headers or {}).items():
            answer.headers[name] = value
        return answer

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> JSONResponse:
        log.exception("%s %s failed", request.method, request.url.path, exc_info=error)
        return problem(500, "internal_error", "the server met a problem; see its log")


_NAMES = {404: "not_found", 405: "no_such_method", 413: "too_large", 415: "bad_media_type"}
