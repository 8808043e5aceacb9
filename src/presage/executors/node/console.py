"""The console of a worker: what it reads, when somebody may type. A pipe, with its output in the
log as ever, or a terminal, whose output the guardian copies to the log.

The guardian keeps the outer end for as long as the worker lives, so clients may come and go.
Standard library only.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import termios
from contextlib import suppress
from pathlib import Path

__all__ = ["Console", "own_terminal", "set_window"]

_CHUNK = 64 << 10
_AT_ONCE = 64
"""Chunks that are copied before the guardian looks at anything else."""
_MOST_LEFT = 1000


class Console:
    """Where a worker reads, and with `tty` also writes."""

    def __init__(self, kind: str, log: Path) -> None:
        self.tty = kind == "tty"
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if self.tty:
            self.outer, inner = os.openpty()
            self.inner = (inner, inner, inner)
            set_window(self.outer, 24, 80)
        else:
            inner, self.outer = os.pipe()
            self.inner = (inner, self._log, self._log)
        os.set_blocking(self.outer, False)
        self._typed = mmap.mmap(-1, 8)  # shared with attendants, who are forked later
        self._open = True
        self.over = False
        """Whether nobody has the worker's end of a terminal any more."""

    def started(self) -> None:
        """The worker has its end; close ours of it, so that we see when it is gone."""
        os.close(self.inner[0])

    def end_input(self) -> None:
        """Nobody types any more: a worker that reads a pipe sees its end."""
        if self._open and not self.tty:
            self._open = False
            os.close(self.outer)
            self.outer = -1

    @property
    def typed(self) -> int:
        """Bytes that clients typed and that were passed on, all of them together."""
        return int.from_bytes(self._typed[:], "big")

    def count(self, taken: int) -> None:
        """So many more were passed on; called in an attendant."""
        self._typed[:] = (self.typed + taken).to_bytes(8, "big")

    @property
    def takes_input(self) -> bool:
        """Whether somebody may still type."""
        return self._open

    def copy(self) -> bool:
        """Copy what the worker wrote on its terminal to the log; False when nothing is left of
        it. Does nothing for a pipe."""
        if not self.tty:
            return False
        for _ in range(_AT_ONCE):
            try:
                chunk = os.read(self.outer, _CHUNK)
            except BlockingIOError:
                return False
            except OSError:  # nobody has the other end any more
                self.over = True
                return False
            with suppress(OSError):  # a full disk, as for any worker that prints
                os.write(self._log, chunk)
        return True

    def drain(self) -> None:
        """Copy the rest: the worker has ended."""
        for _ in range(_MOST_LEFT):
            if not self.copy():
                return


def set_window(fd: int, rows: int, columns: int) -> None:
    """Say how large a terminal is; who runs in it is told."""
    with suppress(OSError, struct.error):
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def own_terminal() -> None:
    """Make the terminal that is standard input that of this session."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
