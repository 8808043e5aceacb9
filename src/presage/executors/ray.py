"""The executor `ray`: runs jobs on the nodes of a Ray cluster that exists.

This side is the port: it makes run directories, leaves word there, and reads what happened. A
child process, the driver, talks to Ray (`_ray_driver`); agents on the nodes run the workers
(`_ray_agent`). Either side may vanish at any moment and is started again. Ray is not imported
here.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from presage.executors._plan import LOG_CAP, Places
from presage.executors._ray_link import RayLink, RayUnreachable
from presage.executors._runs import Run
from presage.executors._runspec import RunSpec, RunSpecError
from presage.model.cluster import Node
from presage.model.event import (
    Fact,
    JobExited,
    Launch,
    LaunchFailed,
    NodeDown,
    NodeUp,
    Outcome,
    Progress,
    Stop,
    event_from_json,
)
from presage.model.job import Reason, ReasonCode

__all__ = ["RayExecutor", "RayLink", "RayUnreachable"]

_SCAN_EVERY_S = 1.0
"""The driver calls when there is news; calls may get lost, so all are looked at this often."""
_AWAY_S = 30.0
"""A cluster that is out of reach for so long has no nodes; runs there may still go on."""

Key = tuple[str, int]


class RayExecutor:
    """Runs jobs on a Ray cluster. Facts are told at least once: what a caller had in hand when it
    died is told again by the next executor on the same data directory.

    `shared` is a directory that every node and this machine see under the same path; checkpoints
    are kept there. Without it they are copied back to the data directory as they are made.
    """

    def __init__(
        self,
        data: Path,
        link: RayLink,
        *,
        shared: Path | None = None,
        log_cap: int = LOG_CAP,
    ) -> None:
        self._places = Places(Path(data).absolute())
        self._link = link
        self._options = {"shared": str(shared) if shared else None, "log_cap": log_cap}
        self._runs: dict[Key, Run] = {}
        self._nodes_of: dict[Key, set[str]] = {}
        self._waiting: dict[Key, Launch] = {}
        """Launches that wait for the rest of their workers."""
        self._ended: set[Key] = set()
        self._told: list[Run] = []
        """Runs whose end the last poll returned."""
        self._facts: list[tuple[float, Fact]] = []
        self._next_scan = 0.0
        self._places.runs.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._known = self._there()
        """Nodes by name as the caller knows them, with the ids Ray has for them."""
        self._epoll = select.epoll()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._calls = self._listen()
        self._epoll.register(self._event, select.EPOLLIN)
        self._epoll.register(self._calls, select.EPOLLIN)
        self._adopt_all()
        link.serve(self._places.data, self.wake)

    # -- the port -------------------------------------------------------------------------------

    def nodes(self) -> Sequence[Node]:
        """The nodes of the cluster that take jobs."""
        return tuple(node for _, node in self._known.values())

    def launch(self, decision: Launch) -> None:
        """Start these workers; JobStarted or LaunchFailed follows."""
        key = (decision.job, decision.attempt)
        if key in self._runs or key in self._ended or self._adopt(key):
            return
        before = self._waiting.pop(key, None)
        workers = dict.fromkeys((*(before.workers if before else ()), *decision.workers))
        launch = Launch(*key, tuple(workers))
        try:
            if not self._start(launch):
                self._waiting[key] = launch
        except RunSpecError as error:
            self._end(key, LaunchFailed(*key, Reason(ReasonCode.LAUNCH_FAILED, str(error))))
        except OSError as error:
            text = f"the run could not be started: {error.strerror or error}"
            self._end(key, LaunchFailed(*key, Reason(ReasonCode.LAUNCH_FAILED, text)))

    def stop(self, decision: Stop) -> None:
        """Stop a run after a checkpoint; JobExited follows, also when there is no such run."""
        key = (decision.job, decision.attempt)
        self._waiting.pop(key, None)
        run = self._runs.get(key) or self._adopt(key)
        if run is not None:
            word = {"code": decision.reason.code, "text": decision.reason.text}
            with suppress(OSError):  # a full disk, or it is being removed; the caller asks again
                _write(run.directory / "stop.json", word)
            self._link.look(self._places.data)
            return
        self._ended.add(key)
        if self._places.job(decision.job).is_dir():
            with suppress(OSError):
                self._places.logs(*key).mkdir(parents=True, exist_ok=True)  # a late Launch sees it
        self._tell(JobExited(*key, Outcome.STOPPED, decision.reason))

    def poll(self, now: float) -> list[Fact]:
        """Facts since the last poll, in the order they happened. Asking again says that those of
        the last poll are safely written down."""
        for run in self._told:
            self._forget(run)
        self._told.clear()
        clock = time.time()
        called = self._take_calls()
        facts, self._facts = self._facts, []
        if time.monotonic() >= self._next_scan:
            self._next_scan = time.monotonic() + _SCAN_EVERY_S
            called = set(self._runs)
        for key in called & self._runs.keys():
            facts += self._news(self._runs[key], now - clock)
        facts.sort(key=lambda timed: timed[0])
        if self._told:
            self.wake()
        return [*self._node_changes(), *(fact for _, fact in facts)]

    # -- beyond the port ------------------------------------------------------------------------

    def fileno(self) -> int:
        """Readable when there is something to poll, for `select` and event loops."""
        return self._epoll.fileno()

    def wait(self, timeout_s: float) -> bool:
        """Block until there may be something to poll, `wake` is called, or the time has passed;
        says whether one of the first two."""
        return bool(self._epoll.poll(timeout_s))

    def wake(self) -> None:
        """End a `wait`; may be called from any thread."""
        with suppress(OSError):  # it was just closed
            os.eventfd_write(self._event, 1)

    def logs(self, job: str, attempt: int, worker: str) -> Path:
        """Where our copy of the log of a worker is ("worker-0"). A log that grows too long is cut:
        a reader that finds it shorter than before starts again at its beginning."""
        return self._places.logs(job, attempt) / f"{worker}.log"

    def close(self) -> None:
        """Let go; jobs go on."""
        self._link.leave(self.wake)
        os.close(self._calls)
        self._epoll.close()
        os.close(self._event)

    # -- starting -------------------------------------------------------------------------------

    def _start(self, launch: Launch) -> bool:
        """Hand a run to the driver unless workers are missing."""
        key = (launch.job, launch.attempt)
        if not launch.job or "/" in launch.job or launch.job.startswith("."):
            raise RunSpecError(f"{launch.job!r} cannot be the id of a job")
        if self._places.logs(*key).is_dir():
            text = "the run was started before and is gone; the job starts again"
            self._end(key, JobExited(*key, Outcome.LOST, Reason(ReasonCode.NODE_LOST, text)))
            return True
        spec = RunSpec.load(self._places.job(launch.job) / "job.json")
        have = Counter(worker.role for worker in launch.workers)
        if any(role >= len(spec.roles) for role in have):
            raise RunSpecError(f"the job has {len(spec.roles)} roles; another was launched")
        if any(have[number] < role.min for number, role in enumerate(spec.roles)):
            return False
        self._make(launch)
        self._adopt(key)
        self._link.look(self._places.data)
        return True

    def _make(self, launch: Launch) -> None:
        """The directory of a run appears whole or not at all."""
        body = {
            "job": launch.job,
            "attempt": launch.attempt,
            "workers": [[w.role, w.index, w.node, list(w.devices)] for w in launch.workers],
            **self._options,
        }
        new = self._places.runs / f".new-{os.getpid()}-{time.monotonic_ns()}"
        new.mkdir(mode=0o700)
        target = self._places.run(launch.job, launch.attempt)
        try:
            _write(new / "launch.json", body)
            target.parent.mkdir(mode=0o700, exist_ok=True)
            new.rename(target)
        except OSError:
            shutil.rmtree(new, ignore_errors=True)
            raise

    def _adopt_all(self) -> None:
        """Take over the runs that another executor on this data directory has started."""
        for path in self._places.runs.glob(".*"):
            shutil.rmtree(path, ignore_errors=True)
        for path in sorted(self._places.runs.glob("[!.]*/[0-9]*")):
            self._adopt((path.parent.name, int(path.name)))

    def _adopt(self, key: Key) -> Run | None:
        """Take over a run that is there and that this executor does not know."""
        directory = self._places.run(*key)
        if key in self._ended:
            return None
        try:
            workers = json.loads((directory / "launch.json").read_bytes())["workers"]
        except (OSError, ValueError):
            return None
        self._nodes_of[key] = {node for _, _, node, _ in workers}
        self._runs[key] = Run(*key, directory)
        self._next_scan = 0.0
        return self._runs[key]

    # -- reading --------------------------------------------------------------------------------

    def _take_calls(self) -> set[Key]:
        """The runs that the driver called about."""
        called: set[Key] = set()
        with suppress(BlockingIOError):
            os.eventfd_read(self._event)
        with suppress(BlockingIOError):
            for line in os.read(self._calls, 1 << 16).decode(errors="replace").splitlines():
                job, _, attempt = line.rpartition("/")
                if attempt.isdecimal():
                    called.add((job, int(attempt)))
        return called

    def _news(self, run: Run, shift: float) -> list[tuple[float, Fact]]:
        """New facts of a run; `shift` turns the time of day into the caller's time."""
        if run.over:
            return []
        facts: list[tuple[float, Fact]] = []
        for line in run.new_lines():
            when = float(line.pop("when"))
            if "at" in line:
                line["at"] += shift
            fact = event_from_json(line)
            facts.append((when, fact))  # type: ignore[arg-type]  # drivers write facts only
            run.over = isinstance(fact, JobExited | LaunchFailed)
        report = run.new_progress()
        if report is not None:
            when = facts[-1][0] if run.over else time.time()
            progress = Progress(run.job, run.attempt, report["done"], report["detail"])
            facts.insert(len(facts) - run.over, (when, progress))
        if run.over:
            self._told.append(run)
        return facts

    def _there(self) -> dict[str, tuple[str, Node]]:
        """The nodes that there are, unless the cluster has been out of reach for long."""
        if self._link.away_s() > _AWAY_S:
            return {}
        return {node.name: (id, node) for id, node in self._link.nodes}

    def _node_changes(self) -> list[Fact]:
        """Nodes that came or went. One that came back is told when no run is left that was on it,
        since it may come back with other hardware."""
        there = self._there()
        facts: list[Fact] = []
        for name in [n for n, node in self._known.items() if there.get(n) != node]:
            del self._known[name]
            facts.append(NodeDown(name))
        busy = set().union(*self._nodes_of.values()) if self._nodes_of else set()
        for launch in self._waiting.values():
            busy |= {worker.node for worker in launch.workers}
        for name, node in there.items():
            if name not in self._known and name not in busy:
                self._known[name] = node
                facts.append(NodeUp(node[1]))
        return facts

    # -- ending ---------------------------------------------------------------------------------

    def _forget(self, run: Run) -> None:
        key = (run.job, run.attempt)
        run.remove()
        self._runs.pop(key, None)
        self._nodes_of.pop(key, None)
        self._ended.add(key)

    def _end(self, key: Key, fact: Fact) -> None:
        """A run is over that has no directory."""
        self._ended.add(key)
        self._tell(fact)

    def _tell(self, fact: Fact) -> None:
        self._facts.append((time.time(), fact))
        self.wake()

    def _listen(self) -> int:
        """The named pipe on which the driver calls."""
        with suppress(FileExistsError):
            os.mkfifo(self._places.wake, 0o600)
        return os.open(self._places.wake, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def _write(path: Path, body: dict[str, Any]) -> None:
    new = path.with_suffix(".new")
    with new.open("w") as file:
        json.dump(body, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
