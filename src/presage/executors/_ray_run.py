"""One run on a Ray cluster as the server's side sees it: placed, started, watched, taken in.

Everything that must outlive this process is in the directory of the run on the server:
`launch.json` (what to start), `placed.json` (where, and whether workers may have begun),
`resize.json` (it is to have other workers), `stop.json` (it must stop), `verdict.json` (how it
ended), `events.jsonl` (what was told). Whoever dies, the next one reads these and goes on.

A resize stops all workers after a checkpoint and starts the new set in the same attempt, like the
first one: placed, prepared, begun. `size` in `launch.json` is the number of the latest.
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
from presage.executors._ray_place import bundles, gpus_asked, what_is_missing
from presage.executors._ray_story import Story
from presage.executors._runspec import RunSpec, RunSpecError
from presage.model.cluster import Worker

__all__ = ["GangRun"]

_PLACE_S = 20.0
"""How long a gang that fits may wait for what Ray has promised to others."""
_LOST_GRACE_S = 5.0
"""Time that the rest of a gang has to save when a node is lost: it can rarely go on."""
_CALL_S = 30.0


class Refused(Exception):
    """The run cannot be started; the text is for the owner of the job."""


class _Part:
    """The workers of the run on one node."""

    def __init__(self, node: str, id: str, serves: bool) -> None:
        self.node = node
        self.id = id
        self.serves = serves
        """Whether none of its workers ends by itself."""
        self.cursor: dict[str, Any] = {}
        self.port: int | None = None
        self.started_at: float | None = None
        self.over: dict[str, Any] | None = None
        self.lost: str | None = None
        self.drained = False
        self.released = False
        """Whether it was told that rank 0 has saved and ended."""
        self.saved = False
        """Whether checkpoints may be there and not yet here."""
        self.asked: int | None = None
        """The wish for workers that was written down here and not yet taken away there."""
        self.collecting: asyncio.Task[None] | None = None

    @property
    def gone(self) -> bool:
        """Whether nothing more will come from it."""
        return self.lost is not None or (self.over is not None and self.drained)


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
        self.parts: dict[str, _Part] = {}
        self._placed: dict[str, Any] = self._read("placed.json") or {}
        if self._placed.get("size") != self._size:  # of the workers before a resize
            self._placed = {}
        for node, id in self._placed.get("nodes", {}).items():
            self.parts[id] = _Part(node, id, self._placed["serves"][node])

    # -- from outside ---------------------------------------------------------------------------

    @property
    def key(self) -> str:
        """What agents call it. It changes with the size, so that nothing they say of the workers
        before is taken for news of those after."""
        size = f".{self._size}" if self._size else ""
        return f"{self._owner}/{self.job}/{self.attempt}{size}"

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
        part = self.parts.get(id)
        if part is not None and not part.gone:
            alive = any(node.id == id for node in self._cluster.nodes.values())
            part.lost = why if alive else f"node {part.node} went away"
            self.poke()

    def take(self, id: str, news: dict[str, Any] | None) -> None:
        """Take in what the agent on a node says; None says that the run is not there."""
        part = self.parts.get(id)
        if part is None or part.lost:
            return
        if news is None:
            if self._placed.get("go") or part.port is not None:
                self.lose(id, f"the run is no longer on node {part.node}; its agent was restarted")
            return
        for event in news.get("events", ()):
            self._take_event(part, event)
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
        part.saved = part.saved or "saved" in news
        part.drained = part.drained or news.get("drained", False)
        part.cursor = news["cursor"]
        self.poke()

    def first_cursor(self, part: _Part) -> dict[str, Any]:
        """Where to begin to listen: logs are continued where our copies end."""
        if not part.cursor:
            logs = {path.stem: path.stat().st_size for path in self._logs.glob("*.log")}
            part.cursor = {"logs": logs}
        return part.cursor

    async def live(self) -> None:
        """All of it."""
        verdict = self._read("verdict.json")
        if verdict is None:
            verdict = await self._run()
            self._write("verdict.json", verdict)
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
            self._listen_on_all()
        else:
            if self._stop_asked():
                return self._stopped()
            self._logs.mkdir(parents=True, exist_ok=True)
            await self._place()
            await self._prepare()
            if (early := await self._all_ready()) is not None:
                return early
        await self._begin()
        return None

    async def _place(self) -> None:
        """Find the nodes and reserve what the gang needs there."""
        await self._give_back()  # an attempt at this by a process that died
        try:
            spec = RunSpec.load(self._home / "job.json")
            manifest = json.loads((self._home / "job.json").read_bytes())["manifest"]
        except RunSpecError as error:
            raise Refused(str(error)) from None
        workers = [Worker(r, i, node, tuple(d)) for r, i, node, d in self._order["workers"]]
        asked = bundles(spec, gpus_asked(manifest), workers)
        for name in asked.keys() - self._cluster.nodes.keys():
            raise AgentGone(f"node {name} is not in the Ray cluster now")
        missing = what_is_missing(asked, self._cluster.nodes)
        if missing:
            raise Refused(f"the gang cannot be placed: {missing}")
        nodes = {name: self._cluster.nodes[name].id for name in asked}
        serving = {
            name: all(spec.roles[w.role].name == "ps" for w in workers if w.node == name)
            for name in asked
        }
        self._placed = {
            "nodes": nodes,
            "serves": serving,
            "size": self._size,
            "reservation": f"presage/{self.key}/{secrets.token_hex(4)}",
            "grace_s": spec.grace_s,
        }
        self._write("placed.json", self._placed)
        self.parts = {id: _Part(name, id, serving[name]) for name, id in nodes.items()}
        self._listen_on_all()
        pinned = [(nodes[name], dict(bundle)) for name, bundle in asked.items()]
        if not await self._cluster.reserve(self._placed["reservation"], pinned, _PLACE_S):
            where = ", ".join(sorted(asked))
            raise AgentSilent(
                f"Ray could not reserve what the gang needs on {where} within {_PLACE_S:g} s, "
                "since other programs on the cluster hold it"
            )
        self._spec = spec

    async def _prepare(self) -> None:
        """Bring in what the nodes need, and start the guardians."""
        content = self._secrets(self._spec)
        order = {
            **self._order,
            "spec": (self._home / "job.json").read_text(),
            "logs": {path.stem: path.stat().st_size for path in self._logs.glob("*.log")},
            "ran_s": time.time() - self._order["began"] if "began" in self._order else 0.0,
        }
        outcomes = await asyncio.gather(
            *(self._prepare_on(part, order, content) for part in self.parts.values()),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _prepare_on(
        self, part: _Part, order: dict[str, Any], content: dict[str, str]
    ) -> None:
        ask = partial(self._call, part)
        wrong = await ask("make", {**order, "node": part.node})
        if wrong:
            raise Refused(wrong)
        if self._spec.folder:
            name = f"{self._spec.folder}.tar.gz"
            with suppress(FileNotFoundError):  # the guardian says so in better words
                await _ray_files.send(ask, "folders", self._places.data / "folders", name)
        areas = [] if self._order["shared"] else ["checkpoints"]
        if part.node == self._first_node():
            areas.append("results")  # those of workers before, which rank 0 may go on with
        for area in areas:
            for unit in _ray_files.listing(self._home / area).values():
                for name in unit:
                    await _ray_files.send(ask, area, self._home / area, name)
        wrong = await ask("start", content)
        if wrong:
            raise Refused(wrong)

    async def _all_ready(self) -> dict[str, Any] | None:
        """Wait until the guardians on all nodes are; how the run ended if it did before."""
        while not all(part.port is not None or part.over for part in self.parts.values()):
            if any(part.lost or part.over for part in self.parts.values()):
                break
            await self._next()
        if all(part.port is not None and not part.lost for part in self.parts.values()):
            return None
        return await self._watch()

    async def _begin(self) -> None:
        """Let the workers begin, on all nodes."""
        if not self._placed.get("go"):
            first = self._cluster.nodes.get(self._first_node())
            ports = {part.node: part.port for part in self.parts.values()}
            address = first.address if first else "127.0.0.1"
            go = {"address": address, "port": ports[self._first_node()]}
            self._placed["go"] = go
            self._write("placed.json", self._placed)
        for part in self.parts.values():
            if part.started_at is None and part.over is None:
                with suppress(AgentSilent, AgentGone):  # it is noticed while watching
                    await self._call(part, "go", self._placed["go"])

    async def _watch(self) -> dict[str, Any] | None:
        """Until all workers are gone; how the run ended, or None if it goes on with others."""
        parts = list(self.parts.values())
        verdict: dict[str, Any] | None = None
        stopping = False
        while True:
            if all(part.started_at is not None for part in parts):
                self._tell_started(parts)
            if not stopping:
                verdict = self._judge(parts)
                if verdict is None and self._resize_is_due(parts):
                    self._begin_change()
                stopping = verdict is not None or self._changing or self._only_servers_left(parts)
                if stopping:
                    lost = any(part.lost for part in parts)
                    grace_s = _LOST_GRACE_S if lost else self._placed["grace_s"]
                    await self._stop_all("exited", "the rest of the run is over", grace_s)
            if stopping:
                await self._tell_who_waits(parts)
            if all(part.gone for part in parts):
                break
            for part in parts:
                if part.lost is None:
                    await self._take_in(part)
            await self._next()
        await self._collect_all(parts)
        return self._conclude(parts, verdict)

    async def _take_in(self, part: _Part) -> None:
        """What its news ask for, while it runs."""
        if part.saved and part.collecting is None:
            part.collecting = asyncio.create_task(self._collect(part))
        if part.asked is not None:
            mark, part.asked = part.asked, None
            with suppress(AgentSilent, AgentGone):
                await self._call(part, "forget_request", mark)

    async def _collect_all(self, parts: list[_Part]) -> None:
        """Bring all that was made here. Rank 0 has the last word on a result of two nodes."""
        for part in sorted(parts, key=lambda part: part.node == self._first_node()):
            if part.collecting is not None:
                await part.collecting
            if part.lost is None:
                await self._collect(part)
                await self._collect_results(part)

    def _conclude(
        self, parts: list[_Part], verdict: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        """Nobody runs any more: how the run ended, or None if that was for a resize."""
        lost = next((part.lost for part in parts if part.lost), None)
        if verdict is None and lost is not None:
            return _lost(lost)
        well = all(part.over and part.over.get("outcome") == "succeeded" for part in parts)
        if verdict is None and self._changing and not well:
            return self._stopped() if self._stop_asked() else None
        return verdict or _exited("succeeded", "exited", "every worker ended well", 0)

    def _judge(self, parts: list[_Part]) -> dict[str, Any] | None:
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

    async def _tell_who_waits(self, parts: list[_Part]) -> None:
        """Rank 0 saves for all, and the others wait for that (`presage.job`). On other nodes they
        cannot see it: tell them when the node of rank 0 is done."""
        first = next(part for part in parts if part.node == self._first_node())
        if first.over is None:
            return
        for part in parts:
            if part.over is None and part.lost is None and not part.released:
                part.released = True
                with suppress(AgentSilent, AgentGone):
                    await self._call(part, "release")

    # -- other workers --------------------------------------------------------------------------

    @property
    def _changing(self) -> bool:
        """Whether the workers are being stopped so that others can take their place."""
        return bool(self._placed.get("changing"))

    def _resize_is_due(self, parts: list[_Part]) -> bool:
        """Whether there is a resize to begin. A run that is coming to its end keeps its size."""
        running = all(part.started_at is not None and part.over is None for part in parts)
        asked = self._read("resize.json") if running else None
        return asked is not None and asked["number"] > self._size

    def _begin_change(self) -> None:
        self._story.tell("StageChanged", stage="resizing", number=self._size)
        self._placed["changing"] = True
        self._write("placed.json", self._placed)

    async def _change_size(self) -> None:
        """Everybody has stopped: be the run of the workers that were asked for."""
        began = min(part.started_at or time.time() for part in self.parts.values())
        await self._give_back()
        asked = self._read("resize.json") or {}
        self._order = {"began": began, **self._order}
        self._order |= {"workers": asked["target"], "size": asked["number"]}
        self._write("launch.json", self._order)
        self._placed, self.parts = {}, {}

    def _only_servers_left(self, parts: list[_Part]) -> bool:
        left = [part for part in parts if part.over is None]
        return bool(left) and len(left) < len(parts) and all(part.serves for part in left)

    async def _stop_all(self, code: str, text: str, grace_s: float) -> None:
        """Ask all nodes at once: ranks that train in step cannot be stopped one by one."""
        left = [part for part in self.parts.values() if part.over is None and part.lost is None]
        calls = [self._call(part, "stop", code, text, grace_s) for part in left]
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(
                answer, AgentSilent | AgentGone
            ):
                raise answer

    async def _give_back(self) -> None:
        """Leave nothing of the run on any node that can be reached, nor with Ray."""
        for part in self.parts.values():
            if part.lost is None:
                with suppress(AgentSilent, AgentGone):
                    await self._call(part, "drop")
        if self.reservation:
            await self._cluster.release(self.reservation)

    # -- files ----------------------------------------------------------------------------------

    async def _collect(self, part: _Part) -> None:
        """Take over the checkpoints that the workers on a node have made."""
        part.saved = False
        with suppress(AgentSilent, AgentGone):
            if not self._order["shared"] and (saved := await self._call(part, "saved")):
                area, staged = "checkpoints", self.directory / f"checkpoints-{part.id}.new"
                ask = partial(self._call, part)
                await _ray_files.take_over(ask, area, saved, self._home / area, staged)
        part.collecting = None
        self.poke()

    async def _collect_results(self, part: _Part) -> None:
        with suppress(AgentSilent, AgentGone):
            area, staged = "results", self.directory / f"results-{part.id}.new"
            await _ray_files.add_to(partial(self._call, part), area, self._home / area, staged)

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

    def _take_event(self, part: _Part, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "Ready":
            part.port = event["port"]
        elif kind == "JobStarted":
            part.started_at = event["at"]
        elif kind == "StageChanged" and not self._changing:
            self._story.tell(kind, stage=event["stage"], number=self._size)
        elif kind in ("JobExited", "LaunchFailed"):
            part.over = event

    def _tell_started(self, parts: list[_Part]) -> None:
        self._story.tell("JobStarted", at=max(part.started_at or 0.0 for part in parts))
        if self._size:
            self._story.tell("JobResized", number=self._size)
            self._story.tell("StageChanged", stage="", number=self._size)

    # -- helpers --------------------------------------------------------------------------------

    def _listen_on_all(self) -> None:
        for id in self.parts:
            self._listen(id)

    async def _call(self, part: _Part, method: str, *arguments: Any) -> Any:
        try:
            return await self._cluster.call(
                part.id, method, self.key, *arguments, timeout_s=_CALL_S
            )
        except AgentGone as gone:
            self.lose(part.id, str(gone))
            raise

    async def _next(self) -> None:
        """Until something has changed."""
        if not self._asked_to_stop and (asked := self._read("stop.json")):
            self._asked_to_stop = True
            await self._stop_all(asked["code"], asked["text"], self._placed["grace_s"])
        await self._changed.wait()
        self._changed.clear()

    def _first_node(self) -> str:
        workers = sorted(self._order["workers"])
        node: str = workers[0][2]
        return node

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
