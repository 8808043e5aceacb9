"""What a process moves through memory, by the best counter that the machine has.

1. Cache misses of the processor through `perf_event_open`, 64 bytes each: most of the traffic.
2. Without such counters (virtual machines seldom have them) a stand-in: memory that the process
   touches for the first time, a page for each minor fault. It sees buffers that come and go with
   each step, counts a transparent huge page once and is blind to what is read again in place: a
   small part of the traffic. Figures of the two must not be mixed;
   `BurstSampler.memory_counter` tells which it was.

Both are shares of what one core copies at best, which is measured. Linux; nothing here labels.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import time
from contextlib import suppress

import numpy as np

__all__ = ["CACHE_MISSES", "PAGE_FAULTS", "EventCounter", "copied_bytes_s"]

CACHE_MISSES = (0, 3)
"""Type and number of the processor's event."""
PAGE_FAULTS = (1, 2)
"""The kernel's, which every machine has."""
_CALL = {"x86_64": 298, "aarch64": 241}
_SIZE = 112
_INHERIT, _NO_KERNEL, _NO_HYPERVISOR = 1 << 1, 1 << 5, 1 << 6


class EventCounter:
    """Counts an event of a process and of the threads that it starts from now on."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def open(cls, pid: int, event: tuple[int, int] = CACHE_MISSES) -> EventCounter | None:
        """None where the machine has no such counter, or does not let us read it."""
        number = _CALL.get(platform.machine())
        if number is None:
            return None
        kind, config = event
        flags = _INHERIT | _NO_HYPERVISOR | (_NO_KERNEL if kind == 0 else 0)
        head = struct.pack("=IIQQQQQ", kind, _SIZE, config, 0, 0, 0, flags)
        attributes = ctypes.create_string_buffer(head.ljust(_SIZE, b"\0"), _SIZE)
        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.syscall(number, attributes, pid, -1, -1, 0)
        return cls(fd) if fd >= 0 else None

    def read(self) -> int:
        """The count so far; 0 once the process is gone and cannot be read."""
        with suppress(OSError, struct.error):
            return int(struct.unpack("=Q", os.read(self._fd, 8))[0])
        return 0

    def close(self) -> None:
        """Stop counting."""
        os.close(self._fd)


def copied_bytes_s(mib: int = 64, times: int = 5) -> float:
    """Bytes a second that one core reads and writes when it copies a large block, at best."""
    source = np.ones(mib << 17)
    target = np.empty_like(source)
    best = 0.0
    for _ in range(times):
        start = time.perf_counter()
        np.copyto(target, source)
        best = max(best, 2 * source.nbytes / (time.perf_counter() - start))
    return best
