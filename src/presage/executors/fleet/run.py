"""One run on a cluster as the server's side sees it: placed, started, watched, taken in.

Everything that must outlive this process is in the directory of the run on the server:
`launch.json` (what to start), `placed.json` (where, and whether workers may have begun),
`resize.json` (it is to have other workers), `stop.json` (it must stop), `verdict.json` (how it
ended), `events.jsonl` (what was told). Whoever dies, the next one reads these and goes on.

A resize brings up a new set of workers beside the present one, has that stand still at a
checkpoint and end, and lets the new set begin, in the same attempt. `size` in `launch.json` is the
number of the latest.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from presage.executors.fleet import collecting, files
from presage.executors.fleet.cluster import (
    AgentGone,
    AgentSilent,
    AgentUnusable,
    FleetPort,
    Refused,
)
from presage.executors.fleet.doors import RunDoor
from presage.executors.fleet.place import bundles, what_is_missing
from presage.executors.fleet.run_log import RelayedRunLog
from presage.executors.fleet.worker_group import RemotePart, WorkerGroup
from presage.executors.node import keeping, wire
from presage.executors.node import messages as msg
from presage.executors.node.attach import Refusal
from presage.executors.node.plan import secret_path
from presage.executors.node.runspec import RunSpec
from presage.layout import Layout
from presage.model.cluster import Worker
from presage.model.errors import RunSpecError

__all__ = ["GangRun"]

_PLACE_S = 20.0
"""How long a gang that fits may wait for what the cluster has promised to others."""
_LOST_GRACE_S = 5.0
"""Time that the rest of a gang has to save when a node is lost: it can rarely go on."""


class GangRun:
    """A run from its launch to its last event."""

    def __init__(
        self,
        layout: Layout,
        owner: str,
        directory: Path,
        cluster: FleetPort,
        listen: Callable[[str], None],
    ) -> None:
        self.directory = directory
        self._order = wire.read(msg.LaunchOrder, directory)
        job, attempt = self._order.job, self._order.attempt
        self._owner = owner
        self._layout = layout
        self._cluster = cluster
        self._listen = listen
        """Has the news of a node (by id) passed on to its runs."""
        self._job_file = layout.job_file(job)
        self._areas = {"results": layout.results(job)}
        """Directories that are kept alike here and on the nodes."""
        if not self._order.shared:
            self._areas["checkpoints"] = layout.checkpoints(job)
        self._logs = layout.logs(job, attempt)
        self._story = RelayedRunLog(layout, job, attempt)
        self._changed = asyncio.Event()
        self._asked_to_stop = False
        placed = wire.find(msg.Placed, directory)
        self._placed = placed if placed and placed.size == self._order.size else None
        """None while the workers are not placed; what was written may be of those before a
        resize."""
        self._group = self._muster(self._order, self._placed)
        self._next: WorkerGroup | None = None
        """The workers that get ready to take the place of the present ones."""
        self._resizing: asyncio.Task[None] | None = None
        self._kept = ""
        """What the end says about results."""
        self._door = RunDoor(directory, self._agent_of)

    # -- from outside ---------------------------------------------------------------------------

    @property
    def keys(self) -> list[str]:
        """What agents call it at this moment."""
        return [group.key for group in self._groups()]

    @property
    def reservation(self) -> str | None:
        """The name of its reservation with the cluster, if it may have one."""
        return self._placed.reservation if self._placed else None

    @property
    def over(self) -> bool:
        """Whether its last event is written."""
        return self._story.over

    def poke(self) -> None:
        """Look at once whether there is something to do."""
        self._changed.set()

    def lose(self, id: str, why: str) -> None:
        """A node, or the agent there, is gone."""
        for group in self._groups():
            group.lose(id, why)
        self.poke()

    def cursors(self, id: str) -> dict[str, msg.Cursor]:
        """Where to go on to listen on a node, by key: logs are continued where our copies end."""
        cursors = {}
        for group in self._groups():
            if part := group.parts.get(id):
                part.cursor = part.cursor or msg.Cursor(logs=self._log_sizes())
                cursors[group.key] = part.cursor
        return cursors

    def take(self, key: str, id: str, news: msg.RunNews | None) -> None:
        """Take in what the agent on a node says; None says that the run is not there."""
        group = next(group for group in self._groups() if group.key == key)
        part = group.parts.get(id)
        if part is None or part.lost:
            return
        if news is None:
            if part.port is not None or (group is self._group and self._begun):
                group.lose(
                    id, f"the run is no longer on node {part.node}; its agent was restarted"
                )
                self.poke()
            return
        for event in news.events:
            self._take_event(group, part, event)
        for name, (offset, chunk) in (news.logs or {}).items():
            if name == "telemetry":
                self._story.samples(chunk)
            else:
                files.write_log(self._logs / f"{name}.log", offset, chunk)
        if news.progress is not None:
            self._story.pass_on(news.progress)
        if news.request is not None:
            part.asked, workers = news.request
            self._story.pass_on(msg.SizeRequest(workers=workers))
        part.words = part.words if news.words is None else news.words
        part.saved = part.saved or news.saved is not None
        part.drained = part.drained or news.drained
        part.cursor = news.cursor
        group.heard()
        self.poke()

    async def live(self) -> None:
        """All of it."""
        verdict = wire.find(msg.Verdict, self.directory)
        try:
            if verdict is None:
                await self._door.open()
                verdict = await self._run()
                text = verdict.reason.text + self._kept
                verdict = verdict.but(reason=verdict.reason.but(text=text))
                wire.write(self.directory, verdict, durable=True)
        finally:
            self._door.close()
            if self._resizing is not None:
                self._resizing.cancel()
        await self._let_go_of_next()
        await self._give_back()
        self._story.end(verdict)
        while not self._story.flush():
            await asyncio.sleep(1.0)  # a full disk; a result is worth the wait

    # -- the stages -----------------------------------------------------------------------------

    async def _run(self) -> msg.Verdict:
        """One set of workers after the other; how the run ended."""
        while True:
            try:
                verdict = await self._bring_up() or await self._watch()
            except (Refused, AgentUnusable) as wrong:
                return self._refused(str(wrong))
            except (AgentSilent, AgentGone) as trouble:  # not the job's fault: it is tried again
                return self._stopped() if self._stop_asked() else _lost(str(trouble))
            if verdict is not None:
                return verdict
            await self._change_size()

    async def _bring_up(self) -> msg.Verdict | None:
        """Have all workers begin, unless they have; how the run ended if it did before."""
        if self._begun:
            self._listen_on(self._group)
        else:
            if self._stop_asked():
                return self._stopped()
            self._logs.mkdir(parents=True, exist_ok=True)
            spec = await self._place()
            if not all(part.port for part in self._group.parts.values()):
                await self._prepare(self._group, spec)
                if (early := await self._all_ready()) is not None:
                    return early
            await self._group.ship(self._areas)
        await self._begin()
        return None

    async def _place(self) -> RunSpec:
        """Find the nodes and reserve what the gang needs there; what the job is."""
        await self._give_back()  # an attempt at this by a process that died
        spec, asked = self._asks(self._order)
        group = self._next or self._choose(self._order, spec)
        for part in group.parts.values():
            if part.lost is not None:
                raise AgentGone(part.lost)
        nodes = {part.node: part.id for part in group.parts.values()}
        placed = msg.Placed(
            nodes=nodes,
            serves={part.node: part.serves for part in group.parts.values()},
            size=self._order.size,
            reservation=f"presage/{group.key}/{secrets.token_hex(4)}",
            grace_s=spec.grace_s,
        )
        self._note(placed)
        self._group, self._next = group, None
        self._listen_on(group)
        pinned = [(nodes[name], dict(bundle)) for name, bundle in asked.items()]
        tell = partial(self._story.event, "StageChanged", number=self._order.size)
        if not await self._cluster.reserve(
            placed.reservation, pinned, _PLACE_S, lambda stage: tell(stage=stage)
        ):
            where = ", ".join(sorted(asked))
            raise AgentSilent(
                f"what the gang needs on {where} could not be reserved within {_PLACE_S:g} s, "
                "since other programs on the cluster hold it"
            )
        return spec

    def _asks(self, order: msg.LaunchOrder) -> tuple[RunSpec, dict[str, dict[str, float]]]:
        """What the job is, and what its workers ask of each node."""
        try:
            spec = RunSpec.load(self._job_file)
        except RunSpecError as error:
            raise Refused(str(error)) from None
        asked = bundles(spec, [Worker(*each) for each in order.workers])
        for name in asked.keys() - self._cluster.nodes.keys():
            raise AgentGone(f"node {name} is not in the cluster now")
        missing = what_is_missing(asked, self._cluster.nodes)
        if missing:
            raise Refused(f"the gang cannot be placed: {missing}")
        return spec, asked

    def _choose(self, order: msg.LaunchOrder, spec: RunSpec) -> WorkerGroup:
        """The workers on the nodes that were chosen; on some, they may only serve the others."""
        serves: dict[str, bool] = {}
        for role, _, node, _ in order.workers:
            serves[node] = serves.get(node, True) and spec.roles[role].name == "ps"
        nodes = {name: self._cluster.nodes[name].id for name in serves}
        return WorkerGroup(self._cluster, self._owner, order, nodes, serves)

    def _muster(self, order: msg.LaunchOrder, placed: msg.Placed | None) -> WorkerGroup:
        """The workers where they were placed, if they were."""
        nodes, serves = (placed.nodes, placed.serves) if placed else ({}, {})
        return WorkerGroup(self._cluster, self._owner, order, nodes, serves)

    async def _prepare(self, group: WorkerGroup, spec: RunSpec) -> None:
        """Bring in what the nodes need, and start the guardians."""
        folder = self._layout.folder(spec.folder) if spec.folder else None
        await group.prepare(self._job_file.read_text(), folder, self._secrets(spec))

    async def _all_ready(self) -> msg.Verdict | None:
        """Wait until the guardians on all nodes are; how the run ended if it did before."""
        parts = self._group.parts.values()
        while not all(part.port is not None or part.over for part in parts):
            if any(part.lost or part.over for part in parts):
                break
            await self._something()
        if all(part.port is not None and not part.lost for part in parts):
            return None
        return await self._watch()

    async def _begin(self) -> None:
        """Let the workers begin, on all nodes."""
        group, placed = self._group, self._where
        if placed.go is None:
            first, began = self._cluster.nodes.get(group.first.node), self._order.began
            go = msg.GoOrder(
                address=first.address if first else "127.0.0.1",
                port=group.first.port,
                ran_s=0.0 if began is None else time.time() - began,
                logs=self._log_sizes(),
            )
            placed = self._note(placed.but(go=go))
        waiting = [p for p in group.parts.values() if p.started_at is None and p.over is None]
        for part in waiting:
            with suppress(AgentSilent, AgentGone):  # it is noticed while watching
                assert placed.go is not None
                await group.call(part, "go", wire.pack(placed.go))

    async def _watch(self) -> msg.Verdict | None:
        """Until all workers are gone; how the run ended, or None if it continues with others."""
        parts = list(self._group.parts.values())
        verdict: msg.Verdict | None = None
        stopping = False
        while True:
            if all(part.started_at is not None for part in parts):
                self._tell_started(parts)
            if not stopping:
                verdict = self._judge(parts) or self._take_resize_further(parts)
                stopping = verdict is not None or self._changing or self._only_servers_left(parts)
                if stopping:
                    lost = any(part.lost for part in parts)
                    grace_s = _LOST_GRACE_S if lost else self._where.grace_s
                    await self._group.stop("exited", "the rest of the run is over", grace_s)
            if stopping:
                await self._tell_who_waits(parts)
            if all(part.gone for part in parts):
                break
            for part in parts:
                if part.lost is None:
                    await self._take_in(part)
            await self._something()
        await self._collect_all(parts)
        return self._conclude(parts, verdict)

    async def _take_in(self, part: RemotePart) -> None:
        """What its news ask for, while it runs."""
        if part.saved and part.collecting is None:
            part.collecting = asyncio.create_task(self._collect(part))
        if part.asked is not None:
            mark, part.asked = part.asked, None
            with suppress(AgentSilent, AgentGone):
                await self._group.call(part, "forget_request", mark)

    async def _collect_all(self, parts: list[RemotePart]) -> None:
        """Bring all that was made here. Rank 0 has the last word on a checkpoint of two nodes."""
        for part in sorted(parts, key=lambda part: part is self._group.first):
            if part.collecting is not None:
                await part.collecting
            if part.lost is None:
                await self._collect(part)
        await self._collect_results(parts)

    def _conclude(
        self, parts: list[RemotePart], verdict: msg.Verdict | None
    ) -> msg.Verdict | None:
        """Nobody runs any more: how the run ended, or None if that was for a resize."""
        lost = next((part.lost for part in parts if part.lost), None)
        if verdict is None and lost is not None:
            return _lost(lost)
        well = all(part.over and part.over.outcome == "succeeded" for part in parts)
        if verdict is None and self._changing and not well:
            return self._stopped() if self._stop_asked() else None
        return verdict or msg.exited("succeeded", "exited", "every worker ended well", 0)

    def _judge(self, parts: list[RemotePart]) -> msg.Verdict | None:
        """What has happened that ends the run, the first of it."""
        lost = [part.lost for part in parts if part.lost]
        if lost:
            return _lost(lost[0])
        if self._changing:
            return None  # they end because they were told to
        ends = sorted((part.over for part in parts if part.over), key=lambda end: end.when)
        for end in ends:
            assert end.reason is not None
            if end.type == "LaunchFailed":
                return self._refused(end.reason.text, may_pass=end.reason.code == "error")
            if end.outcome is not None and end.outcome != "succeeded":
                return msg.exited(end.outcome, end.reason.code, end.reason.text, end.exit_code)
        return None

    def _refused(self, text: str, *, may_pass: bool = False) -> msg.Verdict:
        if self._order.size:
            return _not_resized(text)
        return msg.refused(text, may_pass=may_pass)

    async def _tell_who_waits(self, parts: list[RemotePart]) -> None:
        """Rank 0 saves for all, and the others wait for that (`presage.job`). On other nodes they
        cannot see it: tell them when the node of rank 0 is done."""
        if self._group.first.over is None:
            return
        for part in parts:
            if part.over is None and part.lost is None and not part.released:
                part.released = True
                with suppress(AgentSilent, AgentGone):
                    await self._group.call(part, "release")

    # -- other workers --------------------------------------------------------------------------

    @property
    def _changing(self) -> bool:
        """Whether the workers are being stopped so that others can take their place."""
        return self._placed is not None and self._placed.changing

    def _take_resize_further(self, parts: list[RemotePart]) -> msg.Verdict | None:
        """Begin with a resize, or go on with it when what is to come is ready; how the run ends
        if it cannot be resized. A run that is coming to its end keeps its size."""
        if any(part.started_at is None or part.over is not None for part in parts):
            return None
        if self._resizing is None:
            asked = wire.find(msg.ResizeOrder, self.directory)
            if asked is not None and asked.number > self._order.size:
                self._story.event("StageChanged", stage="resizing", number=self._order.size)
                self._resizing = asyncio.create_task(self._make_way(asked))
                self._resizing.add_done_callback(lambda _: self.poke())
        elif self._resizing.done():
            try:
                self._resizing.result()
            except (Refused, AgentUnusable) as wrong:
                return _not_resized(str(wrong))
            except (AgentSilent, AgentGone) as trouble:
                return _lost(str(trouble))
            self._note(self._where.but(changing=True))
        return None

    async def _make_way(self, asked: msg.ResizeOrder) -> None:
        """Bring up the workers that are to come, while the present ones go on; then have these
        stand still. Where nothing can run beside them, the others come when they are gone."""
        order = self._order.but(workers=asked.target, size=asked.number)
        spec, _ = self._asks(order)
        if not self._cluster.beside:
            await self._group.hold(asked.number, len(asked.target), self._where.grace_s)
            return
        self._next = self._choose(order, spec)
        self._listen_on(self._next)
        preparing = asyncio.create_task(self._prepare(self._next, spec))
        try:
            await asyncio.shield(preparing)
        finally:  # a call that is under way cannot be taken back
            await asyncio.wait([preparing])
        await self._next.until_ready()
        await self._group.hold(asked.number, len(asked.target), self._where.grace_s)

    async def _let_go_of_next(self) -> None:
        """The run is over before its workers changed: leave nothing of those that were to come."""
        if self._resizing is not None:
            await asyncio.wait([self._resizing])
        if self._next is not None:
            await self._next.drop()

    async def _change_size(self) -> None:
        """Everybody has stopped: be the run of the workers that were asked for."""
        began = min(part.started_at or time.time() for part in self._group.parts.values())
        await self._give_back()
        order = self._order.but(began=began if self._order.began is None else self._order.began)
        if self._next is not None:  # there may be a later wish by now
            order = order.but(workers=self._next.order.workers, size=self._next.order.size)
        else:
            asked = wire.read(msg.ResizeOrder, self.directory)
            order = order.but(workers=asked.target, size=asked.number)
        self._group = self._muster(self._order, None)
        self._placed, self._resizing, self._order = None, None, order
        wire.write(self.directory, order, durable=True)

    def _only_servers_left(self, parts: list[RemotePart]) -> bool:
        left = [part for part in parts if part.over is None]
        return bool(left) and len(left) < len(parts) and all(part.serves for part in left)

    async def _give_back(self) -> None:
        """Leave nothing of the present workers on any node that can be reached, nor with the
        cluster."""
        await self._group.drop()
        if self.reservation:
            await self._cluster.release(self.reservation)

    def _agent_of(self, worker: str) -> files.AgentCall:
        """How to ask the agent on the node of a worker, which is told by name or rank."""
        try:
            roles = RunSpec.load(self._job_file).roles
        except RunSpecError as error:
            raise Refusal(str(error)) from None
        group = self._group
        for rank, (role, index, node, _) in enumerate(sorted(group.order.workers)):
            if worker in (f"{roles[role].name}-{index}", str(rank)):
                part = next((p for p in group.parts.values() if p.node == node), None)
                if part is None or part.gone or not self._begun:
                    raise Refusal(f"{worker} does not run at the moment")
                return partial(group.call, part)
        raise Refusal(f"there is no worker {worker[:80]!r}")

    # -- files ----------------------------------------------------------------------------------

    async def _collect(self, part: RemotePart) -> None:
        """Take over the checkpoints that the workers on a node have made."""
        part.saved = False
        with suppress(AgentSilent, AgentGone):
            area, ask = "checkpoints", partial(self._group.call, part)
            if area in self._areas and (saved := await ask("saved")):
                staged = self.directory / f"{area}-{part.id}.new"
                there = wire.unpack(msg.Saved, saved)
                await files.take_over(ask, area, there, self._areas[area], staged)
        part.collecting = None
        self.poke()

    async def _collect_results(self, parts: list[RemotePart]) -> None:
        """Bring what the workers left, the node of rank 0 first, and say what there is."""
        order = list(dict.fromkeys(node for _, _, node, _ in sorted(self._order.workers)))
        there = sorted((part for part in parts if part.over), key=lambda p: order.index(p.node))
        asking = [(p.node, partial(self._group.call, p)) for p in there if p.lost is None]
        results, staged = self._areas["results"], self.directory / "results.new"
        try:
            spec = RunSpec.load(self._job_file)
            left_out = await collecting.collect(asking, results, staged, spec.most_results)
            note = keeping.survey(results, self._order.attempt, spec.results, left_out)
            if note is not None:
                wire.write(results.parent, note, durable=True)
            self._kept = keeping.said(note, spec.most_results)
        except (OSError, RunSpecError) as error:
            self._kept = f"; its results could not be kept: {error}"

    def _secrets(self, spec: RunSpec) -> dict[str, str]:
        secrets = {}
        for name, ref in spec.secrets.items():
            try:
                secrets[name] = secret_path(self._layout, spec, ref).read_text().rstrip("\n")
            except RunSpecError as error:
                raise Refused(str(error)) from None
            except (OSError, ValueError):
                raise Refused(f"there is no secret {ref!r} that can be read, for {name}") from None
        return secrets

    # -- events ---------------------------------------------------------------------------

    def _take_event(self, group: WorkerGroup, part: RemotePart, event: msg.Event) -> None:
        if event.type == "Ready":
            part.port = event.port
        elif event.type == "JobStarted":
            part.started_at = event.at
        elif event.type == "StageChanged" and group is self._group and not self._changing:
            self._story.event(event.type, stage=event.stage, number=self._order.size)
        elif event.is_end:
            part.over = event

    def _tell_started(self, parts: list[RemotePart]) -> None:
        self._story.event("JobStarted", at=max(part.started_at or 0.0 for part in parts))
        if size := self._order.size:
            self._story.event("JobResized", number=size)
            self._story.event("StageChanged", stage="", number=size)

    # -- helpers --------------------------------------------------------------------------------

    def _groups(self) -> list[WorkerGroup]:
        """The present workers, then those that are to come."""
        return [self._group] if self._next is None else [self._group, self._next]

    def _listen_on(self, group: WorkerGroup) -> None:
        for id in group.parts:
            self._listen(id)

    async def _something(self) -> None:
        """Until something has changed."""
        if not self._asked_to_stop and self._stop_asked():
            self._asked_to_stop = True
            asked = self._stopped().reason
            await self._group.stop(asked.code, asked.text, self._where.grace_s)
        await self._changed.wait()
        self._changed.clear()

    def _stop_asked(self) -> bool:
        return (self.directory / msg.StopOrder.FILE).exists()

    def _stopped(self) -> msg.Verdict:
        with suppress(OSError, wire.MessageError):
            asked = wire.read(msg.StopOrder, self.directory)
            return msg.exited("stopped", asked.code, asked.text)
        return msg.exited("stopped", "requested", "stopped")

    @property
    def _where(self) -> msg.Placed:
        """Where the workers are, once they are placed."""
        assert self._placed is not None
        return self._placed

    @property
    def _begun(self) -> bool:
        """Whether workers may have begun."""
        return self._placed is not None and self._placed.go is not None

    def _note(self, placed: msg.Placed) -> msg.Placed:
        """Remember where the workers are, also for the next process."""
        self._placed = placed
        wire.write(self.directory, placed, durable=True)
        return placed

    def _log_sizes(self) -> dict[str, int]:
        """How long our copies of the logs are, which the workers continue."""
        return {path.stem: path.stat().st_size for path in self._logs.glob("*.log")}


def _not_resized(text: str) -> msg.Verdict:
    """The run ends because it could not be resized."""
    return msg.exited("failed", "error", f"it could not be resized: {text}")


def _lost(text: str) -> msg.Verdict:
    return msg.exited("lost", "node_lost", f"{text}; the job goes on from its last checkpoint")
