"""What a suite for executors is made of: kits that know an executor, and watchers that wait for
facts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from presage.core.ports import CanResize, Executor
from presage.model import event as ev
from presage.model.cluster import Worker
from presage.model.event import Outcome
from presage.model.job import Reason, ReasonCode, StopIntent

__all__ = ["Counting", "ExecutorKit", "RoleWork", "Watcher", "dedented"]

_ASKED = Reason(ReasonCode.REQUESTED, "halted by request")


@dataclass(frozen=True, slots=True)
class RoleWork:
    """What the workers of one role run: a Python script, or a program that need not exist."""

    script: str = ""
    program: tuple[str, ...] = ()
    workers: int = 1
    memory_mib: int = 0
    gpus: int = 0
    most: int = 0
    """How many workers it may be resized to; 0 if it may not."""


class ExecutorKit(Protocol):
    """What an executor's tests bring along."""

    timeout_s: float
    """How long anything may take in this world."""

    def executor(self) -> Executor:
        """A new executor on the same world, as a server that starts again would make it. The one
        before it is never used again, and was not asked to clean up."""
        ...

    def add_job(
        self,
        job: str,
        *roles: RoleWork,
        time_limit_s: float | None = None,
        grace_s: float = 10.0,
        env: dict[str, str] | None = None,
        launcher: str = "none",
    ) -> tuple[Worker, ...]:
        """Make a job known; returns where its workers may be, each on devices of its own: as many
        as there may ever be."""
        ...

    def wait(self, executor: Executor, timeout_s: float) -> None:
        """Until there may be something to poll, or the time has passed."""
        ...

    def log(self, job: str, attempt: int, worker: str) -> str:
        """What a worker (`worker-0`) has printed so far."""
        ...

    def kill_worker(self, job: str, attempt: int, rank: int) -> None:
        """Kill a worker from outside, at once."""
        ...

    def leftovers(self, job: str) -> list[str]:
        """Processes, containers and files that should have gone with the last run of a job."""
        ...


class Watcher:
    """Drives an executor as the deciding loop would, and keeps the facts of every poll."""

    def __init__(self, kit: ExecutorKit) -> None:
        self.kit = kit
        self.executor = kit.executor()
        self.facts: list[ev.Fact] = []

    def restart(self) -> None:
        """Go on with a new executor, as after a crash of the server."""
        self.executor = self.kit.executor()

    def run(
        self, job: str, *roles: RoleWork, attempt: int = 1, **options: Any
    ) -> tuple[Worker, ...]:
        """Add a job and launch it; a role that may be resized begins with its smallest size."""
        workers = self.kit.add_job(job, *roles, **options)
        first = [worker for worker in workers if worker.index < roles[worker.role].workers]
        self.executor.launch(ev.Launch(job, attempt, tuple(first)))
        return workers

    def resize(self, job: str, workers: tuple[Worker, ...], attempt: int = 1) -> None:
        """Ask for other workers."""
        assert isinstance(self.executor, CanResize)
        self.executor.resize(ev.Resize(job, attempt, workers))

    def stop(self, job: str, attempt: int = 1) -> None:
        """Ask a run to stop."""
        self.executor.stop(ev.Stop(job, attempt, StopIntent.HALT, _ASKED))

    def until(self, happened: Callable[[], object], what: str) -> None:
        """Poll until something has happened."""
        end = time.monotonic() + self.kit.timeout_s
        while not happened():
            assert time.monotonic() < end, f"not {what} in time; so far: {self.facts}"
            self.kit.wait(self.executor, 0.05)
            self.facts += self.executor.poll(time.time())

    def until_log(self, job: str, text: str, attempt: int = 1, worker: str = "worker-0") -> None:
        """Poll until a worker has printed something."""
        self.until(lambda: text in self.kit.log(job, attempt, worker), f"{text!r} in the log")

    def until_started(self, job: str, attempt: int = 1) -> None:
        """Poll until a run is up."""
        self.until(lambda: self.of(job, ev.JobStarted, attempt), "started")

    def end(self, job: str, attempt: int = 1) -> ev.JobExited:
        """Poll until a run is over; how it ended."""
        self.until(lambda: self.of(job, ev.JobExited, attempt), "over")
        exited = self.of(job, ev.JobExited, attempt)[-1]
        assert isinstance(exited, ev.JobExited)
        return exited

    def of(self, job: str, kind: type[Any], attempt: int = 1) -> list[Any]:
        """The facts of one kind about a run."""
        return [
            fact
            for fact in self.facts
            if isinstance(fact, kind) and (fact.job, fact.attempt) == (job, attempt)
        ]

    def settle(self) -> None:
        """Poll as often as a loop does that wrote everything down and finds nothing more."""
        for _ in range(3):
            self.facts += self.executor.poll(time.time())

    def let_time_pass(self) -> None:
        """As much as a run takes, so that what was launched before it would have started."""
        self.run("clock", RoleWork("print('tick')"))
        self.end("clock")

    def assert_nothing_left(self, job: str) -> None:
        """What was polled is written down: now nothing of the run may be there."""
        self.settle()
        end = time.monotonic() + self.kit.timeout_s
        while (left := self.kit.leftovers(job)) and time.monotonic() < end:
            self.kit.wait(self.executor, 0.05)
            self.facts += self.executor.poll(time.time())
        assert not left


class Counting:
    """A job that knows nothing of Presage but its environment: it counts, and when it is told to
    stop it saves how far it is."""

    _SCRIPT = """
        import os, pathlib, signal, time
        kept = pathlib.Path(os.environ["PRESAGE_CHECKPOINT_DIR"]) / "count"
        count = int(kept.read_text()) if kept.exists() else 0
        stop = []
        signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
        while not stop:
            count += 1
            print("step", count, "of", os.environ["PRESAGE_WORKERS"], flush=True)
            time.sleep(0.01)
        if os.environ["PRESAGE_RANK"] == "0":
            kept.write_text(str(count))
    """

    def __init__(self, watch: Watcher) -> None:
        self.watch = watch
        self.workers = watch.run("count", RoleWork(dedented(self._SCRIPT), gpus=1, most=3))
        watch.until(lambda: len(self.steps()) > 3, "counting")

    def to(self, size: int) -> None:
        """Resize, and wait until it counts with so many workers."""
        before = len(self.watch.of("count", ev.JobResized))
        self.watch.resize("count", self.workers[:size])
        self.watch.until(
            lambda: len(self.watch.of("count", ev.JobResized)) > before, f"{size} workers"
        )
        self.watch.until(lambda: self.steps()[-1][1] == size, f"counting with {size}")

    def steps(self) -> list[tuple[int, int]]:
        """What the first worker counted, and with how many workers."""
        lines = [line.split() for line in self.watch.kit.log("count", 1, "worker-0").splitlines()]
        return [(int(line[1]), int(line[3])) for line in lines if len(line) == 4]

    def end(self) -> None:
        """Stop it; nothing may be left."""
        self.watch.stop("count")
        assert self.watch.end("count").outcome is Outcome.STOPPED
        self.watch.assert_nothing_left("count")


def dedented(script: str) -> str:
    """A script that stands indented in a test."""
    lines: Sequence[str] = script.strip("\n").splitlines()
    margin = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[margin:] for line in lines)
