"""What is seen of a cluster as facts and decisions: the difference between a state and a sight.

The state is all the memory there is, so a watcher that was killed goes on where its journal ends,
and what happened meanwhile is completed from what the cluster still tells: a job that was
submitted, ran and ended between two looks comes out as if each had been seen. Events have the
times that the cluster gave them, moved on only where the journal is further already; then a start
or an end says when it was (`at`). Starts and stops of the scheduler there are decisions, as if it
had been ours.

A run is known by when it started: a controller that crashed may have forgotten what it told
before, give the number of a job or of an attempt again, or bring a job back that had ended.

Pure: no clock, no I/O, and no policy is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from math import inf
from typing import TypeAlias

from presage.core.state import State
from presage.core.workers import ask_of
from presage.model import event as ev
from presage.model.cluster import WHOLE_GPU, Device, Node, Resources, Worker
from presage.model.event import Outcome
from presage.model.job import Job, JobSpec, JobState, Reason, ReasonCode, Role, StopIntent
from presage.model.watched import (
    NodeState,
    SeenCluster,
    SeenEnd,
    SeenJob,
    SeenNode,
    SeenRun,
    SeenWorker,
)

__all__ = ["EndedBefore", "Follower", "Step", "spec_of"]

Step: TypeAlias = tuple[float, Sequence[ev.Fact], Sequence[ev.Decision]]
"""When, facts, and the decisions that followed."""
EndedBefore: TypeAlias = Callable[[str], float | None]
"""When a job ended that is no longer in the state; None for one that was never there."""

GONE_S = 60.0
"""A job that a cluster no longer knows is given so long to turn up again: accounts come late."""
_GONE = Reason(ReasonCode.REQUESTED, "the cluster no longer knows of it")
_CANCELLED = Reason(ReasonCode.REQUESTED, "cancelled there")
_AGAIN = Reason(ReasonCode.REQUESTED, "it waits again")
_UNKNOWN = Reason(ReasonCode.ERROR, "it ended without a run")


class _Rank(IntEnum):
    """What comes first of one moment: room is given back before it is taken."""

    NODE = 0
    END = 1
    """Of a run."""
    SUBMIT = 2
    GIVE_UP = 3
    """Of a job without a run."""
    START = 4


@dataclass(frozen=True, slots=True)
class _Happening:
    """Something that is different now, and when it became so."""

    at: float
    rank: _Rank
    events: Callable[[], Iterable[ev.Event]]
    """In their order; asked when all that went before has been applied."""


class Follower:
    """Keeps a state equal to what is seen. `state` is what the journal folds to."""

    def __init__(self, state: State, ended_before: EndedBefore = lambda job_id: None) -> None:
        self.state = state
        self._ended_before = ended_before
        self._missing: dict[str, float] = {}
        """Jobs that are no longer seen, and since when."""
        self._there: set[str] = set()
        """Jobs of the state that are seen."""

    def follow(self, sight: SeenCluster) -> Iterator[Step]:
        """Bring the state up to what is seen; each step is applied when it is handed out."""
        state = self.state
        self._there.clear()
        news = [item for seen in sight.jobs for item in _in_turn(self._of_job(seen, sight.now))]
        news += self._of_missing(sight)
        first = min((item.at for item in news), default=sight.now)
        began = sight.now if state.capacity.index else min(first, sight.now)
        news += self._of_nodes(sight, began)
        facts: list[ev.Fact] = []
        decisions: list[ev.Decision] = []
        at = -inf
        for item in sorted(news, key=lambda item: (item.at, item.rank)):
            now = max(item.at, state.now)
            for event in item.events():
                decided = isinstance(event, ev.DECISIONS)
                if now > at or (decisions and not decided):
                    if facts or decisions:
                        yield at, facts, decisions
                    facts, decisions, at = [], [], now
                    state.apply_all(now, ())
                state.apply(now, event)
                (decisions if decided else facts).append(event)  # type: ignore[arg-type]
        if facts or decisions:
            yield at, facts, decisions

    # -- jobs -----------------------------------------------------------------------------------

    def _of_job(self, seen: SeenJob, now: float) -> Iterable[_Happening]:
        job_id = self._id_of(seen)
        if job_id is None:
            return
        self._missing.pop(job_id, None)
        self._there.add(job_id)
        job = self.state.jobs.get(job_id)
        spec = spec_of(seen, job_id)
        attempt, began = 0, -inf
        if job is None:
            first = min([seen.submitted_at, *(run.started_at for run in seen.runs)])
            yield _Happening(first, _Rank.SUBMIT, lambda: (ev.JobSubmitted(spec),))
        else:
            attempt, began = job.attempt, job.mark if job.allocation else job.since
            yield from self._of_present(job, seen, now)
        for run in seen.runs:
            if run.started_at > began or (run.attempt > attempt and run.started_at == began):
                attempt = max(run.attempt, attempt + 1)
                started = replace(run, attempt=attempt)
                yield _Happening(
                    run.started_at, _Rank.START, _bind(self._start, job_id, spec, started)
                )
                if run.end is not None:
                    yield _Happening(
                        run.end.at, _Rank.END, _bind(self._over, job_id, attempt, run.end)
                    )
        if not seen.runs and seen.end is not None:
            yield _Happening(seen.end.at, _Rank.GIVE_UP, _bind(self._given_up, job_id, seen.end))
        waits = job is not None and not seen.running and seen.ended_at is None
        if job is not None and waits and _differs(job.spec, spec):
            yield _Happening(now, _Rank.GIVE_UP, lambda: (ev.JobChanged(spec),))

    def _of_present(self, job: Job, seen: SeenJob, now: float) -> Iterable[_Happening]:
        """What became of the run that the state knows."""
        if not job.allocation:
            return
        began = [run for run in seen.runs if run.started_at == job.mark]  # two in one second
        run = min(began, key=lambda run: abs(run.attempt - job.attempt), default=None)
        if run is not None and run.end is not None:
            yield _Happening(
                run.end.at, _Rank.END, _bind(self._over, job.id, job.attempt, run.end)
            )
        elif run is None:
            later = [run.started_at for run in seen.runs if run.started_at > job.mark]
            at = min([now, *later] + [seen.submitted_at] * (seen.submitted_at > job.since))
            end = SeenEnd(at, Outcome.STOPPED, _AGAIN, again=True)
            if not later and seen.ended_at is not None:
                end = seen.end or SeenEnd(seen.ended_at, Outcome.STOPPED, _CANCELLED)
            yield _Happening(end.at, _Rank.END, _bind(self._over, job.id, job.attempt, end))

    def _of_missing(self, sight: SeenCluster) -> Iterable[_Happening]:
        """Jobs of the state that the cluster no longer knows."""
        for job_id, job in self.state.jobs.items():
            if job_id in self._there:
                continue
            since = self._missing.setdefault(job_id, sight.now)
            if sight.now - since >= GONE_S:
                end = SeenEnd(since, Outcome.STOPPED, _GONE)
                if job.allocation:
                    yield _Happening(since, _Rank.END, _bind(self._over, job_id, job.attempt, end))
                else:
                    yield _Happening(since, _Rank.GIVE_UP, _bind(self._given_up, job_id, end))

    def _id_of(self, seen: SeenJob) -> str | None:
        """The name of a job here: its own, unless another one had it before; None for one that
        ended and was written down."""
        for job_id in (seen.id, f"{seen.id}@{seen.submitted_at:.0f}"):
            job = self.state.jobs.get(job_id)
            if job is not None and not _another(job, seen):
                return job_id
            if job is not None:
                continue
            ended = self._ended_before(job_id)
            if ended is None:
                return job_id
            if seen.ended_at is not None and seen.ended_at <= ended:
                return None
        return None

    def _start(self, job_id: str, spec: JobSpec, run: SeenRun) -> Iterable[ev.Event]:
        job = self.state.jobs.get(job_id)
        if job is None or job.state is not JobState.PENDING:
            return
        roles, places = _roles(spec.roles[0], run.workers)
        if roles != job.spec.roles:
            yield ev.JobChanged(replace(spec, roles=roles))
        for worker in run.workers:
            if worker.node not in self.state.capacity.index:  # it has left the cluster since
                devices = (Device(),) * worker.resources.devices
                yield ev.NodeUp(Node(worker.node, devices))
                yield ev.NodeDown(worker.node)
        taken: set[tuple[str, int]] = set()
        workers = []
        for (role, index), worker in zip(places, run.workers, strict=True):
            devices_of = self._devices(worker, ask_of(job, role), taken)
            taken |= {(worker.node, device) for device in devices_of}
            workers.append(Worker(role, index, worker.node, devices_of))
        yield ev.Launch(job_id, run.attempt, tuple(workers))
        late = self.state.now > run.started_at
        yield ev.JobStarted(job_id, run.attempt, run.started_at if late else None)

    def _over(self, job_id: str, attempt: int, end: SeenEnd) -> Iterable[ev.Event]:
        """A run is over."""
        outcome, reason = end.outcome, end.reason
        at = end.at if self.state.now > end.at else None
        if end.again:
            outcome, reason = Outcome.STOPPED, reason or _AGAIN
        elif outcome is Outcome.STOPPED:
            reason = reason or _CANCELLED
            yield ev.CancelRequested(job_id, reason)
            yield ev.Stop(job_id, attempt, StopIntent.CANCEL, reason)
        elif outcome is Outcome.LOST:
            outcome = Outcome.FAILED
        yield ev.JobExited(job_id, attempt, outcome, reason, end.exit_code, at)

    def _devices(
        self, worker: SeenWorker, ask: Resources, taken: set[tuple[str, int]]
    ) -> tuple[int, ...]:
        """The GPUs of a worker: those that the cluster says, else such as are free."""
        capacity = self.state.capacity
        free = capacity.free_gpu[capacity.index[worker.node]]
        if worker.devices and max(worker.devices) < len(free):
            return worker.devices
        need = min(ask.gpu_milli, WHOLE_GPU)

        def rank(device: int) -> tuple[bool, bool, int]:
            return (worker.node, device) in taken, free[device] < need, free[device]

        return tuple(sorted(sorted(range(len(free)), key=rank)[: ask.devices]))

    def _given_up(self, job_id: str, end: SeenEnd) -> Iterable[ev.Event]:
        """A job ended that holds nothing."""
        if job_id not in self.state.jobs:
            return
        if end.outcome is Outcome.STOPPED:
            yield ev.CancelRequested(job_id, end.reason)
        else:
            yield ev.Reject(job_id, end.reason or _UNKNOWN)

    # -- nodes ----------------------------------------------------------------------------------

    def _of_nodes(self, sight: SeenCluster, began: float) -> Iterable[_Happening]:
        there = {seen.node.name: seen for seen in sight.nodes}
        for seen in sight.nodes:
            yield _Happening(began, _Rank.NODE, _bind(self._node, seen))
        for name in self.state.capacity.index:
            if name not in there and name not in self.state.down:
                yield _Happening(sight.now, _Rank.NODE, _bind(_left, name))

    def _node(self, seen: SeenNode) -> Iterable[ev.Event]:
        """A node becomes what it is; other devices wait until nothing runs on it."""
        state, name = self.state, seen.node.name
        i = state.capacity.index.get(name)
        node = seen.node if i is None else state.capacity.nodes[i]
        new = i is None
        if i is not None and node != seen.node:
            if len(node.devices) == len(seen.node.devices):
                yield ev.NodeChanged(seen.node)
                node = seen.node
            elif state.capacity.idle(i):
                node, new = seen.node, True
        was = NodeState.UP
        if name in state.down:
            was = NodeState.DOWN
        elif name in state.draining:
            was = NodeState.DRAINING
        if new or (was is not seen.state and was is not NodeState.UP):
            yield ev.NodeUp(node)
            was = NodeState.UP
        if seen.state is NodeState.DOWN and was is not seen.state:
            yield ev.NodeDown(name)
        elif seen.state is NodeState.DRAINING and was is not seen.state:
            yield ev.NodeDraining(name)


def spec_of(seen: SeenJob, job_id: str | None = None) -> JobSpec:
    """What a job asks for, as a job of ours: one that is never started again by itself and takes
    no checkpoints, as far as anybody knows."""
    return JobSpec(
        job_id or seen.id,
        (seen.role,),
        owner=seen.owner,
        queue=seen.queue,
        priority=seen.priority,
        checkpointable=False,
        time_limit_s=seen.time_limit_s,
        labels=dict(seen.labels),
        entrypoint=(seen.name,) if seen.name else (),
    )


def _roles(
    asked: Role, workers: Sequence[SeenWorker]
) -> tuple[tuple[Role, ...], list[tuple[int, int]]]:
    """The roles that a run shows, one for each size of worker, and the role and index of each."""
    sizes: dict[Resources, list[int]] = {}
    for number, worker in enumerate(workers):
        sizes.setdefault(worker.resources, []).append(number)
    roles = []
    places = [(0, 0)] * len(workers)
    for role, (size, members) in enumerate(sizes.items()):
        name = asked.name if not role else f"{asked.name}-{role}"
        count = len(members)
        types = asked.gpu_types if size.gpu_milli else ()
        roles.append(Role(name, size, count, count, types, asked.where))
        for index, number in enumerate(members):
            places[number] = role, index
    return tuple(roles), places


def _differs(ours: JobSpec, seen: JobSpec) -> bool:
    """Whether a job that waits asks for something else. Its priority moves all the time, and is
    looked up when it is needed."""
    return (ours.roles, ours.queue, ours.time_limit_s, ours.entrypoint) != (
        *(seen.roles, seen.queue, seen.time_limit_s, seen.entrypoint),
    )


def _in_turn(news: Iterable[_Happening]) -> Iterator[_Happening]:
    """What happened to one job, in that order whatever times it was given: a run may begin and
    end in one second."""
    at, rank = -inf, _Rank.NODE
    for item in news:
        rank = max(rank, item.rank) if item.at <= at else item.rank
        at = max(at, item.at)
        yield replace(item, at=at, rank=rank)


def _another(job: Job, seen: SeenJob) -> bool:
    """Whether a job that never ran was submitted after the one that has its number here."""
    return not job.attempt and not _before(seen) and seen.submitted_at > job.submitted_at


def _before(seen: SeenJob) -> bool:
    """Whether a job had runs before the latest: who waits again was submitted again."""
    return bool(seen.runs) and seen.runs[-1].attempt > 1


def _left(name: str) -> Iterable[ev.Event]:
    yield ev.NodeDown(name)


def _bind(
    make: Callable[..., Iterable[ev.Event]], *about: object
) -> Callable[[], Iterable[ev.Event]]:
    return lambda: make(*about)
