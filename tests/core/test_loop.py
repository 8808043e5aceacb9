"""One step of the loop: poll, decide, write down, and only then act."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from presage.core.engine import Engine
from presage.core.loop import act, fold, step
from presage.core.ports import lacks
from presage.model import event as ev
from presage.model.cluster import Node, Resources, Worker
from presage.model.errors import InternalError, StaleLease
from presage.model.job import JobSpec, Reason, ReasonCode, Role, StopIntent
from presage.policy.registry import build
from presage.store.memory import MemoryStore
from tests.scenario import Known, job, nodes

REASON = Reason(ReasonCode.REQUESTED, "because")
WORKERS = (Worker(0, 0, "n0", (0,)),)


class Listed:
    """A world that says what the test gives it, and notes what it is told."""

    def __init__(self, *facts: ev.Fact, log: list[str] | None = None) -> None:
        self.facts = list(facts)
        self.log = log if log is not None else []

    def nodes(self) -> Sequence[Node]:
        return nodes(4)

    def launch(self, decision: ev.Launch) -> None:
        self.log.append(f"launch {decision.job}")

    def stop(self, decision: ev.Stop) -> None:
        self.log.append(f"stop {decision.job}")

    def poll(self, now: float) -> list[ev.Fact]:
        facts, self.facts = self.facts, []
        return facts


class Resizing(Listed):
    def resize(self, decision: ev.Resize) -> None:
        self.log.append(f"resize {decision.job}")


class Noted(MemoryStore):
    """A journal that says when it is written."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    def append(
        self,
        now: float,
        facts: Sequence[ev.Fact],
        decisions: Sequence[ev.Decision],
        *,
        lease: int = 0,
    ) -> None:
        super().append(now, facts, decisions, lease=lease)
        self.log.append(f"append {len(facts)}+{len(decisions)}")


def engine() -> Engine:
    return Engine(build("fifo"), Known(), check_every=1)


def test_it_is_written_down_before_anybody_acts() -> None:
    log: list[str] = []
    world, store = Listed(ev.NodeUp(nodes(4)[0]), log=log), Noted(log)
    decisions = step(engine(), world, store, 0.0, [ev.JobSubmitted(job("a"))])
    assert log == ["append 2+1", "launch a"]
    assert [event for _, event in store.read()][2:] == decisions


def test_a_journal_that_cannot_be_written_stops_the_act() -> None:
    log: list[str] = []
    world, store = Listed(ev.NodeUp(nodes(4)[0]), log=log), MemoryStore()
    store.append(0.0, [], [], lease=8)
    with pytest.raises(StaleLease):
        step(engine(), world, store, 0.0, [ev.JobSubmitted(job("a"))], lease=7)
    assert log == []


def test_what_the_world_says_goes_before_what_people_want() -> None:
    store = MemoryStore()
    step(engine(), Listed(ev.NodeUp(nodes(4)[0])), store, 0.0, [ev.JobSubmitted(job("a"))])
    assert [type(event).__name__ for _, event in store.read()] == [
        "NodeUp",
        "JobSubmitted",
        "Launch",
    ]


def test_nothing_happened_nothing_is_written() -> None:
    store = MemoryStore()
    assert step(engine(), Listed(), store, 5.0) == []
    assert list(store.read()) == []


@pytest.mark.parametrize(("now", "woken"), [(59.0, False), (60.0, True), (61.0, True)])
def test_it_wakes_when_it_asked_to(now: float, woken: bool) -> None:
    scheduler, store = engine(), MemoryStore()
    scheduler.state.apply(0.0, ev.WakeAt(60.0))
    step(scheduler, Listed(), store, now)
    assert [event for _, event in store.read()] == ([ev.Woke()] if woken else [])
    assert (scheduler.state.wake_at is None) == woken


def test_each_decision_goes_to_its_method() -> None:
    world = Resizing()
    act(
        world,
        [
            ev.Launch("a", 1, WORKERS),
            ev.Stop("b", 1, StopIntent.HALT, REASON),
            ev.Resize("c", 1, WORKERS),
            ev.Reserve("d", WORKERS),
            ev.WakeAt(1.0),
            ev.Reject("e", REASON),
        ],
    )
    assert world.log == ["launch a", "stop b", "resize c"]


ASK = Resources(cpu_milli=2000, gpu_milli=1000)
ELASTIC = JobSpec("a", (Role("worker", ASK, 1, 3),))
LOWER = ev.LimitsAdvised("a", 1, Resources(cpu_milli=500), REASON)


class Limiting(Resizing):
    def limit(self, decision: ev.Limit) -> None:
        self.log.append(f"limit {decision.job}")


@pytest.mark.parametrize(
    ("world", "missing"),
    [(Listed(), ("Limit", "Resize")), (Resizing(), ("Limit",)), (Limiting(), ())],
)
def test_what_an_executor_cannot_do_is_known(world: Listed, missing: tuple[str, ...]) -> None:
    assert lacks(world) == missing


@pytest.mark.parametrize("world", [Listed(), Resizing(), Limiting()], ids=lacks)
def test_what_an_executor_cannot_do_is_not_decided(world: Listed) -> None:
    """It grows an elastic job, limits it, and drains a node below one of its workers."""
    scheduler, store = Engine(build("elastic"), Known(), check_every=1), MemoryStore()
    rules = ev.RulesChanged("elastic", "known", lacks(world))
    step(scheduler, world, store, 0.0, [rules, *map(ev.NodeUp, nodes(1, 1))])
    step(scheduler, world, store, 1.0, [ev.JobSubmitted(ELASTIC), ev.JobSubmitted(job("b"))])
    step(scheduler, world, store, 2.0, [ev.JobStarted("a", 1), ev.JobStarted("b", 1)])
    step(scheduler, world, store, 3.0, [ev.JobExited("b", 1, ev.Outcome.SUCCEEDED), LOWER])
    can_resize = isinstance(world, Resizing)
    resized = [ev.JobResized("a", 1)] if can_resize else []
    step(scheduler, world, store, 4.0, [*resized, ev.NodeDraining("n0")])
    sent = [
        f"{type(event).__name__.lower()} {event.job}"
        for _, event in store.read()
        if isinstance(event, ev.Launch | ev.Stop | ev.Resize | ev.Limit)
    ]
    assert world.log == sent
    assert ("limit a" in sent) == isinstance(world, Limiting)
    assert sent.count("resize a") == (2 if can_resize else 0)
    assert sent.count("stop a") == (0 if can_resize else 1)


def test_a_decision_that_nobody_can_carry_out_is_not_written_down() -> None:
    """An executor that did not say what it lacks."""
    scheduler, store, world = Engine(build("elastic"), Known()), MemoryStore(), Listed()
    step(scheduler, world, store, 0.0, [ev.NodeUp(nodes(1)[0]), ev.JobSubmitted(ELASTIC)])
    before = list(store.read())
    with pytest.raises(InternalError, match="Listed cannot limit"):
        step(scheduler, world, store, 1.0, [ev.JobStarted("a", 1), LOWER])
    assert list(store.read()) == before
    assert world.log == ["launch a"]
    with pytest.raises(InternalError, match="Listed cannot resize"):
        act(world, [ev.Resize("a", 1, WORKERS)])


def test_a_resize_under_way_ends_with_the_executor_that_could_do_it() -> None:
    scheduler = Engine(build("elastic"), Known(), check_every=1)
    scheduler.handle(0.0, [*map(ev.NodeUp, nodes(1, 1)), ev.JobSubmitted(ELASTIC)])
    scheduler.handle(1.0, [ev.JobSubmitted(job("b")), ev.JobStarted("a", 1)])
    scheduler.handle(2.0, [ev.ScaleRequested("a", 1)])
    assert scheduler.state.jobs["a"].resizing is not None
    (stop,) = scheduler.handle(3.0, [ev.RulesChanged("elastic", "known", ("Resize",))])
    assert isinstance(stop, ev.Stop)
    scheduler.handle(4.0, [ev.JobExited("a", 1, ev.Outcome.STOPPED)])
    assert scheduler.state.jobs["a"].resizing is None


def test_folding_goes_on_from_a_state() -> None:
    journal: list[tuple[float, ev.Event]] = [
        (0.0, ev.NodeUp(nodes(4)[0])),
        (1.0, ev.JobSubmitted(JobSpec("a", (Role(),)))),
        (2.0, ev.Launch("a", 1, (Worker(0, 0, "n0"),))),
        (3.0, ev.JobExited("a", 1, ev.Outcome.SUCCEEDED)),
    ]
    whole = fold(journal)
    assert fold(journal[2:], fold(journal[:2])).snapshot() == whole.snapshot()
    assert whole.now == 3.0
    assert not whole.ended
