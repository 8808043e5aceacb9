"""Signed texts that let a browser reach one port of one job: a ticket in an address, which works
for minutes, and the cookie it is exchanged for. Neither is a token of the API, nor becomes one.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import time
from pathlib import Path

__all__ = ["COOKIE_S", "TICKET_S", "Signer"]

TICKET_S = 300.0
COOKIE_S = 12 * 3600.0


class Signer:
    """Makes and checks them, with a key that outlives the server."""

    def __init__(self, key_file: Path) -> None:
        self._key = _key(key_file)

    def sign(self, kind: str, user: str, job: str, port: int, until: float) -> str:
        """A text that says what it is for, and until when."""
        said = json.dumps([kind, user, job, port, until]).encode()
        return f"{_text(said)}.{_text(self._mac(said))}"

    def user(self, kind: str, text: str, job: str, port: int) -> str | None:
        """Whose text it is, if it is good for this."""
        body, _, mac = text.partition(".")
        try:
            said = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
            given = base64.urlsafe_b64decode(mac + "=" * (-len(mac) % 4))
        except ValueError:
            return None
        if not hmac.compare_digest(self._mac(said), given):
            return None
        of_kind, user, of_job, of_port, until = json.loads(said)
        good = (of_kind, of_job, of_port) == (kind, job, port) and time.time() < until
        return str(user) if good else None

    def _mac(self, said: bytes) -> bytes:
        return hmac.digest(self._key, said, hashlib.sha256)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _key(file: Path) -> bytes:
    """The key of a data directory; the first who asks makes it."""
    draft = file.with_name(f".{file.name}-{os.getpid()}")
    if not file.exists():
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(fd, os.urandom(32))
            os.fsync(fd)
        finally:
            os.close(fd)
        try:
            os.link(draft, file)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return file.read_bytes()
