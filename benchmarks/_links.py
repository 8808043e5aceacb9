"""Network namespaces joined by links of a given speed: a cluster's network on one machine.

Each task has a namespace of its own with `eth0`, a veth pair whose other end is at a bridge in a
namespace of ours. Both ends shape what they send with `tbf`, so a task sends and receives at most
that much. Needs root (or CAP_SYS_ADMIN and CAP_NET_ADMIN) and iproute2.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from contextlib import suppress
from itertools import count
from pathlib import Path

from presage.model.errors import UserError

__all__ = ["Links", "address", "enter_space"]

_NEW_NETWORK = 0x40000000
_PREFIX = "presagelink"
_numbers = count()
_TBF_MS = 4
"""What may pass at once, as the time that the link takes for it."""


class Links:
    """So many namespaces on one network; a context manager, since they outlive a process."""

    def __init__(self, tasks: int, bits_s: float | None) -> None:
        self.tasks, self.bits_s = tasks, bits_s
        self.name = f"{_PREFIX}-{os.getpid()}-{next(_numbers)}"
        """What the names of its namespaces begin with."""
        self._made: list[str] = []

    @staticmethod
    def sweep() -> None:
        """Remove what processes left that were killed."""
        for space in Path("/run/netns").glob(f"{_PREFIX}-*"):
            owner = space.name.split("-")[1]
            if not Path(f"/proc/{owner}").exists():
                _run("ip", "netns", "del", space.name)

    def __enter__(self) -> Links:
        self.check()
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    @staticmethod
    def check() -> None:
        """Refuse where it cannot work."""
        if os.geteuid() or not shutil.which("ip") or not shutil.which("tc"):
            raise UserError("links between namespaces need root and iproute2 (ip, tc)")

    def __exit__(self, *_: object) -> None:
        for space in self._made:
            with suppress(subprocess.CalledProcessError):
                _run("ip", "netns", "del", space)
        self._made.clear()

    def address(self, task: int) -> str:
        """The address of a task's `eth0`."""
        return address(task)

    def enter(self, task: int) -> None:
        """Move this process, which has one thread, into the namespace of a task."""
        enter_space(self._space(task))

    def _space(self, task: int) -> str:
        return f"{self.name}-{task}"

    def _make(self) -> None:
        hub = f"{self.name}-hub"
        self._add(hub)
        _in(hub, "ip link add br0 type bridge")
        _in(hub, "ip link set br0 up")
        for task in range(self.tasks):
            space = self._space(task)
            self._add(space)
            _in(hub, f"ip link add t{task} type veth peer name eth0 netns {space}")
            _in(hub, f"ip link set t{task} master br0 up")
            _in(space, f"ip addr add {self.address(task)}/16 dev eth0")
            _in(space, "ip link set eth0 up")
            _in(space, "ip link set lo up")
            if self.bits_s is not None:
                for where, device in ((hub, f"t{task}"), (space, "eth0")):
                    _in(where, f"tc qdisc add dev {device} root {self._shape(self.bits_s)}")

    def _add(self, space: str) -> None:
        try:
            _run("ip", "netns", "add", space)
        except subprocess.CalledProcessError as error:
            why = error.stderr.decode().strip().splitlines()
            raise UserError(
                f"network namespaces cannot be made here: {why[-1] if why else error}"
            ) from None
        self._made.append(space)

    @staticmethod
    def _shape(bits_s: float) -> str:
        burst = max(1 << 17, int(bits_s / 8 * _TBF_MS / 1000))
        return f"tbf rate {bits_s:.0f}bit burst {burst} latency 100ms"


def address(task: int) -> str:
    """The address of a task's `eth0`."""
    return f"10.77.{task // 250}.{task % 250 + 1}"


def enter_space(name: str) -> None:
    """Move this process, which has one thread, into a namespace."""
    space = Path("/run/netns") / name
    fd = os.open(space, os.O_RDONLY | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.setns(fd, _NEW_NETWORK)
    os.close(fd)
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(space))


def _in(space: str, command: str) -> None:
    try:
        _run("ip", "netns", "exec", space, *command.split())
    except subprocess.CalledProcessError as error:
        why = error.stderr.decode().strip()
        raise UserError(f"`{command}` is not possible here: {why}") from None


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=30)
