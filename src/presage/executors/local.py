"""The executor `local`: runs jobs as processes of this machine, whatever nodes were declared.

Each run has a guardian, a detached process that does the work (`_guardian`). This side makes run
directories, reads what guardians write, and deals with guardians that died. It may vanish at any
moment: a new executor on the same data directory goes on where it was. ADR 0015 says why.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Any

from presage.executors._limits import delegated_group
from presage.executors._plan import (
    LOG_CAP,
    Places,
    identity,
    inherited_environment,
    make_plan,
    pick_cores,
    plan_workers,
)
from presage.executors._runs import Run, make_run, spawn_guardian, sweep
from presage.executors._runspec import RunSpec, RunSpecError
from presage.model.cluster import Node, Worker
from presage.model.event import (
    Fact,
    JobExited,
    Launch,
    LaunchFailed,
    Outcome,
    Progress,
    Resize,
    ScaleRequested,
    Stop,
    event_from_json,
)
from presage.model.job import Reason, ReasonCode

__all__ = ["LocalExecutor"]

_SCAN_EVERY_S = 1.0
"""Guardians call when there is news; calls may get lost, so all runs are looked at this often."""
_STARTING_AT_ONCE = 8
_STARTING_FOR_S = 2.0
_RETRY_S = 0.05

Key = tuple[str, int]


class LocalExecutor:
    """Runs jobs on this machine. Facts are told at least once: what a caller had in hand when it
    died is told again by the next executor on the same data directory."""

    def __init__(
        self,
        data: Path,
        nodes: Sequence[Node],
        *,
        python: str | Path = sys.executable,
        log_cap: int = LOG_CAP,
    ) -> None:
        self._places = Places(Path(data).absolute())
        self._nodes = tuple(nodes)
        self._python = str(python)
        self._log_cap = log_cap
        self._cgroup = delegated_group()
        self._runs: dict[Key, Run] = {}
        self._waiting: dict[Key, Launch] = {}
        """Launches that wait for their turn, or for the rest of their workers."""
        self._resizes: dict[Key, Resize] = {}
        """Resizes that the guardians have not been told of yet."""
        self._requested: list[Run] = []
        """Runs whose wish for workers the last poll returned."""
        self._ended: set[Key] = set()
        self._told: list[Run] = []
        """Runs whose end the last poll returned."""
        self._suspects: set[Key] = set()
        """Runs whose guardian may be dead."""
        self._facts: list[tuple[float, Fact]] = []
        self._core_load: Counter[int] = Counter()
        self._pidfds: dict[int, tuple[int, Key]] = {}
        self._next_scan = 0.0
        self._crowded = False
        """Whether a launch waits because many others are starting."""
        self._alarm: Timer | None = None
        self._places.runs.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._epoll = select.epoll()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._calls = self._listen()
        self._epoll.register(self._event, select.EPOLLIN)
        self._epoll.register(self._calls, select.EPOLLIN)
        self._adopt_all()

    # -- the port -------------------------------------------------------------------------------

    def nodes(self) -> Sequence[Node]:
        """The nodes that were declared."""
        return self._nodes

    def launch(self, decision: Launch) -> None:
        """Start these workers; JobStarted or LaunchFailed follows."""
        key = (decision.job, decision.attempt)
        if key in self._runs or key in self._ended:
            return
        before = self._waiting.get(key)
        workers = dict.fromkeys((*(before.workers if before else ()), *decision.workers))
        self._waiting[key] = Launch(*key, tuple(workers))
        self._start_waiting()

    def stop(self, decision: Stop) -> None:
        """Stop a run after a checkpoint; JobExited follows, also when there is no such run."""
        key = (decision.job, decision.attempt)
        self._waiting.pop(key, None)
        run = self._runs.get(key) or self._adopt(key)
        if run is not None:
            run.ask_to_stop(decision.reason.code, decision.reason.text)
            return
        self._ended.add(key)
        if self._places.job(decision.job).is_dir():
            with suppress(OSError):
                self._places.logs(*key).mkdir(parents=True, exist_ok=True)  # a late Launch sees it
        self._tell(JobExited(*key, Outcome.STOPPED, decision.reason))

    def resize(self, decision: Resize) -> None:
        """Change a run to exactly these workers; JobResized follows, or JobExited if it ends
        first."""
        self._resizes[(decision.job, decision.attempt)] = decision
        self._pass_on_resizes()

    def poll(self, now: float) -> list[Fact]:
        """Facts since the last poll, in the order they happened. Asking again says that those of
        the last poll are safely written down."""
        for run in self._requested:
            run.request_is_safe()
        self._requested.clear()
        for run in self._told:
            self._forget(run)
        self._told.clear()
        clock = time.time()
        facts, self._facts = self._facts, []
        for run in self._worth_a_look():
            facts += self._news(run, now - clock)
        for key in list(self._suspects):
            facts += self._examine(key, now - clock)
        self._start_waiting()
        self._pass_on_resizes()
        facts += self._facts
        self._facts = []
        facts.sort(key=lambda timed: timed[0])
        if self._told:
            self.wake()
        elif self._suspects or self._crowded:
            self._wake_soon()
        return [fact for _, fact in facts]

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
        os.eventfd_write(self._event, 1)

    def logs(self, job: str, attempt: int, worker: str) -> Path:
        """Where the log of a worker is ("worker-0"). A log that grows too long is cut: a reader
        that finds it shorter than before starts again at its beginning."""
        return self._places.logs(job, attempt) / f"{worker}.log"

    def close(self) -> None:
        """Let go; jobs go on."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm.join()
        for fd, (pid, _) in self._pidfds.items():
            _reap(pid)
            os.close(fd)
        self._pidfds.clear()
        os.close(self._calls)
        self._epoll.close()
        os.close(self._event)

    # -- starting -------------------------------------------------------------------------------

    def _start_waiting(self) -> None:
        """Start what waits, a few at a time: hundreds of processes that start at once would starve
        those that run."""
        now = time.monotonic()
        room = _STARTING_AT_ONCE - sum(
            not run.heard and now - run.spawned_at < _STARTING_FOR_S for run in self._runs.values()
        )
        self._crowded = False
        for key in list(self._waiting):
            if room <= 0:
                self._crowded = True
                return
            if self._start(self._waiting[key]):
                del self._waiting[key]
                room -= 1

    def _start(self, launch: Launch) -> bool:
        """Start a run unless workers are missing; whatever goes wrong becomes a fact."""
        key = (launch.job, launch.attempt)
        if self._adopt(key):
            return True
        try:
            _check_name(launch.job)
            if self._places.logs(*key).is_dir():
                text = "the run was started before and is gone; the job starts again"
                self._end(key, JobExited(*key, Outcome.LOST, Reason(ReasonCode.NODE_LOST, text)))
                return True
            spec = RunSpec.load(self._places.job(launch.job) / "job.json")
            if not _complete(spec, launch.workers):
                return False
            self._spawn(spec, launch)
        except RunSpecError as error:
            self._end(key, LaunchFailed(*key, Reason(ReasonCode.LAUNCH_FAILED, str(error))))
        except OSError as error:
            text = f"the run could not be started: {error.strerror or error}"
            self._end(key, LaunchFailed(*key, Reason(ReasonCode.LAUNCH_FAILED, text)))
        return True

    def _spawn(self, spec: RunSpec, launch: Launch) -> None:
        key = (launch.job, launch.attempt)
        run = Run(*key, self._places.run(*key))
        cores: dict[Worker, list[int]] = {}
        load = self._core_load.copy()
        for worker in launch.workers:
            if worker.role < len(spec.roles):
                cores[worker] = pick_cores(spec.roles[worker.role].cpus, load)
                load.update(cores[worker])
        plan = make_plan(
            self._places,
            spec,
            launch,
            cores=cores,
            cgroup=self._cgroup,
            log_cap=self._log_cap,
        )
        lock = make_run(self._places.runs, run, plan)
        if lock is None:
            self._adopt(key)
            return
        try:
            env = inherited_environment(spec, self._python, run.directory)
            pid = spawn_guardian(self._python, run, lock, env)
        except OSError:
            run.remove()
            raise
        finally:
            os.close(lock)
        run.spawned_at = time.monotonic()
        run.cores = [core for chosen in cores.values() for core in chosen]
        self._core_load.update(run.cores)
        self._runs[key] = run
        self._watch_guardian(pid, key)

    def _pass_on_resizes(self) -> None:
        """Tell guardians of resizes. What cannot be written now is tried again; of a run that is
        gone, the end is told."""
        for key, decision in list(self._resizes.items()):
            run = self._runs.get(key) or self._adopt(key)
            if run is None or run.over:
                del self._resizes[key]
                continue
            with suppress(OSError, RunSpecError):
                self._ask_to_resize(run, decision)
                del self._resizes[key]

    def _ask_to_resize(self, run: Run, decision: Resize) -> None:
        spec = RunSpec.load(self._places.job(run.job) / "job.json")
        plan = run.plan()
        held = {json.dumps(worker["is"]): worker["cpus"] for worker in plan["workers"]}
        load = self._core_load.copy()
        load.subtract(run.cores)
        cores: dict[Worker, list[int]] = {}
        for worker in decision.workers:
            kept = held.get(json.dumps(identity(worker)))
            cpus = spec.roles[worker.role].cpus
            cores[worker] = pick_cores(cpus, load) if kept is None else kept
            load.update(cores[worker])
        workers = plan_workers(plan, spec, decision.workers, cores)
        run.ask_to_resize([identity(worker) for worker in decision.workers], workers)
        self._core_load.subtract(run.cores)
        run.cores = [core for chosen in cores.values() for core in chosen]
        self._core_load.update(run.cores)

    def _adopt_all(self) -> None:
        """Take over the runs that another executor on this data directory has started."""
        sweep(self._places.runs)
        for run in sorted(self._places.runs.glob("[!.]*/[0-9]*")):
            self._adopt((run.parent.name, int(run.name)))

    def _adopt(self, key: Key) -> Run | None:
        """Take over a run that is there and that this executor does not know."""
        if key in self._ended or not self._places.run(*key).is_dir():
            return None
        run = Run(*key, self._places.run(*key))
        workers = run.plan().get("workers", [])
        run.cores = [core for worker in workers for core in worker["cpus"]]
        self._core_load.update(run.cores)
        self._runs[key] = run
        pid = run.guardian()
        if pid is not None:
            self._watch_guardian(pid, key)
        else:  # dead, or not yet up
            self._suspects.add(key)
        self._next_scan = 0.0
        return run

    def _watch_guardian(self, pid: int, key: Key) -> None:
        try:
            fd = os.pidfd_open(pid)
        except OSError:  # gone already, or no more files can be opened
            self._suspects.add(key)
            return
        self._pidfds[fd] = (pid, key)
        self._epoll.register(fd, select.EPOLLIN)

    # -- reading --------------------------------------------------------------------------------

    def _worth_a_look(self) -> Iterator[Run]:
        """The runs whose guardians called, or all if that was some time ago."""
        called: set[Key] = set()
        for fd, _ in self._epoll.poll(0):
            if fd == self._event:
                with suppress(BlockingIOError):
                    os.eventfd_read(fd)
            elif fd == self._calls:
                called |= self._take_calls()
            elif fd in self._pidfds:
                pid, key = self._pidfds.pop(fd)
                self._epoll.unregister(fd)
                os.close(fd)
                _reap(pid)
                if key in self._runs:
                    self._suspects.add(key)
        clock = time.monotonic()
        if clock < self._next_scan:
            return iter([self._runs[key] for key in called if key in self._runs])
        self._next_scan = clock + _SCAN_EVERY_S
        return iter(list(self._runs.values()))

    def _take_calls(self) -> set[Key]:
        called: set[Key] = set()
        with suppress(BlockingIOError):
            for line in os.read(self._calls, 1 << 16).decode(errors="replace").splitlines():
                job, _, attempt = line.rpartition("/")
                if attempt.isdecimal():
                    called.add((job, int(attempt)))
        return called

    def _news(
        self, run: Run, shift: float, lines: list[dict[str, Any]] | None = None
    ) -> list[tuple[float, Fact]]:
        """New facts of a run; `shift` turns the time of day into the caller's time."""
        if run.over:
            return []
        if lines is None:
            lines = run.new_lines()
        facts: list[tuple[float, Fact]] = []
        for line in lines:
            run.heard = True
            when = float(line.pop("when"))
            if "at" in line:
                line["at"] += shift
            if line["type"] == "JobResized" and line.pop("number") != run.resize_number:
                continue  # of an earlier resize: told before this executor took over
            fact = event_from_json(line)
            facts.append((when, fact))  # type: ignore[arg-type]  # guardians write facts only
            run.over = isinstance(fact, JobExited | LaunchFailed)
        report = run.new_progress()
        if report is not None:
            when = facts[-1][0] if run.over else time.time()
            progress = Progress(run.job, run.attempt, report["done"], report["detail"])
            facts.insert(len(facts) - run.over, (when, progress))
        wanted = None if run.over else run.take_request()
        if wanted is not None:
            facts.append((time.time(), ScaleRequested(run.job, wanted)))
            self._requested.append(run)
        if run.over:
            self._told.append(run)
            self._suspects.discard((run.job, run.attempt))
        return facts

    def _examine(self, key: Key, shift: float) -> list[tuple[float, Fact]]:
        """Deal with a run whose guardian may be dead."""
        run = self._runs.get(key)
        if run is None or run.over:
            self._suspects.discard(key)
            return []
        facts: list[tuple[float, Fact]] = []
        with run.dead() as dead:
            if dead:
                facts = self._news(run, shift)
                if not run.over:
                    facts += self._news(run, shift, [run.bury()])
        pid = None if dead else run.guardian()
        if pid is not None:
            self._suspects.discard(key)
            self._watch_guardian(pid, key)
        return facts

    # -- ending ---------------------------------------------------------------------------------

    def _forget(self, run: Run) -> None:
        key = (run.job, run.attempt)
        run.remove()
        self._core_load.subtract(run.cores)
        self._runs.pop(key, None)
        self._ended.add(key)

    def _end(self, key: Key, fact: Fact) -> None:
        """A run is over that has no directory."""
        self._ended.add(key)
        self._tell(fact)

    def _tell(self, fact: Fact) -> None:
        self._facts.append((time.time(), fact))
        self.wake()

    def _wake_soon(self) -> None:
        """Something must be tried again that nobody will call about."""
        if self._alarm is None or not self._alarm.is_alive():
            self._alarm = Timer(_RETRY_S, self.wake)
            self._alarm.daemon = True
            self._alarm.start()

    def _listen(self) -> int:
        """The named pipe on which guardians call."""
        with suppress(FileExistsError):
            os.mkfifo(self._places.wake, 0o600)
        return os.open(self._places.wake, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def _complete(spec: RunSpec, workers: Sequence[Worker]) -> bool:
    """Whether every role has the workers it needs; a policy may launch them in parts."""
    have = Counter(worker.role for worker in workers)
    return all(have[number] >= role.min for number, role in enumerate(spec.roles))


def _check_name(job: str) -> None:
    if not job or "/" in job or "\0" in job or job.startswith("."):
        raise RunSpecError(f"{job!r} cannot be the id of a job")


def _reap(pid: int) -> None:
    """Take away the remains of a guardian that was our child, if it has ended."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
