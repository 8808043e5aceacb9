"""Writes journals of the present version, and what they fold to half way and at the end:
`python -m tests.core.journals.make`. Those that are here are never written again: they are what
servers of that version have on disk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

from presage import __version__
from presage.core.engine import Engine
from presage.core.loop import fold
from presage.core.ports import Store
from presage.model import event as ev
from presage.model.cluster import (
    Device,
    LabelOperator,
    LabelRule,
    Node,
    Resources,
    Taken,
    Where,
    Worker,
)
from presage.model.estimate import Estimate, Estimates
from presage.model.event import Outcome
from presage.model.job import JobSpec, OomRetry, Placement, Reason, ReasonCode, Role, StopIntent
from presage.model.speed import SpeedPoint
from presage.policy.config import PolicyConfig, QueueConfig
from presage.policy.registry import build
from presage.sim.world import Outage, WorldRules
from presage.store.memory import MemoryStore
from presage.testing.machine import StablePredictor, UnsteadyWorld, task_for

WHY = Reason(ReasonCode.ERROR, "exit code 3")
LATE = Reason(ReasonCode.TIME_LIMIT, "it ran longer than 60 s")


def main() -> None:
    """One journal of each kind."""
    folder = Path(__file__).with_name(__version__)
    folder.mkdir(exist_ok=True)
    for name, journal in {
        "told": told(),
        "lost": lost(),
        "lived": lived(),
        "placed": placed(),
        "changed": changed(),
        "troubled": troubled(),
        "guarded": guarded(),
    }.items():
        if (folder / f"{name}.jsonl").exists():
            continue
        journal.dump(folder / f"{name}.jsonl")
        events = list(journal.read())
        with (folder / f"{name}.states.jsonl").open("w", encoding="utf-8") as file:
            for count in (len(events) // 2, len(events)):
                line = {"events": count, "state": fold(events[:count]).snapshot()}
                file.write(json.dumps(line, allow_nan=False) + "\n")


class Teller:
    """Writes down what it is told, a second apart."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.now = 0.0

    def tell(self, *events: ev.Event) -> None:
        """A step."""
        self.now += 1.5
        facts = [event for event in events if isinstance(event, ev.FACTS)]
        decisions = [event for event in events if isinstance(event, ev.DECISIONS)]
        self.store.append(self.now, facts, decisions)

    def run(self, job: str, *workers: Worker, attempt: int = 1) -> None:
        """A run that starts."""
        self.tell(ev.Launch(job, attempt, workers))
        self.tell(ev.JobStarted(job, attempt))


def told() -> MemoryStore:
    """Every event, with and without every field that may be left out."""
    tell = Teller()
    here = {"rack": "r0", "area": "a0"}
    big = Node("big", (Device("a100", 40960, 2.0),) * 4, 64_000, 262_144, here)
    tell.tell(ev.NodeUp(big), ev.NodeUp(Node("plain", (Device(),) * 2)), ev.NodeUp(Node("none")))
    ask = Resources(2000, 4096, 1000, 8192)
    number = Estimate(1.0, 2.5, 4.0, "s", "history")
    foreseen = Estimates("models-3", number, number, number, number)
    whole = JobSpec(
        "whole",
        (Role("worker", ask, 1, 3, ("a100", "v100")), Role("ps", Resources(500, 100), 1, 1)),
        owner="ann",
        queue="research",
        priority=4,
        placement=Placement.SPREAD,
        preemptible=False,
        checkpointable=False,
        shareable=False,
        max_retries=2,
        oom=OomRetry(2, 1.25, 16_384),
        time_limit_s=90.0,
        model="zoo:resnet50",
        labels={"team": "vision"},
        entrypoint=("python", "train.py"),
    )
    share = Role(resources=Resources(memory_mib=1000, gpu_milli=300, gpu_memory_mib=2000))
    bare = JobSpec("bare", (Role(),))
    tell.tell(ev.JobSubmitted(whole, foreseen), ev.JobSubmitted(bare, Estimates("models-3")))
    tell.tell(ev.JobSubmitted(JobSpec("more", (share,), oom=OomRetry())))
    tell.tell(ev.JobSubmitted(JobSpec("retry", (share,), max_retries=1)))
    tell.tell(
        *(ev.JobSubmitted(JobSpec(name, (share,))) for name in ("halt", "end", "huge", "at"))
    )
    tell.tell(ev.RulesChanged('{"order":"priority"}', "models-3"))
    first, ps = Worker(0, 0, "big", (0,)), Worker(1, 0, "none")
    tell.run("whole", first, ps)
    tell.tell(
        ev.ScaleRequested("whole", 9),
        ev.Resize("whole", 1, (first, ps, Worker(0, 1, "big", (1,)))),
    )
    tell.tell(ev.JobResized("whole", 1))
    tell.tell(
        ev.Progress("whole", 1, 0.25, {"epoch": 2.0, "loss": 0.5}), ev.Progress("whole", 1, 0.5)
    )
    tell.tell(ev.PhaseChanged("whole", 1, 2), ev.StageChanged("whole", 1, "storing"))
    lower = Resources(cpu_milli=700, memory_mib=900)
    advice = Reason(ReasonCode.OK, "phase 2")
    tell.tell(ev.LimitsAdvised("whole", 1, lower, advice), ev.Limit("whole", 1, lower, advice))
    for workers in (2, 2, *range(3, 40)):  # one size twice, and more of them than are kept
        point = SpeedPoint(workers, 1 + workers % 2, 30.0 + workers, 20_000.0)
        tell.tell(ev.SpeedMeasured("whole", 1, point))
    tell.tell(ev.JobExited("whole", 1, Outcome.FAILED, WHY, 3))
    tell.run("whole", first, ps, attempt=2)
    tell.tell(ev.JobExited("whole", 2, Outcome.OUT_OF_MEMORY))
    tell.tell(ev.Launch("whole", 3, (first, ps)))
    tell.tell(ev.JobStarted("whole", 3, tell.now + 0.5))
    # Out of memory: more of it three times, then a failure; shared no longer.
    for attempt in (1, 2, 3, 4):
        tell.run("more", Worker(0, 0, "big", (2,)), attempt=attempt)
        tell.tell(ev.JobExited("more", attempt, Outcome.OUT_OF_MEMORY, WHY))
    tell.run("retry", Worker(0, 0, "plain", (0,)))
    tell.tell(ev.LaunchFailed("retry", 1, WHY))
    tell.run("retry", Worker(0, 0, "plain", (0,)), attempt=2)
    tell.tell(ev.JobExited("retry", 2, Outcome.OUT_OF_MEMORY))
    tell.run("halt", Worker(0, 0, "plain", (1,)))
    tell.tell(ev.HaltRequested("halt"), ev.Stop("halt", 1, StopIntent.HALT, WHY))
    tell.tell(ev.JobExited("halt", 1, Outcome.STOPPED), ev.Reject("huge", WHY))
    tell.tell(ev.ResumeRequested("halt"), ev.Reserve("halt", (Worker(0, 0, "plain", (0,)),)))
    tell.tell(ev.WakeAt(tell.now + 9.0))
    tell.run("end", Worker(0, 0, "plain", (1,)))
    tell.tell(ev.CancelRequested("end"), ev.Stop("end", 1, StopIntent.CANCEL, WHY))
    tell.tell(ev.JobExited("end", 1, Outcome.STOPPED, WHY), ev.NodeDraining("plain"))
    tell.tell(ev.NodeDown("plain"), ev.Reserve("halt", ()))
    tell.now += 9.0
    tell.tell(ev.Woke())
    tell.run("at", Worker(0, 0, "big", (3,)))
    tell.tell(ev.JobExited("at", 1, Outcome.FAILED, LATE))
    tell.tell(ev.Launch("bare", 1, (Worker(0, 0, "none"),)))
    tell.tell(
        ev.Stop("bare", 1, StopIntent.REQUEUE, WHY),
        ev.Launch("halt", 2, (Worker(0, 0, "big", (3,)),)),
    )
    tell.tell(ev.NodeUp(Node("plain", (Device(),) * 8)))
    kinds = {type(event) for _, event in tell.store.read()}
    later = {ev.JobChanged, ev.NodeChanged, ev.AlertRaised, ev.AlertCleared, ev.RemedyAdvised}
    later |= {ev.PolicyJudged}
    assert kinds == {*ev.FACTS, *ev.DECISIONS} - later
    return tell.store


def placed() -> MemoryStore:
    """Jobs that may be on some nodes only, and nodes that others use as well."""
    tell = Teller()
    two, zone = (Device("a100", 40_960),) * 2, {"zone": "a"}
    tell.tell(
        ev.NodeUp(Node("n", two, 8000, 8192, zone, ("gpu=yes:NoSchedule",), Taken(500, 256, (1,))))
    )
    rules = LabelRule("zone", LabelOperator.IN, ("a", "b")), LabelRule("zone")
    role = Role(resources=Resources(1000, 1024, 1000), where=Where((rules,), ("gpu=*:*",)))
    tell.tell(ev.JobSubmitted(JobSpec("a", (role,))), ev.JobSubmitted(JobSpec("b", (role,))))
    tell.run("a", Worker(0, 0, "n", (0,)))
    tell.tell(ev.NodeChanged(Node("n", two, 6000, 4096)))
    tell.run("b", Worker(0, 0, "n", (1,)))
    return tell.store


def changed() -> MemoryStore:
    """Jobs that ask for something else while they wait, and one for which room was held."""
    tell, worker = Teller(), Worker(0, 0, "n", (0,))
    one, two = (Role(resources=Resources(gpu_milli=gpus)) for gpus in (1000, 2000))
    tell.tell(ev.NodeUp(Node("n", (Device(),) * 2)))
    tell.tell(*(ev.JobSubmitted(JobSpec(name, (two,))) for name in "abc"))
    tell.tell(ev.Reserve("a", (Worker(0, 0, "n", (0, 1)),)))
    tell.tell(ev.JobChanged(JobSpec("a", (one,), queue="short", time_limit_s=60.0)))
    tell.run("a", worker)
    tell.tell(ev.JobChanged(JobSpec("a", (two,))), ev.JobChanged(JobSpec("nobody", (two,))))
    tell.tell(ev.JobChanged(JobSpec("b", (one,))), ev.JobExited("a", 1, Outcome.SUCCEEDED))
    tell.run("b", worker)
    return tell.store


def lost() -> MemoryStore:
    """A job whose runs vanish until it is at fault after all, beside one that is soon to be."""
    tell, worker = Teller(), (Worker(0, 0, "n"),)
    tell.tell(ev.NodeUp(Node("n")), *(ev.JobSubmitted(JobSpec(name, (Role(),))) for name in "ab"))
    tell.tell(*(ev.Launch(name, 1, worker) for name in "ab"))
    for attempt in range(1, 102):
        gone = [ev.JobExited(name, attempt, Outcome.LOST) for name in "ab"[: 1 + (attempt < 101)]]
        again = [ev.Launch(one.job, attempt + 1, worker) for one in gone]
        tell.tell(*gone, *again[: 101 - attempt])
    return tell.store


def troubled() -> MemoryStore:
    """Runs in trouble, and what was done about them."""
    tell, worker = Teller(), Worker(0, 0, "n")
    tell.tell(ev.NodeUp(Node("n")), ev.NodeUp(Node("m")))
    ask = Role(resources=Resources(memory_mib=1000))
    tell.tell(*(ev.JobSubmitted(JobSpec(name, (ask,))) for name in "abc"))
    for name in "abc":
        tell.run(name, worker)
    tell.tell(ev.Progress("a", 1, 0.5, {"step": 5.0}, ("loss",)))
    tell.tell(ev.AlertRaised("stuck-1", "stuck", "worker a/worker-0", 0.99, "it stands", "a"))
    away = ev.RemedyAdvised("a", 1, ev.Remedy.RESTART, WHY, ("n",))
    tell.tell(away, ev.Stop("a", 1, StopIntent.REQUEUE, WHY))
    tell.tell(ev.JobExited("a", 1, Outcome.STOPPED), ev.AlertCleared("stuck-1", "over", "a"))
    tell.run("a", Worker(0, 0, "m"), attempt=2)
    tell.tell(ev.AlertRaised("bad-2", "bad_node", "node n", 0.97, "4 of 4"))
    tell.tell(ev.RemedyAdvised("b", 1, ev.Remedy.MEMORY, WHY, (), OomRetry(1, 2.0)))
    tell.tell(ev.RemedyAdvised("b", 7, ev.Remedy.MEMORY, WHY))  # of no present run
    tell.tell(ev.JobExited("b", 1, Outcome.OUT_OF_MEMORY, WHY))
    tell.run("b", worker, attempt=2)
    stop = ev.Stop("c", 1, StopIntent.REQUEUE, WHY)
    tell.tell(ev.RemedyAdvised("c", 1, ev.Remedy.CHECKPOINT, WHY), stop)
    tell.tell(ev.JobExited("c", 1, Outcome.STOPPED), ev.AlertCleared("bad-2", "gone"))
    return tell.store


def guarded() -> MemoryStore:
    """A policy that is trusted, then not, then is another's."""
    tell = Teller()
    first = ev.RulesChanged('{"order": "qssf"}', "declared-1")
    tell.tell(ev.NodeUp(Node("n")), first)
    tell.tell(ev.PolicyJudged("qssf", "fifo", True, "as good as fifo", first.digest))
    tell.tell(ev.PolicyJudged("qssf", "fifo", False, "12 % worse", first.digest))
    tell.tell(ev.RulesChanged('{"order": "sjf"}', "declared-1", ("Limit",)))
    tell.tell(ev.PolicyJudged("nobody", "fifo", True, "of no rules"))
    return tell.store


def lived() -> MemoryStore:
    """What an engine decided for a world in which things go wrong."""
    nodes = [Node(f"n{i}", (Device(memory_mib=16_384),) * 4, 32_000, 65_536) for i in range(3)]
    config = PolicyConfig(
        order="priority",
        preempt="priority",
        elastic=True,
        backfill=True,
        max_jobs_per_gpu=2,
        queues={"prod": QueueConfig(quota_gpus=4.0, weight=2.0)},
    )
    rules = WorldRules(5.0, 2.0, 3.0, 30.0, (Outage("n1", 150.0, 60.0), Outage("n0", 260.0, 50.0)))
    world = UnsteadyWorld(nodes, rules, 1.0)
    engine, store, random = Engine(build(config), StablePredictor()), MemoryStore(), Random(1)
    _step(engine, world, store, 0.0, [ev.NodeUp(node) for node in nodes])
    for k in range(40):
        spec = _spec(f"job-{k:02d}", random)
        world.expect(task_for(spec, random.uniform(20, 200), random.choice((0, 9_000))), 8.0 * k)
        world.fail_launches += k % 9 == 0
        now = 8.0 * k
        while (due := min(world.next_event(), engine.state.wake_at or now)) < now:
            _step(engine, world, store, due, [])
        asks: list[ev.Fact] = [ev.JobSubmitted(spec)]
        active = [job.id for job in engine.state.active.values()]
        if active and k % 7 == 3:
            asks.append(ev.CancelRequested(random.choice(active)))
        if active and k % 7 == 5:
            asks.append(ev.HaltRequested(random.choice(active)))
        _step(engine, world, store, now, asks)
    return store


def _spec(name: str, random: Random) -> JobSpec:
    gpus = random.choice((300, 500, 1000, 1000, 2000))
    least = random.choice((1, 1, 2))
    role = Role("worker", Resources(1000, 2048, gpus), least, least + random.choice((0, 0, 2)))
    return JobSpec(
        name,
        (role,),
        queue=random.choice(("default", "prod")),
        priority=random.randrange(3),
        checkpointable=random.random() < 0.8,
        max_retries=random.randrange(3),
        oom=OomRetry(2) if random.random() < 0.2 else None,
    )


def _step(
    engine: Engine, world: UnsteadyWorld, store: Store, now: float, asks: Sequence[ev.Fact]
) -> None:
    facts = [*world.poll(now), *asks]
    if engine.state.wake_at is not None and engine.state.wake_at <= now:
        facts.append(ev.Woke())
    decisions = engine.handle(now, facts)
    store.append(now, facts, decisions)
    for decision in decisions:
        kind = type(decision).__name__.lower()
        if kind in ("launch", "stop", "resize"):
            getattr(world, kind)(decision)
    for job in engine.state.ended:
        if job.id in world.tasks:
            world.forget(job.id)


if __name__ == "__main__":
    main()
