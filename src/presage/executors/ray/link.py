"""The server's end of the driver that talks to a Ray cluster. Ray is not imported here."""

from __future__ import annotations

import os
import socket
from importlib.util import find_spec
from pathlib import Path

from presage.executors.fleet.link import DriverLink
from presage.executors.ray.head import RayHead
from presage.model.errors import MissingExtra, RayUnreachable

__all__ = ["RayLink"]

_CONNECT_S = 5.0
_ENVIRONMENT = {"RAY_gcs_server_port_wait_time_s": "8"}
"""How often a driver tries to connect, about once a second; without it, for much longer."""
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""How HTTP/2 begins (RFC 9113, 3.4): Ray speaks gRPC, which is built on it."""
_SETTINGS = 4
"""Kind of the frame that the other side begins with."""


class RayLink(DriverLink):
    """A connection to a Ray cluster that outlives the cluster: it comes back when that does.

    The first connection must succeed; RayUnreachable says why it did not. `address` is that of a
    cluster, `auto` for the one that this machine belongs to, or that of a `head` of ours. `log` is
    where Ray's complaints go.
    """

    unreachable = RayUnreachable

    def __init__(
        self,
        address: str = "auto",
        *,
        head: RayHead | None = None,
        log: Path | None = None,
        patience_s: float = 180.0,
    ) -> None:
        if find_spec("ray") is None:
            raise MissingExtra("ray", "the executor ray")
        self.address = address
        self.cluster = f"the Ray cluster at {address}"
        self._head = head
        super().__init__(log=log, patience_s=patience_s)

    def _program(self) -> tuple[str, str]:
        return "ray.driver", self.address

    def _environment(self) -> dict[str, str]:
        guarded = self._head.environment if self._head is not None else {}
        return {**_ENVIRONMENT, **os.environ, **guarded}

    def _answers(self) -> bool:
        try:
            if self.address != "auto":
                _probe(self.address)
        except RayUnreachable:
            return False
        return True

    def _reach(self) -> None:
        """Ray itself would try for a long time."""
        if self._head is not None:
            self.address = self._head.address()
        if self.address != "auto":
            _probe(self.address)


def _probe(address: str) -> None:
    """Refuse an address that is none, and one where nobody answers as Ray would."""
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal():
        raise RayUnreachable(
            f"{address!r} is not the address of a Ray cluster: give HOST:PORT of its head (6379 "
            "unless changed), from a machine that joined it with 'ray start --address=HOST:PORT'"
        )
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S) as peer:
            peer.sendall(_HELLO)
            answer = peer.recv(9)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise RayUnreachable(
            f"no Ray cluster answers at {address} ({why.lower()}): check the address, or start "
            "one with 'ray start --head'"
        ) from None
    if len(answer) < 9 or answer[3] != _SETTINGS:
        raise RayUnreachable(
            f"what answers at {address} is not a Ray cluster: give the port of its head (6379 "
            "unless changed)"
        )
