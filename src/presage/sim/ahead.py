"""When waiting jobs will start: Monte Carlo, the present state copied and run ahead many times.

The same engine, policy and simulated world as everywhere else; only the run times are drawn, from
what is known of each job and of others like it (`sim.history`). Running jobs are as old as they
are. Each run ends when the jobs that were asked about have started. Nobody's state is touched and
nothing is shared: call it from any thread, on a `State.copy` that the deciding thread made.

What it leaves out: failures, nodes that come or go, and, unless the caller draws them, jobs that
are yet to be submitted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import floor, inf
from typing import Protocol, TypeAlias

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

__all__ = [
    "Arrivals",
    "Rollout",
    "Runtimes",
    "Start",
    "StartForecast",
    "TimeBox",
    "coming_jobs",
    "even_nodes",
    "run_ahead",
]

Floats = npt.NDArray[np.float64]
Arrivals: TypeAlias = Callable[[float, np.random.Generator], Sequence[tuple[float, JobSubmitted]]]
"""Draws jobs that are submitted from now on, and when, the first of them first."""

HORIZON_S = 60 * 86_400.0
"""How far ahead it looks; a job that has not started by then gets no number."""


class Runtimes(Protocol):
    """Draws how long jobs still run; `sim.history.History` is one."""

    def sample(
        self, jobs: Sequence[Job], now: float, samples: int, rng: np.random.Generator
    ) -> Floats:
        """Seconds that each job still runs, jobs × samples, given how long it has run."""
        ...


@dataclass(frozen=True, slots=True)
class Start:
    """When a job will start: seconds from `StartForecast.now` on; None beyond the horizon."""

    p10_s: float | None
    p50_s: float | None
    p90_s: float | None
    nodes: tuple[str, ...]
    """Where it starts in the run whose answer is the median; empty beyond the horizon."""

    def calibrated(self, calibration: Calibration, horizon_s: float) -> Start:
        """The same, as it should be told. Who starts at once, or not within the horizon, is not
        uncertain."""
        if self.p10_s is None or not self.p50_s:
            return self
        most = horizon_s if self.p90_s is None else self.p90_s
        told = calibration.interval(self.p10_s, self.p50_s, most)
        low, middle, high = (None if wait >= horizon_s else wait for wait in told)
        return Start(low, middle, high, self.nodes)


@dataclass(frozen=True, slots=True)
class StartForecast:
    """What was foreseen at one moment."""

    now: float
    samples: int
    """Runs that were made: fewer than were asked for when time was short."""
    horizon_s: float
    starts: dict[str, Start]
    """By job. A job that would be rejected is not there."""
    ends: dict[str, Start] = field(default_factory=dict)
    """When jobs and arrays end that others wait for; without nodes."""


class TimeBox:
    """Bounds the work of a forecast: fewer runs when one takes long, and shorter ones when not
    even `_LEAST_RUNS` would fit. `clock` counts the seconds that are spent; `rest` is called after
    every step and may sleep, to leave the machine to others."""

    def __init__(
        self, clock: Callable[[], float], most_s: float, rest: Callable[[], None] = lambda: None
    ) -> None:
        self._clock, self._most_s, self._rest = clock, most_s, rest
        self._began = self._run_began = clock()
        self._longest_s = 0.0
        self._runs = 0

    def begin(self) -> bool:
        """Before each run: whether there is time for it."""
        now = self._clock()
        if self._runs:
            self._longest_s = max(self._longest_s, now - self._run_began)
        fits = now - self._began + self._longest_s <= self._most_s
        self._run_began = now
        self._runs += 1
        return fits or self._runs <= _LEAST_RUNS

    def goes_on(self) -> bool:
        """After each step of a run: whether it may go on."""
        self._rest()
        return self._clock() - self._run_began < self._most_s / _LEAST_RUNS


_LEAST_RUNS = 3
"""So many runs there always are, however short, so that there is a middle and two sides."""


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
    time_box: TimeBox | None = None,
    grain: float = 0.0,
    arrivals: Arrivals | None = None,
) -> StartForecast:
    """Foresee the start of the jobs in `asked` (all that wait, by default) and in `submit`.

    `submit` are jobs that nobody has submitted yet: they join the queue now. `predict` is what
    the policy knows of run times; without it, the policy sees those that were drawn. With a time
    box, jobs that no run came to before its time was up get no number. `grain` saves time: what
    happens within this share of the time looked ahead is taken to happen together, at its end.
    `arrivals` draws, for each run, who comes later.
    """
    now = max(state.now, 0.0 if now is None else now)
    blocked = state.gates.blocked
    waiting = {*state.pending, *blocked}
    wanted = (waiting if asked is None else waiting & set(asked)) | {spec.id for spec in submit}
    jobs = [*state.active.values(), *state.pending.values(), *blocked.values()]
    jobs += [Job(spec, 0, now, now) for spec in submit]
    left = runtimes.sample(jobs, now, samples, np.random.default_rng(seed))
    names = [job.id for job in jobs]
    nodes = even_nodes(state)
    awaited = _awaited(state)
    runs, ends = [], []
    for number, column in enumerate(left.T if wanted else ()):
        if time_box is not None and not time_box.begin():
            break
        drawn = dict(zip(names, column.tolist(), strict=True))
        run = _Starts(state.copy(), nodes, policy(), drawn)
        if arrivals is not None:
            run.await_more(*coming_jobs(arrivals, runtimes, now, seed, number))
        until = now + horizon_s
        runs.append(run.go(now, submit, set(wanted), predict, rules, until, time_box, grain))
        ends.append(run.ends)
    starts = {}
    for name in names:
        sampled = [run.get(name, (inf, ())) for run in runs]
        if name in wanted and any(at is not None for at, _ in sampled):
            starts[name] = _start(sampled, now, horizon_s, calibration)
    over = {
        name: _start(
            [(max(ended.get(one, inf) for one in those), ()) for ended in ends], now, horizon_s
        )
        for name, those in (awaited.items() if ends else ())
    }
    return StartForecast(now, len(runs), horizon_s, starts, over)


def _awaited(state: State) -> dict[str, list[str]]:
    """Jobs and arrays that others wait for, each with the jobs that it is."""
    awaited = {}
    for name in state.gates.awaited():
        array = state.gates.arrays.get(name)
        awaited[name] = sorted(array.members) if array is not None else [name]
    return awaited


def even_nodes(state: State) -> list[Node]:
    """The nodes of a state, as a world for run times of a history."""
    return [_even(state.capacity.nodes[i]) for i in sorted(state.capacity.index.values())]


def coming_jobs(
    arrivals: Arrivals, runtimes: Runtimes, now: float, seed: int, number: int
) -> tuple[Sequence[tuple[float, JobSubmitted]], dict[str, float]]:
    """Who comes later, of a run with this number, and how long each of them runs."""
    rng = np.random.default_rng((seed, number))
    coming = arrivals(now, rng)
    if not coming:
        return (), {}
    jobs = [Job(fact.spec, 0, now, now, estimates=fact.estimates) for _, fact in coming]
    left = runtimes.sample(jobs, now, 1, rng)[:, 0].tolist()
    return coming, dict(zip((job.id for job in jobs), left, strict=True))


class Rollout:
    """One run ahead. `estimates_s`, by job, is what policies see instead of what was drawn."""

    def __init__(
        self,
        state: State,
        nodes: Sequence[Node],
        policy: Policy,
        left_s: dict[str, float],
        estimates_s: Mapping[str, float] | None = None,
    ) -> None:
        self.state = state
        self.policy = policy
        self.left_s = left_s
        self.nodes = nodes
        self.estimates_s = estimates_s
        self.coming: deque[tuple[float, JobSubmitted]] = deque()
        """Who is submitted on the way, and when."""

    def await_more(
        self, coming: Sequence[tuple[float, JobSubmitted]], left_s: Mapping[str, float]
    ) -> None:
        """Jobs that come on the way, and how long they run."""
        self.coming.extend(coming)
        self.left_s |= left_s

    def steps(
        self,
        now: float,
        submit: Sequence[JobSpec],
        predict: Predictor | None,
        rules: WorldRules | None,
        until: float,
        time_box: TimeBox | None,
        grain: float,
    ) -> Iterator[tuple[float, list[Decision]]]:
        """Run ahead, and tell of each step: when it is, and what was decided."""
        state, began = self.state, now
        world = self._world(now, submit, rules)
        engine = Engine(self.policy, predict or Oracle(world, self.estimates_s is not None), state)
        # Woke: a job may have been changed since the policy last looked.
        requests: list[Fact] = [*(JobSubmitted(spec) for spec in submit), Woke()]
        while True:
            facts = world.poll(now) + requests + self._arrived(now, world)
            requests = []
            if state.wake_at is not None and state.wake_at <= now:
                facts.append(Woke())
            decisions = engine.handle(now, facts)
            act(world, decisions)
            yield now, decisions
            world.finished.clear()
            world.stopped.clear()
            next_s = min(world.next_event(), self.coming[0][0] if self.coming else inf)
            then = max(next_s, now + grain * (now - began))
            if state.wake_at is not None and state.wake_at < then:
                then = state.wake_at
            if then > until or (time_box is not None and not time_box.goes_on()):
                return
            now = then

    def _arrived(self, now: float, world: World) -> list[Fact]:
        """Those who were to come by now."""
        facts: list[Fact] = []
        while self.coming and self.coming[0][0] <= now:
            _, fact = self.coming.popleft()
            world.expect(self._task(fact.spec), now)
            facts.append(fact)
        return facts

    def _world(self, now: float, submit: Sequence[JobSpec], rules: WorldRules | None) -> World:
        """A world in which the active jobs are where they are, with the time they have left."""
        state = self.state
        world = World(self.nodes, rules)
        world.poll(now)
        for name in state.down:
            world.lose(name)
        for job in state.active.values():
            world.expect(self._task(job.spec, len(job.allocation)), now)
            world.launch(Launch(job.id, job.attempt, job.allocation))
            if job.resizing is not None:
                world.resize(Resize(job.id, job.attempt, job.resizing))
            if job.state is JobState.STOPPING:
                assert job.reason is not None
                intent = job.intent or StopIntent.REQUEUE
                world.stop(Stop(job.id, job.attempt, intent, job.reason))
        waiting = [*state.pending.values(), *state.gates.blocked.values()]
        for spec in [*(job.spec for job in waiting), *submit]:
            world.expect(self._task(spec), now)
        return world

    def _task(self, spec: JobSpec, workers: int = 0) -> Task:
        left_s = self.left_s[spec.id]
        needed = sum(role.min for role in spec.roles)
        task = Task(spec, 0, spec.roles[0].resources.shared, left_s, max(workers, needed), needed)
        if task.shares:
            task.utilization = spec.roles[0].resources.gpu_milli / 1000
        if self.estimates_s is not None:
            task.estimate_s = self.estimates_s.get(spec.id.removesuffix("+"))
        return task


class _Starts(Rollout):
    """A run ahead that looks for starts."""

    def __init__(
        self, state: State, nodes: Sequence[Node], policy: Policy, left_s: dict[str, float]
    ) -> None:
        super().__init__(state, nodes, policy, left_s)
        self.found: dict[str, tuple[float | None, tuple[str, ...]]] = {}
        """When and where the jobs that were asked about start; None when one is rejected."""
        self.ends: dict[str, float] = {}
        """When jobs end, if any wait for others."""

    def go(
        self,
        now: float,
        submit: Sequence[JobSpec],
        wanted: set[str],
        predict: Predictor | None,
        rules: WorldRules | None,
        until: float,
        time_box: TimeBox | None,
        grain: float,
    ) -> dict[str, tuple[float | None, tuple[str, ...]]]:
        """Run until all that is wanted has started."""
        for at, decisions in self.steps(now, submit, predict, rules, until, time_box, grain):
            self._note(at, decisions, wanted)
            if not wanted:
                break
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
            if state.gates.busy or self.ends:
                self.ends[job.id] = now
            if job.id in wanted:
                wanted.discard(job.id)
                self.found[job.id] = None, ()


def _even(node: Node) -> Node:
    """Histories are of run times wherever they ran: no device is faster than another."""
    if all(device.speed == 1.0 for device in node.devices):
        return node
    return replace(node, devices=tuple(replace(device, speed=1.0) for device in node.devices))


def _start(
    sampled: Sequence[tuple[float | None, tuple[str, ...]]],
    now: float,
    horizon_s: float,
    calibration: Calibration | None = None,
) -> Start:
    beyond = now + horizon_s
    waits = [(inf if at is None or at >= beyond else at - now, nodes) for at, nodes in sampled]
    waits.sort(key=lambda wait: wait[0])
    low, middle, high = (_quantile([wait for wait, _ in waits], q) for q in (0.1, 0.5, 0.9))
    nodes = waits[(len(waits) - 1) // 2][1] if middle is not None else ()
    start = Start(low, middle, high, nodes)
    return start if calibration is None else start.calibrated(calibration, horizon_s)


def _quantile(ordered: Sequence[float], q: float) -> float | None:
    """Hazen's quantile; None when it lies beyond what is known."""
    place = min(max(q * len(ordered) - 0.5, 0.0), len(ordered) - 1.0)
    k = floor(place)
    low, high = ordered[k], ordered[min(k + 1, len(ordered) - 1)]
    value = low if place == k else low + (high - low) * (place - k) if low < inf else inf
    return None if value == inf else value
