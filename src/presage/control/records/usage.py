"""Accounting: what users, teams and queues asked for, held, used and lost, by day.

`Ledger` is pure: events in, seconds out. It needs no state of the cluster, only what each run
holds, so that it can begin anywhere in the journal. `Accountant` is the advisor that feeds it: it
hears of every turn that is on disk, writes sums every few seconds with the position they go up to,
and after a restart reads the journal from there on. Nothing is decided on any of it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from presage.control.advisors import StateReader, Telemetry
from presage.core.state import State
from presage.manifest import Manifest, to_spec
from presage.model import event as ev
from presage.model.cluster import WHOLE_GPU, Worker
from presage.model.codec import decode, encode
from presage.model.errors import ConfigError, StaleLease
from presage.model.job import JobSpec
from presage.store.sql import SqlStore
from presage.store.usage import DayUsage, UsageKey
from presage.telemetry.rows import Row

__all__ = ["Accountant", "Ledger", "OpenRun", "price_of_type"]

log = logging.getLogger("presage.usage")

_DAY_S = 86_400.0
_EVERY_S = 5.0
_MEASURE_S = 60.0
"""How often the telemetry of running jobs is looked at; of one that ended, at once."""
_LATE_S = 10.0
"""A turn that is this old is on disk, or is none: what runs hold is counted until then."""
_WRITE_STEPS = 2000
"""Steps of a long journal between two writes."""
_MOST_SPECS = 20_000
_BAD = (ev.Outcome.FAILED, ev.Outcome.OUT_OF_MEMORY, ev.Outcome.LOST)
_HEARD = (
    *(ev.JobSubmitted, ev.JobExited, ev.LaunchFailed, ev.JobResized, ev.Progress),
    *(ev.Launch, ev.Resize),
)
_NodeTypes = Mapping[str, Sequence[str]]


@dataclass(slots=True)
class OpenRun:
    """A run that holds something, and how far it was counted."""

    attempt: int
    owner: str
    team: str
    queue: str
    checkpoints: bool
    asked_milli: int
    gpu_milli: int
    cpu_milli: int
    workers: int
    usd_per_s: float
    unpriced_milli: int
    counted_until: float
    fresh_gpu_s: float = 0.0
    """Held since it last reported progress: what would be lost."""
    measured_until: float = 0.0
    mark: int = 0
    """How much of its telemetry was read."""
    next_size: tuple[Worker, ...] | None = None
    """What a resize under way will bring."""


class Ledger:
    """Sums of what runs hold. `rows` are those since they were last taken."""

    def __init__(self, body: Mapping[str, Any] | None = None) -> None:
        kept = (body or {}).get("runs", {})
        self.runs: dict[str, OpenRun] = {job: decode(OpenRun, run) for job, run in kept.items()}
        self.rows: dict[UsageKey, DayUsage] = {}
        self.ended: list[tuple[str, OpenRun]] = []
        """Runs that ended since somebody looked; their telemetry is still to be read."""

    def body(self) -> dict[str, Any]:
        """What a ledger needs to go on from here."""
        return {"runs": {job: encode(run) for job, run in self.runs.items()}}

    def take(
        self,
        now: float,
        events: Iterable[ev.Event],
        spec_of: Callable[[str], tuple[JobSpec, bool] | None],
        types: _NodeTypes,
    ) -> None:
        """Take the events of one step. `spec_of` says what a job asks for, and whether it must
        have whole GPUs."""
        for event in events:
            if isinstance(event, ev.Launch):
                self._launched(now, event, spec_of(event.job), types)
            elif isinstance(event, ev.Resize | ev.JobResized | ev.Progress):
                run = self.runs.get(event.job)
                if run is not None and run.attempt == event.attempt:
                    self._changed(now, event, run, spec_of(event.job), types)
            elif isinstance(event, ev.JobExited | ev.LaunchFailed):
                self._ended(now, event)

    def settle(self, now: float) -> None:
        """Count what runs hold until now."""
        for run in self.runs.values():
            self._count(run, now)

    def measured(self, run: OpenRun, rows: Sequence[Row]) -> None:
        """Take what telemetry says about a run."""
        if not rows:
            return
        until = max(row.at for row in rows)
        span = until - run.measured_until
        busy = [row.gpu_util_pct for row in rows if row.gpu_util_pct is not None]
        cores = [row.cpu_cores for row in rows if row.cpu_cores is not None]
        if span <= 0:
            return
        run.measured_until = until
        of_day = self._of(run, until)
        if busy and run.gpu_milli:
            held = span * run.gpu_milli / WHOLE_GPU
            of_day.measured_gpu_s += held
            of_day.used_gpu_s += held * min(1.0, sum(busy) / len(busy) / 100)
        if cores:
            of_day.used_cpu_s += span * run.workers * sum(cores) / len(cores)

    def _launched(
        self,
        now: float,
        launch: ev.Launch,
        known: tuple[JobSpec, bool] | None,
        types: _NodeTypes,
    ) -> None:
        if known is None:
            return
        before = self.runs.get(launch.job)
        spec, _ = known
        if before is not None and before.attempt == launch.attempt:  # further workers of it
            self._count(before, now)
            more = _holding(known, launch.workers, types)
            before.gpu_milli += more.gpu_milli
            before.cpu_milli += more.cpu_milli
            before.workers += more.workers
            before.usd_per_s += more.usd_per_s
            before.unpriced_milli += more.unpriced_milli
            return
        run = OpenRun(
            attempt=launch.attempt,
            owner=spec.owner,
            team=spec.team,
            queue=spec.queue,
            checkpoints=spec.checkpointable,
            asked_milli=spec.min_gpu_milli,
            counted_until=now,
            measured_until=now,
            **_holding(known, launch.workers, types)._asdict(),
        )
        self.runs[launch.job] = run
        self._of(run, now).runs += 1

    def _changed(
        self,
        now: float,
        event: ev.Resize | ev.JobResized | ev.Progress,
        run: OpenRun,
        known: tuple[JobSpec, bool] | None,
        types: _NodeTypes,
    ) -> None:
        if isinstance(event, ev.Resize):
            run.next_size = event.workers
            return
        self._count(run, now)
        if isinstance(event, ev.Progress):
            run.fresh_gpu_s = 0.0
        elif run.next_size is not None and known is not None:
            for name, amount in _holding(known, run.next_size, types)._asdict().items():
                setattr(run, name, amount)
            run.next_size = None

    def _ended(self, now: float, event: ev.JobExited | ev.LaunchFailed) -> None:
        run = self.runs.get(event.job)
        if run is None or run.attempt != event.attempt:
            return
        del self.runs[event.job]
        self._count(run, now)
        outcome = event.outcome if isinstance(event, ev.JobExited) else ev.Outcome.FAILED
        if outcome in _BAD or (outcome is ev.Outcome.STOPPED and not run.checkpoints):
            self._of(run, now).lost_gpu_s += run.fresh_gpu_s
        self.ended.append((event.job, run))

    def _count(self, run: OpenRun, until: float) -> None:
        """Add what a run held since it was last counted, day by day."""
        while run.counted_until < until:
            since = run.counted_until
            end = min(until, (since // _DAY_S + 1) * _DAY_S)
            span, of_day = end - since, self._of(run, since)
            held = span * run.gpu_milli / WHOLE_GPU
            of_day.asked_gpu_s += span * run.asked_milli / WHOLE_GPU
            of_day.held_gpu_s += held
            of_day.held_cpu_s += span * run.cpu_milli / 1000
            of_day.cost_usd += span * run.usd_per_s
            of_day.unpriced_gpu_s += span * run.unpriced_milli / WHOLE_GPU
            run.fresh_gpu_s += held
            run.counted_until = end

    def _of(self, run: OpenRun, at: float) -> DayUsage:
        key = UsageKey(int(at // _DAY_S), run.owner, run.team, run.queue)
        return self.rows.setdefault(key, DayUsage())


class _Turn(NamedTuple):
    """What a commit added to the journal, and what was launched in it."""

    before: int
    after: int
    now: float
    events: list[ev.Event]
    specs: Mapping[str, tuple[JobSpec, bool]]


class Accountant:
    """The advisor that keeps the accounts of a server."""

    name, every_s = "usage", _EVERY_S

    def __init__(
        self, store: SqlStore, lease: Callable[[], int | None], *, measure_s: float = _MEASURE_S
    ) -> None:
        self._store, self._lease, self._measure_s = store, lease, measure_s
        self._turns: deque[_Turn] = deque()
        """What is on disk and was not counted yet."""
        self._specs: dict[str, tuple[JobSpec, bool]] = {}
        self._book: tuple[int, Ledger] | None = None
        self._measured_at = 0.0

    def heard(
        self, position: int, now: float, events: Sequence[ev.Event], count: int, state: State
    ) -> None:
        """A turn is on disk; called by the deciding loop, so it is quick."""
        told: list[ev.Event] = [event for event in events if isinstance(event, _HEARD)]
        launched = [state.jobs.get(one.job) for one in told if isinstance(one, ev.Launch)]
        specs = {job.id: (job.spec, job.out_of_memory > 0) for job in launched if job is not None}
        self._turns.append(_Turn(position, position + count, now, told, specs))

    def not_leading(self) -> None:
        """Another server counts now."""
        self._book = None
        self._turns.clear()

    def look(self, now: float, ask: StateReader, telemetry: Telemetry) -> Iterable[ev.Fact]:
        """Count what happened since the last look, and write it."""
        types = ask(_types)
        try:
            self._count(now, types, telemetry)
        except StaleLease:
            self._book = None
            raise
        return ()

    def _count(self, now: float, types: _NodeTypes, telemetry: Telemetry) -> None:
        if self._book is None:
            position, body = self._store.usage.known()
            self._book = position, Ledger(body)
        if not self._turns or self._turns[0].before > self._book[0]:
            self._catch_up(types, self._turns[0].before if self._turns else None)
        position, ledger = self._book
        while self._turns:
            turn = self._turns.popleft()
            if turn.before >= position:  # else the journal told it already
                self._specs |= turn.specs
                ledger.take(turn.now, turn.events, self._spec_of, types)
                position = turn.after
        ledger.settle(now - _LATE_S)
        self._measure(ledger, now, telemetry)
        self._write(position, ledger)
        self._forget(ledger)

    def _catch_up(self, types: _NodeTypes, until: int | None) -> None:
        """Read the journal from where the accounts end."""
        assert self._book is not None
        position, ledger = self._book
        steps = 0
        for now, facts, decisions in self._store.read_steps(position):
            if until is not None and position >= until:
                break
            for fact in facts:
                if isinstance(fact, ev.JobSubmitted):
                    self._specs[fact.spec.id] = self._with_team(fact.spec), False
                elif isinstance(fact, ev.JobExited) and fact.job in self._specs:
                    spec, whole = self._specs[fact.job]
                    short = fact.outcome is ev.Outcome.OUT_OF_MEMORY
                    self._specs[fact.job] = spec, whole or short
            ledger.take(now, (*facts, *decisions), self._spec_of, types)
            position += len(facts) + len(decisions)
            steps += 1
            if steps % _WRITE_STEPS == 0:
                self._write(position, ledger)
                self._forget(ledger)
        if steps:
            self._write(position, ledger)

    def _measure(self, ledger: Ledger, now: float, telemetry: Telemetry) -> None:
        due = now - self._measured_at >= self._measure_s
        open_ = list(ledger.runs.items()) if due else []
        for job, run in (*ledger.ended, *open_):
            rows, run.mark = telemetry.new(job, run.attempt, run.mark)
            ledger.measured(run, rows)
        ledger.ended.clear()
        if due:
            self._measured_at = now

    def _write(self, position: int, ledger: Ledger) -> None:
        assert self._book is not None
        before = self._book[0]
        if position == before and not ledger.rows:
            return
        book, self._book = self._book, None  # what is in doubt is read again
        self._store.usage.write(before, position, ledger.body(), ledger.rows, lease=self._lease())
        ledger.rows = {}
        self._book = position, book[1]

    def _spec_of(self, job: str) -> tuple[JobSpec, bool] | None:
        known = self._specs.get(job)
        if known is None:
            row = self._store.jobs.get(job)
            if row is None or row.manifest is None:
                return None
            try:
                spec = to_spec(Manifest.model_validate(row.manifest), job, row.owner)
            except ValueError:
                return None
            known = self._specs[job] = replace(spec, team=row.team), False
        return known

    def _with_team(self, spec: JobSpec) -> JobSpec:
        """Journals of before do not say which team it was."""
        if spec.team:
            return spec
        row = self._store.jobs.get(spec.id)
        return replace(spec, team=row.team) if row is not None and row.team else spec

    def _forget(self, ledger: Ledger) -> None:
        if len(self._specs) > _MOST_SPECS:
            runs = ledger.runs
            self._specs = {job: known for job, known in self._specs.items() if job in runs}


# -- what a run holds -----------------------------------------------------------------------------


class _Holding(NamedTuple):
    """What workers hold together; the fields of `OpenRun` that a resize changes."""

    gpu_milli: int
    cpu_milli: int
    workers: int
    usd_per_s: float
    unpriced_milli: int


def _holding(
    known: tuple[JobSpec, bool], workers: Sequence[Worker], types: _NodeTypes
) -> _Holding:
    spec, whole = known
    gpu = cpu = unpriced = 0
    usd = 0.0
    for worker in workers:
        ask = spec.roles[worker.role].resources
        milli = ask.gpu_milli
        if 0 < milli < WHOLE_GPU and (whole or not spec.shareable):
            milli = WHOLE_GPU
        gpu, cpu = gpu + milli, cpu + ask.cpu_milli
        for device in worker.devices:
            share = milli // len(worker.devices)
            of_node = types.get(worker.node, ())
            price = price_of_type(of_node[device]) if device < len(of_node) else None
            if price is None:
                unpriced += share
            else:
                usd += price * share / WHOLE_GPU / 3600
    return _Holding(gpu, cpu, len(workers), usd, unpriced)


@lru_cache(maxsize=256)
def price_of_type(name: str) -> float | None:
    """USD for an hour of a GPU by the name that nodes give it; None if nobody said."""
    from presage.foresee import gpus, prices

    try:
        return prices.price_of(gpus.find(name))
    except ConfigError:
        return None


def _types(state: State) -> dict[str, tuple[str, ...]]:
    nodes = state.capacity.nodes
    return {
        name: tuple(device.type for device in nodes[i].devices)
        for name, i in state.capacity.index.items()
    }
