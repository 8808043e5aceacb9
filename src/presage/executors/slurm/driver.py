"""The process that talks to Slurm: submits and cancels Slurm jobs, asks the agents in them.

It hears on standard input which runs to look at and says on standard output which nodes there are,
as Ray's driver does; all else is in files. In mode `jobs` the nodes are those of the partition and
each run gets a Slurm job of its own; in mode `pilot` the nodes are those that pilots hold. Slurm
may forget a job that it has taken, and give its number to another (its controller was killed):
jobs are known by name, and one that nobody wants is cancelled. It ends when its input does.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from presage.executors.fleet.cluster import AgentGone, AgentSilent, FleetPort, Refused
from presage.executors.fleet.keeper import Keeper, give_up, owner_of
from presage.executors.fleet.place import FleetNode
from presage.executors.node import messages as msg
from presage.executors.node import wire
from presage.executors.slurm.batch import agent_job, job_name, run_shapes
from presage.executors.slurm.calls import CallError, ask
from presage.executors.slurm.commands import SlurmCommands, SlurmJob, SlurmNode
from presage.executors.slurm.ends import how_it_ended, why_it_waits
from presage.executors.slurm.handed import handed_over, remove_stale
from presage.executors.slurm.held import held_by_others
from presage.executors.slurm.pilots import Pilots
from presage.layout import Layout
from presage.model.codec import encode
from presage.model.errors import SlurmRefused, SlurmUnreachable

__all__ = ["SlurmDriver", "main"]

_CLOSE_LOOK_S = 0.5
"""How often Slurm is asked about its jobs while one of them should be about to start or end."""
_LOOK_S = 3.0
_NODES_S = 5.0
_ALIVE_S = 2.0
_STRAY_S = 10.0
"""A Slurm job that nobody has wanted for so long is cancelled."""
_UNKNOWN_LOOKS = 3
"""A job that Slurm does not know, asked so often after it was submitted, is lost."""
_ENDED_S = 5.0
"""How long to wait for Slurm to say why a job is over whose agent is gone."""


class SlurmDriver:
    """The connection to a Slurm, for one data directory."""

    def __init__(self, setup: msg.SlurmSetup) -> None:
        self.setup = setup
        self.layout = Layout(Path(setup.data))
        self.commands = SlurmCommands()
        self.partition = self.commands.partition(setup.partition)
        self.nodes: Mapping[str, FleetNode] = {}
        self.hardware: dict[str, SlurmNode] = {}
        """The nodes of the partition, by name."""
        self.jobs: dict[str, SlurmJob] = {}
        """Our Slurm jobs as of the last look, by name."""
        self._ours: list[SlurmJob] = []
        """The same with every component of heterogeneous ones."""
        self._held: dict[str, tuple[int, int, int]] = {}
        """What others hold on nodes: milli-CPUs, MiB and GPUs."""
        self.looks = 0
        """How often Slurm has answered which jobs there are."""
        self.keeper: Keeper | None = None
        self.pilots = Pilots(self) if setup.mode == "pilot" else None
        self._said: Any = None
        self._said_at = 0.0
        self._asap = asyncio.Event()
        self._closely = 0
        """How many wait for news of a Slurm job."""
        self._to_cancel: set[str] = set()
        self._views: dict[str, RunView] = {}
        """Of runs that have Slurm jobs of their own, by tag."""
        self._strays: dict[str, float] = {}
        self._handed: dict[str, float] = {}
        """Files of secrets, each with when it was seen first."""
        self._see_nodes()

    # -- agents ---------------------------------------------------------------------------------

    def note(self, reservation: str, node: str) -> msg.AgentNote | None:
        """What the agent of a reservation on a node says of itself; None if it is not up."""
        with suppress(wire.MessageError):
            return wire.find(msg.AgentNote, self.layout.slurm_agents(reservation) / node)
        return None

    async def ask(
        self,
        reservation: str,
        node: str,
        method: str,
        arguments: tuple[Any, ...],
        timeout_s: float,
    ) -> Any:
        """Ask the agent of a reservation on a node; raises AgentGone or AgentSilent."""
        note = self.note(reservation, node)
        if note is None:
            await self.raise_if_over(reservation)
            raise AgentSilent(f"there is no agent on node {node} yet")
        try:
            with handed_over(self.layout.slurm_secrets, method, arguments) as said:
                asking = ask(self.address(node), note.port, note.token, method, *said)
                return await asyncio.wait_for(asking, timeout_s)
        except CallError as error:
            raise AgentGone(f"the agent on node {node}: {error}") from None
        except ConnectionRefusedError:  # nobody listens: it is dead, and so are its runs
            await self.raise_if_over(reservation, _ENDED_S)
            raise AgentGone(f"the agent on node {node} died") from None
        except (OSError, TimeoutError):
            await self.raise_if_over(reservation)
            raise AgentSilent(f"node {node} does not answer") from None

    def address(self, node: str) -> str:
        """Where a node is reached."""
        return self.hardware[node].address if node in self.hardware else node

    async def raise_if_over(self, reservation: str, within_s: float = 0.0) -> None:
        """Raise AgentGone, with Slurm's reason, if the job of a reservation is over, or will be in
        a moment."""
        end = time.monotonic() + within_s
        while True:
            job = self.jobs.get(reservation)
            if job is not None and job.over:
                raise AgentGone(await asyncio.to_thread(how_it_ended, job, self.commands))
            if time.monotonic() >= end:
                return
            await self.next_look()

    # -- what a keeper needs --------------------------------------------------------------------

    def view(self, run: Path) -> FleetPort:
        """What a run sees of the cluster."""
        if self.pilots is not None:
            return self.pilots
        view = RunView(self, run)
        self._views[view.tag] = view
        return view

    async def call(self, node: str, method: str, *arguments: Any, timeout_s: float) -> Any:
        """Ask the agent on a node, by id: its name, and whose agent it is."""
        name, _, reservation = node.partition("@")
        view = self._views.get(reservation.rpartition("#")[0] or reservation)
        if view is not None:
            return await view.call(node, method, *arguments, timeout_s=timeout_s)
        return await self.ask(reservation, name, method, arguments, timeout_s)

    async def reservations(self, prefix: str) -> list[str]:
        """Strays are cancelled while looking."""
        return []

    async def existing_agents(self) -> list[str]:
        """The nodes (by id) of pilots."""
        return [node.id for node in self.nodes.values()] if self.pilots else []

    async def release(self, name: str) -> None:
        """Cancel the Slurm job of a reservation, now or as soon as Slurm answers."""
        if self.pilots is None:
            self._to_cancel.add(job_name(name))
            self._asap.set()

    def serve(self) -> None:
        """Keep the runs of the data directory, and look at them."""
        if self.keeper is None:
            self.keeper = Keeper(self.layout.data, self)
        else:
            self.keeper.look()

    def leave(self) -> None:
        """Somebody else keeps the runs from now on."""
        if self.keeper is not None:
            self.keeper.end()
            self.keeper = None

    # -- the world ------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Look again and again; a Slurm that does not answer is left alone until it does."""
        nodes_at = 0.0
        while True:
            self._asap.clear()
            try:
                if self.keeper is None:
                    continue
                await self._cancel()
                await self._look_at_jobs()
                if time.monotonic() >= nodes_at:
                    secrets = self.layout.slurm_secrets
                    self._handed = remove_stale(secrets, self._handed, time.monotonic())
                    await self._look_at_nodes()
                    nodes_at = time.monotonic() + _NODES_S
                if self.pilots is not None:
                    await self.pilots.keep()
            except (SlurmUnreachable, SlurmRefused) as error:
                print(error, file=sys.stderr, flush=True)
            finally:
                self._say_nodes()
                closely = self._closely or (self.pilots is not None and self.pilots.coming)
                pause_s = _CLOSE_LOOK_S if closely else _LOOK_S
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._asap.wait(), pause_s)

    async def beat(self) -> None:
        """Say now and then that all is as before, whether Slurm answers or not."""
        while True:
            if time.monotonic() - self._said_at >= _ALIVE_S:
                say(msg.DriverLine())
                self._said_at = time.monotonic()
            await asyncio.sleep(_ALIVE_S / 2)

    async def next_look(self) -> None:
        """Until Slurm was asked once more, or did not answer for a while."""
        before, end = self.looks, time.monotonic() + 2 * _LOOK_S
        self._closely += 1
        self._asap.set()
        try:
            while self.looks == before and time.monotonic() < end:
                await asyncio.sleep(0.05)
        finally:
            self._closely -= 1

    @property
    def owner(self) -> str:
        """What tells our Slurm jobs from those of other data directories."""
        return owner_of(self.layout)

    async def _cancel(self) -> None:
        for name in list(self._to_cancel):
            await asyncio.to_thread(self.commands.cancel, name=name)
            self._to_cancel.discard(name)
            shutil.rmtree(self.layout.slurm_agents(name), ignore_errors=True)

    async def _look_at_jobs(self) -> None:
        prefix = f"presage.{self.owner}."
        jobs = await asyncio.to_thread(self.commands.jobs, mine=True)
        self._ours = [job for job in jobs if job.name.startswith(prefix)]
        whole = [job for job in self._ours if not _component(job)]
        # Of two with one name, the one that Slurm took last is meant.
        self.jobs = {job.name: job for job in sorted(whole, key=lambda job: job.id)}
        self.looks += 1
        self._find_strays()

    def _find_strays(self) -> None:
        """Slurm jobs that no run wants: of a driver that died, or taken while we gave up."""
        if self.keeper is None:
            return
        wanted = {job_name(name) for name in self.keeper.wanted if name}
        wanted |= self.pilots.names if self.pilots else set()
        now = time.monotonic()
        strays = {name for name, job in self.jobs.items() if not job.over and name not in wanted}
        self._strays = {name: self._strays.get(name, now) for name in strays}
        self._to_cancel |= {n for n, since in self._strays.items() if now - since > _STRAY_S}

    async def _look_at_nodes(self) -> None:
        """See the nodes, and what others hold there: what is held and is not ours, if nothing of
        ours started or ended meanwhile."""
        before = _on_nodes(self._ours)
        await asyncio.to_thread(self._see_nodes)
        if self.pilots is None:
            await self._look_at_jobs()
            if _on_nodes(self._ours) == before:
                self._held = held_by_others(self.hardware.values(), self._ours)

    def _see_nodes(self) -> None:
        nodes = self.commands.nodes(self.partition.name)
        self.hardware = {host.node.name: host for host in nodes}

    def _say_nodes(self) -> None:
        before = {node.id for node in self.nodes.values()}
        if self.pilots is not None:
            self.nodes = self.pilots.nodes
        else:
            self.nodes = {
                name: _as_seen(host)
                for name, host in self.hardware.items()
                if host.usable or (not host.gone and (host.draining or name in self.nodes))
            }
        if self.pilots is not None and self.keeper is not None:
            for id in before - {node.id for node in self.nodes.values()}:
                self.keeper.lose(id, self.pilots.why_gone(id))
        line = msg.DriverLine(
            nodes=tuple((node.id, encode(node.as_node())) for node in self.nodes.values()),
            held=tuple((name, *held) for name, held in self._held.items()),
            draining=self._draining(),
            further=tuple(map(encode, self.pilots.further())) if self.pilots else (),
        )
        if line != self._said:
            say(line)
            self._said, self._said_at = line, time.monotonic()

    def _draining(self) -> tuple[str, ...]:
        """The nodes (by name) that Slurm gives nobody new, where pilots go on until they end, or
        those that pilots are about to give back."""
        if self.pilots is not None:
            return tuple(sorted(self.pilots.leaving))
        return tuple(name for name in self.nodes if self.hardware[name].draining)


class RunView:
    """What a run with a Slurm job of its own sees: the nodes of the partition, and agents that are
    there for this run alone, at its present size."""

    beside = False  # another size is another Slurm job

    def __init__(self, driver: SlurmDriver, run: Path) -> None:
        self._driver = driver
        self._run = run
        self.tag = f"{run.parent.name}.{run.name}"
        placed = wire.find(msg.Placed, run)
        self._reservation = job_name(placed.reservation) if placed else ""

    @property
    def nodes(self) -> Mapping[str, FleetNode]:
        """The nodes that take jobs, with ids that no other run knows, nor this one before it got
        other workers."""
        tag = self._tag_now()
        return {
            name: FleetNode(f"{name}@{tag}", name, node.address, node.resources, node.labels)
            for name, node in self._driver.nodes.items()
        }

    def _tag_now(self) -> str:
        size = wire.read(msg.LaunchOrder, self._run).size
        return f"{self.tag}#{size}" if size else self.tag

    async def call(self, node: str, method: str, *arguments: Any, timeout_s: float) -> Any:
        """Ask our agent on a node; raises AgentGone or AgentSilent."""
        name, _, tag = node.partition("@")
        if tag != self._tag_now():
            raise AgentGone(f"the workers on node {name} have made room for others")
        if not self._reservation:
            raise AgentSilent(f"there is no agent on node {name} yet")
        return await self._driver.ask(self._reservation, name, method, arguments, timeout_s)

    async def reserve(
        self,
        name: str,
        asked: list[tuple[str, dict[str, float]]],
        timeout_s: float,
        tell: Callable[[str], None],
    ) -> bool:
        """Submit the Slurm job, and wait as long as Slurm takes; raises Refused, AgentGone or
        AgentSilent."""
        driver, self._reservation = self._driver, job_name(name)
        wanted = [(id.partition("@")[0], bundle) for id, bundle in asked]
        shapes = run_shapes(wanted, driver.hardware)
        job = agent_job(driver, self._reservation, shapes, self._limit_s())
        try:
            await asyncio.to_thread(driver.commands.submit, job)
        except SlurmRefused as error:
            raise Refused(f"Slurm does not take it: {error}") from None
        except SlurmUnreachable as error:
            raise AgentSilent(str(error)) from None
        submitted, looks = driver.looks, 0
        while not all(driver.note(self._reservation, node) for node, _ in wanted):
            if (self._run / msg.StopOrder.FILE).exists():
                raise AgentSilent("it was stopped while it waited in Slurm's queue")
            known = driver.jobs.get(self._reservation)
            looks = driver.looks - submitted
            await driver.raise_if_over(self._reservation)
            if known is None and looks > _UNKNOWN_LOOKS:
                raise AgentGone("Slurm has forgotten the job that it took for this run")
            if known is not None and known.waits:
                tell(_stage(known))
            await self._until_something()
        return True

    async def release(self, name: str) -> None:
        """Cancel the Slurm job, if there is one."""
        await self._driver.release(name)

    async def _until_something(self) -> None:
        """A file of an agent may appear at any time; Slurm is asked now and then."""
        looking = asyncio.create_task(self._driver.next_look())
        agents = self._driver.layout.slurm_agents(self._reservation)
        before = len(list(agents.glob("*/*.json")))
        while not looking.done() and len(list(agents.glob("*/*.json"))) == before:
            await asyncio.sleep(0.02)
        looking.cancel()

    def _limit_s(self) -> float | None:
        """The run's own limit, with time to end; else that of the settings."""
        from presage.executors.node.runspec import RunSpec

        order = wire.read(msg.LaunchOrder, self._run)
        spec = RunSpec.load(self._driver.layout.job_file(order.job))
        if spec.time_limit_s is None:
            return self._driver.setup.time_limit_s
        return spec.time_limit_s + spec.grace_s + 300.0


def _stage(job: SlurmJob) -> str:
    """What a job waits for, and until when Slurm thinks it does (`squeue --start`)."""
    words = why_it_waits(job)
    if job.started_at > time.time():
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(job.started_at))
        words += f"; Slurm expects it to start at {when}"
    return words


def _on_nodes(jobs: list[SlurmJob]) -> set[tuple[int, str, tuple[str, ...]]]:
    """Which jobs hold which nodes."""
    return {(job.id, job.state, job.nodes) for job in jobs if job.holds}


def _component(job: SlurmJob) -> bool:
    """Whether it is a component of a heterogeneous job, and not the first."""
    return job.het_id not in (0, job.id)


def _as_seen(host: SlurmNode) -> FleetNode:
    node = host.node
    resources = {"CPU": node.cpu_milli / 1000, "GPU": float(len(node.devices))}
    resources["memory"] = float(node.memory_mib << 20)
    kind = {"ray.io/accelerator-type": node.devices[0].type} if node.devices else {}
    return FleetNode(node.name, node.name, host.address, resources, {**kind, **node.labels})


def say(line: msg.DriverLine) -> None:
    """Say something to the server."""
    os.write(_OUT, wire.dumps(line))


_OUT = 1


async def _run(driver: SlurmDriver) -> None:
    reader = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    tasks = {asyncio.create_task(driver.watch()), asyncio.create_task(driver.beat())}
    hearing = asyncio.create_task(_hear(reader, driver))
    done, _ = await asyncio.wait({*tasks, hearing}, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        if error := task.exception():
            give_up(error)
    os._exit(0)


async def _hear(reader: asyncio.StreamReader, driver: SlurmDriver) -> None:
    while line := await reader.readline():
        said = wire.loads(msg.LinkLine, line)
        if said.leave:
            driver.leave()
        if said.pilots is not None and driver.pilots is not None:
            driver.pilots.want(said.pilots)
        if said.serve or said.look:
            driver.serve()


def main() -> None:
    """Serve as the first argument says."""
    global _OUT
    _OUT = os.dup(1)
    os.dup2(2, 1)  # whatever else prints does not talk to the server
    setup = wire.unpack(msg.SlurmSetup, json.loads(sys.argv[1]))
    try:
        driver = SlurmDriver(setup)
    except (SlurmUnreachable, SlurmRefused) as error:
        say(msg.DriverLine(error=str(error)))
        os._exit(1)

    async def run() -> None:
        await _run(driver)

    asyncio.run(run())
