"""Tokens that `presage login` keeps, by the server's address: one file, for its owner alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

from presage.model.errors import UserError

__all__ = ["keep_token", "stored_token", "tokens_file"]


def tokens_file() -> Path:
    """`$XDG_CONFIG_HOME/presage/tokens.json`; without the variable, below `~/.config`."""
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "presage" / "tokens.json"


def stored_token(url: str) -> str | None:
    """The token for a server, if one is kept."""
    return _read().get(url.rstrip("/"))


def keep_token(url: str, token: str | None) -> None:
    """Keep a token for a server; None forgets it."""
    file, kept = tokens_file(), _read()
    kept.pop(url.rstrip("/"), None)
    if token is not None:
        kept[url.rstrip("/")] = token
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = file.with_name(f".{file.name}.{os.getpid()}")
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as out:
            json.dump(kept, out, indent=1)
        new.replace(file)
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}") from None


def _read() -> dict[str, str]:
    try:
        file = tokens_file()
        with file.open() as source:
            if os.fstat(source.fileno()).st_mode & 0o077:
                raise UserError(f"{file} holds tokens and can be read by others: chmod 600 {file}")
            kept = json.load(source)
    except (FileNotFoundError, RuntimeError):  # or nobody has a home
        return {}
    except (OSError, ValueError):
        raise UserError(f"{file} cannot be read: remove it, and `presage login` again") from None
    if not isinstance(kept, dict):
        raise UserError(f"{file} makes no sense: remove it, and `presage login` again")
    return {str(url): str(token) for url, token in kept.items()}
