"""A copy of the state: equal to the original in every field, and nothing of it is shared."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from enum import Enum
from random import Random
from typing import Any

import numpy as np
import pytest

from presage.core.capacity import Capacity
from presage.core.engine import Engine
from presage.core.gates import ArrayGate, Gates
from presage.core.spent import Spent
from presage.core.state import State
from presage.model import event as ev
from presage.model.cluster import Device, Node, Resources, Worker
from presage.model.estimate import Estimates
from presage.model.job import Dependency, Job, JobSpec, Reason, ReasonCode, Role, StopIntent
from presage.model.speed import SpeedBook, SpeedPoint
from presage.policy.config import PolicyConfig
from presage.policy.registry import build
from tests.scenario import Known, job

REASON = Reason(ReasonCode.PREEMPTED, "made room")
MUTABLE = (State, Capacity, SpeedBook, Spent, Gates, ArrayGate, Job)
"""What changes."""
FROZEN: tuple[type, ...] = (str, int, float, tuple, Enum, type(None))
FROZEN += (Node, JobSpec, Reason, Resources, Estimates)
FROZEN += (ev.RulesChanged, ev.PolicyJudged)
OF_THE_STEP = {"State.ended", "State.moves", "State.changes", "Gates._closed"}
"""A copy begins a step, and who reads its changes looks at everything first."""
MADE_ANEW = {"Capacity._arrays", "Capacity._touched", "Capacity._last_mask", "Capacity._where"}
"""These only save time."""
BOUND = {"State._handlers"}


def rich() -> State:
    """A state with something in every field."""
    labels = {"rack": "r0"}
    big = Node("n0", (Device("a100", 40_000),) * 8, 64_000, 99_000, labels, ("a=b:NoSchedule",))
    state = State(7)
    elastic = Role("worker", Resources(1000, 512, 1000), 2, 4)
    share = Role("worker", Resources(0, 0, 500, 100))
    events: list[ev.Event] = [
        *(ev.NodeUp(node) for node in (big, Node("n1", (Device(),) * 2), Node("n2"))),
        ev.NodeUp(Node("n2", (Device(),))),  # the one before it is retired
        ev.NodeDown("n1"),
        ev.NodeDraining("n2"),
        *(ev.JobSubmitted(JobSpec(name, (elastic,), queue="q")) for name in "abcd"),
        *(ev.JobSubmitted(JobSpec(name, (share,))) for name in "efgh"),
        ev.JobSubmitted(JobSpec("i", (share,), after=(Dependency("a"),))),
        *(ev.JobSubmitted(JobSpec(name, (share,), array="jk", at_once=1)) for name in "jk"),
        ev.RulesChanged("{}", "v1", counts=True),
        ev.Launch("a", 1, (Worker(0, 0, "n0", (0,)), Worker(0, 1, "n0", (1,)))),
        ev.JobStarted("a", 1),
        ev.ScaleRequested("a", 3),
        ev.Resize("a", 1, tuple(Worker(0, k, "n0", (k,)) for k in range(3))),
        ev.SpeedMeasured("a", 1, SpeedPoint(2, 1, 9.0, 9.0)),
        ev.Launch("b", 1, (Worker(0, 0, "n0", (3,)),)),  # and one worker is missing
        ev.Launch("e", 1, (Worker(0, 0, "n0", (4,)),)),
        ev.Stop("e", 1, StopIntent.REQUEUE, REASON),
        ev.Reserve("f", (Worker(0, 0, "n0", (4,)),)),
        ev.HaltRequested("g"),
        ev.CancelRequested("h"),
        ev.WakeAt(99.0),
        ev.PolicyJudged("new", "sjf", True, "no worse"),
    ]
    for k, event in enumerate(events):
        state.apply(float(k), event)
    state.capacity.arrays()
    state.capacity.mask_array(1)
    return state


def fields(thing: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(thing):
        return {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)}
    if hasattr(thing, "__slots__"):
        return {name: getattr(thing, name) for name in thing.__slots__}
    return dict(vars(thing))


def leaves(thing: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Everything that a state holds, by the way that leads there; what is frozen is one thing."""
    if isinstance(thing, MUTABLE):
        for name, value in fields(thing).items():
            if f"{type(thing).__name__}.{name}" not in OF_THE_STEP | MADE_ANEW | BOUND:
                yield from leaves(value, f"{path}.{name}")
    elif isinstance(thing, dict):
        yield path, list(thing)
        for key, value in thing.items():
            yield from leaves(value, f"{path}[{key}]")
    elif isinstance(thing, list):
        yield path, len(thing)
        for k, value in enumerate(thing):
            yield from leaves(value, f"{path}[{k}]")
    elif isinstance(thing, set):
        yield path, sorted(thing)
    else:
        assert isinstance(thing, FROZEN), f"{path}: can {type(thing).__name__} change?"
        yield path, thing


def test_a_state_with_something_in_every_field_is_copied_in_all_of_them() -> None:
    state = rich()
    state.check()
    empty = {
        f"{type(thing).__name__}.{name}"
        for thing in (state, state.capacity, state.speeds, state.gates)
        for name, value in fields(thing).items()
        if not value
    }
    assert empty - OF_THE_STEP - MADE_ANEW == {"Capacity.plain", "Gates.opened"}, (
        "what is empty shows nothing"
    )
    copy = state.copy()
    copy.check()
    assert dict(leaves(copy)) == dict(leaves(state))
    assert copy.snapshot() == state.snapshot()
    assert (copy.ended, copy.moves, copy.changes.jobs) == ([], [], [])


def containers(thing: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Everything of a state that can be changed."""
    if isinstance(thing, MUTABLE):
        yield path, thing
        for name, value in fields(thing).items():
            if f"{type(thing).__name__}.{name}" not in BOUND:
                yield from containers(value, f"{path}.{name}")
    elif isinstance(thing, dict | list | set):
        yield path, thing
        for key, value in thing.items() if isinstance(thing, dict) else enumerate(thing):
            yield from containers(value, f"{path}[{key}]")
    elif isinstance(thing, np.ndarray):
        yield path, thing


def test_nothing_that_changes_is_shared() -> None:
    state = rich()
    mine = {id(thing): path for path, thing in containers(state)}
    copy = state.copy()
    assert not [mine[id(thing)] for _, thing in containers(copy) if id(thing) in mine]
    before, seen = dict(leaves(state)), state.snapshot()
    for path, thing in list(containers(copy)):
        if isinstance(thing, MUTABLE):
            for name in fields(thing):
                setattr(thing, name, path)
        elif isinstance(thing, np.ndarray):
            thing.fill(7)
        else:
            thing.clear()
    assert dict(leaves(state)) == before
    assert state.snapshot() == seen


def test_a_copy_knows_its_own_jobs() -> None:
    copy = rich().copy()
    for index in (copy.pending, copy.active, copy.incomplete):
        assert index
        assert all(copy.jobs[name] is one for name, one in index.items())


@pytest.mark.parametrize("seed", range(5))
def test_a_copy_decides_as_the_original_does(seed: int) -> None:
    config = PolicyConfig(order="priority", preempt="priority", elastic=True, backfill=True)
    chance = Random(seed)
    one = Engine(build(config), Known(), check_every=1)
    one.handle(0.0, [ev.NodeUp(Node(f"n{k}", (Device(),) * 4)) for k in range(3)])
    for turn in range(1, 40):
        other = Engine(build(config), Known(), one.state.copy(), check_every=1)
        facts = _something(one.state, f"j{turn}", chance)
        assert one.handle(turn, facts) == other.handle(turn, facts)
        assert other.state.snapshot() == one.state.snapshot()


def _something(state: State, name: str, chance: Random) -> list[ev.Fact]:
    size = chance.choice((1, 2, 4))
    spec = job(name, size, chance.choice((1, 2)), priority=chance.randrange(3))
    facts: list[ev.Fact] = [ev.JobSubmitted(spec)]
    for one in state.active.values():
        if one.state.value == "starting":
            facts.append(ev.JobStarted(one.id, one.attempt))
        elif one.state.value == "stopping":
            facts.append(ev.JobExited(one.id, one.attempt, ev.Outcome.STOPPED))
        elif one.resizing is not None:
            facts.append(ev.JobResized(one.id, one.attempt))
        elif chance.random() < 0.2:
            facts.append(ev.JobExited(one.id, one.attempt, ev.Outcome.SUCCEEDED))
    return facts


def test_a_waiting_job_asks_for_something_else_in_a_copy() -> None:
    state = rich()
    assert "f" in state.reservations
    half = dataclasses.replace(state.jobs["f"].spec, queue="other")
    copy = state.copy({"f": half})
    copy.check()
    assert copy.pending["f"].spec is half
    assert "f" not in copy.reservations
    assert state.jobs["f"].spec.queue == "default"
    state.check()
