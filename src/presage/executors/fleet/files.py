"""Directories that are kept alike on a node and on the server: checkpoints, first of all.

A directory consists of units: each directory below it, and all plain files in it together (named
`.`). A unit is taken over whole or not at all, since half a checkpoint is worse than none. What
begins with a dot at the top, or with `.saving-` anywhere, is not finished and not looked at.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from presage.executors.node.log_times import LogTimes
from presage.executors.node.messages import Listing, Saved
from presage.executors.node.wire import decode

__all__ = [
    "CHUNK",
    "FILES",
    "AgentCall",
    "apply",
    "differing",
    "fetch",
    "listing",
    "read_chunk",
    "send",
    "take_over",
    "write_chunk",
    "write_log",
]

CHUNK = 8 << 20
"""Bytes that travel in one message."""
FILES = "."
"""The unit of the files that are in no directory."""


class AgentCall(Protocol):
    """Asks the agent on a node for something about a run."""

    async def __call__(self, method: str, /, *arguments: Any) -> Any:
        """Its answer."""
        ...


def listing(root: Path) -> Listing:
    """What is there."""
    units: Listing = {}
    with suppress(OSError):
        for top in sorted(os.scandir(root), key=lambda entry: entry.name):
            if top.name.startswith("."):
                continue
            if top.is_dir(follow_symlinks=False):
                units[top.name] = _walk(root, Path(top.path))
            elif top.is_file(follow_symlinks=False):
                with suppress(OSError):
                    units.setdefault(FILES, {})[top.name] = _mark(top.stat())
    return units


def _walk(root: Path, directory: Path) -> dict[str, tuple[int, int]]:
    unit: dict[str, tuple[int, int]] = {}
    for place, directories, files in os.walk(directory):
        directories[:] = sorted(name for name in directories if not name.startswith(".saving-"))
        for name in sorted(files):
            path = Path(place) / name
            with suppress(OSError):
                if path.is_file() and not path.is_symlink():
                    unit[str(path.relative_to(root))] = _mark(path.stat())
    return unit


def _mark(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_size, stat.st_mtime_ns


def differing(here: Listing, there: Listing) -> list[str]:
    """The units of `there` that are not here, or are different."""
    return [name for name, unit in there.items() if here.get(name) != unit]


def read_chunk(root: Path, path: str, offset: int) -> bytes:
    """A part of a file; empty at its end."""
    fd = os.open(_inside(root, path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return os.pread(fd, CHUNK, offset)
    finally:
        os.close(fd)


def write_chunk(root: Path, path: str, offset: int, chunk: bytes, changed_ns: int) -> None:
    """Write a part of a file that is made here; it gets the time of change of the original."""
    target = _inside(root, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(fd, chunk, offset)
        os.utime(fd, ns=(changed_ns, changed_ns))
    finally:
        os.close(fd)


def apply(root: Path, staged: Path, units: Sequence[str], deleted: Sequence[str]) -> None:
    """Put staged units in place of those with the same name, then remove what was deleted."""
    root.mkdir(parents=True, exist_ok=True)
    trash = staged / ".old"
    trash.mkdir(parents=True, exist_ok=True)
    for name in [*units, *deleted]:
        if name == FILES:
            _apply_files(root, staged, deleted=name in deleted)
            continue
        place = _inside(root, name)
        with suppress(FileNotFoundError):
            place.rename(trash / name)
        if name in units:
            (staged / name).rename(place)
    shutil.rmtree(staged, ignore_errors=True)


def _apply_files(root: Path, staged: Path, *, deleted: bool) -> None:
    new = [] if deleted else [path for path in staged.iterdir() if path.is_file()]
    for path in new:
        path.replace(root / path.name)
    kept = {path.name for path in new}
    for path in root.iterdir():
        if path.is_file() and path.name not in kept and not path.name.startswith("."):
            path.unlink()


async def take_over(ask: AgentCall, area: str, there: Saved, here: Path, staged: Path) -> None:
    """Make our copy of an area what it is on a node, unit by unit. What was removed there goes
    here when all that is new has come."""
    new = differing(listing(here), there.changed)
    await _fetch_units(ask, area, {unit: there.changed[unit] for unit in new}, staged)
    now = decode(Listing, await ask("listing", area))
    whole = [unit for unit in new if now.get(unit) == there.changed[unit]]
    deleted = there.deleted if len(whole) == len(new) else ()
    await asyncio.to_thread(apply, here, staged, whole, deleted)


async def _fetch_units(ask: AgentCall, area: str, units: Listing, staged: Path) -> None:
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir()
    for unit in units.values():
        for name, (size, changed_ns) in unit.items():
            await fetch(ask, area, name, size, changed_ns, staged)


async def fetch(
    ask: AgentCall, area: str, name: str, size: int, changed_ns: int, staged: Path
) -> None:
    """Copy a file of a node; it is not there afterwards if it is gone already."""
    offset = 0
    while True:
        chunk = await ask("read", area, name, offset)
        if chunk is None:
            return  # gone already; its unit is not taken over
        write_chunk(staged, name, offset, chunk, changed_ns)
        offset += len(chunk)
        if offset >= size or not chunk:
            return


async def send(ask: AgentCall, area: str, root: Path, name: str) -> None:
    """Copy a file to a node."""
    stat = (root / name).stat()
    offset = 0
    while True:
        chunk = read_chunk(root, name, offset)
        await ask("write", area, name, offset, chunk, stat.st_mtime_ns)
        offset += len(chunk)
        if offset >= stat.st_size or not chunk:
            return


def write_log(path: Path, offset: int, chunk: bytes) -> None:
    """Continue our copy of a log, or begin it again if the log was cut."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, offset)
            os.pwrite(fd, chunk, offset)
        finally:
            os.close(fd)
        _times_of(path).note(offset + len(chunk), time.time())


@lru_cache(maxsize=1024)
def _times_of(log: Path) -> LogTimes:
    return LogTimes(log)


def _inside(root: Path, path: str) -> Path:
    """A path below a directory; refuses one that leads outside."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts:
        raise ValueError(f"{path!r} leads outside")
    return root / path
