"""Run a trace on a cluster under a policy: the same engine and loop as a live cluster, with time
that
jumps from event to event."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from time import process_time
from typing import Protocol

from presage.core.engine import Engine
from presage.core.gates import still_after
from presage.core.guard import GuardedPolicy
from presage.core.loop import step
from presage.core.ports import CountsHours, HasRemarks, Policy, Predictor, Store
from presage.core.state import State
from presage.model.cluster import Node
from presage.model.estimate import Estimates
from presage.model.event import Decision, Event, Fact, JobSubmitted, NodeUp, RulesChanged
from presage.model.job import Job, JobSpec, JobState, ReasonCode
from presage.sim.foreseen import FromHistory
from presage.sim.guarding import Guarding
from presage.sim.links import still_with_share
from presage.sim.oracle import LearnsMemory, Oracle
from presage.sim.record import Recorder
from presage.sim.result import AdviceScore, SimResult
from presage.sim.traces import Trace
from presage.sim.usage import RecordedUse
from presage.sim.workload import Workload
from presage.sim.world import Task, World, WorldRules

__all__ = ["Observer", "simulate"]

Progress = Callable[[int, int], None]


class Observer(Protocol):
    """Looks at a simulated cluster while it runs, and answers with facts."""

    def due_at(self) -> float:
        """When it wants to look next."""
        ...

    def look(self, now: float, state: State, world: World) -> Sequence[Fact]:
        """What the deciding loop should know; nothing before it is due."""
        ...

    def foresee(self, spec: JobSpec, now: float) -> Estimates | None:
        """What is foreseen of a job that is submitted now."""
        ...

    def ended(self, task: Task, now: float) -> None:
        """A job is done."""
        ...

    def score(self) -> AdviceScore:
        """How good it was, now that all is over."""
        ...


_SUCCEEDED = JobState.SUCCEEDED
_CHUNK = 4096


def simulate(
    trace: Trace,
    nodes: Sequence[Node],
    policy: Policy,
    *,
    name: str,
    rules: WorldRules | None = None,
    seed: int = 0,
    use_estimates: bool = False,
    models: Sequence[str] | None = None,
    estimates: Sequence[Estimates | None] | None = None,
    sharers: int = 1,
    uses: Mapping[str, RecordedUse] | None = None,
    specs: Mapping[str, JobSpec] | None = None,
    lacks: tuple[str, ...] = (),
    advise: Observer | None = None,
    foresee: Callable[[Predictor], Predictor] | None = None,
    progress: Progress | None = None,
    store: Store | None = None,
    check_every: int = 0,
) -> SimResult:
    """Every job of a trace from its submission to its end, as one result.

    `models`, `estimates`, `sharers`, `uses` and `specs` are those of `Workload`. `lacks` are
    decisions that the world is said to be unable to carry out. `foresee` makes the
    predictor, given the one that looks into the world: take from that only what would be known.
    `advise` looks on.
    """
    started = process_time()
    world = World(nodes, rules)
    prefers = bool(getattr(policy, "prefers_estimates", False))
    oracle = Oracle(world, use_estimates or prefers)
    predict: Predictor = oracle if foresee is None else foresee(oracle)
    engine = Engine(policy, predict, State(seed), check_every=check_every)
    scored = advise is not None
    if advise is None and getattr(policy, "needs_history", False):
        advise = FromHistory()
    recorder = Recorder(trace.jobs.height)
    links = world.rules.links
    workload = Workload(trace, nodes, models, estimates, sharers, uses, specs, links, seed)
    journal = store if store is not None else _Discard()
    guarding: Guarding | None = None
    if isinstance(policy, GuardedPolicy):
        knows = None if predict is oracle else predict
        guessed: dict[str, float] | None = {} if use_estimates or prefers else None
        journal = guarding = Guarding(policy, journal, knows, guessed, world.rules, seed)
    begin: list[Fact] = [NodeUp(node) for node in nodes]
    counts = isinstance(policy, CountsHours) and policy.counts_hours
    if lacks or counts:
        begin.insert(0, RulesChanged("", "", lacks, counts))
    step(engine, world, journal, 0.0, begin)
    collecting = gc.isenabled()
    if guarding is None:
        gc.disable()  # nothing here makes reference cycles, and there are many objects to scan
    try:
        awaited = dict.fromkeys(workload.awaited, False)
        _run(
            *(engine, world, journal, iter(workload), oracle, recorder, progress, advise),
            *(guarding, awaited),
        )
    finally:
        if collecting:
            gc.enable()
    for left in list(world.tasks.values()):
        reason = engine.explain(left.spec.id)
        recorder.close(left, None, "unfinished", reason.text if reason else "")
    world.settle()
    recorder.thin()
    cpu_s = process_time() - started - workload.read_s
    result = recorder.result(trace, name, world, cpu_s)
    if isinstance(policy, HasRemarks):
        result = replace(result, notes=tuple(policy.remarks(engine.state)))
    if guarding is not None:
        result = replace(result, notes=(*result.notes, *guarding.remarks()))
    return replace(result, advice=advise.score()) if scored and advise is not None else result


def _run(
    engine: Engine,
    world: World,
    journal: Store,
    incoming: Iterator[tuple[float, Task]],
    oracle: Oracle,
    recorder: Recorder,
    progress: Progress | None,
    advise: Observer | None,
    guarding: Guarding | None,
    awaited: dict[str, bool],
) -> None:
    """Jump from event to event until nothing is left to happen. `awaited` has jobs that others
    wait for, and whether they ended well: the engine forgets those that are over."""
    state, running, none = engine.state, world.tasks, (inf, None)
    steps = recorder.steps
    at, task = next(incoming, none)
    report_at = 0
    while running or task is not None:
        now = world.next_event()
        if at < now:
            now = at
        wake_at = state.wake_at
        if wake_at is not None and wake_at < now:
            now = wake_at
        if now == inf:
            return
        requests: list[Fact] = []
        if guarding is not None:
            now = guarding.due_at(now, state)
            requests += guarding.look(now, state, world)
        if advise is not None and state.active:
            now = min(now, max(advise.due_at(), world.now))
            requests += advise.look(now, state, world)
        while at <= now and task is not None:
            if awaited and task.spec.after:
                left = [one for one in task.spec.after if not awaited[one.job]]
                task.spec = still_after(task.spec, left)
            world.expect(task, at)
            if advise is not None:
                foreseen = advise.foresee(task.spec, at)
                task.estimates = still_with_share(foreseen, task.estimates)
            requests.append(JobSubmitted(task.spec, task.estimates))
            at, task = next(incoming, none)
        step(engine, world, journal, now, requests)
        if world.overflowed:
            _remember(world, engine.predict)
        if advise is not None:
            for done in world.finished:
                advise.ended(done, now)
        if state.ended or world.stopped:
            for job in state.ended if awaited else ():
                if job.spec.id in awaited:
                    awaited[job.spec.id] = job.state is _SUCCEEDED
            _collect(world, state, oracle, recorder, now)
            if progress is not None and recorder.done >= report_at:
                progress(recorder.done, len(recorder))
                report_at = recorder.done + max(1, len(recorder) // 200)
            if len(steps) >= _CHUNK:
                recorder.thin()
        steps.append((now, len(state.pending), world.used_milli, world.held_milli))


def _collect(world: World, state: State, oracle: Oracle, recorder: Recorder, now: float) -> None:
    """Note what ended in this step."""
    for task in world.finished:
        recorder.close(task, now)
        oracle.forget(task.spec.id)
    world.finished.clear()
    for job in state.ended:
        if job.state is not _SUCCEEDED and job.spec.id in world.tasks:
            task = world.forget(job.spec.id)
            recorder.close(task, None, _status(job), job.reason.text if job.reason else "")
            oracle.forget(task.spec.id)
    if world.stopped:
        for job_id in world.stopped:
            oracle.stopped(job_id)
        world.stopped.clear()


def _remember(world: World, predict: Predictor) -> None:
    """Tell a predictor that learns which jobs ran out of memory."""
    if isinstance(predict, LearnsMemory):
        for task in world.overflowed:
            predict.out_of_memory(task.spec)
    world.overflowed.clear()


def _status(job: Job) -> str:
    if job.state is JobState.CANCELLED:
        return "cancelled"
    rejected = job.reason is not None and job.reason.code is ReasonCode.NEVER_FITS
    return "rejected" if rejected else "failed"


class _Discard:
    """A journal that keeps nothing: simulated time can be run again."""

    def append(
        self, now: float, facts: Sequence[Fact], decisions: Sequence[Decision], *, lease: int = 0
    ) -> None:
        """Forget them."""

    def read(self, since: int = 0) -> Iterable[tuple[float, Event]]:
        """Nothing."""
        return ()
