"""The HTTP API as pages ask it: in the same process, with the reader's token, cached.

Pages of one person that show the same thing share one answer for a moment, and as long as the
answer stays the same they are given the same object, so that `is` tells whether to draw anew.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

import httpx
from fastapi import FastAPI

from presage.model.errors import ApiError
from presage.web import HOME

__all__ = ["COOKIE", "HOME", "Asker", "Backend", "part"]

COOKIE = "presage_token"
"""The cookie that keeps a token; scripts in the browser cannot read it."""

Chunks: TypeAlias = AsyncIterator[bytes]

_MOST_KEPT = 2000
_FORGET_S = 60.0


@dataclass(slots=True)
class _CachedAnswer:
    """An answer, and when it was given."""

    at: float = float("-inf")
    raw: bytes = b""
    body: Any = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Backend:
    """The API of one application."""

    def __init__(self, app: FastAPI) -> None:
        # Errors of the application become answers with status 500, as they do over the network.
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        self._http = httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", timeout=30.0
        )
        self._app = app
        self._kept: dict[tuple[Any, ...], _CachedAnswer] = {}

    def offers(self, method: str, path: str) -> bool:
        """Whether the API has a route."""
        return method.lower() in self._app.openapi()["paths"].get(path, {})

    async def call(self, method: str, path: str, token: str, **rest: Any) -> httpx.Response:
        """An answer of the API; raises ApiError when it says no."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        headers |= rest.pop("headers", {})
        answer = await self._http.request(method, path, headers=headers, **rest)
        if not answer.is_success:
            raise _said(answer)
        return answer

    async def stream(
        self, path: str, token: str, query: str = ""
    ) -> tuple[int, dict[str, str], Chunks]:
        """The answer to a GET as it is made: status, headers, and what comes, piece by piece. The
        HTTP client would wait for all of it."""
        headers = [(b"host", b"127.0.0.1")]
        if token:
            headers.append((b"authorization", f"Bearer {token}".encode()))
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": headers,
            "client": ("127.0.0.1", 0),
            "server": ("127.0.0.1", 80),
        }
        pieces: asyncio.Queue[Any] = asyncio.Queue(maxsize=4)
        never = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await never.wait()
            return {"type": "http.disconnect"}

        task = asyncio.ensure_future(self._app(scope, receive, pieces.put))
        task.add_done_callback(lambda _: never.set())
        start = await pieces.get()

        async def body() -> Chunks:
            try:
                more = True
                while more:
                    piece = await pieces.get()
                    more = piece.get("more_body", False)
                    yield piece.get("body", b"")
            finally:
                task.cancel()

        named = {name.decode().lower(): value.decode() for name, value in start["headers"]}
        return int(start["status"]), named, body()

    async def shared(self, path: str, token: str, max_age_s: float, params: Any) -> Any:
        """What the API says, at most so old."""
        key = (token, path, tuple(sorted((k, str(v)) for k, v in params.items())))
        kept = self._kept.get(key)
        if kept is None:
            self._forget()
            kept = self._kept[key] = _CachedAnswer()
        async with kept.lock:
            if time.monotonic() - kept.at >= max_age_s:
                answer = await self.call("GET", path, token, params=params)
                if answer.content != kept.raw:
                    kept.raw, kept.body = answer.content, answer.json()
                kept.at = time.monotonic()
        return kept.body

    def _forget(self) -> None:
        if len(self._kept) >= _MOST_KEPT:
            old = time.monotonic() - _FORGET_S
            self._kept = {key: kept for key, kept in self._kept.items() if kept.at > old}


class Asker:
    """Somebody who looks at pages."""

    def __init__(self, backend: Backend, token: str) -> None:
        self._backend, self._token = backend, token
        self.me: dict[str, Any] = {}

    async def get(self, path: str, *, max_age_s: float = 1.0, **params: Any) -> Any:
        """What the API says; the same object as before while nothing is different."""
        given = {name: value for name, value in params.items() if value not in (None, "", [])}
        return await self._backend.shared(f"/api/v1{path}", self._token, max_age_s, given)

    async def read(self, path: str, **params: Any) -> bytes:
        """What the API says, as it is."""
        answer = await self._backend.call("GET", f"/api/v1{path}", self._token, params=params)
        return answer.content

    async def stream(self, path: str, query: str = "") -> tuple[int, dict[str, str], Chunks]:
        """The answer of the API as it is made."""
        return await self._backend.stream(f"/api/v1{path}", self._token, query)

    async def post(self, path: str, **rest: Any) -> Any:
        """Have something done."""
        return await self.send("POST", path, **rest)

    async def send(self, method: str, path: str, **rest: Any) -> Any:
        """Have something done, whichever way the API wants it."""
        answer = await self._backend.call(method, f"/api/v1{path}", self._token, **rest)
        return answer.json()

    def offers(self, method: str, path: str) -> bool:
        """Whether the API has a route."""
        return self._backend.offers(method, f"/api/v1{path}")

    def may_change(self, job: dict[str, Any]) -> bool:
        """Whether it is worth offering to change a job; the API has the last word."""
        role = self.me["role"]
        own = bool(job["owner"] == self.me["name"])
        return role in ("operator", "admin") or (role == "user" and own)

    def may_operate(self) -> bool:
        """Whether it is worth offering what is for operators."""
        return self.me["role"] in ("operator", "admin")

    def is_admin(self) -> bool:
        """Whether it is worth offering what is for admins."""
        return bool(self.me["role"] == "admin")

    def may_submit(self) -> bool:
        """Whether it is worth offering to submit."""
        return bool(self.me["role"] != "viewer")


def part(text: str) -> str:
    """A name as a part of an address."""
    return quote(text, safe="")


def _said(answer: httpx.Response) -> ApiError:
    try:
        error = answer.json()["error"]
        return ApiError(answer.status_code, str(error["code"]), str(error["text"]))
    except (ValueError, KeyError, TypeError):
        return ApiError(answer.status_code, "error", f"the server answered {answer.status_code}")
