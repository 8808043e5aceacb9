"""The workers of a run on a cluster at one size: a part of them on each of their nodes.

Before a resize, two groups of a run are on the cluster: one that trains, and one that gets ready
to take its place. What must outlive this process is written down by `fleet.run`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from presage.executors.fleet import files
from presage.executors.fleet.cluster import AgentGone, AgentSilent, FleetPort, Refused
from presage.executors.node import messages as msg
from presage.executors.node import wire

__all__ = ["RemotePart", "WorkerGroup"]

_CALL_S = 30.0


class RemotePart:
    """The workers of the run on one node."""

    def __init__(self, node: str, id: str, serves: bool) -> None:
        self.node = node
        self.id = id
        self.serves = serves
        """Whether none of its workers ends by itself."""
        self.cursor: msg.Cursor | None = None
        self.port: int | None = None
        self.started_at: float | None = None
        self.over: msg.Event | None = None
        self.lost: str | None = None
        self.drained = False
        self.released = False
        """Whether it was told that rank 0 has saved and ended."""
        self.saved = False
        """Whether checkpoints may be there and not yet here."""
        self.asked: int | None = None
        """The wish for workers that was written down here and not yet taken away there."""
        self.words: dict[str, msg.Word] = {}
        """What its workers say about standing still; see `presage.job`."""
        self.collecting: asyncio.Task[None] | None = None

    @property
    def gone(self) -> bool:
        """Whether nothing more will come from it."""
        return self.lost is not None or (self.over is not None and self.drained)


class WorkerGroup:
    """The workers of a run at one size."""

    def __init__(
        self,
        cluster: FleetPort,
        owner: str,
        order: msg.LaunchOrder,
        nodes: Mapping[str, str],
        serves: Mapping[str, bool],
    ) -> None:
        self._cluster = cluster
        self.order = order
        size = f".{order.size}" if order.size else ""
        self.key = f"{owner}/{order.job}/{order.attempt}{size}"
        """What agents call it. It changes with the size, so that nothing they say of the workers
        before is taken for news of those after."""
        self.parts = {id: RemotePart(name, id, serves[name]) for name, id in nodes.items()}
        self._news = asyncio.Event()

    # -- what is heard --------------------------------------------------------------------------

    @property
    def first(self) -> RemotePart:
        """The part with rank 0."""
        node = min(self.order.workers)[2]
        return next(part for part in self.parts.values() if part.node == node)

    def heard(self) -> None:
        """Something has happened to one of the parts."""
        self._news.set()

    def lose(self, id: str, why: str) -> None:
        """A node, or the agent there, is gone."""
        part = self.parts.get(id)
        if part is not None and not part.gone:
            alive = any(node.id == id for node in self._cluster.nodes.values())
            part.lost = why if alive else f"node {part.node} went away"
            self.heard()

    # -- what is asked --------------------------------------------------------------------------

    async def call(self, part: RemotePart, method: str, *arguments: Any) -> Any:
        """Ask the agent of a part; raises AgentGone or AgentSilent."""
        try:
            return await self._cluster.call(
                part.id, method, self.key, *arguments, timeout_s=_CALL_S
            )
        except AgentGone as gone:
            self.lose(part.id, str(gone))
            raise

    async def prepare(self, spec: str, folder: Path | None, secrets: dict[str, str]) -> None:
        """Have the guardians started on all nodes; raises Refused where that is not possible."""
        order = vars(self.order)

        async def on(part: RemotePart) -> None:
            ask = partial(self.call, part)
            await ask("drop")  # what a process left that died
            wrong = await ask("make", wire.pack(msg.PartOrder(**order, spec=spec, node=part.node)))
            if wrong is None and folder is not None:
                with suppress(FileNotFoundError):  # the guardian says so in better words
                    await files.send(ask, "folders", folder.parent, folder.name)
            wrong = wrong or await ask("start", secrets)
            if wrong:
                raise Refused(wrong)

        outcomes = await asyncio.gather(*map(on, self.parts.values()), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def until_ready(self) -> None:
        """Until all guardians wait for the word to begin; raises Refused or AgentGone."""
        while True:
            for part in self.parts.values():
                if part.lost is not None:
                    raise AgentGone(part.lost)
                if part.over is not None and part.over.reason is not None:
                    raise Refused(part.over.reason.text)
            if all(part.port is not None for part in self.parts.values()):
                return
            await self._next()

    async def ship(self, areas: Mapping[str, Path]) -> None:
        """Bring in the checkpoints, and the results that rank 0 may go on with."""

        async def to(part: RemotePart) -> None:
            for area, root in areas.items():
                if area == "results" and part is not self.first:
                    continue
                for unit in files.listing(root).values():
                    for name in unit:
                        await files.send(partial(self.call, part), area, root, name)

        await asyncio.gather(*map(to, self.parts.values()))

    async def hold(self, number: int, workers: int, within_s: float) -> None:
        """Have every rank stop after the same step, with a checkpoint, if the program listens. If
        they do not stand still in time, they are stopped as for any stop."""
        parts = list(self.parts.values())
        with suppress(AgentSilent, AgentGone, TimeoutError):
            async with asyncio.timeout(within_s):
                if all([await self.call(part, "listens") for part in parts]):
                    word = msg.Word(number=number, workers=workers, apart=len(parts) > 1)
                    await self._tell(parts, msg.HOLD, word)
                    await self._stand_still(number)

    async def _stand_still(self, number: int) -> None:
        """Carry word between the nodes until every rank stands still or one has ended."""
        parts = list(self.parts.values())
        others = [part for part in parts if part is not self.first]
        unsaid = [msg.STOP_AT, "held-0"] if others else []
        while not any(part.gone or part.over for part in parts):
            for name in list(unsaid):
                word = self.first.words.get(name)
                if word is not None and word.number == number:
                    unsaid.remove(name)
                    await self._tell(others, name, word)
                    if name == msg.STOP_AT:
                        await self._tell([self.first], msg.AGREED, msg.Word(number=number))
            words = [item for part in parts for item in part.words.items()]
            held = {name for name, word in words if word.number == number}
            if all(f"held-{rank}" in held for rank in range(len(self.order.workers))):
                return
            await self._next()

    async def _tell(self, parts: list[RemotePart], name: str, word: msg.Word) -> None:
        await asyncio.gather(*(self.call(part, "tell", name, wire.pack(word)) for part in parts))

    async def stop(self, code: str, text: str, grace_s: float) -> None:
        """Ask all nodes at once: ranks that train in step cannot be stopped one by one."""
        left = [part for part in self.parts.values() if part.over is None and part.lost is None]
        calls = [self.call(part, "stop", code, text, grace_s) for part in left]
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(
                answer, AgentSilent | AgentGone
            ):
                raise answer

    async def drop(self) -> None:
        """Leave nothing of it on any node that can be reached."""

        async def on(part: RemotePart) -> None:
            with suppress(AgentSilent, AgentGone):
                await self.call(part, "drop")

        await asyncio.gather(*(on(part) for part in self.parts.values() if part.lost is None))

    async def _next(self) -> None:
        await self._news.wait()
        self._news.clear()
