"""The pilots of mode `pilot`: Slurm jobs that hold one node each for Presage's own placement.

A pilot of several nodes would start when all are free, and could not grow. Single ones start one
by one, grow the cluster by a further Slurm job, and shrink it in place by the end of one. Those of
a driver that died are found by their names and used on.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from presage.executors.fleet.cluster import AgentGone, AgentSilent
from presage.executors.fleet.place import FleetNode
from presage.executors.slurm.batch import agent_job
from presage.executors.slurm.commands import SlurmJob, StepShape
from presage.model.cluster import UNLIMITED
from presage.model.errors import SlurmRefused, SlurmUnreachable

if TYPE_CHECKING:
    from presage.executors.slurm.driver import SlurmDriver

__all__ = ["Pilots"]

_HELLO_S = 60.0
"""How often agents hear from us: without runs, one that hears nothing for long ends."""
_AGAIN_S = 10.0
"""How long to wait after a pilot that Slurm did not take, or that ended at once."""


class Pilots:
    """The pilots of a data directory."""

    def __init__(self, driver: SlurmDriver) -> None:
        self._driver = driver
        self.nodes: dict[str, FleetNode] = {}
        self.names: set[str] = set()
        """The Slurm jobs that are wanted."""
        self._gone: dict[str, str] = {}
        self._hello_at = 0.0
        self._submit_at = 0.0
        self._unseen: dict[str, int] = {}
        """Pilots that were submitted and not seen since, each with the looks before it."""

    # -- what a run needs -----------------------------------------------------------------------

    async def call(self, node: str, method: str, *arguments: Any, timeout_s: float) -> Any:
        """Ask the agent on a node (by id); raises AgentGone or AgentSilent."""
        if node in self._gone:
            raise AgentGone(self._gone[node])
        return await self._driver.call(node, method, *arguments, timeout_s=timeout_s)

    async def reserve(
        self,
        name: str,
        asked: list[tuple[str, dict[str, float]]],
        timeout_s: float,
        tell: Callable[[str], None],
    ) -> bool:
        """Nobody but us places workers on these nodes."""
        ids = {node.id for node in self.nodes.values()}
        for id, _ in asked:
            if id not in ids:
                raise AgentGone(self.why_gone(id))
        return True

    async def release(self, name: str) -> None:
        """There is nothing to give back."""

    @property
    def coming(self) -> bool:
        """Whether a pilot should start any moment."""
        return bool(self._unseen) or len(self.nodes) < len(self.names)

    def why_gone(self, id: str) -> str:
        """What became of a node."""
        return self._gone.get(id, f"node {id.partition('@')[0]} went away")

    # -- keeping them ---------------------------------------------------------------------------

    async def keep(self) -> None:
        """See which pilots there are, and have as many as are wanted."""
        driver = self._driver
        ours = {n: job for n, job in driver.jobs.items() if f".{driver.owner}.pilot." in n}
        for name in list(self._unseen):
            if name in ours or driver.looks - self._unseen[name] > 3:
                del self._unseen[name]
        there = {name for name, job in ours.items() if not job.over}
        self.names = there | self._unseen.keys()
        await self._see_nodes({name: ours[name] for name in there}, ours)
        missing = driver.setup.pilot_nodes - len(self.names)
        if missing > 0 and time.monotonic() >= self._submit_at:
            self._submit_at = time.monotonic() + _AGAIN_S
            for _ in range(missing):
                await self._submit()
        await self._shrink(-missing)
        if time.monotonic() >= self._hello_at:
            self._hello_at = time.monotonic() + _HELLO_S
            await self._greet()

    async def _see_nodes(
        self, there: Mapping[str, SlurmJob], ours: Mapping[str, SlurmJob]
    ) -> None:
        seen: dict[str, FleetNode] = {}
        for name, job in sorted(there.items(), key=lambda item: item[1].id):
            for host in job.nodes:
                note = self._driver.note(name, host)
                if job.state == "RUNNING" and note is not None:
                    plain = host if host not in seen else f"{host}-{job.id}"
                    seen[plain] = self._as_node(plain, host, name)
        for node in self.nodes.values():
            if node.id not in {kept.id for kept in seen.values()}:
                await self._note_end(node.id, ours)
        self.nodes = seen

    def _as_node(self, name: str, host: str, reservation: str) -> FleetNode:
        driver, note = self._driver, self._driver.note(reservation, host)
        assert note is not None
        resources = {"CPU": note.cpus, "GPU": float(len(note.gpus))}
        known = driver.hardware.get(host)
        memory_mib = note.memory_mib or (known.node.memory_mib if known else UNLIMITED)
        resources["memory"] = float(memory_mib << 20)
        kinds = {device.type for device in known.node.devices} if known else set()
        labels = dict(known.node.labels) if known else {}
        if len(kinds) == 1:
            labels["ray.io/accelerator-type"] = kinds.pop()
        return FleetNode(f"{host}@{reservation}", name, driver.address(host), resources, labels)

    async def _note_end(self, id: str, ours: Mapping[str, SlurmJob]) -> None:
        from presage.executors.slurm.ends import how_it_ended

        reservation = id.partition("@")[2]
        job = ours.get(reservation)
        words = f"Slurm no longer knows the pilot of node {id.partition('@')[0]}"
        if job is not None:
            words = await asyncio.to_thread(how_it_ended, job, self._driver.commands)
        self._gone[id] = words

    async def _submit(self) -> None:
        """A further pilot."""
        driver, setup = self._driver, self._driver.setup
        name = f"presage.{driver.owner}.pilot.{secrets.token_hex(4)}"
        whole = setup.pilot_gpus is None and setup.pilot_cpus is None
        gpus = max((len(f.node.devices) for f in driver.hardware.values()), default=0)
        shape = StepShape(
            (),
            1,
            setup.pilot_cpus or 1,
            setup.pilot_memory_mib or 0,
            gpus if setup.pilot_gpus is None else setup.pilot_gpus,
        )
        job = agent_job(driver, name, (shape,), setup.time_limit_s)
        if whole:
            job = job.with_options("--exclusive", "--mem=0")
        self._unseen[name] = driver.looks
        self.names.add(name)
        try:
            await asyncio.to_thread(driver.commands.submit, job)
        except SlurmRefused as error:
            del self._unseen[name]
            print(f"no pilot: {error}", file=sys.stderr, flush=True)
        except SlurmUnreachable as error:  # it may have been taken: then it is seen
            print(f"no pilot yet: {error}", file=sys.stderr, flush=True)

    async def _shrink(self, more: int) -> None:
        """End pilots that are too many: such as wait first, then such as have no runs."""
        waiting = [n for n in self.names if (job := self._driver.jobs.get(n)) and job.waits]
        for name in waiting[: max(0, more)]:
            await asyncio.to_thread(self._driver.commands.cancel, name=name)
            more -= 1
        for node in list(self.nodes.values())[::-1]:
            if more <= 0:
                return
            try:
                if not await self.call(node.id, "runs", self._driver.owner, timeout_s=5.0):
                    await self.call(node.id, "quit", timeout_s=5.0)
                    more -= 1
            except (AgentGone, AgentSilent):
                continue

    async def _greet(self) -> None:
        async def hello(id: str) -> None:
            try:
                await self.call(id, "hello", timeout_s=10.0)
            except (AgentGone, AgentSilent):
                return  # its Slurm job says more

        await asyncio.gather(*(hello(node.id) for node in self.nodes.values()))
