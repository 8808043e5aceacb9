"""Live right-sizing: telemetry of running jobs steps the phase model of their workload, and their
limits on CPU and memory follow what the phases need; those of enforced shares of GPUs, recent use.

It advises (`PhaseChanged`, `LimitsAdvised`); the loop decides, journals, and has the executor act.
A workload's phases are learned from its runs of before (`PhaseBook`); until then, limits follow
recent use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeAlias

from presage.control.advisors import StateReader, Telemetry
from presage.control.charts import chart_entry
from presage.core.ports import Entry, Knowledge
from presage.core.state import State
from presage.core.workers import ask_of
from presage.model import event as ev
from presage.model.cluster import WHOLE_GPU, Resources
from presage.model.job import Job, JobSpec, JobState, Reason, ReasonCode
from presage.model.parts import enforced_limit
from presage.provision.live import LivePhases, Sizer, SizingRules
from presage.provision.shares import NewShareLimit, ShareSizer, ShareUse
from presage.telemetry.rows import Row

__all__ = ["PhaseBook", "Sample", "Sizing"]

Sample: TypeAlias = tuple[float, float, float]
"""Time, cores, MiB."""


class PhaseBook(Protocol):
    """The phases of workloads, learned from their runs."""

    def model(self, workload: str) -> LivePhases | None:
        """The phases of a workload; None while they are not known."""
        ...

    def learn(self, workload: str, job: str, samples: Sequence[Sample]) -> None:
        """A run is over that used this; must return at once."""
        ...


@dataclass(slots=True)
class _SizedRun:
    """A run that is being sized."""

    attempt: int
    workload: str
    sizer: Sizer
    shares: ShareSizer
    mark: int = 0
    """Of its telemetry, up to which it was read."""
    given: dict[str, Resources] = field(default_factory=dict)
    """Worker -> the limits it should have."""
    phase: int = -1


class Sizing:
    """Right-sizes runs. `workload` says under which name the phases of a job are kept; None for
    one that is to be left alone. `record` is where limits are kept for charts; `shares` says
    whether enforced shares of GPUs can change while a job runs."""

    name = "sizing"
    every_s = 1.0

    def __init__(
        self,
        phases: PhaseBook,
        workload: Callable[[JobSpec], str | None],
        *,
        rules: SizingRules | None = None,
        record: Knowledge | None = None,
        shares: bool = False,
    ) -> None:
        self._phases, self._workload, self._record = phases, workload, record
        self._running = partial(_running, shares=shares)
        self._rules = rules or SizingRules()
        self._new: list[Entry] = []
        """Limits that are not kept yet."""
        self._runs: dict[str, _SizedRun] = {}
        self._refused: set[str] = set()
        """Jobs that are not to be sized."""
        self.resizes = 0
        """Limits that were advised since the start."""

    def not_leading(self) -> None:
        """Runs keep the limits they have."""
        self._runs.clear()
        self._new.clear()

    def look(self, now: float, ask: StateReader, telemetry: Telemetry) -> Iterator[ev.Fact]:
        """Take in what runs have used since the last time."""
        running = ask(self._running)
        for job, run in list(self._runs.items()):
            if job not in running or running[job].attempt != run.attempt:
                self._end(job, telemetry)
        self._refused &= running.keys()
        for job, state in running.items():
            if job not in self._runs and job not in self._refused:
                yield from self._begin(now, job, state)
            if job in self._runs:
                yield from self._follow(now, job, self._runs[job], state, telemetry)
        if self._record is not None:
            new, self._new = self._new, []
            self._record.write(*new)

    def _begin(self, now: float, job: str, state: _Running) -> Iterator[ev.Fact]:
        name = self._workload(state.spec)
        if name is None:
            self._refused.add(job)
            return
        sizer = Sizer(self._phases.model(name), self._rules)
        request = state.spec.roles[0].resources.gpu_milli
        shares = ShareSizer(request, state.most_milli, self._rules)
        self._runs[job] = _SizedRun(state.attempt, name, sizer, shares)
        # The run is looked at closely from now on.
        yield self._advise(now, job, state.attempt, state.held, "right-sizing begins")

    def _follow(
        self, now: float, job: str, run: _SizedRun, state: _Running, telemetry: Telemetry
    ) -> Iterator[ev.Fact]:
        advised, phase = "", run.phase
        share: NewShareLimit | None = None
        rows, run.mark = telemetry.new(job, run.attempt, run.mark)
        for row in rows:
            share = _see_share(run.shares, state, row) or share
            if row.cpu_cores is None or row.rss_mib is None:
                continue
            worker = row.worker
            if worker not in run.sizer:
                run.sizer.begin(worker, state.ask, state.limits)
            advice = run.sizer.see(worker, row.at, row.cpu_cores, row.rss_mib)
            phase = run.sizer.phase(worker)
            if advice is not None:
                run.given[worker] = advice.limits
                advised = advice.why
        if phase != run.phase and phase >= 0:
            run.phase = phase
            yield ev.PhaseChanged(job, run.attempt, phase)
        if advised or share is not None:
            given = list(run.given.values()) or [state.held]
            most = Resources(
                cpu_milli=max(limits.cpu_milli for limits in given),
                memory_mib=max(limits.memory_mib for limits in given),
                gpu_milli=share.milli if share else 0,
            )
            why = "; ".join(filter(None, (advised, share and share.why)))
            yield self._advise(now, job, run.attempt, most, why)

    def _advise(self, now: float, job: str, attempt: int, limits: Resources, why: str) -> ev.Fact:
        self.resizes += 1
        if self._record is not None:
            line = {
                "at": now,
                "attempt": attempt,
                "cpu_milli": limits.cpu_milli,
                "memory_mib": limits.memory_mib,
                "why": why,
            }
            self._new.append(chart_entry(job, "limits", line))
        return ev.LimitsAdvised(job, attempt, limits, Reason(ReasonCode.OK, why))

    def _end(self, job: str, telemetry: Telemetry) -> None:
        """A run is over: its workload's phases are learned anew."""
        run = self._runs.pop(job)
        samples = [
            (row.at, row.cpu_cores, row.rss_mib)
            for row in telemetry.of(job)
            if row.cpu_cores is not None and row.rss_mib is not None
        ]
        if samples:
            self._phases.learn(run.workload, job, samples)


@dataclass(frozen=True, slots=True)
class _Running:
    """A run that could be sized."""

    spec: JobSpec
    attempt: int
    ask: Resources
    limits: Resources | None
    most_milli: int
    """The limit on shares of GPUs that it asked for, where that can change; else 0."""
    share_milli: int
    """The one it has; 0 if it is to be left alone, as when somebody asked for it."""

    @property
    def held(self) -> Resources:
        """Its limits on CPU and memory."""
        return replace(self.limits or self.ask, gpu_milli=0, gpu_memory_mib=0)


def _running(state: State, *, shares: bool) -> dict[str, _Running]:
    """Runs that asked for CPU, memory or an enforced share of a GPU, which can be less."""
    running = {}
    for job in state.active.values():
        ask = ask_of(job, 0)
        most, share = _share_limits(job) if shares else (0, 0)
        if job.state is JobState.RUNNING and (ask.cpu_milli or ask.memory_mib or most):
            # One that ran out of memory is not held to less of it again.
            memory_mib = 0 if job.out_of_memory else ask.memory_mib
            asked = Resources(cpu_milli=ask.cpu_milli, memory_mib=memory_mib)
            running[job.id] = _Running(job.spec, job.attempt, asked, job.limits, most, share)
    return running


def _share_limits(job: Job) -> tuple[int, int]:
    """What the shares of a job were to be held to, and what they are; 0 for leave them alone."""
    most = round(WHOLE_GPU * (enforced_limit(job.spec) or 0))
    if most <= ask_of(job, 0).gpu_milli:
        return 0, 0
    if job.limit_asked == job.attempt:
        return most, 0
    return most, (job.limits.gpu_milli if job.limits else 0) or most


def _see_share(shares: ShareSizer, state: _Running, row: Row) -> NewShareLimit | None:
    if not state.share_milli:
        return None
    limit = round(WHOLE_GPU * (row.gpu_limit or 0)) if row.gpu_got is not None else 0
    use = ShareUse(row.at, row.gpu_got or 0.0, row.gpu_waited or 0.0, limit)
    return shares.see(row.worker, use, state.share_milli)
