"""Ends jobs that nobody is with: those whose client is gone (`heartbeat`), and interactive ones
that were idle for longer than their queue allows (`idle_stop`).

Idle is a job that no client is attached to and that uses little CPU and GPU. It is told before:
its stage says so for the last part of the time. What it decides is a `CancelRequested` with its
reason, so the journal has it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from presage.control.advisors import StateReader, Telemetry
from presage.control.attendance import HEARTBEAT, INTERACTIVE, Attendance
from presage.core.state import State
from presage.model import event as ev
from presage.model.job import Job, JobState, Reason, ReasonCode

__all__ = ["IDLE", "Unattended"]

log = logging.getLogger("presage.unattended")

IDLE = "idle"
"""The stage of a run that is about to be stopped."""
IDLE_CORES = 0.05
"""Of each worker: one that uses less CPU than this, and …"""
IDLE_GPU_PCT = 1.0
"""… less of its GPUs than this, does nothing."""
_WARN_SHARE = 0.8
"""Of the time after which an idle job is stopped."""


@dataclass(slots=True)
class _IdleWatch:
    """What is known of an interactive run."""

    attempt: int
    mark: int
    busy_at: float
    """When it last did something."""


@dataclass(frozen=True, slots=True)
class _Attended:
    """A job that somebody should be with."""

    id: str
    attempt: int
    running: bool
    stage: str
    grace_s: float | None
    idle_stop_s: float | None


class Unattended:
    """The advisor; `idle_stop_s` has the seconds of each queue that stops idle jobs."""

    name = "unattended"

    def __init__(
        self, attendance: Attendance, idle_stop_s: Mapping[str, float], every_s: float = 1.0
    ) -> None:
        self.every_s = every_s
        self._attendance, self._idle_stop_s = attendance, dict(idle_stop_s)
        self._seen: dict[str, float] = {}
        """When each job that needs a heartbeat was first seen by this server."""
        self._idle: dict[str, _IdleWatch] = {}

    def not_leading(self) -> None:
        """Another server decides: what was seen here says nothing when this one does again."""
        self._seen.clear()
        self._idle.clear()

    def look(self, now: float, ask: StateReader, telemetry: Telemetry) -> Iterable[ev.Fact]:
        """Facts about jobs that nobody is with."""
        jobs = ask(self._attended)
        alive = {job.id for job in jobs}
        self._attendance.forget(alive)
        for known in (self._seen, self._idle):
            for gone in known.keys() - alive:
                del known[gone]
        facts: list[ev.Fact] = []
        for job in jobs:
            if job.grace_s is not None and (fact := self._gone(now, job, job.grace_s)):
                facts.append(fact)
            elif job.running and job.idle_stop_s is not None:
                facts += self._idle_facts(now, job, job.idle_stop_s, telemetry)
        return facts

    def _attended(self, state: State) -> list[_Attended]:
        jobs = [*state.pending, *state.active]
        return [attended for id in jobs if (attended := self._of(state.jobs[id])) is not None]

    def _of(self, job: Job) -> _Attended | None:
        labels = job.spec.labels
        if HEARTBEAT not in labels and INTERACTIVE not in labels:
            return None
        if job.state is JobState.STOPPING:
            return None
        grace = labels.get(HEARTBEAT)
        return _Attended(
            job.id,
            job.attempt,
            job.state is JobState.RUNNING,
            job.stage,
            float(grace) if grace else None,
            self._idle_stop_s.get(job.spec.queue) if INTERACTIVE in labels else None,
        )

    def _gone(self, now: float, job: _Attended, grace_s: float) -> ev.Fact | None:
        since = self._seen.setdefault(job.id, now)
        if now - self._attendance.last_beat(job.id, since) <= grace_s:
            return None
        text = f"its client was not heard of for {grace_s:g} s"
        log.warning("job %s is cancelled: %s", job.id, text)
        return ev.CancelRequested(job.id, Reason(ReasonCode.CLIENT_GONE, text))

    def _idle_facts(
        self, now: float, job: _Attended, idle_stop_s: float, telemetry: Telemetry
    ) -> Iterable[ev.Fact]:
        watch = self._idle.get(job.id)
        if watch is None or watch.attempt != job.attempt:
            watch = self._idle[job.id] = _IdleWatch(job.attempt, 0, now)
        rows, watch.mark = telemetry.new(job.id, job.attempt, watch.mark)
        busy = [
            row.at
            for row in rows
            if (row.cpu_cores or 0.0) > IDLE_CORES or (row.gpu_util_pct or 0.0) > IDLE_GPU_PCT
        ]
        watch.busy_at = max([watch.busy_at, *busy])
        idle_s = now - self._attendance.last_use(job.id, watch.busy_at)
        if idle_s >= idle_stop_s:
            text = f"idle for {idle_s:.0f} s; its queue stops idle jobs after {idle_stop_s:g} s"
            log.warning("job %s is stopped: %s", job.id, text)
            yield ev.CancelRequested(job.id, Reason(ReasonCode.IDLE, text))
        elif idle_s >= _WARN_SHARE * idle_stop_s and job.stage != IDLE:
            left_s = idle_stop_s - idle_s
            log.warning("job %s is idle and is stopped in %.0f s unless used", job.id, left_s)
            yield ev.StageChanged(job.id, job.attempt, IDLE)
        elif idle_s < _WARN_SHARE * idle_stop_s and job.stage == IDLE:
            yield ev.StageChanged(job.id, job.attempt, "")
