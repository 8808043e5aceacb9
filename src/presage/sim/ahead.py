"""When waiting jobs will start: the present state is copied and run ahead, many times.

The same engine, policy and simulated world as everywhere else; only the run times are drawn, from
what is known of such jobs (`sim.history`). Running jobs go on from their age. Each run ends when
the jobs that were asked about have started. Nobody's state is touched and nothing is shared: call
it from any thread, on a copy (`copy_state`) that the deciding thread made.

What it leaves out: jobs that are yet to be submitted, failures, and nodes that come or go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace
from math import inf
from operator import attrgetter
from typing import Protocol

import numpy as np
import numpy.typing as npt

from presage.core.engine import Engine
from presage.core.loop import act
from presage.core.ports import Policy, Predictor
from presage.core.state import State
from presage.model.cluster import Node
from presage.model.event import Decision, Fact, JobSubmitted, Launch, Resize, Stop, Woke
from presage.model.job import Job, JobSpec, JobState, StopIntent
from presage.sim.calibrate import Calibration
from presage.sim.oracle import Oracle
from presage.sim.world import Task, World, WorldRules

__all__ = ["Forecast", "Runtimes", "Start", "copy_state", "run_ahead"]

Floats = npt.NDArray[np.float64]

HORIZON_S = 60 * 86_400.0
"""How far ahead it looks; a job that has not started by then gets no number."""


class Runtimes(Protocol):
    """Draws how long jobs still run; `sim.history.History` is one."""

    def sample(
        self,
        specs: Sequence[JobSpec],
        ran_s: npt.ArrayLike,
        now: float,
        samples: int,
        rng: np.random.Generator,
    ) -> Floats:
        """Seconds that each job still runs, jobs × samples, given how long it has run."""
        ...


@dataclass(frozen=True, slots=True)
class Start:
    """When a job will start: seconds from `Forecast.now` on; None beyond the horizon."""

    p10_s: float | None
    p50_s: float | None
    p90_s: float | None
    nodes: tuple[str, ...]
    """Where it starts in the run whose answer is the median; empty beyond the horizon."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What was foreseen at one moment."""

    now: float
    samples: int
    horizon_s: float
    starts: dict[str, Start]
    """By job. A job that would be rejected is not there."""


def run_ahead(
    state: State,
    policy: Callable[[], Policy],
    runtimes: Runtimes,
    *,
    now: float | None = None,
    asked: Collection[str] | None = None,
    submit: Sequence[JobSpec] = (),
    predict: Predictor | None = None,
    samples: int = 24,
    seed: int = 0,
    rules: WorldRules | None = None,
    calibration: Calibration | None = None,
    horizon_s: float = HORIZON_S,
) -> Forecast:
    """Foresee the start of the jobs in `asked` (all that wait, by default) and in `submit`.

    `submit` are jobs that nobody has submitted yet: they join the queue now. `predict` is what
    the policy knows of run times; without it, the policy sees those that were drawn.
    """
    now = max(state.now, 0.0 if now is None else now)
    waiting = set(state.pending)
    wanted = (waiting if asked is None else waiting & set(asked)) | {spec.id for spec in submit}
    jobs = [*state.active.values(), *state.pending.values()]
    specs = [job.spec for job in jobs] + list(submit)
    ran = [job.ran(now) for job in jobs] + [0.0] * len(submit)
    left = runtimes.sample(specs, ran, now, samples, np.random.default_rng(seed))
    names = [spec.id for spec in specs]
    nodes = [_even(state.capacity.nodes[i]) for i in sorted(state.capacity.index.values())]
    runs = []
    for column in left.T if wanted else ():
        drawn = dict(zip(names, column.tolist(), strict=True))
        run = _Run(copy_state(state), nodes, policy(), drawn)
        runs.append(run.go(now, submit, set(wanted), predict, rules, now + horizon_s))
    starts = {}
    for spec in specs:
        found = [run.get(spec.id, (inf, ())) for run in runs]
        if spec.id in wanted and any(at is not None for at, _ in found):
            starts[spec.id] = _start(found, now, horizon_s, calibration)
    return Forecast(now, samples, horizon_s, starts)


def copy_state(state: State) -> State:
    """A state of its own, equal to this one: what `State.restore(state.snapshot())` gives, made a
    hundred times faster."""
    copy = State(state.seed)
    copy.now = state.now
    capacity, source = copy.capacity, state.capacity
    for i in sorted(source.index.values()):
        new = capacity.add(source.nodes[i])
        if source.open >> i & 1:
            capacity.set_open(new, True)
    copy.down, copy.draining = set(state.down), set(state.draining)
    for job in state.jobs.values():
        copy.adopt(Job(*_EVERYTHING(job)))
    copy.active = {job_id: copy.active[job_id] for job_id in state.active}
    copy.pending = {job_id: copy.pending[job_id] for job_id in state.pending}
    for job_id, hold in state.reservations.items():
        copy.hold_for(job_id, hold)
    copy.shapes = dict(state.shapes)
    copy.wake_at = state.wake_at
    copy.submitted = state.submitted
    copy.scaling = set(state.scaling)
    return copy


_EVERYTHING = attrgetter(*(field.name for field in fields(Job)))


class _Run:
    """One run ahead."""

    def __init__(
        self, state: State, nodes: Sequence[Node], policy: Policy, left_s: dict[str, float]
    ) -> None:
        self.state = state
        self.policy = policy
        self.left_s = left_s
        self.nodes = nodes
        self.found: dict[str, tuple[float | None, tuple[str, ...]]] = {}
        """When and where the jobs that were asked about start; None when one is rejected."""

    def go(
        self,
        now: float,
        submit: Sequence[JobSpec],
        wanted: set[str],
        predict: Predictor | None,
        rules: WorldRules | None,
        until: float,
    ) -> dict[str, tuple[float | None, tuple[str, ...]]]:
        """Run until all that is wanted has started."""
        state = self.state
        world = self._world(now, submit, rules)
        engine = Engine(self.policy, predict or Oracle(world, False), state)
        # Woke: a job may have been changed since the policy last looked.
        requests: list[Fact] = [*(JobSubmitted(spec) for spec in submit), Woke()]
        while wanted:
            facts = world.poll(now) + requests
            requests = []
            if state.wake_at is not None and state.wake_at <= now:
                facts.append(Woke())
            decisions = engine.handle(now, facts)
            act(world, decisions)
            self._note(now, decisions, wanted)
            world.finished.clear()
            world.stopped.clear()
            then = world.next_event()
            if state.wake_at is not None and state.wake_at < then:
                then = state.wake_at
            if then > until:
                break
            now = then
        return self.found

    def _note(self, now: float, decisions: Sequence[Decision], wanted: set[str]) -> None:
        state = self.state
        for decision in decisions:
            if not isinstance(decision, Launch) or decision.job not in wanted:
                continue
            if decision.job not in state.incomplete:
                wanted.discard(decision.job)
                workers = state.jobs[decision.job].allocation
                nodes = tuple(dict.fromkeys(worker.node for worker in workers))
                self.found[decision.job] = now, nodes
        for job in state.ended:
            if job.id in wanted:
                wanted.discard(job.id)
                self.found[job.id] = None, ()

    def _world(self, now: float, submit: Sequence[JobSpec], rules: WorldRules | None) -> World:
        """A world in which the active jobs are where they are, with the time they have left."""
        state = self.state
        world = World(self.nodes, rules)
        world.poll(now)
        for name in state.down:
            world.lose(name)
        for job in state.active.values():
            world.expect(_task(job.spec, self.left_s[job.id], len(job.allocation)), now)
            world.launch(Launch(job.id, job.attempt, job.allocation))
            if job.resizing is not None:
                world.resize(Resize(job.id, job.attempt, job.resizing))
            if job.state is JobState.STOPPING:
                assert job.reason is not None
                intent = job.intent or StopIntent.REQUEUE
                world.stop(Stop(job.id, job.attempt, intent, job.reason))
        for spec in [*(job.spec for job in state.pending.values()), *submit]:
            world.expect(_task(spec, self.left_s[spec.id]), now)
        return world


def _task(spec: JobSpec, left_s: float, workers: int = 0) -> Task:
    needed = sum(role.min for role in spec.roles)
    task = Task(spec, 0, spec.roles[0].resources.shared, left_s, max(workers, needed), needed)
    if task.shares:
        task.utilization = spec.roles[0].resources.gpu_milli / 1000
    return task


def _even(node: Node) -> Node:
    """Histories are of run times wherever they ran: no device is faster than another."""
    if all(device.speed == 1.0 for device in node.devices):
        return node
    return replace(node, devices=tuple(replace(device, speed=1.0) for device in node.devices))


def _start(
    found: Sequence[tuple[float | None, tuple[str, ...]]],
    now: float,
    horizon_s: float,
    calibration: Calibration | None,
) -> Start:
    waits = np.array([horizon_s if at is None else min(at - now, horizon_s) for at, _ in found])
    low, middle, high = np.quantile(waits, (0.1, 0.5, 0.9), method="hazen").tolist()
    median = int(np.argmin(np.abs(waits - middle)))
    if calibration is not None and 0 < middle < horizon_s:
        low, middle, high = calibration.interval(low, middle, high)
    low, middle, high = (None if wait >= horizon_s else wait for wait in (low, middle, high))
    return Start(low, middle, high, found[median][1] if middle is not None else ())
