"""The runs of one data directory on a cluster, kept by the process that talks to the cluster.

It takes up what it finds in run directories, listens on the nodes, and gives back what belongs to
no run. It knows no cluster but through `GangDriver`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import traceback
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from presage.executors.fleet.cluster import AgentGone, AgentSilent, FleetPort
from presage.executors.fleet.run import GangRun
from presage.executors.node import messages as msg
from presage.executors.node import wire
from presage.layout import Layout

__all__ = ["GangDriver", "Keeper", "give_up", "owner_of"]

_NEWS_S = 5.0
_RETRY_S = 0.3
_MISSING_S = 0.02
"""How long to wait before an agent is asked again for a run that it does not have (yet)."""
_SLACK_S = 20.0


class GangDriver(Protocol):
    """The connection to a cluster, as a keeper needs it."""

    async def call(self, node: str, method: str, *arguments: Any, timeout_s: float) -> Any:
        """Ask the agent on a node (by id); raises AgentGone or AgentSilent."""
        ...

    async def release(self, name: str) -> None:
        """Give a reservation back, if there is one."""
        ...

    async def reservations(self, prefix: str) -> list[str]:
        """Names of the reservations that begin so."""
        ...

    async def existing_agents(self) -> list[str]:
        """The nodes (by id) that have an agent."""
        ...

    def view(self, run: Path) -> FleetPort:
        """What the run of a directory sees of the cluster."""
        ...


class Keeper:
    """The runs of one data directory."""

    def __init__(self, data: Path, driver: GangDriver) -> None:
        self._layout = Layout(data)
        self._driver = driver
        self._runs: dict[Path, GangRun] = {}
        """By their directories."""
        self._listening: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.owner = owner_of(self._layout)
        self.look()
        self._do(self._clear_up())

    def look(self) -> None:
        """Take up runs that are new, and have the others look for word."""
        for directory in _run_directories(self._layout.runs):
            if directory in self._runs:
                self._runs[directory].poke()
                continue
            try:
                run = GangRun(
                    self._layout,
                    self.owner,
                    directory,
                    self._driver.view(directory),
                    self._listen_on,
                )
            except OSError:
                continue  # it was just removed
            except wire.MessageError as error:
                print(f"{directory} is left alone: {error}", file=sys.stderr, flush=True)
                continue
            if not run.over:
                self._runs[directory] = run
                self._do(self._keep(run))

    @property
    def wanted(self) -> set[str | None]:
        """The reservations that runs have, or may have."""
        return {run.reservation for run in self._runs.values()}

    def end(self) -> None:
        """Do nothing more; runs are left running."""
        for task in self._tasks:
            task.cancel()

    def lose(self, id: str, why: str) -> None:
        """A node is gone."""
        for run in self._runs.values():
            run.lose(id, why)

    def found_again(self, id: str) -> None:
        """A node that was gone is there again: what still runs there for us was given up."""
        self._do(self._drop_strays(id))

    async def _keep(self, run: GangRun) -> None:
        """A run, to its end."""
        await run.live()
        del self._runs[run.directory]

    def _listen_on(self, id: str) -> None:
        """Have somebody listen on a node."""
        if id not in self._listening or self._listening[id].done():
            self._listening[id] = self._do(self._listen(id))

    async def _listen(self, id: str) -> None:
        """Pass on the news of a node to the runs that are on it."""
        while here := [run for run in self._runs.values() if run.cursors(id)]:
            cursors = {key: wire.pack(at) for run in here for key, at in run.cursors(id).items()}
            try:
                wait_s = _NEWS_S + _SLACK_S
                told = await self._driver.call(
                    id, "news", self.owner, cursors, _NEWS_S, timeout_s=wait_s
                )
                news = {key: new and wire.unpack(msg.RunNews, new) for key, new in told.items()}
            except AgentSilent:
                await asyncio.sleep(_RETRY_S)
                continue
            except (AgentGone, wire.MessageError) as gone:
                for run in here:
                    run.lose(id, str(gone))
                return
            if None in news.values():
                await asyncio.sleep(_MISSING_S)
            for key, new in news.items():
                if key in (now := self._by_key()):
                    now[key].take(key, id, new)
                elif new is not None:
                    await self._drop(id, key)

    def _by_key(self) -> dict[str, GangRun]:
        """The runs by what agents call them at this moment."""
        return {key: run for run in self._runs.values() for key in run.keys}

    async def _clear_up(self) -> None:
        """Give back what belongs to this data directory and to no run of it."""
        prefix = f"presage/{self.owner}/"
        for name in await self._driver.reservations(prefix):
            if name not in self.wanted:
                await self._driver.release(name)
        for id in await self._driver.existing_agents():
            await self._drop_strays(id)

    async def _drop_strays(self, id: str) -> None:
        with suppress(AgentGone, AgentSilent):
            runs = await self._driver.call(id, "runs", self.owner, timeout_s=_SLACK_S)
            for key in set(runs) - self._by_key().keys():
                await self._drop(id, key)

    async def _drop(self, id: str, key: str) -> None:
        with suppress(AgentGone, AgentSilent):
            await self._driver.call(id, "drop", key, timeout_s=_SLACK_S)

    def _do(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            give_up(error)


def _run_directories(runs: Path) -> Iterator[Path]:
    """The directories of runs; any of them may be removed at this moment."""
    for job in runs.iterdir():
        if not job.name.startswith("."):
            with suppress(FileNotFoundError, NotADirectoryError):
                yield from [path for path in job.iterdir() if path.name.isdecimal()]


def owner_of(layout: Layout) -> str:
    """What tells the runs of this data directory from those of others on the same cluster."""
    path = layout.ray_owner
    with suppress(FileExistsError), path.open("x") as file:
        file.write(secrets.token_hex(8))
    return path.read_text()


def give_up(error: BaseException | None) -> None:
    """End at once. Nothing here is remembered only in memory: the next process recovers it."""
    traceback.print_exception(error, file=sys.stderr)
    os._exit(1)
