"""Whose program listens at a port of this machine, as /proc says. Standard library only."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from presage.executors.node.processes import descendants

__all__ = ["listens"]

_LISTEN = "0A"


def listens(port: int, ancestor: int) -> bool:
    """Whether a descendant of a process listens at a port."""
    wanted = {f"socket:[{inode}]" for inode in _inodes(port)}
    for pid in descendants(ancestor) if wanted else ():
        with suppress(OSError):
            for fd in os.scandir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    if os.readlink(fd.path) in wanted:  # noqa: PTH115 (many, and quickly)
                        return True
    return False


def _inodes(port: int) -> list[str]:
    """The sockets that listen at a port, by the number the kernel has for each."""
    inodes = []
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.append(fields[9])
    return inodes
