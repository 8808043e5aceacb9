"""One run on a Ray cluster as the server's side sees it: placed, started, watched, taken in.

Everything that must outlive this process is in the directory of the run on the server:
`launch.json` (what to start), `placed.json` (where, and whether workers may have begun),
`stop.json` (it must stop), `verdict.json` (how it ended), `events.jsonl` (what was told). Whoever
dies, the next one reads these and goes on.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from presage.executors import _ray_files
from presage.executors._plan import Places
from presage.executors._ray_place import RayNode, bundles, gpus_asked, what_is_missing
from presage.executors._runspec import RunSpec, RunSpecError
from presage.model.cluster import Worker

__all__ = ["AgentGone", "AgentSilent", "AgentUnusable", "Cluster", "GangRun"]

_PLACE_S = 20.0
"""How long a gang that fits may wait for what Ray has promised to others."""
_LOST_GRACE_S = 5.0
"""Time that the rest of a gang has to save when a node is lost: it can rarely go on."""
_CALL_S = 30.0


class AgentGone(Exception):
    """The agent of a node has died, or its node has; what it ran is no more."""


class AgentSilent(Exception):
    """The agent of a node does not answer just now."""


class AgentUnusable(AgentSilent):
    """There can be no agent on a node until somebody does something about it."""


class Cluster(Protocol):
    """What a run needs of Ray."""

    nodes: dict[str, RayNode]
    """Those that are alive, by name."""

    async def call(self, node: str, method: str, *arguments: Any, timeout_s: float) -> Any:
        """Ask the agent on a node (by id); raises AgentGone or AgentSilent."""
        ...

    async def reserve(
        self, name: str, asked: list[tuple[str, dict[str, float]]], timeout_s: float
    ) -> bool:
        """Reserve (node id, resources) all at once; False if that took too long. Raises AgentGone
        when a node goes away meanwhile."""
        ...

    async def release(self, name: str) -> None:
        """Give a reservation back, if there is one."""
        ...


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
        self.saved = False
        """Whether checkpoints may be there and not yet here."""
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
        self.key = f"{owner}/{self.job}/{self.attempt}"
        self._places = places
        self._cluster = cluster
        self._listen = listen
        """Has the news of a node (by id) passed on to its runs."""
        self._home = places.job(self.job)
        self._logs = places.logs(self.job, self.attempt)
        self._telemetry = self._home / "telemetry" / f"{self.attempt}.jsonl"
        self._unwritten = b""
        self._told = self._what_was_told()
        self._sampled = self._what_was_sampled()
        self._changed = asyncio.Event()
        self._asked_to_stop = False
        self.parts: dict[str, _Part] = {}
        self._placed: dict[str, Any] = self._read("placed.json") or {}
        for node, id in self._placed.get("nodes", {}).items():
            self.parts[id] = _Part(node, id, self._placed["serves"][node])

    # -- from outside ---------------------------------------------------------------------------

    @property
    def reservation(self) -> str | None:
        """The name of its reservation with Ray, if it may have one."""
        return self._placed.get("reservation")

    @property
    def over(self) -> bool:
        """Whether its last event is written."""
        return bool(self._told & {"JobExited", "LaunchFailed"})

    def poke(self) -> None:
        """Look at once whether there is something to do."""
        self._changed.set()

    def lose(self, id: str, why: str) -> None:
        """A node, or the agent there, is gone."""
        part = self.parts.get(id)
        if part is not None and not part.gone:
            part.lost = why
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
                self._take_samples(chunk)
            else:
                _ray_files.write_log(self._logs / f"{name}.log", offset, chunk)
        if "progress" in news:
            self._pass_on(news["progress"])
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
        self._tell(verdict.pop("type"), **verdict)
        while not self._flush():
            await asyncio.sleep(1.0)  # a full disk; a result is worth the wait

    # -- the stages -----------------------------------------------------------------------------

    async def _run(self) -> dict[str, Any]:
        try:
            if not self._placed.get("go"):
                if self._stop_asked():
                    return self._stopped()
                self._logs.mkdir(parents=True, exist_ok=True)
                await self._place()
                await self._prepare()
                if (early := await self._all_ready()) is not None:
                    return early
            else:
                self._listen_on_all()
            await self._begin()
        except Refused as refused:
            return _failed(str(refused))
        except AgentUnusable as unusable:
            return _failed(str(unusable))
        except (AgentSilent, AgentGone) as trouble:  # not the job's fault: it is tried again
            return _lost(str(trouble))
        return await self._watch()

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
        order = {**self._order, "spec": (self._home / "job.json").read_text()}
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
        wrong = await self._call(part, "make", {**order, "node": part.node})
        if wrong:
            raise Refused(wrong)
        if self._spec.folder:
            name = f"{self._spec.folder}.tar.gz"
            with suppress(FileNotFoundError):  # the guardian says so in better words
                await self._send(part, "folders", self._places.data / "folders", name)
        kept = self._home / "checkpoints"
        if not self._order["shared"]:
            for unit in _ray_files.listing(kept).values():
                for name in unit:
                    await self._send(part, "checkpoints", kept, name)
        wrong = await self._call(part, "start", content)
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

    async def _watch(self) -> dict[str, Any]:
        """Until all is over; how it ended."""
        verdict: dict[str, Any] | None = None
        parts = list(self.parts.values())
        stopping = False
        while True:
            if all(part.started_at is not None for part in parts):
                self._tell("JobStarted", at=max(part.started_at or 0.0 for part in parts))
            if not stopping:
                verdict = self._judge(parts)
                stopping = verdict is not None or self._only_servers_left(parts)
                if stopping:
                    lost = any(part.lost for part in parts)
                    grace_s = _LOST_GRACE_S if lost else self._placed["grace_s"]
                    await self._stop_all("exited", "the rest of the run is over", grace_s)
            if all(part.gone for part in parts):
                break
            for part in parts:
                if part.saved and part.lost is None and part.collecting is None:
                    part.collecting = asyncio.create_task(self._collect(part, "checkpoints"))
            await self._next()
        for part in parts:
            if part.collecting is not None:
                await part.collecting
            if part.lost is None:
                await self._collect(part, "checkpoints")
                await self._collect(part, "results")
        return verdict or _exited("succeeded", "exited", "every worker ended well", 0)

    def _judge(self, parts: list[_Part]) -> dict[str, Any] | None:
        """What has happened that ends the run, the first of it."""
        lost = [part.lost for part in parts if part.lost]
        if lost:
            return _lost(lost[0])
        ends = sorted((part.over for part in parts if part.over), key=lambda end: end["when"])
        for end in ends:
            if end["type"] == "LaunchFailed":
                return _failed(end["reason"]["text"])
            if end["outcome"] != "succeeded":
                reason = end["reason"]
                return _exited(
                    end["outcome"], reason["code"], reason["text"], end.get("exit_code")
                )
        return None

    def _only_servers_left(self, parts: list[_Part]) -> bool:
        left = [part for part in parts if part.over is None]
        return bool(left) and len(left) < len(parts) and all(part.serves for part in left)

    async def _stop_all(self, code: str, text: str, grace_s: float) -> None:
        for part in self.parts.values():
            if part.over is None and part.lost is None:
                with suppress(AgentSilent, AgentGone):
                    await self._call(part, "stop", code, text, grace_s)

    async def _give_back(self) -> None:
        """Leave nothing of the run on any node that can be reached, nor with Ray."""
        for part in self.parts.values():
            if part.lost is None:
                with suppress(AgentSilent, AgentGone):
                    await self._call(part, "drop")
        if self.reservation:
            await self._cluster.release(self.reservation)

    # -- files ----------------------------------------------------------------------------------

    async def _collect(self, part: _Part, area: str) -> None:
        """Take over what the workers on a node have saved."""
        part.saved = False
        with suppress(AgentSilent, AgentGone):
            if area == "results":
                found = await self._call(part, "listing", area)
                await self._take_over(part, area, {"changed": found, "deleted": []})
            elif not self._order["shared"] and (saved := await self._call(part, "saved")):
                await self._take_over(part, area, saved)
        part.collecting = None
        self.poke()

    async def _take_over(self, part: _Part, area: str, there: dict[str, Any]) -> None:
        """Make our copy of an area what it is on a node, unit by unit. What was removed there goes
        here when all that is new has come."""
        here = self._home / area
        new = _ray_files.differing(_ray_files.listing(here), there["changed"])
        staged = self.directory / f"{area}-{part.id}.new"
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir()
        for unit in new:
            for name, (size, changed_ns) in there["changed"][unit].items():
                await self._fetch(part, area, name, size, changed_ns, staged)
        now = await self._call(part, "listing", area)
        whole = [unit for unit in new if now.get(unit) == there["changed"][unit]]
        deleted = there["deleted"] if len(whole) == len(new) else []
        await asyncio.to_thread(_ray_files.apply, here, staged, whole, deleted)

    async def _fetch(
        self, part: _Part, area: str, name: str, size: int, changed_ns: int, staged: Path
    ) -> None:
        offset = 0
        while True:
            chunk = await self._call(part, "read", area, name, offset)
            if chunk is None:
                return  # gone already; its unit is not taken over
            _ray_files.write_chunk(staged, name, offset, chunk, changed_ns)
            offset += len(chunk)
            if offset >= size or not chunk:
                return

    async def _send(self, part: _Part, area: str, root: Path, name: str) -> None:
        stat = (root / name).stat()
        offset = 0
        while True:
            chunk = _ray_files.read_chunk(root, name, offset)
            await self._call(part, "write", area, name, offset, chunk, stat.st_mtime_ns)
            offset += len(chunk)
            if offset >= stat.st_size or not chunk:
                return

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
        elif kind == "StageChanged":
            self._tell(kind, stage=event["stage"])
        elif kind in ("JobExited", "LaunchFailed"):
            part.over = event

    def _tell(self, kind: str, **fields: Any) -> None:
        """Add an event unless it was told before, by this process or another."""
        mark = f"{kind} {fields['stage']}" if "stage" in fields else kind
        if mark not in self._told:
            self._told.add(mark)
            about = {"type": kind, "job": self.job, "attempt": self.attempt}
            line = {**about, **fields, "when": time.time()}
            self._unwritten += json.dumps(line).encode() + b"\n"
            self._flush()

    def _flush(self) -> bool:
        """Bring events to disk; False when there is no room, and then nothing was written."""
        try:
            with (self.directory / "events.jsonl").open("ab", buffering=0) as file:
                size = file.seek(0, os.SEEK_END)
                if file.write(self._unwritten) != len(self._unwritten):
                    file.truncate(size)
                    return False
                os.fsync(file.fileno())
        except OSError:
            return False
        self._unwritten = b""
        self._wake()
        return True

    def _wake(self) -> None:
        """Tell the executor, if one listens, that there is something to read."""
        with suppress(OSError):
            fd = os.open(self._places.wake, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(fd, f"{self.job}/{self.attempt}\n".encode())
            finally:
                os.close(fd)

    def _what_was_told(self) -> set[str]:
        told = set()
        with suppress(OSError):
            for line in (self.directory / "events.jsonl").read_bytes().splitlines():
                with suppress(ValueError):
                    event = json.loads(line)
                    stage = event.get("stage")
                    told.add(f"{event['type']} {stage}" if stage else event["type"])
        return told

    def _pass_on(self, report: dict[str, Any]) -> None:
        with suppress(OSError):
            new = self.directory / "progress.new"
            new.write_text(json.dumps(report))
            new.replace(self.directory / "progress.json")
            self._wake()

    def _take_samples(self, chunk: bytes) -> None:
        """Add samples to the telemetry of the job, but those that were added before."""
        new = []
        for line in chunk.splitlines():
            with suppress(ValueError):
                sample = json.loads(line)
                if sample["at"] > self._sampled.get(sample["worker"], 0.0):
                    self._sampled[sample["worker"]] = sample["at"]
                    new.append(line + b"\n")
        with suppress(OSError):
            self._telemetry.parent.mkdir(parents=True, exist_ok=True)
            with self._telemetry.open("ab") as file:
                file.writelines(new)

    def _what_was_sampled(self) -> dict[str, float]:
        found: dict[str, float] = {}
        with suppress(OSError):
            for line in self._telemetry.read_bytes().splitlines():
                with suppress(ValueError):
                    sample = json.loads(line)
                    found[sample["worker"]] = sample["at"]
        return found

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


def _failed(text: str) -> dict[str, Any]:
    return {"type": "LaunchFailed", "reason": {"code": "launch_failed", "text": text}}
