"""An HTTP client that waits for a server which restarts: retry with exponential backoff.

A request is sent again when it never arrived (connection refused), when the server said that it
does not decide (503), and, after a connection was lost half way, only where that cannot do
something twice: a method that is idempotent, or an idempotency key. Knows nothing of Presage.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import httpx

__all__ = ["PatientClient"]

log = logging.getLogger("presage.client")  # unless set up otherwise, it writes to stderr

_FIRST_S, _LONGEST_S = 0.1, 1.0
"""Pauses between tries; each is half as long again as the one before."""


class PatientClient(httpx.Client):
    """Gives a server that does not answer `patience_s` seconds, and says once that it waits."""

    def __init__(self, patience_s: float, **rest: Any) -> None:
        super().__init__(**rest)
        self._patience_s = patience_s
        self._said = False

    def send(self, request: httpx.Request, **rest: Any) -> httpx.Response:
        """Send a request, and again until it is answered or the time is up."""
        until = time.monotonic() + self._patience_s
        pause_s = _FIRST_S
        while True:
            again = time.monotonic() < until
            try:
                answer = super().send(request, **rest)
                if answer.status_code != 503 or not again:
                    return answer
                answer.close()
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if not again:
                    raise
            except httpx.TransportError:
                if not (again and _may_repeat(request)):
                    raise
            if not self._said:
                self._said = True
                log.warning("waiting for the server at %s …", _origin(request.url))
            time.sleep(pause_s)
            pause_s = min(_LONGEST_S, 1.5 * pause_s)


def _may_repeat(request: httpx.Request) -> bool:
    return request.method in ("GET", "HEAD", "PUT") or "Idempotency-Key" in request.headers


def _origin(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii')}"
