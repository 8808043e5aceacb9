"""A Hypothesis state machine: random clusters, jobs, failures, drains and policies, driven through
the same loop as a live cluster.

What must hold after every step: `State.check()`, that nobody but the state changed it
(`GuardedState`), and the promises of the policy's configuration (`_check_promises`). At the end
every node comes back and every halted job is resumed; then every job that was not rejected must
end, a replay of the facts must give the same decisions, and folding the journal must give the same
state. Run it with

    TestCluster = ClusterMachine.TestCase
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from heapq import heappop, heappush
from math import inf
from operator import attrgetter
from typing import Any, cast
from zlib import crc32

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from presage.core.engine import Engine
from presage.core.loop import fold, step
from presage.core.state import State
from presage.core.workers import ask_of
from presage.model import event as ev
from presage.model.cluster import ANY_GPU, Node, Worker
from presage.model.estimate import Estimate
from presage.model.job import Dependency, DependsOn, Job, JobSpec, JobState, Reason, ReasonCode
from presage.model.speed import SpeedBook, SpeedPoint
from presage.model.workload import same_work
from presage.policy.config import PolicyConfig, QueueConfig
from presage.policy.queues import QueueRule
from presage.policy.registry import NOT_DECIDED, build
from presage.sim.world import Task, World, WorldRules
from presage.store.memory import MemoryStore
from presage.testing.strategies import clusters, job_specs, policy_configs

__all__ = ["ClusterMachine", "GuardedState", "StablePredictor", "UnsteadyWorld", "task_for"]

STEPS_PER_JOB = 200
"""Steps in which a job must end once the cluster is whole again, on average; a run that needs more
goes round in circles."""


class StablePredictor:
    """Foresees a number made from the job's id: often wrong, always the same. Some jobs gain by
    every worker, some only on one node, of others it does not say. A size at which such work was
    measured has the time that was measured."""

    def __init__(self, speeds: SpeedBook | None = None) -> None:
        self._speeds = speeds if speeds is not None else SpeedBook()

    @property
    def version(self) -> str:
        """Another one for every measured speed."""
        return f"by id and {self._speeds.count} speeds"

    def with_speeds(self, speeds: SpeedBook) -> StablePredictor:
        """One that knows what was measured."""
        return StablePredictor(speeds)

    def runtime(self, job: Job, workers: Sequence[Worker] = ()) -> Estimate:
        """Some seconds below two minutes."""
        number = crc32(job.id.encode())
        seconds = number % 113 + 1.0
        if workers and number % 3:
            nodes = len({worker.node for worker in workers})
            for point in self._speeds.of(same_work(job.spec)):
                if (point.workers, point.nodes) == (len(workers), nodes):
                    return Estimate.exact(point.whole_s, "s", self.version)
            apart = nodes - 1 if number % 3 == 2 else 0
            seconds *= (1.0 + apart) / len(workers)
        return Estimate.exact(seconds, "s", self.version)

    def utilization(self, job: Job) -> Estimate:
        """A half."""
        return Estimate.exact(0.5, "share", self.version)

    def memory(self, job: Job) -> Estimate:
        """What it asks for."""
        asked = max(role.resources.gpu_memory_mib for role in job.spec.roles)
        return Estimate.exact(asked, "MiB", self.version)

    def slowdown(self, job: Job, neighbours: Sequence[Job]) -> Estimate:
        """A half for each neighbour."""
        return Estimate.exact(1.0 + 0.5 * len(neighbours), "times", self.version)


class GuardedState(State):
    """A state that notices when anybody else changed it, and soon forgets changes."""

    MOST_CHANGES = 1
    _left: Any = None

    def apply(self, now: float, event: ev.Event) -> None:
        """Compare, and apply."""
        self.assert_untouched()
        super().apply(now, event)
        self._left = self._everything()

    def apply_all(self, now: float, events: Iterable[ev.Event]) -> None:
        """Compare, and apply."""
        self.assert_untouched()
        super().apply_all(now, events)
        self._left = self._everything()

    def undo(self, decision: ev.Decision, memo: Any) -> None:
        """Compare, and undo."""
        self.assert_untouched()
        super().undo(decision, memo)
        self._left = self._everything()

    def assert_untouched(self) -> None:
        """It holds what the last event left."""
        if self._left is not None:
            for was, is_ in zip(self._left, self._everything(), strict=True):
                assert was == is_, f"somebody changed {was} to {is_}"

    def _everything(self) -> list[Any]:
        """But capacity: a policy lends it for a moment, and `check` counts it anew."""
        plain = (self.now, self.wake_at, self.submitted, self.rules, self.changes.dropped)
        dicts: list[dict[Any, Any]] = [self.reservations, self.usage, self.speeds.points]
        jobs = (self.pending, self.active, self.incomplete, self.gates.blocked)
        return [
            plain,
            *map(
                list,
                (
                    *jobs,
                    self.down,
                    self.draining,
                    self.gates.blocked,
                    self.scaling,
                    self.changes.jobs,
                    self.ended,
                    self.moves,
                ),
            ),
            *(list(part.items()) for part in dicts),
            [_FIELDS(job) for job in self.jobs.values()],
        ]


_FIELDS = attrgetter(*(field.name for field in fields(Job)))


class UnsteadyWorld(World):
    """A world in which stopping and shrinking take time, and launches fail when told to."""

    def __init__(
        self, nodes: Sequence[Node], rules: WorldRules, stop_delay_s: float = 0.0
    ) -> None:
        super().__init__(nodes, rules)
        self.fail_launches = 0
        """How many of the next launches fail."""
        self._stop_delay_s = stop_delay_s
        self._late: list[tuple[float, int, ev.Fact]] = []
        self._failed: list[ev.Fact] = []
        self._count = 0

    def launch(self, decision: ev.Launch) -> None:
        """Start workers, or fail to."""
        if self.fail_launches and not self.tasks[decision.job].workers:
            self.fail_launches -= 1
            reason = Reason(ReasonCode.LAUNCH_FAILED, "no image")
            self._failed.append(ev.LaunchFailed(decision.job, decision.attempt, reason))
        else:
            super().launch(decision)

    def poll(self, now: float) -> list[ev.Fact]:
        """What happened until now; what takes time is told when it is over."""
        facts: list[ev.Fact] = []
        while self._late and self._late[0][0] <= now:
            facts.append(heappop(self._late)[2])
        for fact in super().poll(now):
            if self._stop_delay_s and _releases(fact):
                self._count += 1
                heappush(self._late, (now + self._stop_delay_s, self._count, fact))
            else:
                facts.append(fact)
        facts += self._failed
        self._failed = []
        return facts

    def next_event(self) -> float:
        """When there will be something to poll."""
        if self._failed:
            return self.now
        return min(super().next_event(), self._late[0][0] if self._late else inf)


def _releases(fact: ev.Fact) -> bool:
    if isinstance(fact, ev.JobExited):
        return fact.outcome in (ev.Outcome.STOPPED, ev.Outcome.LOST)
    return isinstance(fact, ev.JobResized)


def task_for(spec: JobSpec, duration_s: float, peak_memory_mib: int = 0) -> Task:
    """A job as the world sees it, measured with the fewest workers it can run on."""
    needed = sum(role.min for role in spec.roles)
    shares = any(role.resources.shared for role in spec.roles)
    task = Task(spec, 0, shares, duration_s, needed, needed)
    task.utilization = 0.6
    task.peak_memory_mib = peak_memory_mib
    return task


@dataclass(slots=True)
class _ClusterUnderTest:
    """One cluster under one policy, with everything that belongs to it."""

    config: PolicyConfig
    world: UnsteadyWorld
    engine: Engine
    store: MemoryStore = field(default_factory=MemoryStore)
    now: float = 0.0
    submitted: int = 0
    broken: bool = False
    """Something raised: the end has nothing more to say."""


_times = st.sampled_from((0.0, 0.0, 1.0, 7.0))


class ClusterMachine(RuleBasedStateMachine):
    """Everything that can happen to a cluster, in any order."""

    run: _ClusterUnderTest | None = None

    @initialize(
        nodes=clusters(),
        config=policy_configs(),
        rules=st.builds(
            WorldRules,
            restart_cost_s=_times,
            launch_delay_s=_times,
            resize_cost_s=_times,
            checkpoint_every_s=_times,
        ),
        stop_delay_s=_times,
    )
    def start(
        self,
        nodes: tuple[Node, ...],
        config: PolicyConfig,
        rules: WorldRules,
        stop_delay_s: float,
    ) -> None:
        """An empty cluster."""
        world = UnsteadyWorld(nodes, rules, stop_delay_s)
        self.run = _ClusterUnderTest(config, world, _engine(config))
        self._step([ev.NodeUp(node) for node in nodes])

    # -- what people do -------------------------------------------------------------------------

    @rule(
        specs=st.lists(job_specs(), min_size=1, max_size=4),
        duration_s=st.sampled_from((20.0, 100.0, 100.0, 3.0, 0.0)),
        peak_gib=st.sampled_from((0, 0, 0, 12)),
        after=st.lists(st.tuples(st.integers(0, 15), st.sampled_from(DependsOn)), max_size=2),
        at_once=st.sampled_from((None, None, 0, 1, 2)),
    )
    def submit(
        self,
        specs: list[JobSpec],
        duration_s: float,
        peak_gib: int,
        after: list[tuple[int, DependsOn]],
        at_once: int | None,
    ) -> None:
        """Some jobs at once; some wait for others, some are an array."""
        run = self._run()
        requests: list[ev.Fact] = []
        waits = tuple(Dependency(self._pick_awaited(pick), on) for pick, on in after)
        array = "" if at_once is None else f"a{run.submitted}"
        for spec in specs:
            named = _named(
                spec, f"j{run.submitted}", after=waits, array=array, at_once=at_once or 0
            )
            run.submitted += 1
            run.world.expect(task_for(named, duration_s, peak_gib * 1024), run.now)
            requests.append(ev.JobSubmitted(named))
        self._step(requests)

    @precondition(lambda self: self._anything_alive())
    @rule(pick=st.integers(0, 15))
    def submit_again(self, pick: int) -> None:
        """Somebody sends the same job twice, and not just as it ends: then it would be new."""
        job = self._pick_job(pick)
        if self._next_time() > self._run().now:
            self._step([ev.JobSubmitted(job.spec)])

    @precondition(lambda self: self._anything_alive())
    @rule(pick=st.integers(0, 15), kind=st.sampled_from(("cancel", "halt", "halt", "resume")))
    def ask(self, pick: int, kind: str) -> None:
        """Somebody wants a job to end, to pause or to go on."""
        job = self._pick_job(pick).id
        requests: dict[str, ev.Fact] = {
            "cancel": ev.CancelRequested(job),
            "halt": ev.HaltRequested(job),
            "resume": ev.ResumeRequested(job),
        }
        self._step([requests[kind]])

    @precondition(lambda self: self._anything_alive())
    @rule(pick=st.integers(0, 15), workers=st.integers(0, 6))
    def scale(self, pick: int, workers: int) -> None:
        """Somebody wants another number of workers."""
        self._step([ev.ScaleRequested(self._pick_job(pick).id, workers)])

    @precondition(lambda self: self._anything_alive())
    @rule(pick=st.integers(0, 15), seconds=st.integers(1, 120))
    def measure(self, pick: int, seconds: int) -> None:
        """A run tells how fast it is, if it is one."""
        job = self._pick_job(pick)
        if job.allocation:
            nodes = len({worker.node for worker in job.allocation})
            point = SpeedPoint(len(job.allocation), nodes, float(seconds), 60.0)
            self._step([ev.SpeedMeasured(job.id, job.attempt, point)])

    # -- what the cluster does ------------------------------------------------------------------

    @rule(times=st.integers(1, 4))
    def advance(self, times: int) -> None:
        """Go to the next moments at which something happens."""
        for _ in range(times):
            self._advance()

    @rule(seconds=st.sampled_from((0.5, 5.0, 60.0)))
    def wait(self, seconds: float) -> None:
        """Look in between, too."""
        run = self._run()
        until = run.now + seconds
        while self._next_time() <= until:
            self._advance()
        run.now = until
        self._step([])

    @rule(pick=st.integers(0, 4), drain=st.booleans())
    def close(self, pick: int, drain: bool) -> None:
        """A node is drained, or goes away without a word."""
        run = self._run()
        node = self._pick_node(pick)
        if drain:
            self._step([ev.NodeDraining(node.name)])
        elif node in run.world.nodes():
            run.world.lose(node.name)
            self._step([])

    @rule(pick=st.integers(0, 4))
    def open(self, pick: int) -> None:
        """A node comes back, or is no longer drained."""
        self._open(self._pick_node(pick))

    @rule()
    def repair(self) -> None:
        """All of them are."""
        for node in self._run().world.all_nodes():
            self._open(node)

    @rule()
    def fail_a_launch(self) -> None:
        """The next launch will fail."""
        self._run().world.fail_launches += 1

    @rule(can_resize=st.booleans(), counts=st.booleans())
    def change_executor(self, can_resize: bool, counts: bool) -> None:
        """Another executor takes over, which may not be able to resize; it says so. GPU time may
        count from then on."""
        self._step([ev.RulesChanged("", "", () if can_resize else ("Resize",), counts)])

    @rule(source=st.sampled_from(("journal", "snapshot", "copy")))
    def crash(self, source: str) -> None:
        """The scheduler dies, and another one takes over from the journal or from a snapshot; or
        it continues with a copy."""
        run = self._run()
        state = run.engine.state
        if source == "journal":
            recovered = fold(run.store.read(), GuardedState())
        elif source == "snapshot":
            recovered = GuardedState.restore(json.loads(json.dumps(state.snapshot())))
        else:
            recovered = state.copy()
        recovered.check()
        assert recovered.snapshot() == state.snapshot()
        run.engine = _engine(run.config, recovered)

    # -- the end --------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Let everything end, then audit the journal."""
        if self.run is None or self.run.broken:
            return
        self._let_everything_end()
        self._audit()

    def _let_everything_end(self) -> None:
        run = self._run()
        state = run.engine.state
        run.world.fail_launches = 0
        self.repair()
        for _ in range(STEPS_PER_JOB * (len(state.jobs) + 1)):
            if not state.jobs:
                assert not run.world.tasks
                return
            halted = [job.id for job in state.jobs.values() if job.state is JobState.HALTED]
            if halted:
                self._step([ev.ResumeRequested(job) for job in halted])
            elif self._next_time() == inf:
                assert self._is_allowed_deadlock(), f"stuck at {run.now:g}: {self._story()}"
                return
            else:
                self._advance()
        raise AssertionError(f"goes round in circles at {run.now:g}: {self._story()}")

    def _is_allowed_deadlock(self) -> bool:
        """Without gang, greedy jobs may hold what others need, and a single job may place its
        first workers where its last ones should have gone. Nothing else may get stuck."""
        run = self._run()
        state = run.engine.state
        half_started = state.active.keys() == state.incomplete.keys()
        return (
            not run.config.gang
            and half_started
            and (len(state.active) == 1 or (bool(state.active) and run.config.mode == "greedy"))
            and all(job.allocation for job in state.incomplete.values())
        )

    def _audit(self) -> None:
        """The journal tells the whole story, also on paper."""
        run = self._run()
        again = _engine(run.config)
        for now, facts, decisions in run.store.steps():
            assert again.handle(now, facts) == list(decisions), f"another decision at {now:g}"
        state = run.engine.state.snapshot()
        assert again.state.snapshot() == state
        journal = list(run.store.read())
        assert fold(journal).snapshot() == state
        paper = json.dumps([[now, ev.event_to_json(event)] for now, event in journal])
        assert [(now, ev.event_from_json(event)) for now, event in json.loads(paper)] == journal

    # -- one step -------------------------------------------------------------------------------

    def _step(self, requests: Sequence[ev.Fact]) -> None:
        run = self._run()
        state = run.engine.state
        try:
            step(run.engine, run.world, run.store, run.now, requests)
            for job in state.ended:
                if job.id in run.world.tasks:
                    run.world.forget(job.id)
            run.world.finished.clear()
            run.world.stopped.clear()
            _check_promises(state, run.config)
        except BaseException:
            run.broken = True
            raise

    def _advance(self) -> None:
        run = self._run()
        due = self._next_time()
        if due < inf:
            run.now = max(run.now, due)
            self._step([])

    def _next_time(self) -> float:
        run = self._run()
        wake_at = run.engine.state.wake_at
        return min(run.world.next_event(), inf if wake_at is None else wake_at)

    def _open(self, node: Node) -> None:
        run = self._run()
        if node in run.world.nodes():
            self._step([ev.NodeUp(node)])
        else:
            run.world.return_(node.name)
            self._step([])

    # -- helpers --------------------------------------------------------------------------------

    def _run(self) -> _ClusterUnderTest:
        assert self.run is not None
        return self.run

    def _anything_alive(self) -> bool:
        return self.run is not None and bool(self.run.engine.state.jobs)

    def _pick_job(self, pick: int) -> Job:
        jobs = sorted(self._run().engine.state.jobs.values(), key=lambda job: job.seq)
        return jobs[pick % len(jobs)]

    def _pick_awaited(self, pick: int) -> str:
        """A job or an array that may be alive; most picks of an empty cluster are not."""
        state = self._run().engine.state
        known = sorted((*state.jobs, *state.gates.arrays))
        return known[pick % len(known)] if known else "nobody"

    def _pick_node(self, pick: int) -> Node:
        nodes = self._run().world.all_nodes()
        return nodes[pick % len(nodes)]

    def _story(self) -> str:
        run = self._run()
        for now, facts, decisions in run.store.steps():
            note(f"{now:g}: {facts} -> {decisions}")
        reasons = {job: run.engine.explain(job) for job in run.engine.state.jobs}
        return f"{run.config!r}; {reasons}"


def _engine(config: PolicyConfig, state: State | None = None) -> Engine:
    state = GuardedState() if state is None else state
    return Engine(build(config), StablePredictor(), state, check_every=1)


def _named(spec: JobSpec, name: str, **more: Any) -> JobSpec:
    named: JobSpec = replace(cast(Any, spec), id=name, **more)
    return named


def _check_promises(state: State, config: PolicyConfig) -> None:
    """What a configuration promises beyond what every state keeps."""
    capacity = state.capacity
    sharers: dict[tuple[str, int], int] = {}
    for job in state.active.values():
        if config.gang:
            assert job.id not in state.incomplete, f"{job.id} started without all of its gang"
        for worker in job.allocation:
            node = capacity.nodes[capacity.index[worker.node]]
            types = job.spec.roles[worker.role].gpu_types
            for d in worker.devices:
                sharers[worker.node, d] = sharers.get((worker.node, d), 0) + 1
                assert not types or node.devices[d].type in (*types, ANY_GPU), (
                    f"{job.id} has a wrong GPU"
                )
                alone = not ask_of(job, worker.role).shared
                assert not alone or capacity.sharers[capacity.index[worker.node]][d] >= 1
        if job.state is not JobState.STOPPING:
            on = {worker.node for worker in job.allocation}
            assert not on & state.down, f"{job.id} is left on a node that is gone"
    most = config.max_jobs_per_gpu
    assert most is None or all(count <= most for count in sharers.values()), "too many on a GPU"
    for queue, rule_ in config.queues.items():
        ceiling = QueueRule(**rule_.model_dump(exclude=NOT_DECIDED)).ceiling_milli
        used = state.usage.get(queue, 0)
        _check_cpus(queue, rule_, state)
        assert ceiling is None or used <= ceiling, f"queue {queue} holds {used} of {ceiling}"


def _check_cpus(queue: str, config: QueueConfig, state: State) -> None:
    ceiling = QueueRule(**config.model_dump(exclude=NOT_DECIDED)).cpu_ceiling
    held = sum(
        ask_of(job, worker.role).cpu_milli
        for job in state.active.values()
        if job.spec.queue == queue
        for worker in {*job.allocation, *(job.resizing or ())}
    )
    assert ceiling is None or held <= ceiling, f"queue {queue} holds {held} of {ceiling} milli-CPU"
