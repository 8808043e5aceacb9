"""When waiting jobs will start: kept up to date beside the deciding loop.

It copies the state while the deciding loop waits or writes, reads which jobs started and ended
from the store's rows, learns run times and its own errors from them, and runs the copy ahead when
the queue changed. It works in short spells with long rests: a short forecast takes a fifth of a
core, a long one a twelfth. Every piece of work is bounded. It never changes anything; what it
knows is a forecast with its age, or nothing.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from presage.control.advisors import StateReader, Telemetry
from presage.core.engine import Engine
from presage.core.ports import Entry, Knowledge
from presage.core.state import State
from presage.manifest import Manifest, to_spec
from presage.model.errors import PresageError
from presage.model.estimate import Estimate
from presage.model.event import Fact, JobSubmitted, Reject
from presage.model.job import Job, JobSpec, Reason
from presage.sim.ahead import Start, StartForecast, TimeBox, run_ahead
from presage.sim.calibrate import Calibration, ForecastLog
from presage.sim.helps import Option, what_would_help
from presage.sim.history import RuntimeHistory
from presage.store.records import JobRow

if TYPE_CHECKING:  # the simulator's advisors do without a database
    from presage.control.deciding import Decider
    from presage.store.sql import SqlStore

__all__ = ["Declared", "Experience", "StartPreview", "StartTimes", "eta_view"]

_LOOK_S = 1.0
"""How often it looks whether the queue changed, and how often it foresees at most."""
_CROWD = 200
"""With more changes than this since the last look, the server has better things to do."""
_STALE_S = 15.0
"""A forecast is renewed after so long even when nothing changed: jobs went on running."""
_CROWDED_S = 60.0
"""While jobs come in crowds, it waits so long for a calmer moment: copying the state and running
it ahead would hold up those who submit and read."""
_TOO_OLD_S = 600.0
"""What is older is not told."""
_SAMPLES = 24
_MOST_CPU_S = 2.0
"""CPU time of one forecast."""
_MOST_ASKED_CPU_S = 0.5
"""CPU time of one forecast that somebody waits for; what would help takes several."""
_GRAIN = 0.02
"""Starts need not be told finer than this share of a wait."""
_SPELL_S = 0.005
_REST, _LONG_REST = 4.0, 11.0
"""Rest after a spell of work, in times of its length, and that of a forecast that takes long."""
_LONG_S = 0.2
"""A forecast takes long when it takes more CPU time than this."""
_YIELD_S = 0.25
"""Rest after a spell when requests wait for a turn of the deciding loop."""
_COPY_REST = 20.0
"""The same for copying, which holds up decisions."""
_FAILED_S = 60.0
"""Rest after a forecast that failed."""
_REMEMBERED = 2000
"""Ended jobs that a start learns from."""
_OUTCOMES, _OPEN = "forecasts/outcomes", "forecasts/open"
_OPEN_S = 10.0
"""How often forecasts of jobs that wait are written down, at most."""


class Declared:
    """Foresees only what people declared: a run takes its time limit, or a day."""

    version = "declared-1"

    def runtime(self, job: Job, workers: Sequence[Any] = ()) -> Estimate:
        """The time limit."""
        return _limit(job.spec.time_limit_s or 86_400.0)

    def utilization(self, job: Job) -> Estimate:
        """Nothing is known: a whole device."""
        return Estimate.exact(1.0, "share", "not known")

    def memory(self, job: Job) -> Estimate:
        """What was asked for."""
        asked = max((role.resources.gpu_memory_mib for role in job.spec.roles), default=0)
        return Estimate.exact(float(asked), "MiB", "asked for")

    def slowdown(self, job: Job, neighbours: Sequence[Job]) -> Estimate:
        """Fair shares."""
        return Estimate.exact(1.0 + len(neighbours), "times", "fair shares")


@lru_cache(1024)
def _limit(seconds: float) -> Estimate:
    """Made once: backfilling asks for every running job in every pass."""
    return Estimate.exact(seconds, "s", "time limit")


@dataclass(frozen=True, slots=True)
class StartPreview:
    """What would become of a job that is not submitted yet."""

    refused: Reason | None
    """Why it would never run."""
    start: Start | None
    """When and where it would start; None when it is refused."""
    made_at: float


@dataclass(frozen=True, slots=True)
class _LatestForecast:
    """The latest forecast, and what it was made from."""

    forecast: StartForecast
    state: State
    """A copy that nobody changes any more."""
    told: dict[str, Start]
    """The starts, calibrated."""


class StartTimes:
    """The forecasts of one server. Everything public may be called from any thread."""

    name = "starts"
    every_s = _LOOK_S / 5

    def __init__(
        self,
        store: SqlStore,
        decides: Callable[[], Decider],
        knowledge: Knowledge,
        *,
        ask: StateReader,
        crowd: Callable[[], int],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`decides` says by what it is decided now, `crowd` how many requests wait for a turn of
        the loop."""
        self._ask, self._decides, self._clock = ask, decides, clock
        self._stopping = threading.Event()
        self._wanted = threading.Event()
        self._pace = _Pace(self._stopping, crowd)
        self._experience = Experience(store, knowledge, self._pace)
        self._known: _LatestForecast | None = None
        self._tired_until = self._next_at = 0.0
        self._behind = False
        self._copy_s = 0.0
        """What the latest copy of the state cost the deciding thread."""
        self._asked = ThreadPoolExecutor(1, "presage-asked")
        self._helps: dict[str, tuple[float, Future[tuple[Start | None, list[Option]]]]] = {}
        self._usual: dict[Hashable, tuple[float, Estimate]] = {}
        """Run times of kinds of jobs, and when they were worked out."""
        self.made = 0
        """Forecasts since the start."""
        self.cpu_s = 0.0
        """CPU time that they took."""

    def close(self) -> None:
        """End what is under way soon."""
        self._stopping.set()
        self._asked.shutdown(wait=False, cancel_futures=True)

    # -- what is known ----------------------------------------------------------------------------

    def eta(self, job_id: str) -> dict[str, float | None] | None:
        """Seconds from now until a job starts; None when it does not wait or nothing is known."""
        known = self._known
        start = None if known is None else known.told.get(job_id)
        if known is None or start is None:
            return None
        return eta_view(start, known.forecast.now, self._clock())

    def end(self, name: str) -> dict[str, float | None] | None:
        """Seconds from now until a job or an array ends that others wait for; None when that is
        not known."""
        known = self._known
        over = None if known is None else known.forecast.ends.get(name)
        if known is None or over is None:
            return None
        return eta_view(over, known.forecast.now, self._clock())

    def expects(self, job_id: str) -> bool:
        """Whether the latest forecast has a job; if not, a new one is made soon."""
        known = self._known
        if known is not None and job_id in known.forecast.starts:
            return True
        self._wanted.set()
        return False

    def age_s(self) -> float | None:
        """How old the latest forecast is."""
        known = self._known
        return None if known is None else max(0.0, self._clock() - known.forecast.now)

    def samples(self) -> int:
        """Runs of the latest forecast."""
        return 0 if self._known is None else self._known.forecast.samples

    def runs_known(self) -> int:
        """Ended runs that run times are learned from."""
        return len(self._experience.history)

    def usual_runtime(self, spec: JobSpec) -> Estimate | None:
        """How long such jobs ran, as far as that was learned; the same answer for a while."""
        if not self.runs_known():
            return None
        now = self._clock()
        kind = (spec.owner, spec.queue, spec.entrypoint, spec.model, spec.min_gpu_milli)
        known = self._usual.get(kind)
        if known is None or now - known[0] > _STALE_S:
            if len(self._usual) >= _REMEMBERED:
                self._usual.clear()
            known = self._usual[kind] = now, self._experience.estimate(spec, now)
        return known[1]

    # -- what somebody asks -----------------------------------------------------------------------

    def what_helps(
        self, job_id: str, queues: Sequence[str]
    ) -> Future[tuple[Start | None, list[Option]]]:
        """What would let a waiting job start earlier; the same answer for a while."""
        now = self._clock()
        known = self._helps.get(job_id)
        if known is not None and now - known[0] < _STALE_S:
            return known[1]
        self._helps = {name: item for name, item in self._helps.items() if now - item[0] < 60.0}
        future = self._asked.submit(self._find_help, job_id, tuple(queues))
        self._helps[job_id] = (now, future)
        return future

    def try_out(self, spec: JobSpec) -> Future[StartPreview]:
        """What would become of a job if it was submitted now."""
        return self._asked.submit(self._try_out, spec)

    def _find_help(self, job_id: str, queues: Sequence[str]) -> tuple[Start | None, list[Option]]:
        state = self._recent_state(job_id)
        now = max(state.now, self._clock())
        if job_id not in state.pending:
            return None, []
        decider = self._decides()
        return what_would_help(
            state,
            decider.make,
            self._experience,
            job_id,
            queues=queues,
            now=now,
            predict=decider.predict,
            calibration=self._experience.calibration(now),
            time_box=lambda: TimeBox(time.thread_time, _MOST_ASKED_CPU_S),
            grain=_GRAIN,
        )

    def _try_out(self, spec: JobSpec) -> StartPreview:
        state = self._recent_state()
        now = max(state.now, self._clock())
        decider = self._decides()
        engine = Engine(decider.make(), decider.predict, state.copy())
        for decision in engine.handle(now, [JobSubmitted(spec)]):
            if isinstance(decision, Reject) and decision.job == spec.id:
                return StartPreview(decision.reason, None, now)
        forecast = run_ahead(
            state,
            decider.make,
            self._experience,
            now=now,
            asked=(),
            submit=[spec],
            predict=decider.predict,
            samples=_SAMPLES,
            calibration=self._experience.calibration(now),
            time_box=TimeBox(time.thread_time, 2 * _MOST_ASKED_CPU_S),
            grain=_GRAIN,
        )
        return StartPreview(None, forecast.starts.get(spec.id), now)

    def _recent_state(self, job_id: str | None = None) -> State:
        """A copy of the state that knows a job; a new one unless copying takes long and the
        latest is young."""
        known = self._known
        if known is None or self._clock() - known.forecast.now >= _COPY_REST * self._copy_s:
            return self._copy()
        has_it = job_id is None or job_id in known.state.jobs
        return known.state if has_it else self._copy()

    def _copy(self) -> State:
        def copy(state: State) -> tuple[State, float]:
            began = time.perf_counter()
            return state.copy(), time.perf_counter() - began

        state, self._copy_s = self._ask(copy)
        return state

    # -- a look -----------------------------------------------------------------------------------

    def not_leading(self) -> None:
        """Another server decides, and foresees; this one learns along."""
        self._known = None
        self._experience.catch_up(leading=False)

    def look(self, now: float, ask: StateReader, telemetry: Telemetry) -> Iterable[Fact]:
        """Look ahead if the queue changed, or somebody wants to know; it tells no facts."""
        clock = time.monotonic()
        if clock < self._tired_until or (clock < self._next_at and not self._wanted.is_set()):
            return ()
        if self._is_due(self._experience.catch_up()):
            self._tired_until = clock + _FAILED_S  # unless it works out
            self._look()
        self._next_at = time.monotonic() + _LOOK_S
        return ()

    def _is_due(self, changes: int) -> bool:
        """Whether to look ahead now; while jobs come in crowds, less often."""
        age_s = self.age_s()
        if changes > _CROWD and age_s is not None and age_s < _CROWDED_S:
            self._behind = True
            return False
        return (
            age_s is None
            or age_s > _STALE_S
            or changes > 0
            or self._behind
            or self._wanted.is_set()
        )

    def _look(self) -> None:
        """Run the present state ahead and keep what comes out."""
        self._wanted.clear()
        self._behind = False
        began = time.thread_time()
        self._pace.begin()
        state = self._copy()
        now = max(state.now, self._clock())
        forecast = StartForecast(now, 0, 0.0, {})
        if state.pending or state.gates.blocked:
            decider = self._decides()
            forecast = run_ahead(
                state,
                decider.make,
                self._experience,
                now=now,
                predict=decider.predict,
                samples=_SAMPLES,
                time_box=TimeBox(time.thread_time, _MOST_CPU_S, self._pace),
                grain=_GRAIN,
            )
            self._experience.foreseen(forecast, state)
        calibration = self._experience.calibration(now)
        told = {}
        for job_id, start in forecast.starts.items():
            told[job_id] = start.calibrated(calibration, forecast.horizon_s)
            self._pace()
        self._known = _LatestForecast(forecast, state, told)
        spent = time.thread_time() - began
        self.made += 1
        self.cpu_s += spent
        self._tired_until = time.monotonic() + min(60.0, _COPY_REST * self._copy_s)


def eta_view(start: Start, made_at: float, now: float) -> dict[str, float | None] | None:
    """A start as it is told: seconds from now on, and how old the forecast is."""
    age = max(0.0, now - made_at)
    if start.p10_s is None or age > _TOO_OLD_S:
        return None
    waits = {"p10": start.p10_s, "p50": start.p50_s, "p90": start.p90_s}
    told: dict[str, float | None] = {
        name: None if wait is None else round(max(0.0, wait - age), 1)
        for name, wait in waits.items()
    }
    return {**told, "age_s": round(age, 1)}


class _Pace:
    """Short spells of work with rests between them, longer ones while requests crowd in; for one
    thread."""

    def __init__(self, stopping: threading.Event, crowd: Callable[[], int]) -> None:
        self._stopping, self._crowd = stopping, crowd
        self._mark = self._began = 0.0

    def begin(self) -> None:
        """A new piece of work."""
        self._began = time.thread_time()

    def __call__(self) -> None:
        now = time.thread_time()
        worked = now - self._mark
        if worked < _SPELL_S:
            return
        rest = _REST if now - self._began < _LONG_S else _LONG_REST
        self._stopping.wait(min(rest * worked, 1.0))
        if self._crowd():
            self._stopping.wait(_YIELD_S)
        self._mark = time.thread_time()


class Experience:
    """What ended runs and earlier forecasts teach, read from the rows that users see.

    `catch_up` and `foreseen` are for one thread, the rest for any. What was foreseen and what came
    of it is written down, since nothing else tells it to the next server.
    """

    def __init__(self, store: SqlStore, knowledge: Knowledge, pace: Callable[[], None]) -> None:
        self.history = RuntimeHistory()
        self._store, self._knowledge, self._pace = store, knowledge, pace
        self._log = ForecastLog()
        self._epoch: int | None = None
        """Under which the log was read."""
        self._outcomes: list[Entry] = []
        """Those that are not written yet."""
        self._open: list[tuple[str, float, float, float, float]] = []
        """What a server before foresaw, of jobs that may wait no more."""
        self._unwritten, self._next_at = False, 0.0
        """Whether forecasts are open that are not written, and when that may be done."""
        self._lock = threading.Lock()
        self._number: int | None = None
        """The latest transition that was read."""
        self._learned: set[str] = set()
        """Jobs whose end was read from their row before their transition was."""

    def sample(
        self, jobs: Sequence[Job], now: float, samples: int, rng: np.random.Generator
    ) -> npt.NDArray[np.float64]:
        """Seconds that jobs still run, as `RuntimeHistory.sample`."""
        with self._lock:
            return self.history.sample(jobs, now, samples, rng)

    def calibration(self, now: float) -> Calibration:
        """What forecasts taught so far."""
        with self._lock:
            return self._log.calibration(now)

    def estimate(self, spec: JobSpec, now: float) -> Estimate:
        """How long such a job runs."""
        with self._lock:
            return self.history.estimate(spec, 0.0, now)

    def foreseen(self, forecast: StartForecast, state: State) -> None:
        """Remember what was foreseen for jobs that wait for their first run."""
        horizon_s, known = forecast.horizon_s, self._log.open
        waiting = {job_id for job_id, job in state.pending.items() if not job.attempt}
        new = [one for one in self._open if one[0] in waiting]
        for job_id, start in forecast.starts.items():
            if job_id in waiting and job_id not in known and start.p50_s is not None:
                low, high = start.p10_s or 0.0, start.p90_s
                high = horizon_s if high is None else high
                new.append((job_id, forecast.now, low, start.p50_s, high))
        self._open = []
        with self._lock:
            for one in new:
                self._log.made(*one)
        self._unwritten |= bool(new)
        if self._unwritten and time.monotonic() >= self._next_at:
            told = [(job_id, *one) for job_id, one in self._log.open.items()]
            self._knowledge.write(Entry(_OPEN, json.dumps(told).encode()))
            self._unwritten, self._next_at = False, time.monotonic() + _OPEN_S

    def catch_up(self, *, leading: bool = True) -> int:
        """Read what happened since the last time; how many changes there were. Of forecasts, the
        server learns that makes them."""
        if leading and self._epoch != self._knowledge.epoch:
            self._recall()
        if self._number is None:
            self._begin()
            return 1
        changes = 0
        while moves := self._store.jobs.transitions_since(self._number):
            changes += len(moves)
            for item in moves:
                self._number = item.number
                if item.status == "DOWNLOADING":
                    self._started(item.job, item.at)
                elif item.status in ("COMPLETED", "FAILED", "CANCELLED"):
                    self._ended(item.job, item.status)
            self._pace()
        self._learned.clear()
        if leading:
            self._knowledge.write(*self._outcomes)
        self._outcomes = []
        return changes

    def _recall(self) -> None:
        """Take over what the server before foresaw, and what came of it."""
        epoch, log = self._knowledge.epoch, ForecastLog()
        for line in self._knowledge.tail(_OUTCOMES, log.most):
            log.remember(json.loads(line))
        self._open = json.loads(self._knowledge.get(_OPEN) or b"[]")
        with self._lock:
            self._log, self._epoch = log, epoch

    def _begin(self) -> None:
        self._number = self._store.jobs.last_transition()
        rows = self._store.jobs.list(statuses=("COMPLETED", "FAILED"), limit=_REMEMBERED)
        for row in sorted(rows, key=lambda row: row.ended_at or 0.0):
            self._ended(row.id, row.status)
            self._learned.add(row.id)

    def _started(self, job_id: str, at: float) -> None:
        with self._lock:
            outcome = self._log.started(job_id, at)
        if outcome is not None:
            self._outcomes.append(Entry(_OUTCOMES, json.dumps(outcome).encode(), self._log.most))

    def _ended(self, job_id: str, status: str) -> None:
        """Learn how long a job ran that ended by itself."""
        with self._lock:
            self._log.gone(job_id)
        if status == "CANCELLED" or job_id in self._learned:
            return
        row = self._store.jobs.get(job_id)
        if row is None or row.started_at is None or row.ended_at is None or not row.manifest:
            return
        with suppress(PresageError):  # a manifest of an older version
            spec = to_spec(Manifest.from_json(row.manifest), row.id, row.owner)
            ran_s = self._ran_s(row)
            with self._lock:
                self.history.add(spec, ran_s, row.ended_at)
        self._pace()

    def _ran_s(self, row: JobRow) -> float:
        """Seconds that a job ran, over all its attempts."""
        assert row.started_at is not None
        assert row.ended_at is not None
        if row.attempt <= 1:
            return row.ended_at - row.started_at
        moves = self._store.jobs.transitions(row.id)
        return sum(
            then.at - move.at
            for move, then in pairwise(moves)
            if move.status in ("PROCESSING", "STORING")
        )
