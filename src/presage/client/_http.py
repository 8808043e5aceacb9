"""How a server is asked: address, token, retry, errors. What can be asked is `_server.py`."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx

from presage._retry import PatientClient
from presage._trust import distrust, trusted
from presage.client._answers import value_of
from presage.client._tokens import stored_token
from presage.model.errors import ApiError, Unreachable, UserError

__all__ = ["DEFAULT_URL", "Connection", "path_of"]

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8265"

_PATIENCE_S = 10.0
"""How long a server that does not answer is waited for, unless PRESAGE_WAIT_S says otherwise."""


class Connection:
    """One server, by its address: how it is asked, not what for."""

    def __init__(
        self, url: str | None = None, token: str | None = None, *, patience_s: float | None = None
    ) -> None:
        self.url = (url or os.environ.get("PRESAGE_URL") or DEFAULT_URL).rstrip("/")
        token = token or os.environ.get("PRESAGE_TOKEN") or stored_token(self.url)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if patience_s is None:
            patience_s = _patience()
        try:
            self._http = PatientClient(
                patience_s,
                base_url=self.url,
                headers=headers,
                timeout=30.0,
                trusted=trusted,
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise Unreachable(f"PRESAGE_URL {self.url} is no address: {error}") from None
        weakref.finalize(self, self._http.close)  # for those who do not use `with`

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    @property
    def authorization(self) -> str | None:
        """The header that says who asks."""
        header: str | None = self._http.headers.get("Authorization")
        return header

    def get(self, kind: type[T], path: str, query: Mapping[str, Any] | None = None) -> T:
        """What `GET /api/v1{path}` answers, as a value."""
        return value_of(kind, self.call("GET", path, params=query or {}))

    @contextmanager
    def stream(
        self, path: str, query: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> Iterator[httpx.Response]:
        """The answer to `GET /api/v1{path}` as it comes."""
        timeout = httpx.Timeout(30.0, read=None)
        try:
            with self._http.stream(
                "GET", f"/api/v1{path}", params=query, headers=headers, timeout=timeout
            ) as answer:
                if not answer.is_success:
                    answer.read()
                    raise _error(answer)
                yield answer
        except httpx.TransportError as error:
            raise self._gone(error) from None

    def call(self, method: str, path: str, **rest: Any) -> dict[str, Any]:
        """What a request to `/api/v1{path}` answers, as JSON; raises what the server says."""
        try:
            answer = self._http.request(method, f"/api/v1{path}", **rest)
        except httpx.TransportError as error:
            raise self._gone(error) from None
        if not answer.is_success:
            raise _error(answer)
        body: dict[str, Any] = answer.json() if answer.content else {}
        return body

    def _gone(self, error: httpx.TransportError) -> Unreachable:
        if wrong := distrust(error):
            asked = error.request.url
            server = f"{asked.scheme}://{asked.netloc.decode('ascii')}"
            return Unreachable(
                f"the certificate of {server} is not trusted ({wrong}); set PRESAGE_CA to the "
                "file of the CA that signed it"
            )
        return Unreachable(
            f"no server answers at {self.url} ({_says(error)}); start one with `presage serve`, "
            "or set PRESAGE_URL"
        )


def _patience() -> float:
    text = os.environ.get("PRESAGE_WAIT_S") or str(_PATIENCE_S)
    try:
        return float(text)
    except ValueError:
        raise UserError(f"PRESAGE_WAIT_S is a number of seconds, not {text!r}") from None


def path_of(part: str) -> str:
    """A name as a part of a path."""
    return quote(part, safe="")


def _error(answer: httpx.Response) -> ApiError:
    try:
        body: Mapping[str, Any] = answer.json()["error"]
        return ApiError(answer.status_code, str(body["code"]), str(body["text"]))
    except (ValueError, KeyError, TypeError):
        return ApiError(answer.status_code, "error", f"the server answered {answer.status_code}")


def _says(error: Exception) -> str:
    return str(error) or type(error).__name__
