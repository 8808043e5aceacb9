"""A simulated world behind the `Executor` port: jobs make progress, share, fail and end on a
clock that
jumps.

It keeps the promises of the port (idempotent per attempt, a JobExited after every Stop) and knows
nothing of
policies. It also measures what a run is judged by: waits, starts, ends, GPU time held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import Any

from presage.model.cluster import WHOLE_GPU, Node, Resources, Worker
from presage.model.estimate import Estimates
from presage.model.event import (
    Fact,
    JobExited,
    JobResized,
    JobStarted,
    Launch,
    Limit,
    NodeDown,
    NodeUp,
    Outcome,
    Resize,
    Stop,
)
from presage.model.job import JobSpec, Reason, ReasonCode
from presage.model.parts import TURN_COST, enforced_limit, held_slowdowns
from presage.sim.links import LinkLoads, LinkRules, needs_several
from presage.sim.speed import SpeedModel, slowest_device
from presage.sim.usage import RecordedUse

__all__ = ["Outage", "Task", "Use", "World", "WorldRules"]


@dataclass(frozen=True, slots=True)
class Outage:
    """A node that goes away and comes back."""

    node: str
    at_s: float
    for_s: float


@dataclass(frozen=True, slots=True)
class WorldRules:
    """How the world behaves."""

    restart_cost_s: float = 0.0
    """Work lost when a job is stopped and started again: taking the checkpoint and loading it."""
    launch_delay_s: float = 0.0
    """From the launch to the first step."""
    resize_cost_s: float = 0.0
    """Work lost when a running job changes its number of workers."""
    checkpoint_every_s: float = 0.0
    """Work a crash can cost at most; 0: a checkpoint is always fresh."""
    outages: tuple[Outage, ...] = ()
    """Outages that are planned."""
    node_mtbf_s: float = 0.0
    """Mean time between the failures of a node; 0: none fails by chance."""
    node_repair_s: float = 3600.0
    seed: int = 0
    speed: SpeedModel = field(default_factory=SpeedModel)
    beside: Callable[[str, Sequence[str]], float] | None = None
    """How many times longer a job of a model takes beside jobs of other models on its device;
    without it, `speed` says so from how busy each keeps the device."""
    turn_cost: float = TURN_COST
    """The part of a device's time that goes with changes of turns, where shares are enforced."""
    links: LinkRules | None = None
    """Of the links of nodes; without them, the network costs nothing."""


@dataclass(slots=True, eq=False)
class Task:
    """A submitted job as the world sees it."""

    spec: JobSpec
    row: int
    """Where its results go."""
    shares: bool
    """Whether it asks for a part of a device."""
    duration_s: float
    """How long it runs, undisturbed, on as many workers as it was measured with."""
    measured_workers: int
    needed: int
    """Workers it needs before it makes progress."""
    utilization: float = 1.0
    """How busy it keeps each device when it is alone there, 0 to 1."""
    peak_memory_mib: int = 0
    """What it really uses on each device."""
    estimate_s: float | None = None
    """What its owner or a model said it would take."""
    estimates: Estimates | None = None
    """What was foreseen of it when it was submitted."""
    work_s: float = 0.0
    """Seconds of work left, at the speed it was measured at."""
    queued_at: float = 0.0
    waited_s: float = 0.0
    started_at: float | None = None
    ran_on: tuple[str, ...] = ()
    """Nodes of its latest run."""
    stops: int = 0
    attempt: int = 0
    ended_attempt: int = 0
    workers: tuple[Worker, ...] = ()
    milli: int = 0
    speed: float = 0.0
    """0 while it makes no progress."""
    since: float = 0.0
    """Progress is counted up to here."""
    saved_s: float = 0.0
    """Work left at the latest checkpoint."""
    version: int = 0
    """Rises whenever its end is computed anew."""
    use: RecordedUse | None = None
    """What it uses over time, where that was recorded."""
    limits: Resources | None = None
    """What each of its workers is held to."""
    throttled: float = 1.0
    """The part of its speed that its CPU limit leaves it."""
    link_share: float = 0.0
    """The part of a step that it talks for where it is on several nodes, as it was measured."""
    apart: bool = False
    """Whether it was measured on several nodes: one has not room enough for it."""


@dataclass(frozen=True, slots=True)
class Use:
    """What each worker of a run wants and gets at a moment."""

    task: Task
    cores: float
    memory_mib: float
    given: Resources
    """Its limits, else what it asked for."""


_END, _MEMORY, _READY, _OUTAGE, _RETURN = range(5)
_WENT_WELL, _STOPPED, _LOST = Outcome.SUCCEEDED, Outcome.STOPPED, Outcome.LOST


class World:
    """A cluster that is not there."""

    def __init__(self, nodes: Sequence[Node], rules: WorldRules | None = None) -> None:
        self.rules = rules or WorldRules()
        self.now = 0.0
        self.tasks: dict[str, Task] = {}
        self.finished: list[Task] = []
        """Tasks that ended since the runner last looked; it empties the list."""
        self.stopped: list[str] = []
        """Jobs that were stopped since then."""
        self.overflowed: list[Task] = []
        """Tasks that ran out of memory since then."""
        self.stops = 0
        self.used_milli = 0
        self.held_milli = 0
        """Part of it that waits for the rest of its workers."""
        self.gpu_seconds = 0.0
        self.held_gpu_seconds = 0.0
        self._nodes = {node.name: node for node in nodes}
        self._lost: set[str] = set()
        self._facts: list[Fact] = []
        """What the next poll will say, and should say at once."""
        self._started: list[Fact] = []
        """What it will say too, but what nobody waits for."""
        self._events: list[tuple[float, int, int, Any, int]] = []
        self._serial = 0
        self._device_tasks: dict[tuple[str, int], list[Task]] = {}
        self._mixed = len({d.speed for node in nodes for d in node.devices} | {1.0}) > 1
        links = self.rules.links
        self._links = None if links is None else LinkLoads(links.phase)
        self._uneven = self._mixed or self.rules.speed.by_place or links is not None
        """Whether it matters where a job runs, not only on how many workers."""
        self._measured_at = 0.0
        for outage in self.rules.outages:
            self._push(outage.at_s, _OUTAGE, outage)
        self._chance = Random(self.rules.seed)
        for node in nodes if self.rules.node_mtbf_s else ():
            self._fail_some_day(node.name)

    # -- the port -------------------------------------------------------------------------------

    def nodes(self) -> Sequence[Node]:
        """All nodes that are up."""
        return [node for name, node in self._nodes.items() if name not in self._lost]

    def launch(self, decision: Launch) -> None:
        """Start workers; once all that the job needs are there, it starts to work."""
        task, attempt, new = self.tasks[decision.job], decision.attempt, decision.workers
        known, held = task.workers, task.milli
        if attempt == task.ended_attempt:
            return
        if known and attempt == task.attempt:
            new = _without(new, known)
            if not new:
                return
        else:
            known, held = (), 0
            task.attempt = attempt
        now, roles, milli = self.now, task.spec.roles, 0
        if self._measured_at != now:
            self._measure()
        for worker in new:
            milli += roles[worker.role].resources.gpu_milli
        task.workers = workers = known + new
        task.milli = held + milli
        self.used_milli += milli
        if not len(known) < task.needed <= len(workers):
            self.held_milli += milli
            return
        if held:
            self.held_milli -= held
        task.waited_s += now - task.queued_at
        delay = self.rules.launch_delay_s
        if delay:
            self._push(now + delay, _READY, task, attempt)
        else:
            self._begin(task)

    def stop(self, decision: Stop) -> None:
        """Stop a run; it keeps what its checkpoint holds."""
        task = self.tasks.get(decision.job)
        if task is None or decision.attempt != task.attempt or not task.workers:
            return
        lost = bool(self._lost) and any(worker.node in self._lost for worker in task.workers)
        if len(task.workers) < task.needed:
            task.waited_s += self.now - task.queued_at
        self._progress(task)
        if lost or not task.spec.checkpointable:
            self._fall_back(task)
        self._leave(task)
        task.work_s += self.rules.restart_cost_s
        task.stops += 1
        self.stopped.append(task.spec.id)
        self.stops += 1
        task.queued_at = self.now
        outcome = _LOST if lost else _STOPPED
        self._facts.append(JobExited(task.spec.id, task.attempt, outcome))

    def resize(self, decision: Resize) -> None:
        """Change a run to these workers."""
        task = self.tasks.get(decision.job)
        if task is None or decision.attempt != task.attempt or not task.workers:
            return
        self._measure()
        self._progress(task)
        if task.shares:
            self._unshare(task)
        self._hush(task)
        roles = task.spec.roles
        milli = sum(roles[worker.role].resources.gpu_milli for worker in decision.workers)
        self.used_milli += milli - task.milli
        task.milli = milli
        task.workers = decision.workers
        task.work_s += self.rules.resize_cost_s
        self._facts.append(JobResized(task.spec.id, task.attempt))
        if task.shares:
            self._share(task)
        self._talk(task)
        self._retime(task)

    def limit(self, decision: Limit) -> None:
        """Hold each worker of a run to less."""
        task = self.tasks.get(decision.job)
        if task is not None and decision.attempt == task.attempt and task.workers:
            task.limits = decision.limits

    def measure(self, now: float) -> list[Use]:
        """What runs with a recorded use want now. One that has less memory than it wants ends, one
        that has less CPU goes on as much slower until it is measured again."""
        self.now = now
        uses = []
        for task in list(self.tasks.values()):
            if task.use is None or not task.speed:
                continue
            self._progress(task)
            cores, memory_mib = task.use.at(task.duration_s - task.work_s)
            given = task.limits or task.spec.roles[0].resources
            uses.append(Use(task, cores, memory_mib, given))
            if task.limits is None:
                continue
            if given.memory_mib and memory_mib > given.memory_mib:
                self._facts.append(self._run_out_of_memory(task, _OVER_LIMIT))
                continue
            wanted = 1000 * cores
            left = given.cpu_milli / wanted if 0 < given.cpu_milli < wanted else 1.0
            if left != task.throttled:
                task.throttled = left
                self._retime(task)
        return uses

    def poll(self, now: float) -> list[Fact]:
        """What happened until now, in the order in which it did."""
        self.now = now
        facts = self._started  # runs that begin below are added to it
        if self._facts:
            facts += self._facts
            self._facts = []
        events = self._events
        while events and events[0][0] <= now:
            _, kind, _, subject, version = heappop(events)
            if kind == _END:
                if version == subject.version and subject.speed:
                    facts.append(self._finish(subject))
            elif kind == _READY:
                if version == subject.attempt and subject.workers and not subject.speed:
                    self._begin(subject)
            elif kind == _MEMORY:
                if version == subject.attempt and subject.workers:
                    facts.append(self._run_out_of_memory(subject, _OOM))
            else:
                facts.append(self._outage(subject, kind))
        self._started = []
        return facts

    def next_event(self) -> float:
        """When there will be something to poll."""
        if self._facts:
            return self.now
        events = self._events
        while events:
            at, kind, _, subject, version = events[0]
            if kind == _END and version != subject.version:
                heappop(events)
                continue
            return at
        return inf

    # -- what runs do ---------------------------------------------------------------------------

    def expect(self, task: Task, now: float) -> None:
        """A job was submitted."""
        task.queued_at = now
        task.work_s = task.saved_s = task.duration_s
        if self._links is not None:
            task.apart = needs_several(task.spec, task.measured_workers, self._nodes.values())
        self.tasks[task.spec.id] = task

    def forget(self, job_id: str) -> Task:
        """A job ended without a run (rejected or cancelled while it waited)."""
        return self.tasks.pop(job_id)

    def _begin(self, task: Task) -> None:
        now, spec, workers = self.now, task.spec, task.workers
        if task.started_at is None:
            task.started_at = now
        task.since = now
        task.saved_s = task.work_s
        if len(workers) == 1:
            task.ran_on = (workers[0].node,)
        else:
            task.ran_on = tuple(dict.fromkeys(worker.node for worker in workers))
        started = JobStarted(spec.id, task.attempt, now)
        (self._facts if spec.elastic else self._started).append(started)
        if task.shares:
            self._share(task)
        self._talk(task)
        self._retime(task)

    def _finish(self, task: Task) -> Fact:
        job_id = task.spec.id
        self._release(task)
        del self.tasks[job_id]
        self.finished.append(task)
        return JobExited(job_id, task.attempt, _WENT_WELL)

    def _leave(self, task: Task) -> None:
        """The run is over, and another may follow."""
        self._release(task)
        task.milli = 0
        task.speed, task.throttled, task.limits = 0.0, 1.0, None
        task.version += 1
        task.ended_attempt = task.attempt

    def _release(self, task: Task) -> None:
        if self._measured_at != self.now:
            self._measure()
        if task.shares:
            self._unshare(task)
        self._hush(task)
        self.used_milli -= task.milli
        if len(task.workers) < task.needed:
            self.held_milli -= task.milli
        task.workers = ()

    def _progress(self, task: Task) -> None:
        if task.speed:
            task.work_s = max(0.0, task.work_s - (self.now - task.since) * task.speed)
        task.since = self.now

    def _fall_back(self, task: Task) -> None:
        """Lose the work since the latest checkpoint: all of it for a job that takes none."""
        every = self.rules.checkpoint_every_s
        if not task.spec.checkpointable:
            task.work_s = task.saved_s
        elif every:
            done = task.saved_s - task.work_s
            task.work_s = task.saved_s - done // every * every

    def _retime(self, task: Task) -> None:
        """Compute the speed and the end of a run anew."""
        if task.shares or self._uneven or len(task.workers) != task.measured_workers:
            speed = self._speed(task)
        else:
            speed = 1.0
        task.speed = speed = speed * task.throttled
        task.version = version = task.version + 1
        self._serial = serial = self._serial + 1
        heappush(self._events, (task.since + task.work_s / speed, _END, serial, task, version))

    def _speed(self, task: Task) -> float:
        speed, model = 1.0, self.rules.speed
        if model.by_place or len(task.workers) != task.measured_workers:
            speed = model.of(task.spec.id, task.workers, task.measured_workers)
        if self._mixed:
            speed *= slowest_device(self._nodes, task.workers)
        if task.shares:
            speed *= min(self._share_of(task, worker) for worker in task.workers)
        links = self.rules.links
        if self._links is not None and links is not None and task.link_share:
            stretch = self._links.stretch(task.spec.id)
            speed *= links.speed(task.link_share, task.apart, stretch)
        return speed

    # -- sharing a device -----------------------------------------------------------------------

    def _share_of(self, task: Task, worker: Worker) -> float:
        """The speed of one worker beside those it shares its devices with."""
        others = [
            other
            for d in worker.devices
            for other in self._device_tasks.get((worker.node, d), ())
            if other is not task
        ]
        return 1.0 / self.slowdown(task, others) if others else 1.0

    def slowdown(self, task: Task, others: Sequence[Task]) -> float:
        """How many times longer a job takes while it shares a device with others. Shares hold
        where all of them are enforced: who takes no turns does not wait for any."""
        if not task.spec.labels:
            return self._free_slowdown(task, others)
        crew = [task, *others]
        limits = [limit for one in crew if (limit := enforced_limit(one.spec)) is not None]
        if len(limits) < len(crew):
            return self._free_slowdown(task, others)
        free = [
            self._free_slowdown(one, [other for other in crew if other is not one]) for one in crew
        ]
        requests = [one.spec.roles[0].resources.gpu_milli / WHOLE_GPU for one in crew]
        wants = [one.utilization for one in crew]
        return held_slowdowns(wants, requests, limits, free, self.rules.turn_cost)[0]

    def _free_slowdown(self, task: Task, others: Sequence[Task]) -> float:
        beside = self.rules.beside
        if beside is not None:
            return beside(task.spec.model or "", [other.spec.model or "" for other in others])
        busy = [other.utilization for other in others]
        return 1.0 / self.rules.speed.share(task.utilization, busy)

    def _share(self, task: Task) -> None:
        touched: list[Task] = []
        for worker in task.workers:
            for d in worker.devices:
                tasks = self._device_tasks.setdefault((worker.node, d), [])
                touched += tasks
                tasks.append(task)
                device = self._nodes[worker.node].devices[d]
                if sum(other.peak_memory_mib for other in tasks) > device.memory_mib:
                    self._push(self.now, _MEMORY, task, task.attempt)
        self._refresh(touched, task)

    def _unshare(self, task: Task) -> None:
        touched: list[Task] = []
        for worker in task.workers:
            for d in worker.devices:
                tasks = self._device_tasks.get((worker.node, d), [])
                if task in tasks:
                    tasks.remove(task)
                touched += tasks
        self._refresh(touched, task)

    def _refresh(self, tasks: list[Task], but: Task) -> None:
        for other in dict.fromkeys(tasks):
            if other is not but and other.speed:
                self._progress(other)
                self._retime(other)

    def _talk(self, task: Task) -> None:
        """A run comes to the links of its nodes, if those are several."""
        if self._links is not None and self.rules.links is not None and task.link_share:
            share = self.rules.links.share(task.link_share)
            nodes = (worker.node for worker in task.workers)
            touched = self._links.join(task.spec.id, nodes, share)
            self._refresh([self.tasks[name] for name in touched], task)

    def _hush(self, task: Task) -> None:
        """It loads them no more."""
        if self._links is not None and task.link_share:
            touched = self._links.leave(task.spec.id)
            self._refresh([self.tasks[name] for name in touched], task)

    def _run_out_of_memory(self, task: Task, why: Reason) -> Fact:
        """A run that needed more than there was left ends at once, its work undone."""
        self._leave(task)
        task.queued_at = self.now
        self.overflowed.append(task)
        return JobExited(task.spec.id, task.attempt, Outcome.OUT_OF_MEMORY, why)

    # -- nodes and bookkeeping ------------------------------------------------------------------

    def lose(self, node: str) -> None:
        """A node goes away now; the next poll says so."""
        self._lost.add(node)
        self._facts.append(NodeDown(node))

    def return_(self, node: str) -> None:
        """A node that went away is back; the next poll says so."""
        self._lost.discard(node)
        self._facts.append(NodeUp(self._nodes[node]))

    def _outage(self, outage: Outage, kind: int) -> Fact:
        if kind == _RETURN:
            self._lost.discard(outage.node)
            if self.rules.node_mtbf_s:
                self._fail_some_day(outage.node)
            return NodeUp(self._nodes[outage.node])
        self._lost.add(outage.node)
        self._push(self.now + outage.for_s, _RETURN, outage)
        return NodeDown(outage.node)

    def _fail_some_day(self, node: str) -> None:
        rules = self.rules
        at = self.now + self._chance.expovariate(1 / rules.node_mtbf_s)
        self._push(at, _OUTAGE, Outage(node, at, rules.node_repair_s))

    def _push(self, at: float, kind: int, subject: Task | Outage, version: int = 0) -> None:
        self._serial += 1
        heappush(self._events, (at, kind, self._serial, subject, version))

    def settle(self) -> None:
        """The run is over: bring the books up to date."""
        self._measure()

    def all_nodes(self) -> Sequence[Node]:
        """Every node, up or not."""
        return list(self._nodes.values())

    def _measure(self) -> None:
        """Add up GPU time until now; call it before what is held changes."""
        elapsed = self.now - self._measured_at
        if elapsed > 0:
            self.gpu_seconds += elapsed * self.used_milli / WHOLE_GPU
            if self.held_milli:
                self.held_gpu_seconds += elapsed * self.held_milli / WHOLE_GPU
            self._measured_at = self.now


def _without(workers: tuple[Worker, ...], known: tuple[Worker, ...]) -> tuple[Worker, ...]:
    return tuple(worker for worker in workers if worker not in known)


_OOM = Reason(ReasonCode.OUT_OF_MEMORY, "the jobs on its GPU needed more memory than it has")
_OVER_LIMIT = Reason(ReasonCode.OUT_OF_MEMORY, "it needed more memory than its limit")
