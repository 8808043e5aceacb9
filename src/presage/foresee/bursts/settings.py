"""A setting of a distributed training: servers, workers and the network between them.

`W2/1gbit` is an all-reduce of two workers, `P2W4/100mbit` four workers with two parameter servers
in step, `P2W4/100mbit/async` the same where nobody waits for others. Nothing here runs one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from presage.model.errors import ConfigError

__all__ = ["NETWORKS", "Setting"]

NETWORKS: dict[str, float | None] = {
    "100mbit": 1e8,
    "1gbit": 1e9,
    "10gbit": 1e10,
    "none": None,
}
"""Bits a second that each worker and server may send, and receive; `none` has no limit."""

_FORM = re.compile(r"(?:P(\d{1,2}))?W(\d{1,3})/([a-z0-9]+)(/async)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Setting:
    """How a training is distributed."""

    workers: int
    network: str
    servers: int = 0
    """Parameter servers; without any, slopes are shared in an all-reduce."""
    asynchronous: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """A setting from its name."""
        match = _FORM.fullmatch(text.strip())
        if match is None or int(match[2]) < 1 or match[1] == "0":
            raise ConfigError(
                f"'{text}' is no setting: write W2/1gbit, P2W4/100mbit or P2W4/100mbit/async"
            )
        network = match[3].lower()
        if network not in NETWORKS:
            raise ConfigError(f"'{text}': the network is one of {', '.join(NETWORKS)}")
        if match[4] and not match[1]:
            raise ConfigError(f"'{text}': an all-reduce is always in step; leave /async out")
        return cls(int(match[2]), network, int(match[1] or 0), bool(match[4]))

    @property
    def roles(self) -> list[str]:
        """Of each rank: workers first."""
        return ["worker"] * self.workers + ["ps"] * self.servers

    @property
    def file(self) -> str:
        """Its name where no slash may be."""
        return str(self).replace("/", "-")

    def __str__(self) -> str:
        servers = f"P{self.servers}" if self.servers else ""
        return f"{servers}W{self.workers}/{self.network}{'/async' if self.asynchronous else ''}"
