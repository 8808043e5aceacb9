"""The pilots of mode `pilot`: Slurm jobs that hold one node each for Presage's own placement.

A pilot of several nodes would start when all are free, and could not grow. Single ones start one
by one, grow the cluster by a further Slurm job, and shrink it in place by the end of one. Those of
a driver that died are found by their names and used on. How many there should be, and when one is
added or given back, `growth` says; a node that is given back takes nothing new for a while first.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from presage.executors.fleet.cluster import AgentGone, AgentSilent
from presage.executors.fleet.place import FleetNode
from presage.executors.slurm.batch import agent_job
from presage.executors.slurm.commands import SlurmJob, StepShape
from presage.executors.slurm.growth import PilotGrowth
from presage.model.cluster import UNLIMITED, Node
from presage.model.errors import SlurmRefused, SlurmUnreachable

if TYPE_CHECKING:
    from presage.executors.slurm.driver import SlurmDriver

__all__ = ["Pilots"]

_HELLO_S = 60.0
"""How often agents hear from us: without runs, one that hears nothing for long ends."""
_LEAVE_S = 5.0
"""For how long a node takes nothing new before it is given back: what was launched meanwhile is
seen there."""
_LIMITS = ("QOS", "Assoc", "PartitionNodeLimit", "PartitionTimeLimit", "AccountingPolicy")
"""How reasons begin for which no further job of ours would start."""


class Pilots:
    """The pilots of a data directory."""

    beside = True

    def __init__(self, driver: SlurmDriver) -> None:
        self._driver = driver
        self.nodes: dict[str, FleetNode] = {}
        self.names: set[str] = set()
        """The Slurm jobs that are wanted."""
        self._gone: dict[str, str] = {}
        self._hello_at = 0.0
        setup = driver.setup
        self._growth = PilotGrowth(
            setup.pilot_nodes,
            setup.pilot_most,
            idle_s=setup.pilot_idle_s,
            pause_s=setup.pilot_pause_s,
        )
        self._leaving: dict[str, float] = {}
        """Nodes (by id) that are given back, each with when that began."""
        self._used: set[str] = set()
        """Nodes (by id) on which a run was seen."""
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

    def want(self, nodes: int) -> None:
        """How many nodes the jobs need."""
        self._growth.want(nodes)

    @property
    def leaving(self) -> set[str]:
        """Nodes (by name) that take nothing new."""
        return {node.name for node in self.nodes.values() if node.id in self._leaving}

    def further(self) -> list[Node]:
        """Nodes that pilots could hold and do not, as many as there may still be."""
        setup, shape = self._driver.setup, self._shape()
        held = {node.id.partition("@")[0] for node in self.nodes.values()}
        nodes = []
        for host, known in sorted(self._driver.hardware.items()):
            enough = len(known.node.devices) >= shape.gpus
            if host in held or known.gone or known.draining or not enough:
                continue
            cpus = self._driver.setup.pilot_cpus or known.node.cpu_milli // 1000
            memory_mib = setup.pilot_memory_mib or known.node.memory_mib
            nodes.append(self._fleet_node(host, host, "", cpus, memory_mib, shape.gpus).as_node())
        return nodes[: max(0, max(setup.pilot_nodes, setup.pilot_most) - len(self.nodes))]

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
        now = time.monotonic()
        limited = any(job.waits and job.reason.startswith(_LIMITS) for job in ours.values())
        for _ in range(self._growth.missing(now, len(self.names), limited=limited)):
            if not await self._submit():
                break
        await self._give_back(self._growth.surplus(now, len(self.names)))
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
        for node in seen.values():  # a controller that forgot a start makes the same one again
            if self._gone.pop(node.id, None) and self._driver.keeper is not None:
                self._driver.keeper.found_again(node.id)

    def _as_node(self, name: str, host: str, reservation: str) -> FleetNode:
        note = self._driver.note(reservation, host)
        assert note is not None
        known = self._driver.hardware.get(host)
        memory_mib = note.memory_mib or (known.node.memory_mib if known else UNLIMITED)
        return self._fleet_node(name, host, reservation, note.cpus, memory_mib, len(note.gpus))

    def _fleet_node(
        self, name: str, host: str, reservation: str, cpus: float, memory_mib: int, gpus: int
    ) -> FleetNode:
        known = self._driver.hardware.get(host)
        resources = {"CPU": cpus, "GPU": float(gpus), "memory": float(memory_mib << 20)}
        kinds = {device.type for device in known.node.devices} if known else set()
        labels = dict(known.node.labels) if known else {}
        if len(kinds) == 1:
            labels["ray.io/accelerator-type"] = kinds.pop()
        address = self._driver.address(host)
        return FleetNode(f"{host}@{reservation}", name, address, resources, labels)

    async def _note_end(self, id: str, ours: Mapping[str, SlurmJob]) -> None:
        from presage.executors.slurm.ends import how_it_ended

        reservation = id.partition("@")[2]
        job = ours.get(reservation)
        words = f"Slurm no longer knows the pilot of node {id.partition('@')[0]}"
        if job is not None and not job.over:
            words = f"Slurm's controller forgot that job {job.id} had started"
        elif job is not None:
            words = await asyncio.to_thread(how_it_ended, job, self._driver.commands)
        self._gone[id] = words

    def _shape(self) -> StepShape:
        """What a pilot asks for."""
        setup = self._driver.setup
        gpus = max((len(f.node.devices) for f in self._driver.hardware.values()), default=0)
        return StepShape(
            (),
            1,
            setup.pilot_cpus or 1,
            setup.pilot_memory_mib or 0,
            gpus if setup.pilot_gpus is None else setup.pilot_gpus,
        )

    async def _submit(self) -> bool:
        """A further pilot; says whether Slurm took it, or may have."""
        driver, setup = self._driver, self._driver.setup
        name = f"presage.{driver.owner}.pilot.{secrets.token_hex(4)}"
        job = agent_job(driver, name, (self._shape(),), setup.time_limit_s)
        if setup.pilot_gpus is None and setup.pilot_cpus is None:
            job = job.with_options("--exclusive", "--mem=0")
        self._unseen[name] = driver.looks
        self.names.add(name)
        try:
            await asyncio.to_thread(driver.commands.submit, job)
        except SlurmRefused as error:
            del self._unseen[name]
            self.names.discard(name)
            self._growth.refused(time.monotonic())
            print(f"no pilot: {error}", file=sys.stderr, flush=True)
            return False
        except SlurmUnreachable as error:  # it may have been taken: then it is seen
            print(f"no pilot yet: {error}", file=sys.stderr, flush=True)
            return True
        self._growth.taken()
        return True

    async def _give_back(self, more: int) -> None:
        """End pilots that are too many: such as wait at once; then such as have no runs, once they
        have taken nothing new for a while."""
        waiting = [n for n in self.names if (job := self._driver.jobs.get(n)) and job.waits]
        for name in waiting[: max(0, more)]:
            await asyncio.to_thread(self._driver.commands.cancel, name=name)
            more -= 1
        if not (self._growth.follows or more > 0 or self._leaving):
            return
        now, ids = time.monotonic(), [node.id for node in self.nodes.values()]
        has_runs = await asyncio.gather(*map(self._has_runs, ids))
        idle = [id for id, runs in zip(ids, has_runs, strict=True) if not runs][::-1]
        self._used = (self._used & set(ids)) | (set(ids) - set(idle))
        kept = [id for id in self._leaving if id in idle]
        chosen = (kept + [id for id in idle if id not in kept])[: max(0, more)]
        self._leaving = {id: self._leaving.get(id, now) for id in chosen}
        for id in [id for id, since in self._leaving.items() if now - since >= _LEAVE_S]:
            if not await self._has_runs(id):
                with suppress(AgentGone, AgentSilent):
                    await self.call(id, "quit", timeout_s=5.0)
                    self._growth.given_back(was_used=id in self._used)

    async def _has_runs(self, id: str) -> bool:
        """Whether a node has work; one that does not answer may have."""
        try:
            return bool(await self.call(id, "runs", self._driver.owner, timeout_s=5.0))
        except (AgentGone, AgentSilent):
            return True

    async def _greet(self) -> None:
        async def hello(id: str) -> None:
            try:
                await self.call(id, "hello", timeout_s=10.0)
            except (AgentGone, AgentSilent):
                return  # its Slurm job says more

        await asyncio.gather(*(hello(node.id) for node in self.nodes.values()))
