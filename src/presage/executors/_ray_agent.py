"""The agent of Presage on one node of a Ray cluster: an actor that holds the node's part of runs.

It starts a guardian for each run, tells what happens to whoever asks, and moves files. It decides
nothing. It remembers nothing but what is in its directory, and clears that when it starts: what an
agent before it ran has ended with that agent. Standard library only; Ray is not imported here.
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
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import presage
from presage.executors import _ray_files
from presage.executors._limits import delegated_group
from presage.executors._plan import Places, inherited_environment, make_plan
from presage.executors._processes import kill_marked
from presage.executors._runs import Run
from presage.executors._runspec import RunSpec, RunSpecError
from presage.model.cluster import Worker
from presage.model.event import Launch

__all__ = ["NodeAgent", "Part"]

_LOOK_S = 0.2
"""How often logs are looked at while somebody waits for news."""
_CLOSE_LOOK_S = 0.05
"""The same while a training is about to stand still."""
_FILES_S = 0.5
_IDLE_S = 900.0
"""An agent that has no runs and was not asked for so long ends."""
_LOG_CHUNK = 1 << 20
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from presage.executors._ray_guardian import main; main()"
)
_SOURCE = str(Path(presage.__file__).parent.parent)
_OF_RAY = ("RAY_", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
"""Variables that Ray sets for its own workers."""


class Part:
    """The workers of one run on this node."""

    def __init__(self, home: Path, order: dict[str, Any], wake: Path) -> None:
        self.home = home
        self.over: dict[str, Any] | None = None
        """The last event of a guardian that could not write it itself."""
        job, attempt = order["job"], order["attempt"]
        places = Places(home)
        self._areas = {"results": places.job(job) / "results"}
        (places.job(job)).mkdir(parents=True)
        (places.job(job) / "job.json").write_text(order["spec"])
        spec = _rigid(RunSpec.load(places.job(job) / "job.json"))
        workers = tuple(Worker(r, i, node, tuple(d)) for r, i, node, d in order["workers"])
        plan = make_plan(
            places,
            spec,
            Launch(job, attempt, workers),
            cores={},
            cgroup=delegated_group(),
            log_cap=order["log_cap"],
        )
        plan["wake"], plan["secrets"] = str(wake), {}
        # Those who take the place of others load PyTorch while these still train.
        plain = not (spec.image or spec.resume)
        python = all(Path(role.argv[0]).name.startswith("python") for role in spec.roles)
        plan["warm"] = bool(order.get("size")) and plan["torchrun"] and plain and python
        if order["shared"] and plan["checkpoint_dir"] == str(places.job(job) / "checkpoints"):
            plan["checkpoint_dir"] = f"{order['shared']}/{job}"
        elif plan["checkpoint_dir"] == str(places.job(job) / "checkpoints"):
            self._areas["checkpoints"] = Path(plan["checkpoint_dir"])
        for worker in plan["workers"]:
            worker["env"]["PRESAGE_CHECKPOINT_DIR"] = plan["checkpoint_dir"]
        ranked = sorted(workers, key=lambda worker: (worker.role, worker.index))
        plan["workers"] = [
            _with_threads(planned, spec.roles[worker.role].cpus)
            for planned, worker in zip(plan["workers"], ranked, strict=True)
            if worker.node == order["node"]
        ]
        self.plan = plan
        self.spec = spec
        self.run = Run(job, attempt, Path(plan["run"]))
        self.run.directory.mkdir(parents=True)
        os.mkfifo(self.run.directory / "control", 0o600)
        self._log_base: dict[str, int] | None = None
        """How long the server's logs are that the workers of this run continue; None before they
        begin."""
        self.holding = False
        """Whether the workers were told to stand still."""
        self._process: subprocess.Popen[bytes] | None = None
        self._shipped: _ray_files.Listing = {}
        self._units: set[str] = set()
        """Of the checkpoints: every unit that was ever here."""
        self._files: tuple[float, _ray_files.Listing] = (0.0, {})

    def start(self, secrets: dict[str, str]) -> None:
        """Start the guardian, once."""
        if self._process is not None:
            return
        directory = self.run.directory
        (directory / "plan.json").write_text(json.dumps(self.plan))
        env = inherited_environment(self.spec, sys.executable, directory)
        env = {name: value for name, value in env.items() if not name.startswith(_OF_RAY)}
        with (directory / "guardian.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BOOT, _SOURCE, str(directory)],
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

    def begin(self, meet: dict[str, Any]) -> None:
        """Every node is ready, and what was saved before is here: let the workers begin, once."""
        if self._log_base is None:
            if "checkpoints" in self._areas:
                self._shipped = _ray_files.listing(self._areas["checkpoints"])
            self._log_base = meet["logs"]
            self.leave_word("go", meet)

    def listens(self) -> bool:
        """Whether the program hears of a resize (`presage.job.step`)."""
        return (self._progress_dir / "stepping").exists()

    def tell(self, name: str, word: dict[str, Any]) -> None:
        """Pass a word on to `presage.job` in the workers."""
        self.holding = True
        new = self._progress_dir / f"{name}.new"
        new.write_text(json.dumps(word))
        new.replace(self._progress_dir / name)

    def _words(self) -> dict[str, Any]:
        """What `presage.job` in the workers says about standing still."""
        words = {}
        for file in [self._progress_dir / "stop-at.json", *self._progress_dir.glob("held-*")]:
            with suppress(OSError, ValueError):
                words[file.name] = json.loads(file.read_bytes())
        return words

    @property
    def _progress_dir(self) -> Path:
        return Path(self.plan["progress_dir"])

    def leave_word(self, name: str, body: dict[str, Any]) -> None:
        """Tell the guardian something, and nudge it."""
        new = self.run.directory / f"{name}.new"
        new.write_text(json.dumps(body))
        new.replace(self.run.directory / f"{name}.json")
        with suppress(OSError):  # not up yet; it looks for the word before it waits
            fd = os.open(self.run.directory / "control", os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(fd, b"s")
            finally:
                os.close(fd)

    def news(self, cursor: dict[str, Any]) -> dict[str, Any]:
        """What is new since `cursor`, with the cursor to ask with next; empty if nothing is."""
        dead = self._process is not None and self._process.poll() is not None
        events = _lines(Path(self.run.events))
        if dead and self.over is None and not (events and _is_end(events[-1])):
            self.over = self.run.bury()
        if self.over is not None:
            events.append(self.over)
        end = bool(events) and _is_end(events[-1])
        then = {**cursor, "logs": dict(cursor.get("logs", {}))}
        news: dict[str, Any] = {}
        if events[cursor.get("events", 0) :]:
            news["events"] = events[cursor.get("events", 0) :]
            then["events"] = len(events)
        left = False
        for name, path in self._streams():
            base, known = (self._log_base or {}).get(name, 0), then["logs"].get(name, 0)
            offset, chunk = _tail(path, max(0, known - base))
            offset += base
            if chunk or offset < known:
                news.setdefault("logs", {})[name] = (offset, chunk)
                then["logs"][name] = offset + len(chunk)
            left = left or len(chunk) == _LOG_CHUNK
        progress = _progress(Path(self.run.progress))
        if progress is not None and progress != cursor.get("progress"):
            news["progress"] = then["progress"] = progress
        request = self._request()
        if request is not None and request != cursor.get("request"):
            news["request"] = then["request"] = request
        if self.holding and (words := self._words()) != cursor.get("words"):
            news["words"] = then["words"] = words
        saved = self.saved(fresh=False)
        if saved and (mark := _digest(saved)) != cursor.get("saved"):
            news["saved"] = then["saved"] = mark
        if end and not left and not cursor.get("drained"):
            news["drained"] = then["drained"] = True
        if news:
            news["cursor"] = then
        return news

    def _request(self) -> list[int] | None:
        """How many workers the training asks for, after a mark that tells this wish from others;
        None if it asks for nothing that is not known yet."""
        file = self.run.directory / "request.json"
        with suppress(OSError, ValueError):
            return [file.stat().st_mtime_ns, int(json.loads(file.read_bytes()))]
        return None

    def forget_request(self, mark: int) -> None:
        """The server has written a wish down."""
        file = self.run.directory / "request.json"
        with suppress(OSError):
            if file.stat().st_mtime_ns == mark:
                file.unlink()

    def _streams(self) -> Iterator[tuple[str, Path]]:
        if self._log_base is None:
            return
        for worker in self.plan["workers"]:
            yield worker["name"], Path(worker["log"])
        yield "telemetry", Path(self.plan["telemetry"])

    def saved(self, *, fresh: bool) -> dict[str, Any]:
        """The checkpoints that were made here: units that changed, and names of those that went;
        empty if nothing has changed."""
        if "checkpoints" not in self._areas or self._log_base is None:
            return {}
        when, files = self._files
        if fresh or time.monotonic() - when >= _FILES_S:
            files = _ray_files.listing(self._areas["checkpoints"])
            self._files = (time.monotonic(), files)
        changed = {name: files[name] for name in _ray_files.differing(self._shipped, files)}
        self._units |= self._shipped.keys() | files.keys()
        deleted = sorted(self._units - files.keys())
        return {"changed": changed, "deleted": deleted} if changed or deleted else {}

    def release(self) -> None:
        """The rank that saves for all has done so elsewhere, and ended: nobody waits for it."""
        place = Path(self.plan["checkpoint_dir"])
        with suppress(OSError):
            (place / f".ended-{self.plan['attempt']}").touch()

    def area(self, name: str) -> Path:
        """A directory that is kept alike here and on the server."""
        return self._areas[name] if name in self._areas else self.home / name

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
        self._parts: dict[str, Part] = {}
        self._asked = time.monotonic()
        self._changed = threading.Condition()
        self._lock = self._take_over()
        self._wake = self._base / "wake"
        os.mkfifo(self._wake, 0o600)
        self._calls = os.open(self._wake, os.O_RDWR | os.O_CLOEXEC)
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._retire, daemon=True).start()

    def hello(self) -> dict[str, Any]:
        """Who answers."""
        return {"version": presage.__version__, "pid": os.getpid()}

    def runs(self, owner: str) -> list[str]:
        """The runs that this server has here."""
        return [key for key in list(self._parts) if key.startswith(f"{owner}/")]

    def make(self, key: str, order: dict[str, Any]) -> str | None:
        """Make room for the workers of a run on this node; says what is wrong, or None."""
        self._asked = time.monotonic()
        if key in self._parts:
            return None
        home = self._base.joinpath(*key.split("/"))
        shutil.rmtree(home, ignore_errors=True)
        try:
            self._parts[key] = Part(home, order, self._wake)
        except RunSpecError as error:
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

    def go(self, key: str, meet: dict[str, Any]) -> None:
        """Every node is ready: start the workers."""
        if key in self._parts:
            self._parts[key].begin(meet)

    def listens(self, key: str) -> bool:
        """Whether the program hears of a resize."""
        return key in self._parts and self._parts[key].listens()

    def tell(self, key: str, name: str, word: dict[str, Any]) -> None:
        """Pass a word on to the workers."""
        if key in self._parts:
            self._parts[key].tell(name, word)
            self._tell()

    def stop(self, key: str, code: str, text: str, grace_s: float) -> None:
        """Ask the workers to stop, with time for a checkpoint."""
        if key in self._parts:
            self._parts[key].leave_word("stop", {"code": code, "text": text, "grace_s": grace_s})

    def forget_request(self, key: str, mark: int) -> None:
        """A wish for workers is written down on the server."""
        if key in self._parts:
            self._parts[key].forget_request(mark)

    def release(self, key: str) -> None:
        """Workers that wait for the one that saves need not wait any longer."""
        if key in self._parts:
            self._parts[key].release()

    def drop(self, key: str) -> None:
        """Leave nothing of a run here."""
        part = self._parts.pop(key, None)
        if part is not None:
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
                if (part := self._parts.get(key)) and (new := part.news(cursors.get(key, {}))):
                    news[key] = new
            rest = end - time.monotonic()
            if news or rest <= 0:
                return news
            closely = any(part.holding for part in list(self._parts.values()))
            with self._changed:
                self._changed.wait(min(_CLOSE_LOOK_S if closely else _LOOK_S, rest))

    def saved(self, key: str) -> dict[str, Any]:
        """The checkpoints of a run as they are this moment."""
        return self._parts[key].saved(fresh=True)

    def listing(self, key: str, area: str) -> _ray_files.Listing:
        """What is in a directory of a run."""
        return _ray_files.listing(self._parts[key].area(area))

    def read(self, key: str, area: str, path: str, offset: int) -> bytes | None:
        """A part of a file; None if it is gone."""
        try:
            return _ray_files.read_chunk(self._parts[key].area(area), path, offset)
        except FileNotFoundError:
            return None

    def write(
        self, key: str, area: str, path: str, offset: int, chunk: bytes, changed_ns: int
    ) -> None:
        """Write a part of a file."""
        root = self._parts[key].area(area)
        _ray_files.write_chunk(root, path, offset, chunk, changed_ns)

    # -- helpers --------------------------------------------------------------------------------

    def _take_over(self) -> int:
        """Become the one agent in this directory, and clear what those before left."""
        lock = os.open(self._base / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        for run in self._base.glob("*/*/*/runs/*/*"):
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


def _with_threads(worker: dict[str, Any], cpus: float) -> dict[str, Any]:
    """Nobody pins workers to cores here, so say how many threads are meant."""
    if cpus:
        worker["env"].setdefault("OMP_NUM_THREADS", str(math.ceil(cpus)))
    return worker


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_bytes()
    except OSError:
        return []
    return [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]


def _is_end(event: dict[str, Any]) -> bool:
    return event["type"] in ("JobExited", "LaunchFailed")


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


def _digest(saved: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(saved).encode()).hexdigest()


def _progress(path: Path) -> dict[str, Any] | None:
    try:
        report: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return report
