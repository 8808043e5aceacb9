"""Sees trouble of jobs and nodes while they run, and says so: alerts appear, and end.

It feeds the detectors (`observe.health.trouble`) with telemetry, with what runs report and with
how they end, and takes what they find to the book of alerts. The journal has the beginning and the
end of each alert, and what was done about it; what speaks for an alert is in the book.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from presage.control.advisors import StateReader, Telemetry
from presage.control.health.alerts import Alert, AlertBook
from presage.control.health.hearing import Hearing, read_ends, worker_names, write_ends
from presage.control.health.remedies import Remedies, RemedyTarget
from presage.core.ports import Knowledge
from presage.core.state import State
from presage.core.workers import ask_of
from presage.model import event as ev
from presage.model.cluster import UNLIMITED, WHOLE_GPU, Node, Worker
from presage.model.job import Job, JobSpec, JobState
from presage.observe.health.trouble import (
    USUAL_RULES,
    LiveRun,
    Trouble,
    TroubleRules,
    TroubleWatch,
    WorkerPlace,
)
from presage.policy.config import QueueConfig

__all__ = ["HealthAdvisor"]


@dataclass(slots=True)
class _FollowedRun:
    """A run that is looked at."""

    attempt: int
    workers: tuple[Worker, ...]
    queue: str
    limited: bool
    mark: int = 0


@dataclass(frozen=True, slots=True)
class _ClusterLook:
    """What the state says at one look: who runs, and what is new of that."""

    running: dict[str, int]
    fresh: list[tuple[LiveRun, JobSpec, tuple[Worker, ...]]]
    up: int
    draining: frozenset[str]
    alive: set[str]


class HealthAdvisor:
    """The advisor. `queues` says what may be done about trouble, by queue; `clock` measures what
    it costs."""

    name = "health"

    def __init__(
        self,
        knowledge: Knowledge,
        queues: Mapping[str, QueueConfig] = {},
        *,
        rules: TroubleRules = USUAL_RULES,
        every_s: float = 5.0,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.every_s = every_s
        self.book = AlertBook(knowledge)
        self.hearing = Hearing()
        self.remedies_used: dict[str, int] = {}
        """Remedies since the start, by name."""
        self.cpu_s = 0.0
        """CPU time of all looks."""
        self.looks = 0
        self._knowledge, self._rules, self._clock = knowledge, rules, cpu_clock
        self._queues = dict(queues)
        self._begin()

    def _begin(self) -> None:
        self._epoch: int | None = None
        self._watch = TroubleWatch(self._rules)
        self._runs: dict[str, _FollowedRun] = {}
        self._remedies = Remedies(self._queues)

    def not_leading(self) -> None:
        """Another server looks; what was seen here is old when this one does again."""
        self._begin()
        self.hearing.take()
        self.book.forget()

    def suspicions(self) -> list[Trouble]:
        """Everything that detectors saw at the latest look, however unlikely."""
        return self._watch.suspected

    def watched(self) -> dict[str, int]:
        """How many runs and workers are looked at, and how many ends of runs are known."""
        runs = list(self._runs.values())
        workers = sum(len(run.workers) for run in runs)
        return {"runs": len(runs), "workers": workers, "ends": len(self._watch.ends)}

    # -- a look -----------------------------------------------------------------------------------

    def look(self, now: float, ask: StateReader, telemetry: Telemetry) -> Iterator[ev.Fact]:
        """Take in what happened since the last time, and tell what is wrong."""
        began = self._clock()
        if self._epoch is None:
            self._watch = TroubleWatch(self._rules, read_ends(self._knowledge))
            self._epoch = self._knowledge.epoch
        seen = ask(self._question)
        self._follow(now, seen, telemetry)
        self._hear()
        facts: list[ev.Fact] = list(self.book.look(now, self._watch.look(now), seen.running))
        if self._remedies.any:
            facts += self._remedy(now, seen)
        self.looks += 1
        self.cpu_s += self._clock() - began
        yield from facts

    def _question(self, state: State) -> _ClusterLook:
        running, fresh = {}, []
        for job in state.active.values():
            if job.state is not JobState.RUNNING:
                continue
            running[job.id] = job.attempt
            known = self._runs.get(job.id)
            if known is None or known.attempt != job.attempt or known.workers != job.allocation:
                nodes = {}
                for worker in job.allocation:
                    index = state.capacity.index[worker.node]
                    nodes[worker.node] = state.capacity.nodes[index]
                view = LiveRun(job.id, job.attempt, job.since, _places(job, nodes))
                fresh.append((view, job.spec, job.allocation))
        up = len(state.capacity.index) - len(state.down) - len(state.draining)
        return _ClusterLook(running, fresh, up, frozenset(state.draining), set(state.jobs))

    def _follow(self, now: float, seen: _ClusterLook, telemetry: Telemetry) -> None:
        for gone in self._runs.keys() - seen.running.keys():
            del self._runs[gone]
            self._watch.end(gone)
        for view, spec, workers in seen.fresh:
            job, attempt = view.job, view.attempt
            known = self._runs.get(job)
            mark = known.mark if known is not None and known.attempt == attempt else 0
            limited = spec.oom is not None
            self._runs[job] = _FollowedRun(attempt, workers, spec.queue, limited, mark)
            self._watch.begin(view)
            if not self.hearing.knows(job, attempt):
                self.hearing.place(job, attempt, spec, workers)
        for name, run in self._runs.items():
            rows, run.mark = telemetry.new(name, run.attempt, run.mark)
            if rows:
                self._watch.rows(name, rows, now)

    def _hear(self) -> None:
        reports, ends = self.hearing.take()
        for at, report in reports:
            run = self._runs.get(report.job)
            if run is not None and run.attempt == report.attempt:
                said = report.done, report.detail, report.not_finite
                self._watch.report(report.job, at, *said)
        for end in ends:
            self._watch.ends.add(end)
        if ends:
            write_ends(self._knowledge, ends)

    # -- what is done about it ------------------------------------------------------------------

    def _remedy(self, now: float, seen: _ClusterLook) -> Iterator[ev.Fact]:
        self._remedies.forget(seen.alive)
        for alert in self.book.open():
            finding = alert.finding
            run = self._runs.get(finding.job)
            if run is not None:
                elsewhere = seen.up > len({worker.node for worker in run.workers})
                target = RemedyTarget(run.queue, run.attempt, run.limited, elsewhere)
                chosen = self._remedies.for_job(now, alert, target)
                if chosen is not None:
                    run.limited |= chosen[0].remedy is ev.Remedy.MEMORY
                    yield self._done(alert, chosen[0], chosen[0].remedy, chosen[1])
            if finding.node and finding.node not in seen.draining:
                queue = run.queue if run is not None else ""
                drained = self._remedies.for_node(alert, queue, seen.up, len(seen.draining))
                if drained is not None:
                    yield self._done(alert, drained[0], "cordon", drained[1])

    def _done(self, alert: Alert, fact: ev.Fact, name: str, words: str) -> ev.Fact:
        self.remedies_used[name] = self.remedies_used.get(name, 0) + 1
        self.book.note_done(alert, words)
        return fact


def _places(job: Job, nodes: Mapping[str, Node]) -> dict[str, WorkerPlace]:
    """Where the workers are, and what they were given, by the names they have in telemetry."""
    places = {}
    for name, worker in worker_names(job.spec, job.allocation).items():
        asks, node = ask_of(job, worker.role), nodes[worker.node]
        gpu_mib = 0.0
        if worker.devices and asks.gpu_milli >= WHOLE_GPU:
            gpu_mib = _limit(min(node.devices[k].memory_mib for k in worker.devices))
        places[name] = WorkerPlace(
            worker.node,
            worker.index,
            worker.devices,
            asks.cpu_milli / 1000,
            _limit(asks.memory_mib),
            gpu_mib or _limit(asks.gpu_memory_mib),
            _limit(node.memory_mib),
        )
    return places


def _limit(mib: int) -> float:
    return float(mib) if 0 < mib < UNLIMITED else 0.0
