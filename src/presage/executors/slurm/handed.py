"""Secrets on their way to the nodes: files in the data directory, which every node sees.

Calls to agents are signed and not encrypted, so they carry the name of a file in place of what is
in it. A file is there for as long as the call takes: the agent removes it when it has read it, the
driver when the call is over, and the next driver if both die before that. No content is ever
printed.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from presage.executors.fleet.cluster import AgentSilent

__all__ = ["handed_over", "remove_stale", "take"]

_STALE_S = 60.0
"""Longer than any call to start a run may take."""


@contextmanager
def handed_over(
    folder: Path, method: str, arguments: tuple[Any, ...]
) -> Iterator[tuple[Any, ...]]:
    """What to send to an agent in place of `arguments`; raises AgentSilent if nothing can be
    written, which may pass."""
    if method != "start":
        yield arguments
        return
    key, content = arguments
    try:
        name = _put(folder, content) if content else ""
    except OSError as error:
        raise AgentSilent(f"secrets cannot be put into {folder}: {error.strerror}") from None
    try:
        yield key, name
    finally:
        if name:
            (folder / name).unlink(missing_ok=True)


def take(folder: Path, name: str) -> dict[str, str]:
    """What was handed over under a name, once; raises OSError if it is not there."""
    if not name:
        return {}
    if not re.fullmatch("[0-9a-f]{32}", name):
        raise ValueError("that names no secrets")
    path = folder / name
    with path.open(encoding="utf-8") as file:
        path.unlink(missing_ok=True)
        values: dict[str, str] = json.load(file)
    return values


def remove_stale(folder: Path, seen: Mapping[str, float], now: float) -> dict[str, float]:
    """Remove what a driver left that was killed: files that were `seen` long ago. What is there,
    with when it was seen first; clocks of file systems are not asked."""
    there = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    since = {name: seen.get(name, now) for name in there}
    for name in [name for name in there if now - since[name] > _STALE_S]:
        (folder / name).unlink(missing_ok=True)
        del since[name]
    return since


def _put(folder: Path, content: dict[str, str]) -> str:
    """Write a file for its owner alone; its name."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    name = secrets.token_hex(16)
    fd = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        (folder / name).unlink(missing_ok=True)
        raise
    return name
