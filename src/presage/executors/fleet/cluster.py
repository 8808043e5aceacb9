"""What a run needs of a cluster, and how that may fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from presage.executors.fleet.place import FleetNode

__all__ = ["AgentGone", "AgentSilent", "AgentUnusable", "FleetPort", "Refused"]


class AgentGone(Exception):
    """The agent of a node has died, or its node has; what it ran is no more."""


class AgentSilent(Exception):
    """The agent of a node does not answer just now."""


class AgentUnusable(AgentSilent):
    """There can be no agent on a node until somebody does something about it."""


class Refused(Exception):
    """The run cannot be started; the text is for the owner of the job."""


class FleetPort(Protocol):
    """What a run needs of a cluster."""

    beside: bool
    """Whether workers of another size can get ready while the present ones go on."""

    @property
    def nodes(self) -> Mapping[str, FleetNode]:
        """Those that are alive, by name."""
        ...

    async def call(self, node: str, method: str, *arguments: Any, timeout_s: float) -> Any:
        """Ask the agent on a node (by id); raises AgentGone or AgentSilent."""
        ...

    async def reserve(
        self,
        name: str,
        asked: list[tuple[str, dict[str, float]]],
        timeout_s: float,
        tell: Callable[[str], None],
    ) -> bool:
        """Reserve (node id, resources) all at once; False if that took too long. Raises AgentGone
        when a node goes away meanwhile. What a long wait is for may be told."""
        ...

    async def release(self, name: str) -> None:
        """Give a reservation back, if there is one."""
        ...
