"""The server's own log: on stderr, or in a file that is rotated before it grows too long."""

from __future__ import annotations

import logging
import os
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from presage.model.errors import UserError

__all__ = ["log_to"]


class _PrivateLog(RotatingFileHandler):
    """For its owner alone: names of users and jobs are in it."""

    def _open(self) -> TextIOWrapper:
        fd = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        return open(fd, "a", encoding="utf-8")  # noqa: PTH123 (it is open already)


def log_to(file: Path | None, max_bytes: int = 50 << 20, keep: int = 5) -> None:
    """Log to a file, and to stderr without one. Beyond `max_bytes` the file becomes `FILE.1`, that
    one `FILE.2`, and so on; `keep` of them stay."""
    handlers: list[logging.Handler] | None = None
    if file is not None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            handlers = [_PrivateLog(file, maxBytes=max_bytes, backupCount=keep)]
        except OSError as error:
            raise UserError(
                f"--log-file {file} cannot be written: {error.strerror or error}"
            ) from None
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(name)s %(message)s", handlers=handlers
    )
    for name in ("httpx", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
