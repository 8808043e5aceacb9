"""What each share is worth, as files in the directory of the shares: one a share, written whole.

The executor and `presage share set` write them, the daemon reads them; so a daemon that starts
again knows what the one before knew. Nothing here talks to a daemon but `call`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from presage.executors.node.shares.turns import ShareTerms
from presage.model.errors import UserError

__all__ = [
    "call",
    "check_terms",
    "read_terms",
    "remove_terms",
    "shares_of",
    "socket_path",
    "write_terms",
]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,94}")
_LONGEST_SOCKET = 100
_ANSWER = 1 << 20


def socket_path(home: Path) -> Path:
    """Where the daemon of a directory listens. The path of a socket must be short."""
    path = home / "socket"
    if len(os.fsencode(path)) <= _LONGEST_SOCKET:
        return path
    digest = hashlib.sha256(os.fsencode(home.absolute())).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"presage-shares-{digest}" / "socket"


def check_terms(terms: ShareTerms) -> ShareTerms:
    """The terms, if they make sense."""
    if not 0.0 <= terms.request <= 1.0:
        raise UserError(f"a share requests a part of a GPU, 0 to 1, not {terms.request:g}")
    if not 0.0 < terms.limit <= 1.0:
        raise UserError(f"the limit of a share is a part of a GPU, up to 1, not {terms.limit:g}")
    if terms.request > terms.limit:
        raise UserError(f"a request of {terms.request:g} is above its limit of {terms.limit:g}")
    if not terms.weight > 0.0 or terms.memory < 0:
        raise UserError("a weight is above 0, and memory not below it")
    return terms


def write_terms(home: Path, name: str, terms: ShareTerms) -> None:
    """Make a share, or change one."""
    home.mkdir(parents=True, exist_ok=True)
    path = _path(home, name)
    fresh = path.with_suffix(f".{os.getpid()}.new")
    fresh.write_text(json.dumps(asdict(check_terms(terms))))
    fresh.replace(path)


def read_terms(home: Path, name: str) -> ShareTerms | None:
    """What a share is worth; None if there is none."""
    if not _NAME.fullmatch(name):
        return None
    try:
        return _terms(json.loads(_path(home, name).read_text()))
    except (OSError, ValueError, TypeError, UserError):
        return None


def shares_of(home: Path, prefix: str = "") -> list[str]:
    """The names of the shares there are, or of those that begin so."""
    return sorted(path.name.removesuffix(".json") for path in home.glob(f"{prefix}*.json"))


def remove_terms(home: Path, name: str) -> None:
    """A share is over."""
    with suppress(OSError):
        _path(home, name).unlink()


def call(home: Path, question: Mapping[str, Any], timeout_s: float = 5.0) -> dict[str, Any] | None:
    """What the daemon of a directory answers; None if none does."""
    with suppress(OSError, ValueError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as to:
        to.settimeout(timeout_s)
        to.connect(str(socket_path(home)))
        to.send(json.dumps(question).encode())
        answer: dict[str, Any] = json.loads(to.recv(_ANSWER))
        return answer
    return None


def _path(home: Path, name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise UserError(f"{name!r} cannot be the name of a share: letters, digits, . _ - alone")
    return home / f"{name}.json"


def _terms(read: Mapping[str, Any]) -> ShareTerms:
    known = {field.name for field in fields(ShareTerms)}
    return check_terms(ShareTerms(**{key: value for key, value in read.items() if key in known}))
