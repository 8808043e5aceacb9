"""The process that talks to Ray. A driver of Ray ends with the node it is connected to, or with
the cluster, and takes its process along; so it is not the server's process but a child of it.

It hears on standard input which data directories to serve and which runs to look at, and says on
standard output which nodes there are. All else is in files (`fleet.run`). It ends when its input
does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError, RayError
from ray.util.placement_group import (
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from presage.executors.fleet.agent import NodeAgent
from presage.executors.fleet.cluster import AgentGone, AgentSilent, AgentUnusable, FleetPort
from presage.executors.fleet.keeper import Keeper, give_up
from presage.executors.fleet.place import FleetNode
from presage.executors.node import messages as msg
from presage.executors.node import wire
from presage.executors.ray.nodes import name_nodes
from presage.model.codec import encode

__all__ = ["main"]

PROTOCOL = 4
"""Part of an agent's name: a version of Presage that talks differently uses agents of its own."""
_NAMESPACE = "presage"
_NODES_S = 0.5
_ALIVE_S = 2.0
"""How often the server hears that all is as before."""
_START_S = 60.0
_AT_ONCE = 64
"""Calls that an agent answers at the same time."""


class Driver:
    """The connection to a cluster, and the data directories that it serves."""

    beside = True

    def __init__(self) -> None:
        self.nodes: dict[str, FleetNode] = {}
        self._said: Any = None
        self._said_at = 0.0
        self._agents: dict[str, Any] = {}
        self._keepers: dict[str, Keeper] = {}

    # -- what a run needs -----------------------------------------------------------------------

    async def call(self, node: str, method: str, *arguments: Any, timeout_s: float) -> Any:
        """Ask the agent on a node (by id); raises AgentGone or AgentSilent."""
        if all(alive.id != node for alive in self.nodes.values()):
            raise AgentGone(f"node {self._name(node)} went away")
        agent = await self._agent(node)
        try:
            return await asyncio.wait_for(getattr(agent, method).remote(*arguments), timeout_s)
        except ActorDiedError as error:
            raise await self._bury(node, error) from None
        except (RayActorError, GetTimeoutError, TimeoutError):
            raise AgentSilent(f"node {self._name(node)} does not answer") from None

    async def reserve(
        self,
        name: str,
        asked: list[tuple[str, dict[str, float]]],
        timeout_s: float,
        tell: Callable[[str], None],
    ) -> bool:
        """Reserve (node id, resources) all at once; False if that took too long. Raises AgentGone
        when a node goes away meanwhile."""
        by_id = {node.id: node for node in self.nodes.values()}
        # A bundle must not be empty; every node has a little of the resource with its name.
        bundles = [{f"node:{by_id[id].address}": 0.001, **want} for id, want in asked]
        group = await asyncio.to_thread(
            placement_group,
            bundles,
            strategy="STRICT_SPREAD",
            name=name,
            lifetime="detached",
            bundle_label_selector=[{"ray.io/node-id": id} for id, _ in asked],
        )
        end = time.monotonic() + timeout_s
        while not await asyncio.to_thread(group.wait, 1):
            alive = {node.id for node in self.nodes.values()}
            if gone := [by_id[id].name for id, _ in asked if id not in alive]:
                raise AgentGone(f"node {gone[0]} went away")
            if time.monotonic() >= end:
                return False
        return True

    async def release(self, name: str) -> None:
        """Give a reservation back, if there is one."""
        with suppress(ValueError):
            remove_placement_group(await asyncio.to_thread(get_placement_group, name))

    # -- agents ---------------------------------------------------------------------------------

    async def _bury(self, node: str, error: ActorDiedError) -> AgentGone:
        """An agent died. If its node lives, another one clears up what it left."""
        name = self._name(node)
        self._agents.pop(node, None)
        await self.look()  # whoever hears of the agent first must know of the node too
        if all(alive.id != node for alive in self.nodes.values()):
            return AgentGone(f"node {name} went away")
        self._agents[node] = asyncio.create_task(self._start_agent(node))
        return AgentGone(f"the agent on node {name} died: {_last_line(error)}")

    async def _agent(self, node: str) -> Any:
        """The agent on a node; it is started if there is none."""
        if node not in self._agents:
            self._agents[node] = asyncio.create_task(self._start_agent(node))
        try:
            return await asyncio.shield(self._agents[node])
        except (AgentGone, AgentSilent):
            self._agents.pop(node, None)
            raise

    async def _start_agent(self, node: str) -> Any:
        actor = ray.remote(NodeAgent).options(
            name=_agent_name(node),
            namespace=_NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=0,
            max_concurrency=_AT_ONCE,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        name = self._name(node)
        try:
            handle: Any = await asyncio.to_thread(actor.remote, node)
            await asyncio.wait_for(handle.hello.remote(), _START_S)
        except TimeoutError:
            raise AgentSilent(f"the agent on node {name} is not up after {_START_S:g} s") from None
        except RayError as error:
            if "No module named 'presage'" in str(error):
                raise AgentUnusable(
                    f"node {name} has no Presage: install the same version there, in the Python "
                    "that Ray runs in"
                ) from None
            raise AgentGone(f"the agent on node {name} died: {_last_line(error)}") from None
        return handle

    async def reservations(self, prefix: str) -> list[str]:
        """Names of the reservations that begin so."""
        groups = (await asyncio.to_thread(placement_group_table)).values()
        names = [group["name"] for group in groups if group["state"] != "REMOVED"]
        return [name for name in names if name.startswith(prefix)]

    def view(self, run: Path) -> FleetPort:
        """What a run sees of the cluster: all of it."""
        return self

    async def existing_agents(self) -> list[str]:
        """The nodes (by id) that have an agent."""
        return [
            node.id for node in self.nodes.values() if await asyncio.to_thread(_has_agent, node)
        ]

    def _name(self, id: str) -> str:
        return next((node.name for node in self.nodes.values() if node.id == id), id[:8])

    # -- the world ------------------------------------------------------------------------------

    async def watch_nodes(self) -> None:
        """Look again and again which nodes are alive."""
        while True:
            await self.look()
            await asyncio.sleep(_NODES_S)

    async def look(self) -> None:
        """See which nodes are alive, and say so if that has changed."""
        known = {node.id: node.name for node in self.nodes.values()}
        nodes = name_nodes(await asyncio.to_thread(ray.nodes), known)
        self.nodes = {node.name: node for node in nodes}
        alive = {node.id for node in nodes}
        for id in known.keys() - alive:
            self._agents.pop(id, None)
            for keeper in self._keepers.values():
                keeper.lose(id, f"node {known[id]} went away")
        working = [node for node in nodes if node.works]
        now = tuple((node.id, encode(node.as_node())) for node in working)
        if now != self._said or time.monotonic() - self._said_at >= _ALIVE_S:
            say(msg.DriverLine(nodes=None if now == self._said else now))
            self._said, self._said_at = now, time.monotonic()

    def serve(self, data: str) -> None:
        """Keep the runs of a data directory from now on."""
        if data not in self._keepers:
            self._keepers[data] = Keeper(Path(data), self)

    def leave(self, data: str) -> None:
        """Somebody else keeps the runs of a data directory from now on."""
        if data in self._keepers:
            self._keepers.pop(data).end()

    def look_at(self, data: str) -> None:
        """There is something new in a data directory."""
        if data in self._keepers:
            self._keepers[data].look()


def _agent_name(node: str) -> str:
    return f"agent-{PROTOCOL}-{node}"


def _has_agent(node: FleetNode) -> bool:
    try:
        ray.get_actor(_agent_name(node.id), namespace=_NAMESPACE)
    except ValueError:
        return False
    return True


def _last_line(error: BaseException) -> str:
    lines: Iterable[str] = (line.strip() for line in str(error).splitlines())
    return next((line for line in reversed(list(lines)) if line), type(error).__name__)[:300]


def say(line: msg.DriverLine) -> None:
    """Say something to the server."""
    os.write(_OUT, wire.dumps(line))


_OUT = 1


async def _run() -> None:
    driver = Driver()
    await driver.look()
    reader = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    watching = asyncio.create_task(driver.watch_nodes())
    hearing = asyncio.create_task(_hear(reader, driver))
    await asyncio.wait({watching, hearing}, return_when=asyncio.FIRST_COMPLETED)
    if watching.done():
        give_up(watching.exception())
    if error := hearing.exception():
        give_up(error)
    os._exit(0)


async def _hear(reader: asyncio.StreamReader, driver: Driver) -> None:
    while line := await reader.readline():
        said = wire.loads(msg.LinkLine, line)
        if said.serve:
            driver.serve(said.serve)
        if said.leave:
            driver.leave(said.leave)
        if said.look:
            driver.look_at(said.look)


def main() -> None:
    """Connect to the address that is the first argument, and serve."""
    global _OUT
    address = sys.argv[1]
    _OUT = os.dup(1)
    os.dup2(2, 1)  # whatever else prints does not talk to the server
    try:
        ray.init(
            address=address,
            namespace=_NAMESPACE,
            log_to_driver=False,
            logging_level=logging.WARNING,
        )
    except Exception as error:
        say(msg.DriverLine(error=_last_line(error)))
        os._exit(1)
    asyncio.run(_run())


if __name__ == "__main__":
    main()
