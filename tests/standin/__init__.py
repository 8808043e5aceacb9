"""A GPU that does not exist, for programs that run here: see device.c. Built by a C compiler,
shared through a file, and read back by tests."""

from __future__ import annotations

import json
import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

__all__ = ["Machine", "StandIn", "Used", "build"]

_HERE = Path(__file__).parent
_NATIVE = _HERE.parents[1] / "native"
_LOCK = 40  # bytes of a pthread_mutex_t
_USER = struct.Struct("<iiQQQQ")
_DEVICE = struct.Struct("<QQQQ")
_USERS, _DEVICES = 64, 4
_DEVICE_SIZE = _DEVICE.size + _USERS * _USER.size


@dataclass(frozen=True, slots=True)
class Used:
    """What a process had of a device."""

    pid: int
    memory: int
    busy_ns: int
    launches: int


@dataclass(frozen=True, slots=True)
class StandIn:
    """What was built: the driver, a program that uses it, and the interposer."""

    home: Path
    tenant: Path
    interposer: Path


class Machine:
    """The GPUs of one test."""

    def __init__(self, path: Path, devices: int = 1, memory: int = 16 << 30) -> None:
        self.path = path
        path.write_bytes(b"\0" * (_LOCK + 16 + _DEVICES * _DEVICE_SIZE))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        struct.pack_into("<Q", self._map, _LOCK + 8, devices)
        for number in range(devices):
            struct.pack_into("<Q", self._map, self._at(number), memory)

    def environment(self, built: StandIn, device: str = "0") -> dict[str, str]:
        """What a process needs to see them."""
        return {
            **os.environ,
            "STANDIN_GPU": str(self.path),
            "STANDIN_LIBRARY": str(built.home / "libcuda.so.1"),
            "LD_LIBRARY_PATH": str(built.home),
            "CUDA_VISIBLE_DEVICES": device,
        }

    def users(self, device: int = 0) -> dict[int, Used]:
        """What processes had of a device, those that are gone included while no other took their
        place."""
        found = {}
        for number in range(_USERS):
            at = self._at(device) + _DEVICE.size + number * _USER.size
            pid, _, _, memory, busy, launches = _USER.unpack_from(self._map, at)
            if pid:
                found[pid] = Used(pid, memory, busy, launches)
        return found

    def times(self, device: int = 0) -> tuple[int, int]:
        """How long a device was busy, and how long idle between kernels, in ns."""
        _, _, busy, idle = _DEVICE.unpack_from(self._map, self._at(device))
        return busy, idle

    def _at(self, device: int) -> int:
        return _LOCK + 16 + device * _DEVICE_SIZE


def build(home: Path) -> StandIn:
    """Compile all of it into a directory."""
    device, tenant = home / "libcuda.so.1", home / "tenant"
    # A real driver does not find its own functions by their names.
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-Wl,-Bsymbolic"]
    _run(["gcc", *flags, "-shared", "-fPIC", str(_HERE / "device.c"), "-o", str(device)])
    (home / "libnvidia-ml.so.1").symlink_to(device)
    link = ["-L", str(home), "-l:libcuda.so.1"]
    _run(["gcc", *flags, str(_HERE / "tenant.c"), "-o", str(tenant), *link])
    return StandIn(home, tenant, interposer(home))


def interposer(home: Path) -> Path:
    """The library as the wheel builds it."""
    spec = spec_from_file_location("native_build", _NATIVE / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    target = home / "libpresage-share.so"
    problem = module.compile_library(target)
    assert not problem, problem
    return target


def answer(process: subprocess.Popen[str], timeout_s: float = 60.0) -> dict[str, Any]:
    """What a tenant printed."""
    out, _ = process.communicate(timeout=timeout_s)
    said: dict[str, Any] = json.loads(out)
    return said


def start(command: Sequence[object], env: dict[str, str]) -> subprocess.Popen[str]:
    """A program on the machine."""
    return subprocess.Popen(
        [str(word) for word in command],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def python(code: str, env: dict[str, str]) -> subprocess.Popen[str]:
    """The same for a few lines of Python."""
    return start([sys.executable, "-c", code], env)


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True)
