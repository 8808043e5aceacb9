"""One run on a Ray cluster as the server's side sees it: placed, started, watched, taken in.

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
import json
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from presage.executors import _ray_files
from presage.executors._plan import Places
from presage.executors._ray_cluster import AgentGone, AgentSilent, AgentUnusable, Cluster
from presage.executors._ray_crew import Crew, Part, Refused
from presage.executors._ray_place import bundles, gpus_asked, what_is_missing
from presage.executors._ray_story import Story
from presage.executors._runspec import RunSpec, RunSpecError
from presage.model.cluster import Worker

__all__ = ["GangRun"]

_PLACE_S = 20.0
"""How long a gang that fits may wait for what Ray has promised to others."""
_LOST_GRACE_S = 5.0
"""Time that the rest of a gang has to save when a node is lost: it can rarely go on."""


class GangRun:
    """A run from its launch to its last event."""

    def __init__(
        self,
        places: Places,
        owner: str,
        directory: Path,
        cluster: Cluster,
        listen: Callable[[str], None],
    ) -> None:
        self.directory = directory
        self._order = json.loads((directory / "launch.json").read_bytes())
        self.job: str = self._order["job"]
        self.attempt: int = self._order["attempt"]
        self._owner = owner
        self._places = places
        self._cluster = cluster
        self._listen = listen
        """Has the news of a node (by id) passed on to its runs."""
        self._home = places.job(self.job)
        self._logs = places.logs(self.job, self.attempt)
        self._story = Story(places, directory, self.job, self.attempt)
        self._changed = asyncio.Event()
        self._asked_to_stop = False
        self._placed: dict[str, Any] = self._read("placed.json") or {}
        if self._placed.get("size") != self._size:  # of the workers before a resize
            self._placed = {}
        self._crew = self._muster(self._order, self._placed)
        self._next: Crew | None = None
        """The workers that get ready to take the place of the present ones."""
        self._resizing: asyncio.Task[None] | None = None

    # -- from outside ---------------------------------------------------------------------------

    @property
    def keys(self) -> list[str]:
        """What agents call it at this moment."""
        return [crew.key for crew in self._crews()]

    @property
    def _size(self) -> int:
        """Number of the latest resize that was begun; 0 before the first."""
        return int(self._order.get("size", 0))

    @property
    def reservation(self) -> str | None:
        """The name of its reservation with Ray, if it may have one."""
        return self._placed.get("reservation")

    @property
    def over(self) -> bool:
        """Whether its last event is written."""
        return self._story.over

    def poke(self) -> None:
        """Look at once whether there is something to do."""
        self._changed.set()

    def lose(self, id: str, why: str) -> None:
        """A node, or the agent there, is gone."""
        for crew in self._crews():
            crew.lose(id, why)
        self.poke()

    def cursors(self, id: str) -> dict[str, dict[str, Any]]:
        """Where to go on to listen on a node, by key: logs are continued where our copies end."""
        found = {}
        for crew in self._crews():
            if part := crew.parts.get(id):
                if not part.cursor:
                    logs = {path.stem: path.stat().st_size for path in self._logs.glob("*.log")}
                    part.cursor = {"logs": logs}
                found[crew.key] = part.cursor
        return found

    def take(self, key: str, id: str, news: dict[str, Any] | None) -> None:
        """Take in what the agent on a node says; None says that the run is not there."""
        crew = next(crew for crew in self._crews() if crew.key == key)
        part = crew.parts.get(id)
        if part is None or part.lost:
            return
        if news is None:
            if part.port is not None or (crew is self._crew and self._placed.get("go")):
                crew.lose(id, f"the run is no longer on node {part.node}; its agent was restarted")
                self.poke()
            return
        for event in news.get("events", ()):
            self._take_event(crew, part, event)
        for name, (offset, chunk) in news.get("logs", {}).items():
            if name == "telemetry":
                self._story.samples(chunk)
            else:
                _ray_files.write_log(self._logs / f"{name}.log", offset, chunk)
        if "progress" in news:
            self._story.progress(news["progress"])
        if "request" in news:
            part.asked, workers = news["request"]
            self._story.request(workers)
        part.words = news.get("words", part.words)
        part.saved = part.saved or "saved" in news
        part.drained = part.drained or news.get("drained", False)
        part.cursor = news["cursor"]
        crew.heard()
        self.poke()

    async def live(self) -> None:
        """All of it."""
        verdict = self._read("verdict.json")
        try:
            if verdict is None:
                verdict = await self._run()
                self._write("verdict.json", verdict)
        finally:
            if self._resizing is not None:
                self._resizing.cancel()
        await self._let_go_of_next()
        await self._give_back()
        self._story.tell(verdict.pop("type"), **verdict)
        while not self._story.flush():
            await asyncio.sleep(1.0)  # a full disk; a result is worth the wait

    # -- the stages -----------------------------------------------------------------------------

    async def _run(self) -> dict[str, Any]:
        """One set of workers after the other; how the run ended."""
        while True:
            try:
                verdict = await self._bring_up() or await self._watch()
            except (Refused, AgentUnusable) as refused:
                return self._refused(str(refused))
            except (AgentSilent, AgentGone) as trouble:  # not the job's fault: it is tried again
                return _lost(str(trouble))
            if verdict is not None:
                return verdict
            await self._change_size()

    async def _bring_up(self) -> dict[str, Any] | None:
        """Have all workers begin, unless they have; how the run ended if it did before."""
        if self._placed.get("go"):
            self._listen_on(self._crew)
        else:
            if self._stop_asked():
                return self._stopped()
            self._logs.mkdir(parents=True, exist_ok=True)
            spec = await self._place()
            if not all(part.port for part in self._crew.parts.values()):
                await self._prepare(self._crew, spec)
                if (early := await self._all_ready()) is not None:
                    return early
            await self._crew.ship(self._home)
        await self._begin()
        return None

    async def _place(self) -> RunSpec:
        """Find the nodes and reserve what the gang needs there; what the job is."""
        await self._give_back()  # an attempt at this by a process that died
        spec, asked = self._asks(self._order)
        crew = self._next or self._muster(self._order, self._choose(self._order, spec))
        for part in crew.parts.values():
            if part.lost is not None:
                raise AgentGone(part.lost)
        nodes = {part.node: part.id for part in crew.parts.values()}
        self._placed = {
            "nodes": nodes,
            "serves": {part.node: part.serves for part in crew.parts.values()},
            "size": self._size,
            "reservation": f"presage/{crew.key}/{secrets.token_hex(4)}",
            "grace_s": spec.grace_s,
        }
        self._write("placed.json", self._placed)
        self._crew, self._next = crew, None
        self._listen_on(crew)
        pinned = [(nodes[name], dict(bundle)) for name, bundle in asked.items()]
        if not await self._cluster.reserve(self._placed["reservation"], pinned, _PLACE_S):
            where = ", ".join(sorted(asked))
            raise AgentSilent(
                f"Ray could not reserve what the gang needs on {where} within {_PLACE_S:g} s, "
                "since other programs on the cluster hold it"
            )
        return spec

    def _asks(self, order: dict[str, Any]) -> tuple[RunSpec, dict[str, dict[str, float]]]:
        """What the job is, and what its workers ask of each node."""
        try:
            spec = RunSpec.load(self._home / "job.json")
            manifest = json.loads((self._home / "job.json").read_bytes())["manifest"]
        except RunSpecError as error:
            raise Refused(str(error)) from None
        workers = [Worker(r, i, node, tuple(d)) for r, i, node, d in order["workers"]]
        asked = bundles(spec, gpus_asked(manifest), workers)
        for name in asked.keys() - self._cluster.nodes.keys():
            raise AgentGone(f"node {name} is not in the Ray cluster now")
        missing = what_is_missing(asked, self._cluster.nodes)
        if missing:
            raise Refused(f"the gang cannot be placed: {missing}")
        return spec, asked

    def _choose(self, order: dict[str, Any], spec: RunSpec) -> dict[str, Any]:
        """The nodes with their ids, and whether the workers on each only serve the others."""
        serves: dict[str, bool] = {}
        for role, _, node, _ in order["workers"]:
            serves[node] = serves.get(node, True) and spec.roles[role].name == "ps"
        return {"nodes": {name: self._cluster.nodes[name].id for name in serves}, "serves": serves}

    def _muster(self, order: dict[str, Any], placed: dict[str, Any]) -> Crew:
        nodes, serves = placed.get("nodes", {}), placed.get("serves", {})
        return Crew(self._cluster, self._owner, order, nodes, serves)

    async def _prepare(self, crew: Crew, spec: RunSpec) -> None:
        """Bring in what the nodes need, and start the guardians."""
        folder = self._places.data / "folders" / f"{spec.folder}.tar.gz" if spec.folder else None
        await crew.prepare((self._home / "job.json").read_text(), folder, self._secrets(spec))

    async def _all_ready(self) -> dict[str, Any] | None:
        """Wait until the guardians on all nodes are; how the run ended if it did before."""
        parts = self._crew.parts.values()
        while not all(part.port is not None or part.over for part in parts):
            if any(part.lost or part.over for part in parts):
                break
            await self._something()
        if all(part.port is not None and not part.lost for part in parts):
            return None
        return await self._watch()

    async def _begin(self) -> None:
        """Let the workers begin, on all nodes."""
        crew = self._crew
        if not self._placed.get("go"):
            first = self._cluster.nodes.get(crew.first.node)
            began = self._order.get("began")
            self._placed["go"] = {
                "address": first.address if first else "127.0.0.1",
                "port": crew.first.port,
                "ran_s": 0.0 if began is None else time.time() - began,
                "logs": {path.stem: path.stat().st_size for path in self._logs.glob("*.log")},
            }
            self._write("placed.json", self._placed)
        waiting = [p for p in crew.parts.values() if p.started_at is None and p.over is None]
        for part in waiting:
            with suppress(AgentSilent, AgentGone):  # it is noticed while watching
                await crew.call(part, "go", self._placed["go"])

    async def _watch(self) -> dict[str, Any] | None:
        """Until all workers are gone; how the run ended, or None if it goes on with others."""
        parts = list(self._crew.parts.values())
        verdict: dict[str, Any] | None = None
        stopping = False
        while True:
            if all(part.started_at is not None for part in parts):
                self._tell_started(parts)
            if not stopping:
                verdict = self._judge(parts) or self._take_resize_further(parts)
                stopping = verdict is not None or self._changing or self._only_servers_left(parts)
                if stopping:
                    lost = any(part.lost for part in parts)
                    grace_s = _LOST_GRACE_S if lost else self._placed["grace_s"]
                    await self._crew.stop("exited", "the rest of the run is over", grace_s)
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

    async def _take_in(self, part: Part) -> None:
        """What its news ask for, while it runs."""
        if part.saved and part.collecting is None:
            part.collecting = asyncio.create_task(self._collect(part))
        if part.asked is not None:
            mark, part.asked = part.asked, None
            with suppress(AgentSilent, AgentGone):
                await self._crew.call(part, "forget_request", mark)

    async def _collect_all(self, parts: list[Part]) -> None:
        """Bring all that was made here. Rank 0 has the last word on a result of two nodes."""
        for part in sorted(parts, key=lambda part: part is self._crew.first):
            if part.collecting is not None:
                await part.collecting
            if part.lost is None:
                await self._collect(part)
                await self._collect_results(part)

    def _conclude(
        self, parts: list[Part], verdict: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        """Nobody runs any more: how the run ended, or None if that was for a resize."""
        lost = next((part.lost for part in parts if part.lost), None)
        if verdict is None and lost is not None:
            return _lost(lost)
        well = all(part.over and part.over.get("outcome") == "succeeded" for part in parts)
        if verdict is None and self._changing and not well:
            return self._stopped() if self._stop_asked() else None
        return verdict or _exited("succeeded", "exited", "every worker ended well", 0)

    def _judge(self, parts: list[Part]) -> dict[str, Any] | None:
        """What has happened that ends the run, the first of it."""
        lost = [part.lost for part in parts if part.lost]
        if lost:
            return _lost(lost[0])
        if self._changing:
            return None  # they end because they were told to
        ends = sorted((part.over for part in parts if part.over), key=lambda end: end["when"])
        for end in ends:
            if end["type"] == "LaunchFailed":
                return self._refused(end["reason"]["text"])
            if end["outcome"] != "succeeded":
                reason = end["reason"]
                return _exited(
                    end["outcome"], reason["code"], reason["text"], end.get("exit_code")
                )
        return None

    def _refused(self, text: str) -> dict[str, Any]:
        if self._size:
            return _exited("failed", "error", f"it could not be resized: {text}", None)
        return {"type": "LaunchFailed", "reason": {"code": "launch_failed", "text": text}}

    async def _tell_who_waits(self, parts: list[Part]) -> None:
        """Rank 0 saves for all, and the others wait for that (`presage.job`). On other nodes they
        cannot see it: tell them when the node of rank 0 is done."""
        if self._crew.first.over is None:
            return
        for part in parts:
            if part.over is None and part.lost is None and not part.released:
                part.released = True
                with suppress(AgentSilent, AgentGone):
                    await self._crew.call(part, "release")

    # -- other workers --------------------------------------------------------------------------

    @property
    def _changing(self) -> bool:
        """Whether the workers are being stopped so that others can take their place."""
        return bool(self._placed.get("changing"))

    def _take_resize_further(self, parts: list[Part]) -> dict[str, Any] | None:
        """Begin with a resize, or go on with it when what is to come is ready; how the run ends
        if it cannot be resized. A run that is coming to its end keeps its size."""
        if any(part.started_at is None or part.over is not None for part in parts):
            return None
        if self._resizing is None:
            asked = self._read("resize.json")
            if asked is not None and asked["number"] > self._size:
                self._story.tell("StageChanged", stage="resizing", number=self._size)
                self._resizing = asyncio.create_task(self._make_way(asked))
                self._resizing.add_done_callback(lambda _: self.poke())
        elif self._resizing.done():
            try:
                self._resizing.result()
            except (Refused, AgentUnusable) as refused:
                return _exited("failed", "error", f"it could not be resized: {refused}", None)
            except (AgentSilent, AgentGone) as trouble:
                return _lost(str(trouble))
            self._placed["changing"] = True
            self._write("placed.json", self._placed)
        return None

    async def _make_way(self, asked: dict[str, Any]) -> None:
        """Bring up the workers that are to come, while the present ones go on; then have these
        stand still."""
        order = {**self._order, "workers": asked["target"], "size": asked["number"]}
        spec, _ = self._asks(order)
        self._next = self._muster(order, self._choose(order, spec))
        self._listen_on(self._next)
        preparing = asyncio.create_task(self._prepare(self._next, spec))
        try:
            await asyncio.shield(preparing)
        finally:  # a call that is under way cannot be taken back
            await asyncio.wait([preparing])
        await self._next.until_ready()
        await self._crew.hold(asked["number"], len(asked["target"]), self._placed["grace_s"])

    async def _let_go_of_next(self) -> None:
        """The run is over before its workers changed: leave nothing of those that were to come."""
        if self._resizing is not None:
            await asyncio.wait([self._resizing])
        if self._next is not None:
            await self._next.drop()

    async def _change_size(self) -> None:
        """Everybody has stopped: be the run of the workers that were asked for."""
        began = min(part.started_at or time.time() for part in self._crew.parts.values())
        await self._give_back()
        asked = self._read("resize.json") or {}
        order = {"workers": asked["target"], "size": asked["number"]}
        if self._next is not None:  # there may be a later wish by now
            order = {name: self._next.order[name] for name in order}
        self._crew = self._muster(self._order, {})
        self._placed, self._resizing = {}, None
        self._order = {"began": began, **self._order, **order}
        self._write("launch.json", self._order)

    def _only_servers_left(self, parts: list[Part]) -> bool:
        left = [part for part in parts if part.over is None]
        return bool(left) and len(left) < len(parts) and all(part.serves for part in left)

    async def _give_back(self) -> None:
        """Leave nothing of the present workers on any node that can be reached, nor with Ray."""
        await self._crew.drop()
        if self.reservation:
            await self._cluster.release(self.reservation)

    # -- files ----------------------------------------------------------------------------------

    async def _collect(self, part: Part) -> None:
        """Take over the checkpoints that the workers on a node have made."""
        part.saved = False
        with suppress(AgentSilent, AgentGone):
            if not self._order["shared"] and (saved := await self._crew.call(part, "saved")):
                area, staged = "checkpoints", self.directory / f"checkpoints-{part.id}.new"
                ask = partial(self._crew.call, part)
                await _ray_files.take_over(ask, area, saved, self._home / area, staged)
        part.collecting = None
        self.poke()

    async def _collect_results(self, part: Part) -> None:
        with suppress(AgentSilent, AgentGone):
            area, staged = "results", self.directory / f"results-{part.id}.new"
            await _ray_files.add_to(
                partial(self._crew.call, part), area, self._home / area, staged
            )

    def _secrets(self, spec: RunSpec) -> dict[str, str]:
        found = {}
        place = self._places.data / "secrets"
        for name, ref in spec.secrets.items():
            path = place / ref
            try:
                if path.parent != place:
                    raise ValueError
                found[name] = path.read_text().rstrip("\n")
            except (OSError, ValueError):
                raise Refused(f"there is no secret {ref!r} that can be read, for {name}") from None
        return found

    # -- what is told ---------------------------------------------------------------------------

    def _take_event(self, crew: Crew, part: Part, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "Ready":
            part.port = event["port"]
        elif kind == "JobStarted":
            part.started_at = event["at"]
        elif kind == "StageChanged" and crew is self._crew and not self._changing:
            self._story.tell(kind, stage=event["stage"], number=self._size)
        elif kind in ("JobExited", "LaunchFailed"):
            part.over = event

    def _tell_started(self, parts: list[Part]) -> None:
        self._story.tell("JobStarted", at=max(part.started_at or 0.0 for part in parts))
        if self._size:
            self._story.tell("JobResized", number=self._size)
            self._story.tell("StageChanged", stage="", number=self._size)

    # -- helpers --------------------------------------------------------------------------------

    def _crews(self) -> list[Crew]:
        """The present workers, then those that are to come."""
        return [self._crew] if self._next is None else [self._crew, self._next]

    def _listen_on(self, crew: Crew) -> None:
        for id in crew.parts:
            self._listen(id)

    async def _something(self) -> None:
        """Until something has changed."""
        if not self._asked_to_stop and (asked := self._read("stop.json")):
            self._asked_to_stop = True
            await self._crew.stop(asked["code"], asked["text"], self._placed["grace_s"])
        await self._changed.wait()
        self._changed.clear()

    def _stop_asked(self) -> bool:
        return (self.directory / "stop.json").exists()

    def _stopped(self) -> dict[str, Any]:
        asked = self._read("stop.json") or {"code": "requested", "text": "stopped"}
        return _exited("stopped", asked["code"], asked["text"], None)

    def _read(self, name: str) -> dict[str, Any] | None:
        with suppress(OSError, ValueError):
            body: dict[str, Any] = json.loads((self.directory / name).read_bytes())
            return body
        return None

    def _write(self, name: str, body: dict[str, Any]) -> None:
        new = self.directory / f"{name}.new"
        with new.open("w") as file:
            json.dump(body, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.directory / name)


def _exited(outcome: str, code: str, text: str, exit_code: int | None) -> dict[str, Any]:
    reason = {"code": code, "text": text}
    return {"type": "JobExited", "outcome": outcome, "reason": reason, "exit_code": exit_code}


def _lost(text: str) -> dict[str, Any]:
    text = f"{text}; the job goes on from its last checkpoint"
    return _exited("lost", "node_lost", text, None)
