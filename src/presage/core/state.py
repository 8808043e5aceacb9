"""The state of the cluster and its jobs: what a journal folds to.

`State.apply` and `apply_all` are the only ways to change it, and they take the same events whether
they come from the world, from a decision just made, or from a journal read back. `State.undo`
takes back a decision that has not left the engine (see `core.plan`). Everybody else only reads.
`State.check` proves every invariant.

No policy lives here: an event says what happened, never what should. What follows a run that
ended badly is `core.retry`'s to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeAlias

from presage.core.capacity import Capacity
from presage.core.changes import Changes
from presage.core.gates import Gates
from presage.core.holds import is_ready
from presage.core.invariants import check_state
from presage.core.lifecycle import ALLOWED, ensure
from presage.core.remedies import amended
from presage.core.retry import judge
from presage.core.snapshot import read_snapshot, take_snapshot
from presage.core.spent import Spent
from presage.core.workers import ask_of, joining, missing
from presage.model import event as ev
from presage.model.cluster import WHOLE_GPU, Worker
from presage.model.errors import InternalError
from presage.model.job import Job, JobSpec, JobState, Reason, ReasonCode, Role, StopIntent
from presage.model.speed import SpeedBook
from presage.model.workload import same_work

__all__ = ["Move", "State"]

Why: TypeAlias = Reason | None
Move: TypeAlias = tuple[Job, JobState, Why]
"""A job, the state it entered, and why."""

# Constants: naming a member of an enum looks it up through the class, 20 times as slow in 3.11.
_S = JobState
PENDING, BLOCKED, HALTED, SUCCEEDED = _S.PENDING, _S.BLOCKED, _S.HALTED, _S.SUCCEEDED
STARTING, RUNNING, STOPPING = _S.STARTING, _S.RUNNING, _S.STOPPING
WENT_WELL, STOPPED = ev.Outcome.SUCCEEDED, ev.Outcome.STOPPED
CANCEL, HALT = StopIntent.CANCEL, StopIntent.HALT
_KINDS = ("cancelled", "halted", "resumed")
_BY_REQUEST = {kind: Reason(ReasonCode.REQUESTED, f"{kind} by request") for kind in _KINDS}
_AS_THEY_ARE: Mapping[str, JobSpec] = MappingProxyType({})


class State:
    """Jobs, nodes and who holds what. Ended jobs leave it, so its size follows what is alive."""

    MOST_CHANGES = 4096
    """Changes of earlier steps that are remembered: to look at all jobs instead must be rare."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed  # for policies that draw lots, by this and the job, never by a stream
        self.now = float("-inf")
        self.capacity = Capacity()
        self.down: set[str] = set()
        self.draining: set[str] = set()
        self.jobs: dict[str, Job] = {}
        self.pending: dict[str, Job] = {}
        self.active: dict[str, Job] = {}  # hold devices: starting, running or stopping
        self.incomplete: dict[str, Job] = {}  # start without all workers, if gang is off
        self.gates = Gates()  # jobs that wait for other jobs, not for room
        self.reservations: dict[str, tuple[Worker, ...]] = {}
        self.usage: dict[str, int] = {}  # milli-GPUs held by each queue
        self.scaling: set[str] = set()  # jobs whose owner asked for a number of workers
        self.wake_at: float | None = None
        self.submitted = 0
        self.shapes: dict[tuple[Role, ...], int] = {}  # how often each set of roles was submitted
        self.spent = Spent()  # GPU time by day, where `rules` say that it counts
        self.speeds = SpeedBook()  # how fast runs of each workload were at the sizes they had
        self.rules: ev.RulesChanged | None = None  # what decides, where somebody said so
        self.judged: ev.PolicyJudged | None = None  # who does, where that policy is guarded
        self.changes = Changes()  # which jobs did, for who keeps something about them
        self.ended: list[Job] = []  # jobs that did in the present step
        self.moves: list[Move] = []  # what became of jobs in it, in order, decisions aside
        self._handlers: dict[type[Any], Callable[[float, Any], None]] = {
            kind: getattr(self, name) for kind, name in _HANDLERS.items()
        }

    def apply(self, now: float, event: ev.Event) -> None:
        """Take one more event of the present step into account. Facts about unknown jobs or stale
        attempts change nothing."""
        if now < self.now:
            raise InternalError(f"time went back from {self.now:g} to {now:g} s")
        self.now = now
        self._handlers[type(event)](now, event)

    def apply_all(self, now: float, events: Iterable[ev.Event]) -> None:
        """Begin a step: take events of one moment into account, in their order. `ended` and
        `moves` tell of this step alone."""
        if now < self.now:
            raise InternalError(f"time went back from {self.now:g} to {now:g} s")
        self.now = now
        if self.moves:  # whoever took these lists in the step before keeps them
            self.moves = []
            if self.ended:
                self.ended = []
        if len(self.changes.jobs) > self.MOST_CHANGES + 2 * len(self.jobs):
            self.changes.drop()
        handlers = self._handlers
        for event in events:
            handlers[type(event)](now, event)

    def check(self) -> None:
        """Raise InvariantBroken unless every invariant holds; far slower than a step."""
        check_state(self)

    def can(self, kind: type[Any]) -> bool:
        """Whether the executor can carry out this kind of decision, as far as it was said."""
        return self.rules is None or kind.__name__ not in self.rules.lacks

    @property
    def counts(self) -> bool:
        """Whether GPU time is counted."""
        return self.rules is not None and self.rules.counts

    def ready(self, job_id: str) -> bool:
        """Whether the room reserved for a job is no longer held by a run that is leaving."""
        return is_ready(self, job_id)

    def snapshot(self) -> dict[str, Any]:
        """Everything that defines it, as JSON values: equal states give equal snapshots."""
        return take_snapshot(self)

    @classmethod
    def restore(cls, data: dict[str, Any]) -> State:
        """The state that a snapshot was made of."""
        kept = read_snapshot(data)
        state = cls(kept.seed)
        state.now = kept.now
        for node, is_open in kept.nodes:
            state.capacity.set_open(state.capacity.add(node), is_open)
        state.down, state.draining, state.scaling = kept.down, kept.draining, kept.scaling
        for job in kept.jobs:
            state._adopt(job)
        state.active = {job_id: state.active[job_id] for job_id in kept.active}
        state.gates = Gates.of(kept.jobs, kept.failed_arrays)
        for job_id, hold in kept.reservations.items():
            state._hold_for(job_id, hold)
        state.wake_at, state.submitted, state.shapes = kept.wake_at, kept.submitted, kept.shapes
        state.speeds, state.spent = kept.speeds, kept.spent
        state.rules, state.judged = kept.rules, kept.judged
        return state

    def copy(self, instead: Mapping[str, JobSpec] = _AS_THEY_ARE) -> State:
        """A state of its own, equal to this one, at the beginning of a step. `instead` gives
        waiting jobs another spec, as if they had asked for that; what was held for them is not."""
        copy = type(self)(self.seed)
        copy.now, copy.wake_at, copy.submitted = self.now, self.wake_at, self.submitted
        copy.capacity = self.capacity.copy()
        copy.down, copy.draining = self.down.copy(), self.draining.copy()
        copy.jobs = jobs = {name: Job(*_EVERYTHING(job)) for name, job in self.jobs.items()}
        for kind in ("pending", "active", "incomplete"):
            setattr(copy, kind, {job_id: jobs[job_id] for job_id in getattr(self, kind)})
        copy.gates = self.gates.copy(jobs)
        copy.reservations = self.reservations.copy()
        copy.usage, copy.scaling = self.usage.copy(), self.scaling.copy()
        copy.shapes, copy.speeds = self.shapes.copy(), self.speeds.copy()
        copy.rules, copy.judged, copy.spent = self.rules, self.judged, self.spent.copy()
        for job_id, spec in instead.items():
            copy._drop_reservation(job_id)
            copy.pending[job_id].spec = spec
        return copy

    def _adopt(self, job: Job) -> None:
        """Take in a job as a snapshot has it, with everything it holds."""
        self.jobs[job.id] = job
        if job.state is PENDING:
            self.pending[job.id] = job
        elif job.allocation:
            self.active[job.id] = job
            job.held_milli = 0
            self._hold(job, job.allocation)
            self._hold(job, joining(job.resizing or (), job))
            if job.state is STARTING and missing(job):
                self.incomplete[job.id] = job

    # -- requests -------------------------------------------------------------------------------

    def _submitted(self, now: float, e: ev.JobSubmitted) -> None:
        spec = e.spec
        job_id = spec.id
        if job_id in self.jobs:
            return
        job = Job(spec, self.submitted, now, now)
        job.estimates = e.estimates
        self.submitted += 1
        shapes, roles = self.shapes, spec.roles
        shapes[roles] = shapes.get(roles, 0) + 1
        self.jobs[job_id] = self.pending[job_id] = job
        if spec.after or spec.array:
            never = self.gates.submitted(now, job, self.jobs, self.ended)
            if never is not None:
                return self._end(now, job, _S.CANCELLED, never)
            if job_id in self.gates.blocked:
                job.state = BLOCKED
                del self.pending[job_id]
        self.changes.note(job)

    def _changed(self, now: float, e: ev.JobChanged) -> None:
        if (job := self.pending.get(e.spec.id)) is not None:
            self._drop_reservation(job.id)
            job.spec = e.spec
            self.changes.note(job)

    def _cancel_requested(self, now: float, e: ev.CancelRequested) -> None:
        job = self.jobs.get(e.job)
        if job is not None and job.state in (PENDING, BLOCKED, HALTED):
            self._end(now, job, _S.CANCELLED, e.reason or _BY_REQUEST["cancelled"])

    def _halt_requested(self, now: float, e: ev.HaltRequested) -> None:
        job = self.jobs.get(e.job)
        if job is not None and job.state in (PENDING, BLOCKED):
            self._drop_reservation(job.id)
            self.pending.pop(job.id, None)
            self._move(now, job, HALTED, _BY_REQUEST["halted"])
            self._went(now, job)

    def _resume_requested(self, now: float, e: ev.ResumeRequested) -> None:
        if (job := self.jobs.get(e.job)) is not None and job.state is HALTED:
            if self.gates.enters(job):
                self._queue(now, job, _BY_REQUEST["resumed"])
            else:
                self._move(now, job, BLOCKED, _BY_REQUEST["resumed"])

    def _scale_requested(self, now: float, e: ev.ScaleRequested) -> None:
        job = self.jobs.get(e.job)
        if job is not None and 0 <= e.role < len(job.spec.roles):
            job.want(e.role, e.workers)
            self.scaling.add(e.job)

    # -- what runs report -----------------------------------------------------------------------

    def _started(self, now: float, e: ev.JobStarted) -> None:
        job = self._run(e)
        if job is not None and job.state is STARTING:
            self._move(now, job, RUNNING, None)
            job.mark = now if e.at is None else e.at

    def _resized(self, now: float, e: ev.JobResized) -> None:
        job = self._run(e)
        if job is None or job.resizing is None:
            return
        self._settle(now, job)
        if self.counts:
            self.spent.count(now, job)
            job.held_since = now
        target, job.resizing = job.resizing, None
        kept = set(target)
        self._give(job, tuple(worker for worker in job.allocation if worker not in kept))
        job.allocation = target
        self.changes.note(job)

    def _exited(self, now: float, e: ev.JobExited) -> None:
        if (job := self._run(e)) is None:
            return
        if e.at is not None:  # what went by since then was no service
            job.mark = min(now, job.mark + max(0.0, now - e.at))
        if e.outcome is WENT_WELL:
            self._vacate(now, job)
            self._end(now, job, SUCCEEDED, e.reason or job.reason)
        else:
            self._over(now, job, e.outcome, e.reason or job.reason, job.reason)

    def _launch_failed(self, now: float, e: ev.LaunchFailed) -> None:
        if (job := self._run(e)) is not None:
            self._over(now, job, ev.Outcome.FAILED, e.reason, e.reason)

    def _over(self, now: float, job: Job, outcome: ev.Outcome, reason: Why, stopped: Why) -> None:
        """A run did not end well; what it was told to stop for goes before why it ended."""
        intent = job.intent
        self._vacate(now, job)
        if intent is CANCEL:
            self._end(now, job, _S.CANCELLED, stopped)
        elif intent is HALT:
            self._move(now, job, HALTED, stopped)
            self._went(now, job)
        elif outcome is STOPPED:
            self._queue(now, job, reason)
        else:
            verdict = judge(job, outcome, reason)
            job.spec, job.failures = verdict.spec, verdict.failures
            job.lost, job.out_of_memory = verdict.lost, verdict.out_of_memory
            if verdict.again:
                self._queue(now, job, reason)
            else:
                self._end(now, job, _S.FAILED, reason)

    def _progress(self, now: float, e: ev.Progress) -> None:
        if (job := self._run(e)) is not None:
            job.progress = e.done
            job.progress_s = job.ran(now)
            self.changes.note(job)

    def _stage_changed(self, now: float, e: ev.StageChanged) -> None:
        if job := self._run(e):
            job.stage = e.stage

    def _phase_changed(self, now: float, e: ev.PhaseChanged) -> None:
        if job := self._run(e):
            job.phase = e.phase

    def _speed_measured(self, now: float, e: ev.SpeedMeasured) -> None:
        if job := self._run(e):
            self.speeds.add(same_work(job.spec), e.point)

    def _rules_changed(self, now: float, e: ev.RulesChanged) -> None:
        for job in self.active.values() if e.counts and not self.counts else ():
            job.held_since = now
        self.rules = e

    def _policy_judged(self, now: float, e: ev.PolicyJudged) -> None:
        self.judged = e

    def _limits_advised(self, now: float, e: ev.LimitsAdvised) -> None:
        if e.limits.gpu_milli and e.reason.code is ReasonCode.REQUESTED and (job := self._run(e)):
            job.limit_asked = e.attempt

    def _alert_raised(self, now: float, e: ev.Fact) -> None:
        """The engine decides, or nobody does; nothing is different yet."""

    _alert_cleared = _alert_raised

    def _remedy_advised(self, now: float, e: ev.RemedyAdvised) -> None:
        if (job := self._run(e)) is not None:
            job.spec = amended(job.spec, e)

    # -- nodes ----------------------------------------------------------------------------------

    def _node_up(self, now: float, e: ev.NodeUp) -> None:
        capacity, name = self.capacity, e.node.name
        i = capacity.index.get(name)
        if i is not None and capacity.nodes[i] != e.node:
            if not capacity.idle(i):
                raise InternalError(f"node {name} came back as another, with runs still on it")
            capacity.retire(i)
            i = None
        if i is None:
            i = capacity.add(e.node)
        self.down.discard(name)
        self.draining.discard(name)
        capacity.set_open(i, True)

    def _node_changed(self, now: float, e: ev.NodeChanged) -> None:
        self.capacity.change(e.node)

    def _node_down(self, now: float, e: ev.NodeDown) -> None:
        if e.node in self.capacity.index:
            self.draining.discard(e.node)
            self.down.add(e.node)
            self._close(e.node)

    def _node_draining(self, now: float, e: ev.NodeDraining) -> None:
        if e.node in self.capacity.index and e.node not in self.down:
            self.draining.add(e.node)
            self._close(e.node)

    def _close(self, name: str) -> None:
        self.capacity.set_open(self.capacity.index[name], False)
        holds = self.reservations.items()
        for job_id in [job for job, hold in holds if any(w.node == name for w in hold)]:
            self._drop_reservation(job_id)
            self.changes.note(self.jobs[job_id])

    def _woke(self, now: float, e: ev.Woke) -> None:
        if self.wake_at is not None and self.wake_at <= now:
            self.wake_at = None

    # -- decisions ------------------------------------------------------------------------------

    def _launch(self, now: float, e: ev.Launch) -> None:
        job_id, workers, job = e.job, e.workers, self.jobs[e.job]
        reserved = bool(self.reservations) and self._drop_reservation(job_id, workers)
        if job.state is PENDING:
            job.attempt = e.attempt
            job.allocation = workers
            job.held_since = now if self.counts else 0.0
            self._move(now, job, STARTING, None)
            del self.pending[job_id]
            self.active[job_id] = job
        else:
            job.allocation += workers
            self.changes.note(job)
        self._hold(job, workers, reserved)
        if missing(job):
            self.incomplete[job_id] = job
        elif self.incomplete:
            self.incomplete.pop(job_id, None)

    def _stop(self, now: float, e: ev.Stop) -> None:
        job = self.jobs[e.job]
        job.intent = e.intent
        if self.incomplete:
            self.incomplete.pop(e.job, None)
        if job.state is STOPPING:
            job.reason = e.reason
            return
        if job.state is RUNNING:
            self._settle(now, job)
        self._move(now, job, STOPPING, e.reason)

    def _resize(self, now: float, e: ev.Resize) -> None:
        job = self.jobs[e.job]
        self._settle(now, job)
        job.resizing = e.workers
        self.changes.note(job)
        self._hold(job, joining(e.workers, job))

    def _limit(self, now: float, e: ev.Limit) -> None:
        self.jobs[e.job].limits = e.limits

    def _reserve(self, now: float, e: ev.Reserve) -> None:
        if self.reservations:
            self._drop_reservation(e.job)
        if e.workers:
            self._hold_for(e.job, e.workers)
        self.changes.note(self.jobs[e.job])

    def _wake_at(self, now: float, e: ev.WakeAt) -> None:
        self.wake_at = e.at

    def _reject(self, now: float, e: ev.Reject) -> None:
        self._end(now, self.jobs[e.job], _S.FAILED, e.reason)

    # -- taking a decision back -----------------------------------------------------------------

    def memo(self, decision: ev.Decision) -> Any:
        """What `undo` will need to take this decision back; call it before `apply`."""
        if isinstance(decision, ev.WakeAt):
            return self.wake_at
        return self.reservations.get(decision.job), _BEFORE(self.jobs[decision.job])

    def undo(self, decision: ev.Decision, memo: Any) -> None:
        """Take back the latest decision, given the memo made before it was applied."""
        if isinstance(decision, ev.WakeAt):
            self.wake_at = memo
            return
        if isinstance(decision, ev.Reject):
            self._unreject(decision.job)
        job, (held, before) = self.jobs[decision.job], memo
        if isinstance(decision, ev.Launch):
            self._give(job, decision.workers)
        elif isinstance(decision, ev.Resize):
            self._give(job, joining(decision.workers, job))
        self._drop_reservation(job.id)
        if held is not None:
            self._hold_for(job.id, held)
        for name, value in zip(_RESTORED, before, strict=True):
            setattr(job, name, value)
        self.changes.note(job)
        if job.state is PENDING:
            self.active.pop(job.id, None)
            self.pending[job.id] = job
        if job.state is STARTING and missing(job):
            self.incomplete[job.id] = job
        else:
            self.incomplete.pop(job.id, None)

    def _unreject(self, job_id: str) -> None:
        """The job that ended last did not: nobody was told of it."""
        self.moves.pop()
        self.jobs[job_id] = job = self.ended.pop()
        if job.wants is not None or job.wants_of:
            self.scaling.add(job_id)

    # -- helpers --------------------------------------------------------------------------------

    def _run(self, e: Any) -> Job | None:
        """The job a run fact speaks of, unless the run is not the present one."""
        job = self.active.get(e.job)
        return job if job is not None and job.attempt == e.attempt else None

    def _move(self, now: float, job: Job, to: JobState, reason: Why) -> None:
        """Change the state of a job; its service and the indexes are the caller's business."""
        if to not in ALLOWED[job.state]:
            ensure(job, to)
        job.state, job.since = to, now
        job.reason = reason
        self.changes.note(job)
        if to is not STARTING and to is not STOPPING:
            self.moves.append((job, to, reason))

    def _queue(self, now: float, job: Job, reason: Why) -> None:
        """A job that holds nothing waits again."""
        self._move(now, job, PENDING, reason)
        self.pending[job.id] = job

    def _end(self, now: float, job: Job, to: JobState, reason: Why) -> None:
        self._finish(now, job, to, reason)
        self._went(now, job)

    def _went(self, now: float, job: Job) -> None:
        """A job ended or halted: let through who waited for that, and end who never can start."""
        leaving = [job] if self.gates.busy else []
        for one in leaving:  # grows
            for follower, never in self.gates.left(now, one, self.jobs):
                if never is None:
                    self._queue(now, follower, None)
                else:
                    self._finish(now, follower, _S.CANCELLED, never)
                    leaving.append(follower)

    def _finish(self, now: float, job: Job, to: JobState, reason: Why) -> None:
        job_id = job.spec.id
        if self.reservations:
            self._drop_reservation(job_id)
        if job.state is PENDING:
            del self.pending[job_id]
        self._move(now, job, to, reason)
        del self.jobs[job_id]
        if self.scaling:
            self.scaling.discard(job_id)
        self.ended.append(job)

    def _vacate(self, now: float, job: Job) -> None:
        """The run is over: account for its service, give back everything it held, and forget what
        was to follow."""
        if self.counts:
            self.spent.count(now, job)
        if job.state is RUNNING:
            self._settle(now, job)
        if job.resizing is not None:
            self._give(job, joining(job.resizing, job))
            job.resizing = None
        self._give(job, job.allocation)
        job.allocation, job.limits, job.intent = (), None, None
        job_id = job.spec.id
        del self.active[job_id]
        if self.incomplete:
            self.incomplete.pop(job_id, None)

    def _settle(self, now: float, job: Job) -> None:
        """Add the service since `mark`."""
        if job.state is RUNNING:
            elapsed = now - job.mark
            job.ran_s += elapsed
            job.gpu_s += elapsed * job.held_milli / WHOLE_GPU
        job.mark = now

    def _hold(self, job: Job, workers: tuple[Worker, ...], reserved: bool = False) -> None:
        """Workers get their room, unless it was taken for them before."""
        capacity, milli = self.capacity, 0
        for worker in workers:
            ask = ask_of(job, worker.role)
            if not reserved:
                capacity.shift(capacity.index[worker.node], ask, worker.devices, -1)
            milli += ask.gpu_milli
        job.held_milli += milli
        queue = job.spec.queue
        self.usage[queue] = self.usage.get(queue, 0) + milli

    def _give(self, job: Job, workers: tuple[Worker, ...]) -> None:
        capacity, milli = self.capacity, 0
        for worker in workers:
            ask = ask_of(job, worker.role)
            capacity.shift(capacity.index[worker.node], ask, worker.devices, 1)
            milli += ask.gpu_milli
        if workers:
            capacity.released += 1
        job.held_milli -= milli
        self.usage[job.spec.queue] -= milli

    def _hold_for(self, job_id: str, workers: tuple[Worker, ...]) -> None:
        """Take the room that is reserved for a job."""
        capacity, job = self.capacity, self.jobs[job_id]
        self.reservations[job_id] = workers
        for worker in workers:
            capacity.take(capacity.index[worker.node], ask_of(job, worker.role), worker.devices)

    def _drop_reservation(self, job_id: str, workers: tuple[Worker, ...] | None = None) -> bool:
        """Give back the room that is reserved for a job; True if it is that of these workers, who
        have it from now on."""
        hold = self.reservations.pop(job_id, None)
        if hold is None or hold == workers:
            return hold is not None
        capacity, job = self.capacity, self.jobs[job_id]
        for worker in hold:
            capacity.give(capacity.index[worker.node], ask_of(job, worker.role), worker.devices)
        return False


_HANDLERS = {
    kind: "_" + re.sub("(?<=[a-z])(?=[A-Z])", "_", kind.__name__.removeprefix("Job")).lower()
    for kind in (*ev.FACTS, *ev.DECISIONS)
}
"""The method that takes each type of event: `_launch`, `_node_up`, `_exited` for `JobExited` …"""
_EVERYTHING = attrgetter(*(field.name for field in fields(Job)))
_RESTORED: tuple[str, ...] = ("state", "attempt", "allocation", "resizing", "limits", "intent")
_RESTORED += ("reason", "since", "ran_s", "gpu_s", "mark", "held_since")
_BEFORE = attrgetter(*_RESTORED)
