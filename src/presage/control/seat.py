"""The name under which a server holds the lease.

The first server on a data directory locks a file in it for as long as it lives, and has the
directory's own name. So after a crash the next one takes the lease again at once: the lock is
free, hence its former holder is dead. Any other server has a name of its own and waits for the
lease to run out.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path

__all__ = ["Seat", "is_here"]

_HOST = os.uname().nodename


class Seat:
    """A server's place on a data directory."""

    def __init__(self, lock: Path) -> None:
        self._path = lock
        self._file: int | None = None
        self.name = f"{_HOST}-{os.getpid()}-{secrets.token_hex(4)}"

    def take(self) -> str:
        """The name to hold the lease as: the directory's if nobody else alive has it."""
        if self._file is None:
            with suppress(OSError):  # somebody has it, or the file system knows no locks
                self._lock()
        return self.name

    def leave(self) -> None:
        """Let another server have the directory's name."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _lock(self) -> None:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mark = os.read(file, 64)
            if not mark:
                mark = secrets.token_hex(8).encode()
                os.write(file, mark)
        except OSError:
            os.close(file)
            raise
        self._file = file
        # The host and the path as well: a copy of a directory is another one.
        self.name = f"{_HOST}:{self._path.parent}:{mark.decode(errors='replace')}"


def is_here(holder: str) -> bool:
    """Whether who holds the lease under this name is on this machine."""
    return holder.startswith((f"{_HOST}:", f"{_HOST}-"))
