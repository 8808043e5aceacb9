"""Whether a file was written to, from the kernel (inotify). Standard library only."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

__all__ = ["watch"]

_IN_MODIFY = 0x2
_IN_CLOEXEC_NONBLOCK = os.O_CLOEXEC | os.O_NONBLOCK


def watch(path: Path) -> int:
    """A file descriptor that is readable when the file has changed; raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.inotify_init1(_IN_CLOEXEC_NONBLOCK)
    if fd < 0 or libc.inotify_add_watch(fd, os.fsencode(path), _IN_MODIFY) < 0:
        raise OSError(ctypes.get_errno(), "inotify failed")
    return fd
