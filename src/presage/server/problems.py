"""Errors as HTTP answers: the one place that maps the exception tree to status codes."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException

from presage.model.errors import (
    BadRequest,
    Conflict,
    Denied,
    InternalError,
    ManifestError,
    NoSpace,
    NotFound,
    NotLeading,
    PresageError,
    StoreUnavailable,
    TooLarge,
    Unauthorized,
    UserError,
)

__all__ = ["describe", "install", "problem", "refusal_of", "status_of"]


log = logging.getLogger("presage.server")

_CLOSED = ConfigDict(extra="forbid", frozen=True)


class ProblemBody(BaseModel):
    """What went wrong, for a machine and for a person."""

    model_config = _CLOSED

    code: str
    text: str


class Problem(BaseModel):
    """Every answer that is not what was asked for."""

    model_config = _CLOSED

    error: ProblemBody


_STATUS: dict[type[PresageError], int] = {
    UserError: 400,
    Unauthorized: 401,
    Denied: 403,
    NotFound: 404,
    Conflict: 409,
    TooLarge: 413,
    BadRequest: 422,
    ManifestError: 422,
    InternalError: 500,
    NotLeading: 503,
    StoreUnavailable: 503,
    NoSpace: 507,
}
"""The answer to an error and to its subclasses that are not here; to any other it is 500."""

_ANSWERS = {
    307: "Another server decides: the same request to `Location`",
    400: "The request makes no sense",
    401: "No token, or not a known one",
    403: "The role does not allow it",
    404: "No such thing",
    405: "No such method here",
    409: "Not possible in the present state",
    413: "Too much was sent",
    415: "Neither JSON nor YAML",
    422: "The input is not valid",
    503: "Not possible at the moment; ask again",
    507: "No room on the disk of the server",
}


def describe(schema: dict[str, Any]) -> None:
    """Add the errors that every route may answer with to an OpenAPI description. FastAPI can do it
    too, but then builds the model of an error for each code of each route whenever it starts."""
    parts = schema["components"]["schemas"]
    for unused in ("HTTPValidationError", "ValidationError"):
        parts.pop(unused, None)
    shape = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    parts.update(shape.pop("$defs"), Problem=shape)
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    answers = {
        str(code): {"content": content, "description": text} for code, text in _ANSWERS.items()
    }
    for operations in schema["paths"].values():
        for operation in operations.values():
            operation["responses"].update(answers)


def problem(status: int, code: str, text: str) -> JSONResponse:
    """An answer that says what is wrong."""
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    if status == 503:
        headers = {"Retry-After": "1"}
    body = {"error": {"code": code, "text": " ".join(text.split())}}
    return JSONResponse(body, status, headers)


def refusal_of(error: PresageError) -> JSONResponse:
    """The answer to an error that a request met."""
    return problem(status_of(type(error)) or 500, error.code, str(error))


def status_of(kind: type[PresageError]) -> int | None:
    """What a class of errors is answered with; None for those that no request should meet."""
    return next((_STATUS[base] for base in kind.__mro__ if base in _STATUS), None)


def install(app: FastAPI) -> None:
    """Have every error answered in the same shape."""

    @app.exception_handler(PresageError)
    async def said(request: Request, error: PresageError) -> JSONResponse:
        if (status_of(type(error)) or 500) != 500:
            return refusal_of(error)
        log.error("%s %s: %s", request.method, request.url.path, error)
        return problem(500, error.code, "Presage broke one of its own rules; see the server's log")

    @app.exception_handler(NotLeading)
    async def elsewhere(request: Request, error: NotLeading) -> JSONResponse:
        there = await request.app.state.elsewhere.answer(request.scope)
        return there or problem(503, error.code, str(error))

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
