"""What a process and the share daemon have in common: one page for each share of each device, and
the messages on their socket. The C side is `native/page.h`; both change together. It must not
decide anything."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from contextlib import suppress
from pathlib import Path

__all__ = [
    "DONE",
    "FOREVER",
    "HELLO",
    "MESSAGE",
    "SLOTS",
    "WANT",
    "SharedPage",
    "Slot",
    "grant_message",
    "read_hello",
    "refusal",
    "welcome",
]

_MAGIC, _VERSION = 0x53475250, 1
SLOTS = 64
"""Processes of one share on one device."""
FOREVER = (1 << 64) - 1
"""The end of a turn that lasts until somebody else wants the device."""

HELLO, _WELCOME, _REFUSED, WANT, _GRANT, DONE = range(1, 7)
MESSAGE = struct.Struct("<IIQ")
_HELLO = struct.Struct("<II16s104s")
_GRANTS_AT = 8
"""Where the futex of a slot is, in bytes."""
_FUTEX_WAKE, _EVERYBODY = 1, 0x7FFFFFFF
_FUTEX_CALL = {"x86_64": 202, "aarch64": 98, "ppc64le": 221, "riscv64": 98}
_libc = ctypes.CDLL(None, use_errno=True)


class Slot(ctypes.Structure):
    """One process. Only it writes memory and what it measures; only the daemon grants."""

    _fields_ = (
        ("until_ns", ctypes.c_uint64),
        ("grants", ctypes.c_uint32),
        ("pid", ctypes.c_uint32),
        ("memory", ctypes.c_uint64),
        ("pending", ctypes.c_uint64),
        ("used_ns", ctypes.c_uint64),
        ("waited_ns", ctypes.c_uint64),
        ("launches", ctypes.c_uint64),
        ("kernel_ns", ctypes.c_uint64),
        ("waiting", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
        ("spare", ctypes.c_uint64 * 7),
    )

    def clear(self, pid: int = 0) -> None:
        """Make it that of a process that has nothing yet; 0 for none."""
        ctypes.memset(ctypes.addressof(self), 0, ctypes.sizeof(self))
        self.pid = pid

    def grant(self, until_ns: int) -> None:
        """Let its process launch until then, and wake the threads that wait for it."""
        self.until_ns = until_ns
        self.grants: int = (self.grants + 1) & 0xFFFFFFFF
        word = ctypes.c_void_p(ctypes.addressof(self) + _GRANTS_AT)
        _libc.syscall(_futex(), word, _FUTEX_WAKE, _EVERYBODY, None, None, 0)


class _PageLayout(ctypes.Structure):
    _fields_ = (
        ("magic", ctypes.c_uint32),
        ("version", ctypes.c_uint32),
        ("quota", ctypes.c_uint64),
        ("spare", ctypes.c_uint64 * 14),
        ("slots", Slot * SLOTS),
    )


class SharedPage:
    """The page of a share on a device: a file, so that it outlives the daemon."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.fstat(self.fd).st_size != ctypes.sizeof(_PageLayout):
            os.ftruncate(self.fd, ctypes.sizeof(_PageLayout))
        self._map = mmap.mmap(self.fd, ctypes.sizeof(_PageLayout))
        self._page = _PageLayout.from_buffer(self._map)
        if (self._page.magic, self._page.version) != (_MAGIC, _VERSION):
            ctypes.memset(ctypes.addressof(self._page), 0, ctypes.sizeof(_PageLayout))
            self._page.magic, self._page.version = _MAGIC, _VERSION
        self.slots: ctypes.Array[Slot] = self._page.slots

    def remove(self) -> None:
        """Nobody uses it any more."""
        os.close(self.fd)
        with suppress(OSError):
            self._path.unlink()

    def set_quota(self, memory: int) -> None:
        """Bytes that all its processes may hold together; 0 for no quota."""
        self._page.quota = memory

    def seat(self, pid: int) -> int | None:
        """The slot of a process: the one it had, else a free one."""
        free = None
        for number, slot in enumerate(self.slots):
            if slot.pid == pid:
                return number
            if slot.pid == 0 and free is None:
                free = number
        if free is not None:
            self.slots[free].clear(pid)
        return free

    @property
    def memory(self) -> int:
        """Bytes that all its processes hold."""
        return sum(slot.memory for slot in self.slots)


def read_hello(data: bytes) -> tuple[str, str] | None:
    """The device and the share a process says; None for what is no greeting of our version."""
    if len(data) != _HELLO.size:
        return None
    kind, version, device, share = _HELLO.unpack(data)
    if (kind, version) != (HELLO, _VERSION):
        return None
    return device.hex(), share.rstrip(b"\0").decode("utf-8", "replace")


def welcome(slot: int) -> bytes:
    """The answer to a greeting, which the page's file goes along with."""
    return MESSAGE.pack(_WELCOME, slot, 0)


def refusal() -> bytes:
    """The answer to a process that names no share of its user."""
    return MESSAGE.pack(_REFUSED, 0, 0)


def grant_message(until_ns: int) -> bytes:
    """What tells the keeper of a process that its turn has come or ends otherwise."""
    return MESSAGE.pack(_GRANT, 0, until_ns)


def _futex() -> int:
    return _FUTEX_CALL[os.uname().machine]
