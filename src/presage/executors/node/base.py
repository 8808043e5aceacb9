"""What executors share that keep each run in a directory: `local` and `fleet`.

Somebody else runs the workers (a guardian, the driver of Ray), writes what happens into the run's
directory, and calls on a named pipe. This side makes run directories, leaves word there, and reads
facts. It may vanish at any moment: a new executor on the same data directory goes on where it was.
"""

from __future__ import annotations

import os
import select
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from presage.executors.node.messages import Event
from presage.executors.node.runs import Run, sweep
from presage.executors.node.runspec import RunSpec
from presage.executors.node.wire import pack
from presage.layout import Layout
from presage.model.cluster import Worker
from presage.model.errors import RunSpecError
from presage.model.event import (
    Fact,
    JobExited,
    JobResized,
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

__all__ = ["Key", "RunsExecutor", "TimedFacts"]

_SCAN_EVERY_S = 1.0
"""Guardians and drivers wake the executor when there is an event; wake-ups may get lost, so all
runs are polled this often."""

Key = tuple[str, int]
"""A job and an attempt."""
TimedFacts = list[tuple[float, Fact]]
"""Facts with the time of day they happened at."""


class RunsExecutor:
    """The port, but for `nodes`, starting and resizing. Facts are delivered at least once:
    what a caller had in hand when it died, the next executor on the same data directory delivers
    again."""

    def __init__(self, data: Path) -> None:
        self._layout = Layout(Path(data).absolute())
        self.prepare: Callable[[str], object] = lambda job: None
        """Called before a launch, to put the job's file where it is read."""
        self.follow_up: Callable[[Sequence[Fact]], list[Fact]] = lambda facts: []
        """Facts that follow from those of a poll."""
        self._runs: dict[Key, Run] = {}
        self._waiting: dict[Key, Launch] = {}
        """Launches that wait for their turn, or for the rest of their workers."""
        self._resizes: dict[Key, Resize] = {}
        """Resizes that have not been passed on yet."""
        self._requested: list[Run] = []
        """Runs whose wish for workers the last poll returned."""
        self._ended: set[Key] = set()
        self._told: list[Run] = []
        """Runs whose end the last poll returned."""
        self._facts: TimedFacts = []
        self._next_scan = 0.0
        self._layout.runs.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._epoll = select.epoll()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._calls = self._listen()
        self._epoll.register(self._event, select.EPOLLIN)
        self._epoll.register(self._calls, select.EPOLLIN)

    # -- the port -------------------------------------------------------------------------------

    def launch(self, decision: Launch) -> None:
        """Start these workers; JobStarted or LaunchFailed follows."""
        key = (decision.job, decision.attempt)
        if key in self._runs or key in self._ended:
            return
        self.prepare(decision.job)
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
            self._left_word()
            return
        self._ended.add(key)
        if self._layout.job(decision.job).is_dir():
            with suppress(OSError):
                self._layout.logs(*key).mkdir(parents=True, exist_ok=True)  # a late Launch sees it
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
        shift = now - time.time()
        facts, self._facts = self._facts, []
        for run in self._worth_a_look():
            facts += self._news(run, shift)
        facts += self._look_closer(shift)
        self._start_waiting()
        self._pass_on_resizes()
        facts += self._facts
        self._facts = []
        facts.sort(key=lambda timed: timed[0])
        if self._told:
            self.wake()
        told = [fact for _, fact in facts]
        return told + self.follow_up(told)

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
        """Where the log of a worker is ("worker-0"). A log that grows too long is cut: a reader
        that finds it shorter than before starts again at its beginning."""
        return self._layout.log(job, attempt, worker)

    def close(self) -> None:
        """Let go; jobs go on."""
        os.close(self._calls)
        self._epoll.close()
        os.close(self._event)

    # -- what a kind of executor brings ---------------------------------------------------------

    def _spawn(self, spec: RunSpec, launch: Launch) -> None:
        """Have a run started that has all its workers; raises RunSpecError or OSError."""
        raise NotImplementedError

    def _ask_to_resize(self, run: Run, decision: Resize) -> None:
        """Leave word of a resize; raises RunSpecError or OSError, and is called again then."""
        raise NotImplementedError

    def _took_over(self, run: Run) -> None:
        """A run that another executor started is now ours."""

    def _left_word(self) -> None:
        """There is something new in the directory of a run for its guardian or driver."""

    def _look_closer(self, shift: float) -> TimedFacts:
        """Facts that no call and no event of a run tells."""
        return []

    def _on_ready(self, fd: int) -> None:
        """A descriptor that the kind of executor registered is ready."""

    # -- starting -------------------------------------------------------------------------------

    def _start_waiting(self) -> None:
        """Start what waits."""
        for key in list(self._waiting):
            if self._start(self._waiting[key]):
                del self._waiting[key]

    def _start(self, launch: Launch) -> bool:
        """Start a run unless workers are missing; whatever goes wrong becomes a fact."""
        key = (launch.job, launch.attempt)
        if self._adopt(key):
            return True
        try:
            _check_name(launch.job)
            if self._layout.logs(*key).is_dir():
                text = "the run was started before and is gone; the job starts again"
                self._end(key, JobExited(*key, Outcome.LOST, Reason(ReasonCode.NODE_LOST, text)))
                return True
            spec = self._spec(launch.job)
            if not _complete(spec, launch.workers) or not self._has_room(spec, launch):
                return False
            self._spawn(spec, launch)
        except RunSpecError as error:
            self._end(key, LaunchFailed(*key, Reason(ReasonCode.LAUNCH_FAILED, str(error))))
        except OSError as error:
            text = f"the run could not be started: {error.strerror or error}"
            self._end(key, LaunchFailed(*key, Reason(ReasonCode.LAUNCH_FAILED, text)))
        return True

    def _has_room(self, spec: RunSpec, launch: Launch) -> bool:
        """Whether it can start now; else it is tried again."""
        return True

    def _spec(self, job: str) -> RunSpec:
        return RunSpec.load(self._layout.job_file(job))

    def _pass_on_resizes(self) -> None:
        """Leave word of resizes. What cannot be written now is tried again; of a run that is gone,
        the end is told."""
        for key, decision in list(self._resizes.items()):
            run = self._runs.get(key) or self._adopt(key)
            if run is None or run.over:
                del self._resizes[key]
                continue
            with suppress(OSError, RunSpecError):
                self._ask_to_resize(run, decision)
                self._left_word()
                del self._resizes[key]

    def _adopt_all(self) -> None:
        """Take over the runs that another executor on this data directory has started."""
        sweep(self._layout.runs)
        for run in sorted(self._layout.runs.glob("[!.]*/[0-9]*")):
            self._adopt((run.parent.name, int(run.name)))

    def _adopt(self, key: Key) -> Run | None:
        """Take over a run that is there and that this executor does not know."""
        if key in self._ended or not self._layout.run(*key).is_dir():
            return None
        run = Run(*key, self._layout.run(*key))
        self._runs[key] = run
        self._took_over(run)
        self._next_scan = 0.0
        return run

    # -- reading --------------------------------------------------------------------------------

    def _worth_a_look(self) -> list[Run]:
        """The runs that somebody called about, or all if that was some time ago."""
        called: set[Key] = set()
        for fd, _ in self._epoll.poll(0):
            if fd == self._event:
                with suppress(BlockingIOError):
                    os.eventfd_read(fd)
            elif fd == self._calls:
                called |= self._take_calls()
            else:
                self._on_ready(fd)
        clock = time.monotonic()
        if clock < self._next_scan:
            return [self._runs[key] for key in called if key in self._runs]
        self._next_scan = clock + _SCAN_EVERY_S
        return list(self._runs.values())

    def _take_calls(self) -> set[Key]:
        called: set[Key] = set()
        with suppress(BlockingIOError):
            for line in os.read(self._calls, 1 << 16).decode(errors="replace").splitlines():
                job, _, attempt = line.rpartition("/")
                if attempt.isdecimal():
                    called.add((job, int(attempt)))
        return called

    def _news(self, run: Run, shift: float, events: Sequence[Event] | None = None) -> TimedFacts:
        """New facts of a run; `shift` turns the time of day into the caller's time."""
        if run.over:
            return []
        facts: TimedFacts = []
        for event in run.new_events() if events is None else events:
            run.heard = True
            if event.type == JobResized.__name__:
                run.resized_number = event.number or 0
                if event.number != run.resize_number:
                    continue  # of an earlier resize: told before this executor took over
            facts.append((event.when, _fact(event, shift)))
            run.over = event.is_end
        report = run.new_progress()
        if report is not None:
            when = facts[-1][0] if run.over else time.time()
            said = (report.done, report.detail, report.not_finite)
            progress = Progress(run.job, run.attempt, *said)
            facts.insert(len(facts) - run.over, (when, progress))
        wanted = None if run.over else run.take_request()
        if wanted is not None:
            facts.append((time.time(), ScaleRequested(run.job, wanted)))
            self._requested.append(run)
        if run.over:
            self._told.append(run)
        return facts

    # -- ending ---------------------------------------------------------------------------------

    def _forget(self, run: Run) -> None:
        """Everything about a run is written down elsewhere."""
        key = (run.job, run.attempt)
        run.remove()
        self._runs.pop(key, None)
        self._ended.add(key)

    def _end(self, key: Key, fact: Fact) -> None:
        """A run is over that has no directory."""
        self._ended.add(key)
        self._tell(fact)

    def _tell(self, fact: Fact) -> None:
        self._facts.append((time.time(), fact))
        self.wake()

    def _listen(self) -> int:
        """The named pipe on which guardians and drivers wake it."""
        with suppress(FileExistsError):
            os.mkfifo(self._layout.wake, 0o600)
        return os.open(self._layout.wake, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def _complete(spec: RunSpec, workers: Sequence[Worker]) -> bool:
    """Whether every role has the workers it needs; a policy may launch them in parts."""
    have = Counter(worker.role for worker in workers)
    if any(role >= len(spec.roles) for role in have):
        raise RunSpecError(f"the job has {len(spec.roles)} roles; another was launched")
    return all(have[number] >= role.min for number, role in enumerate(spec.roles))


def _fact(event: Event, shift: float) -> Fact:
    """An event as the journal has it."""
    body = pack(event)
    for name in ("version", "when", "number", "port"):
        body.pop(name, None)
    if event.at is not None:
        body["at"] += shift
    fact: Fact = event_from_json(body)  # type: ignore[assignment]  # only facts are written there
    return fact


def _check_name(job: str) -> None:
    if not job or "/" in job or "\0" in job or job.startswith("."):
        raise RunSpecError(f"{job!r} cannot be the id of a job")
