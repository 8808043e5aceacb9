"""Files below a directory that somebody else may write to: no path and no symlink leads out of it.

Every directory on the way is opened by itself and never followed if it is a link, so that whoever
may change the tree meanwhile gains nothing. Only regular files count. Standard library only.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

__all__ = ["directory", "open_file", "parts_of", "remove_empty", "walk"]

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def parts_of(path: str) -> tuple[str, ...]:
    """The names of a path that stays below; raises ValueError for any other."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise ValueError(f"{path!r:.200} leads outside")
    return parts


@contextmanager
def directory(root: Path, names: Sequence[str], *, make: bool = False) -> Iterator[int]:
    """A directory below another, open; raises OSError where a name is none, or a link."""
    fd = os.open(root, _DIRECTORY)
    try:
        for name in names:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=fd)
            below = os.open(name, _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


def open_file(root: Path, path: str) -> int:
    """A regular file below a directory, open for reading; raises OSError or ValueError."""
    *names, name = parts_of(path)
    with directory(root, names) as home:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=home)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileNotFoundError(f"{path} is not a file")
    return fd


def walk(
    root: Path, skipped: frozenset[str] = frozenset()
) -> Iterator[tuple[str, os.stat_result]]:
    """Every regular file below a directory with what is known of it, by its path, in order;
    nothing that has a skipped name or is below one."""
    try:
        tree = os.fwalk(root)
        for place, directories, files, fd in tree:
            directories[:] = sorted(name for name in directories if name not in skipped)
            below = os.path.relpath(place, root)
            for name in sorted(files):
                with suppress(OSError):  # it is gone this moment
                    known = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    if stat.S_ISREG(known.st_mode) and name not in skipped:
                        yield name if below == "." else f"{below}/{name}", known
    except FileNotFoundError:
        return


def remove_empty(root: Path) -> None:
    """Take away directories in which nothing is left, and the root itself if it is one."""
    for place, _, _ in os.walk(root, topdown=False):
        with suppress(OSError):
            Path(place).rmdir()
