"""The agent of Presage on one node of a cluster: it holds the node's part of runs.

It starts a guardian for each run, tells what happens to whoever asks, and moves files. It decides
nothing. It remembers nothing but what is in its directory, and clears that when it starts: what an
agent before it ran has ended with that agent. Standard library only.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import presage
from presage.executors.fleet import collecting, files
from presage.executors.fleet.doors import NodeDoors
from presage.executors.fleet.guardian import LEAVING
from presage.executors.node import messages as msg
from presage.executors.node import wire
from presage.executors.node.limits import delegated_group
from presage.executors.node.plan import inherited_environment, make_plan
from presage.executors.node.processes import kill_marked
from presage.executors.node.runs import Run, boot
from presage.executors.node.runspec import RunSpec
from presage.layout import Layout
from presage.model.cluster import Worker
from presage.model.errors import RunSpecError
from presage.model.event import Launch

__all__ = ["LocalPart", "NodeAgent"]

_LOOK_S = 0.2
"""How often logs are looked at while somebody waits for news."""
_CLOSE_LOOK_S = 0.05
"""The same while a training is about to stand still."""
_FILES_S = 0.5
_IDLE_S = 900.0
"""An agent that has no runs and was not asked for so long ends."""
_LOG_CHUNK = 1 << 20
_OF_CLUSTER = ("RAY_", "SLURM", "SRUN_", "PMI", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
"""Variables that Ray and Slurm set for their own workers; frameworks would go by them."""
_KEPT = ("SLURM_CONF", "SLURM_JOB_ID", "SLURM_CLUSTER_NAME")


class LocalPart:
    """The workers of one run on this node."""

    def __init__(
        self, home: Path, order: msg.PartOrder, wake: Path, gpus: Callable[[list[int]], list[str]]
    ) -> None:
        self.home = home
        self.over: msg.Event | None = None
        """The last event of a guardian that could not write it itself."""
        layout = Layout(home)
        job_file = layout.job_file(order.job)
        job_file.parent.mkdir(parents=True)
        job_file.write_text(order.spec)
        self.spec = _rigid(RunSpec.load(job_file))
        self.plan = _plan(layout, order, self.spec, wake, gpus)
        self._areas = {"results": self.plan.result_dir, "folders": layout.folders}
        if self.plan.checkpoint_dir == layout.checkpoints(order.job):
            self._areas["checkpoints"] = self.plan.checkpoint_dir
        self.run = Run(order.job, order.attempt, self.plan.run)
        self.run.directory.mkdir(parents=True)
        os.mkfifo(self.run.directory / "control", 0o600)
        self._log_base: dict[str, int] | None = None
        """How long the server's logs are that the workers of this run continue; None before they
        begin."""
        self.holding = False
        """Whether the workers were told to stand still."""
        self._process: subprocess.Popen[bytes] | None = None
        self._shipped: msg.Listing = {}
        self._units: set[str] = set()
        """Of the checkpoints: every unit that was ever here."""
        self._files: tuple[float, msg.Listing] = (0.0, {})

    def start(self, secrets: dict[str, str]) -> None:
        """Start the guardian, once."""
        if self._process is not None:
            return
        directory = self.run.directory
        wire.write(directory, self.plan)
        env = inherited_environment(self.spec, sys.executable, directory)
        env = {
            name: value
            for name, value in env.items()
            if name in _KEPT or not name.startswith(_OF_CLUSTER)
        }
        with (directory / "guardian.log").open("ab") as log:
            self._process = subprocess.Popen(
                boot(sys.executable, "fleet.guardian", str(directory), bare=True),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=env,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        with suppress(OSError):  # it died at once; that is noticed elsewhere
            self._process.stdin.write(json.dumps(secrets).encode() + b"\n")
            self._process.stdin.flush()

    def begin(self, go: msg.GoOrder) -> None:
        """Every node is ready, and what was saved before is here: let the workers begin, once."""
        if self._log_base is None:
            if "checkpoints" in self._areas:
                self._shipped = files.listing(self._areas["checkpoints"])
            self._log_base = go.logs
            self.run.leave(go)

    def listens(self) -> bool:
        """Whether the program hears of a resize (`presage.job.step`)."""
        return (self.plan.progress_dir / msg.STEPPING).exists()

    def tell(self, name: str, word: msg.Word) -> None:
        """Pass a word on to `presage.job` in the workers."""
        self.holding = True
        msg.say(self.plan.progress_dir, name, word)

    def _words(self) -> dict[str, msg.Word]:
        """What `presage.job` in the workers says about standing still."""
        place = self.plan.progress_dir
        names = [msg.STOP_AT, *(file.name for file in place.glob("held-*"))]
        return {name: word for name in names if (word := msg.hear(place, name))}

    def news(self, cursor: msg.Cursor) -> msg.RunNews | None:
        """What is new since `cursor`, with the cursor to ask with next; None if nothing is."""
        events = self._events()
        logs, left = self._logs(cursor)
        now = cursor.but(
            events=len(events),
            logs={**cursor.logs, **{name: at + len(chunk) for name, (at, chunk) in logs.items()}},
            progress=self.run.find(msg.ProgressReport) or cursor.progress,
            request=self._request() or cursor.request,
            words=self._words() if self.holding else cursor.words,
            saved=_digest(self.saved(fresh=False)) or cursor.saved,
            drained=cursor.drained or bool(events and events[-1].is_end and not left),
        )
        if now == cursor:
            return None

        def new(name: str) -> Any:
            value = getattr(now, name)
            return value if value != getattr(cursor, name) else None

        return msg.RunNews(
            cursor=now,
            events=tuple(events[cursor.events :]),
            logs=logs or None,
            progress=new("progress"),
            request=new("request"),
            words=new("words"),
            saved=new("saved"),
            drained=now.drained,
        )

    def _events(self) -> list[msg.Event]:
        """All that was told, with the last word of a guardian that died without one. Several may
        ask at the same time, so nothing is remembered here."""
        dead = self._process is not None and self._process.poll() is not None
        events = Run(self.run.job, self.run.attempt, self.run.directory).new_events()
        if dead and self.over is None and not (events and events[-1].is_end):
            self.over = self.run.bury()
        return events if self.over is None else [*events, self.over]

    def _logs(self, cursor: msg.Cursor) -> tuple[dict[str, tuple[int, bytes]], bool]:
        """What is new in logs and telemetry, each with where it begins, and whether more is."""
        logs, left = {}, False
        for name, path in self._streams():
            base, known = (self._log_base or {}).get(name, 0), cursor.logs.get(name, 0)
            offset, chunk = _tail(path, max(0, known - base))
            offset += base
            if chunk or offset < known:
                logs[name] = (offset, chunk)
            left = left or len(chunk) == _LOG_CHUNK
        return logs, left

    def _request(self) -> tuple[int, int] | None:
        """How many workers the training asks for, after a mark that tells this wish from others;
        None if it asks for nothing that is not known yet."""
        with suppress(OSError):
            asked = self.run.find(msg.SizeRequest)
            if asked is not None:
                return (
                    self.run.directory / msg.SizeRequest.FILE
                ).stat().st_mtime_ns, asked.workers
        return None

    def forget_request(self, mark: int) -> None:
        """The server has written a wish down."""
        file = self.run.directory / msg.SizeRequest.FILE
        with suppress(OSError):
            if file.stat().st_mtime_ns == mark:
                file.unlink()

    def _streams(self) -> Iterator[tuple[str, Path]]:
        if self._log_base is None:
            return
        for worker in self.plan.workers:
            yield worker.name, worker.log
        yield "telemetry", self.plan.telemetry

    def saved(self, *, fresh: bool) -> msg.Saved | None:
        """The checkpoints that were made here; None if nothing has changed."""
        if "checkpoints" not in self._areas or self._log_base is None:
            return None
        when, there = self._files
        if fresh or time.monotonic() - when >= _FILES_S:
            there = files.listing(self._areas["checkpoints"])
            self._files = (time.monotonic(), there)
        changed = {name: there[name] for name in files.differing(self._shipped, there)}
        self._units |= self._shipped.keys() | there.keys()
        deleted = tuple(sorted(self._units - there.keys()))
        return msg.Saved(changed=changed, deleted=deleted) if changed or deleted else None

    def release(self) -> None:
        """The rank that saves for all has done so elsewhere, and ended: nobody waits for it."""
        with suppress(OSError):
            (self.plan.checkpoint_dir / f".ended-{self.plan.attempt}").touch()

    def leave(self, words: str) -> None:
        """The node is taken away: end after a checkpoint, and say so in these words."""
        if self._process is not None and self._process.poll() is None:
            with suppress(OSError):
                (self.run.directory / LEAVING).write_text(words)
            self._process.terminate()

    def area(self, name: str) -> Path:
        """A directory that is kept alike here and on the server."""
        return self._areas[name]

    def end(self) -> None:
        """Leave nothing of it."""
        if self._process is not None:
            assert self._process.stdin is not None
            with suppress(OSError):
                self._process.stdin.close()  # the guardian sees it, and ends all
            try:
                self._process.wait(5.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                self.run.bury()
        shutil.rmtree(self.home, ignore_errors=True)


class NodeAgent:
    """What the server asks of a node. Every call may come twice, and from several servers."""

    def __init__(self, node: str) -> None:
        self._base = Path(tempfile.gettempdir()) / f"presage-{os.getuid()}" / node[:16]
        self._base.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._base.stat().st_uid != os.getuid():
            raise PermissionError(f"{self._base} belongs to somebody else")
        self._parts: dict[str, LocalPart] = {}
        self._doors = NodeDoors()
        self._asked = time.monotonic()
        self._changed = threading.Condition()
        self._lock = self._take_over()
        self._wake = Layout(self._base).wake
        os.mkfifo(self._wake, 0o600)
        self._calls = os.open(self._wake, os.O_RDWR | os.O_CLOEXEC)
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._retire, daemon=True).start()

    def cuda_names(self, devices: list[int]) -> list[str]:
        """What CUDA calls the devices that a run has here, by their numbers; nothing where that is
        their numbers."""
        return []

    def hello(self) -> str:
        """Which Presage answers."""
        return presage.__version__

    def runs(self, owner: str) -> list[str]:
        """The runs that this server has here."""
        return [key for key in list(self._parts) if key.startswith(f"{owner}/")]

    def make(self, key: str, order: Any) -> str | None:
        """Make room for the workers of a run on this node; says what is wrong, or None."""
        self._asked = time.monotonic()
        if key in self._parts:
            return None
        home = self._base.joinpath(*key.split("/"))
        shutil.rmtree(home, ignore_errors=True)
        try:
            self._parts[key] = LocalPart(
                home, wire.unpack(msg.PartOrder, order), self._wake, self.cuda_names
            )
        except (RunSpecError, wire.MessageError) as error:
            shutil.rmtree(home, ignore_errors=True)
            return str(error)
        except OSError as error:
            shutil.rmtree(home, ignore_errors=True)
            return f"{error.filename or home} cannot be made: {error.strerror}"
        return None

    def start(self, key: str, secrets: dict[str, str]) -> str | None:
        """Start the guardian; it prepares, says Ready, and waits. Says what is wrong, or None."""
        try:
            self._parts[key].start(secrets)
        except OSError as error:
            return f"the run could not be started: {error.strerror or error}"
        self._tell()
        return None

    def go(self, key: str, order: Any) -> None:
        """Every node is ready: start the workers."""
        if key in self._parts:
            self._parts[key].begin(wire.unpack(msg.GoOrder, order))

    def listens(self, key: str) -> bool:
        """Whether the program hears of a resize."""
        return key in self._parts and self._parts[key].listens()

    def tell(self, key: str, name: str, word: Any) -> None:
        """Pass a word on to the workers."""
        if key in self._parts:
            self._parts[key].tell(name, wire.unpack(msg.Word, word))
            self._tell()

    def stop(self, key: str, code: str, text: str, grace_s: float) -> None:
        """Ask the workers to stop, with time for a checkpoint."""
        if key in self._parts:
            self._parts[key].run.leave(msg.StopOrder(code=code, text=text, grace_s=grace_s))

    def forget_request(self, key: str, mark: int) -> None:
        """A wish for workers is written down on the server."""
        if key in self._parts:
            self._parts[key].forget_request(mark)

    def release(self, key: str) -> None:
        """Workers that wait for the one that saves need not wait any longer."""
        if key in self._parts:
            self._parts[key].release()

    def leave(self, words: str) -> None:
        """The node is taken away: end all runs here after a checkpoint."""
        for part in list(self._parts.values()):
            part.leave(words)

    def drop(self, key: str) -> None:
        """Leave nothing of a run here."""
        part = self._parts.pop(key, None)
        if part is not None:
            self._doors.close(key)
            part.end()
            for parent in list(part.home.parents)[:2]:
                with suppress(OSError):
                    parent.rmdir()  # only if it is empty

    def news(self, owner: str, cursors: dict[str, Any], wait_s: float) -> dict[str, Any]:
        """What is new about the runs of a server, as soon as anything is. A run that is not here
        is None."""
        end = time.monotonic() + wait_s
        while True:
            self._asked = time.monotonic()
            news: dict[str, Any] = {key: None for key in cursors if key not in self._parts}
            for key in self.runs(owner):
                cursor = wire.unpack(msg.Cursor, cursors.get(key, {"logs": {}}))
                if (part := self._parts.get(key)) and (new := part.news(cursor)):
                    news[key] = wire.pack(new)
            rest = end - time.monotonic()
            if news or rest <= 0:
                return news
            closely = any(part.holding for part in list(self._parts.values()))
            with self._changed:
                self._changed.wait(min(_CLOSE_LOOK_S if closely else _LOOK_S, rest))

    def saved(self, key: str) -> Any:
        """The checkpoints of a run as they are this moment; None if nothing has changed."""
        saved = self._parts[key].saved(fresh=True)
        return wire.pack(saved) if saved else None

    def listing(self, key: str, area: str) -> msg.Listing:
        """What is in a directory of a run."""
        return files.listing(self._parts[key].area(area))

    def tree(self, key: str) -> dict[str, tuple[int, int]]:
        """The results that the workers of a run left here."""
        return collecting.tree(self._parts[key].area("results"))

    def kept(self, key: str) -> Any:
        """What was said of them when the run ended here; None if nothing was."""
        note = wire.find(msg.ResultsNote, self._parts[key].area("results").parent)
        return wire.pack(note) if note else None

    def read(self, key: str, area: str, path: str, offset: int) -> bytes | None:
        """A part of a file; None if it is gone."""
        try:
            return files.read_chunk(self._parts[key].area(area), path, offset)
        except FileNotFoundError:
            return None

    def write(
        self, key: str, area: str, path: str, offset: int, chunk: bytes, changed_ns: int
    ) -> None:
        """Write a part of a file."""
        root = self._parts[key].area(area)
        files.write_chunk(root, path, offset, chunk, changed_ns)

    def attach(self, key: str) -> str | None:
        """Let a client in to the guardian of a run: the number of its connection, "" when there
        is no guardian, None when there are too many clients."""
        part = self._parts.get(key)
        return "" if part is None else self._doors.open(key, part.run.directory)

    def send(self, key: str, number: str, data: bytes) -> int | None:
        """Pass bytes of a client on; see `NodeDoors`."""
        return self._doors.send(key, number, data)

    def receive(self, key: str, number: str) -> bytes | None:
        """Bytes for a client; see `NodeDoors`."""
        return self._doors.receive(key, number)

    def detach(self, key: str, number: str) -> None:
        """A client is gone."""
        self._doors.close(key, number)

    # -- helpers --------------------------------------------------------------------------------

    def _take_over(self) -> int:
        """Become the one agent in this directory, and clear what those before left."""
        lock = os.open(self._base / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        for home in self._base.glob("*/*/*"):
            for run in Layout(home).runs.glob("*/*"):
                kill_marked(f"PRESAGE_RUN={run}", ())
        for path in self._base.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != "lock":
                path.unlink()
        return lock

    def _listen(self) -> None:
        while os.read(self._calls, 1 << 16):
            self._tell()

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _retire(self) -> None:
        while self._parts or time.monotonic() - self._asked < _IDLE_S:
            time.sleep(_IDLE_S / 10)
        os._exit(0)


def _rigid(spec: RunSpec) -> RunSpec:
    """The size of a run does not change here; torchrun's agents are not needed."""
    return replace(spec, roles=tuple(replace(role, max=role.min) for role in spec.roles))


def _plan(
    layout: Layout,
    order: msg.PartOrder,
    spec: RunSpec,
    wake: Path,
    gpus: Callable[[list[int]], list[str]],
) -> msg.RunPlan:
    """What the guardian here does: the plan of the whole run, with the workers of this node."""
    here = {device for _, _, node, held in order.workers if node == order.node for device in held}
    plan = make_plan(
        layout,
        spec,
        Launch(order.job, order.attempt, tuple(Worker(*each) for each in order.workers)),
        cores={},
        cgroup=delegated_group(),
        log_cap=order.log_cap,
        gpus=gpus(sorted(here)),
        checkpoints=order.checkpoints(),
    )
    # Those who take the place of others load PyTorch while these still train.
    plain = not (spec.image or spec.resume)
    python = all(Path(role.argv[0]).name.startswith("python") for role in spec.roles)
    return plan.but(
        wake=wake,
        secrets={},  # they come through a pipe
        warm=order.size > 0 and plan.torchrun and plain and python,
        workers=tuple(
            _with_threads(worker, spec.roles[worker.identity[0]].cpus)
            for worker in plan.workers
            if worker.identity[2] == order.node
        ),
    )


def _with_threads(worker: msg.WorkerPlan, cpus: float) -> msg.WorkerPlan:
    """Nobody pins workers to cores here, so say how many threads are meant."""
    if not cpus:
        return worker
    return worker.but(env={"OMP_NUM_THREADS": str(math.ceil(cpus)), **worker.env})


def _tail(path: Path, offset: int) -> tuple[int, bytes]:
    """What a file has from an offset on; from its beginning if it was cut since."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < offset:
                offset = 0
            file.seek(offset)
            return offset, file.read(_LOG_CHUNK)
    except OSError:
        return offset, b""


def _digest(saved: msg.Saved | None) -> str | None:
    return hashlib.sha256(wire.dumps(saved)).hexdigest() if saved else None
