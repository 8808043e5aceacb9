"""What workers wrote, piece by piece; a reader that follows survives a restart of the server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from presage.client._http import Connection, path_of
from presage.model.answers import LogPiece
from presage.model.errors import ApiError, Unreachable

__all__ = ["log_pieces"]

_PATIENCE_S = 120.0
"""How long a server that went away is waited for by somebody who follows a log."""


def log_pieces(
    connection: Connection,
    job_id: str,
    worker: str | None = None,
    *,
    follow: bool = False,
    attempt: int | None = None,
    tail: int | None = None,
) -> Iterator[LogPiece]:
    """Pieces of logs in the order of their times; none is lost or comes twice when the connection
    is cut and `follow` is given."""
    asked = {"worker": worker, "attempt": attempt, "tail": tail}
    query: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    read: dict[str, int] = {}
    shown = 0
    until = time.monotonic() + _PATIENCE_S
    while True:
        cursor = {"after": f"{shown}:" + ",".join(f"{w}={n}" for w, n in read.items())}
        more = {**query, "follow": follow, **(cursor if shown else {})}
        try:
            with connection.stream(f"/jobs/{path_of(job_id)}/log-stream", more) as answer:
                for line in answer.iter_lines():
                    until = time.monotonic() + _PATIENCE_S
                    body = json.loads(line) if line else None
                    if body is None:
                        continue
                    if "end" in body:
                        return
                    piece = _piece(body)
                    if piece.attempt != shown:
                        shown, read = piece.attempt, {}
                    size = len(piece.text.encode("utf-8", "surrogateescape"))
                    read[piece.worker] = piece.offset + size
                    yield piece
        except (Unreachable, ApiError) as error:
            passing = isinstance(error, Unreachable) or error.status == 503
            if not (follow and passing and time.monotonic() < until):
                raise
        if not follow or time.monotonic() >= until:
            raise Unreachable(f"the log of {job_id} was cut off; ask again")
        time.sleep(0.2)


def _piece(body: dict[str, Any]) -> LogPiece:
    """Not by pydantic, which takes no bytes that are not UTF-8."""
    try:
        return LogPiece(**{name: body[name] for name in LogPiece.__slots__})
    except KeyError as error:
        text = f"the server's answer makes no sense here: a piece of a log without {error}"
        raise ApiError(200, "bad_answer", text) from None
