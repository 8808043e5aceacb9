"""An HTTP client that waits for a server which restarts: retry with exponential backoff.

A request is sent again when it never arrived (connection refused), when the server said that it
does not decide (503), and, after a connection was lost half way, only where that cannot do
something twice: a method that is idempotent, or an idempotency key. Where the server names another
that decides (307), that one is asked, with the same token. Knows nothing of Presage.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable
from typing import Any

import httpx

__all__ = ["PatientClient"]

log = logging.getLogger("presage.client")  # unless set up otherwise, it writes to stderr

_FIRST_S, _LONGEST_S = 0.1, 1.0
"""Pauses between tries; each is half as long again as the one before."""
_MOST_MOVES = 3
"""How often one request is sent to another server; two that name each other lead nowhere."""


class PatientClient(httpx.Client):
    """Gives a server that does not answer `patience_s` seconds, and says once that it waits.
    `trusted` gives what to verify certificates with, once there is one."""

    def __init__(
        self,
        patience_s: float,
        *,
        base_url: str,
        trusted: Callable[[], ssl.SSLContext | bool] = lambda: True,
        **rest: Any,
    ) -> None:
        self._is_plain = base_url.startswith("http:")  # to read certificates takes a moment
        super().__init__(base_url=base_url, verify=not self._is_plain and trusted(), **rest)
        self._patience_s, self._trusted = patience_s, trusted
        self._secure: httpx.Client | None = None
        """For a server with TLS that one without named."""
        self._said = False

    def close(self) -> None:
        """Let go of the connections."""
        if self._secure is not None:
            self._secure.close()
        super().close()

    def send(self, request: httpx.Request, **rest: Any) -> httpx.Response:
        """Send a request, and again until it is answered or the time is up."""
        until = time.monotonic() + self._patience_s
        first, pause_s, moves = request, _FIRST_S, 0
        while True:
            again = time.monotonic() < until
            try:
                answer = self._send_once(request, **rest)
                if answer.status_code == 307 and moves < _MOST_MOVES and _leads_on(answer):
                    request, moves = _moved(request, answer), moves + 1
                    answer.close()
                    continue
                if answer.status_code != 503 or not again:
                    return answer
                answer.close()
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                if not again or "CERTIFICATE_VERIFY_FAILED" in str(error):
                    raise
            except httpx.TransportError:
                if not (again and _may_repeat(request)):
                    raise
            if not self._said:
                self._said = True
                log.warning("waiting for the server at %s …", _origin(request.url))
            request, moves = first, 0  # whom it named may be gone by now
            time.sleep(pause_s)
            pause_s = min(_LONGEST_S, 1.5 * pause_s)

    def _send_once(self, request: httpx.Request, **rest: Any) -> httpx.Response:
        if request.url.scheme != "https" or not self._is_plain:
            return super().send(request, **rest)
        if self._secure is None:
            self._secure = httpx.Client(verify=self._trusted(), timeout=self.timeout)
        return self._secure.send(request, **rest)


def _leads_on(answer: httpx.Response) -> bool:
    """Whether it names a place that a token may be told: what came encrypted stays so."""
    try:
        there = httpx.URL(answer.headers.get("Location", ""))
    except httpx.InvalidURL:
        return False
    safe = ("https",) if answer.request.url.scheme == "https" else ("http", "https")
    return there.scheme in safe and bool(there.host)


def _moved(request: httpx.Request, answer: httpx.Response) -> httpx.Request:
    """The same request to the place that the answer names."""
    there, headers = httpx.URL(answer.headers["Location"]), request.headers.copy()
    headers["Host"] = there.netloc.decode("ascii")
    return httpx.Request(
        request.method,
        there,
        headers=headers,
        stream=request.stream,
        extensions=request.extensions,
    )


def _may_repeat(request: httpx.Request) -> bool:
    return request.method in ("GET", "HEAD", "PUT") or "Idempotency-Key" in request.headers


def _origin(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii')}"
