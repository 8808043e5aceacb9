"""Who comes first."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.core.plan import Plan
from presage.core.state import State
from presage.model import event as ev
from presage.model.job import JobSpec
from presage.policy.config import PolicyConfig
from presage.policy.order import Order, Tiresias, fifo, priority, qssf, sjf, srtf
from presage.testing.machine import StablePredictor
from presage.testing.strategies import job_specs
from tests.scenario import Scenario, job, nodes

JOBS = {
    # name: (runtime, GPUs, priority, queue)
    "a": (50.0, 1, 0, "x"),
    "b": (20.0, 4, 0, "x"),
    "c": (30.0, 2, 5, "x"),
    "d": (20.0, 1, 5, "y"),
    "e": (60.0, 1, 0, "y"),
}


def served(**config: Any) -> str:
    """The order in which these jobs start on four GPUs, one at a time."""
    s = Scenario(nodes(4), PolicyConfig(**config), {name: v[0] for name, v in JOBS.items()})
    s.submit(job("first", gpus=4))
    s.submit(
        *(
            job(name, gpus=gpus, priority=rank, queue=queue)
            for name, (_, gpus, rank, queue) in JOBS.items()
        )
    )
    # Only one job at a time: the others wait for a node that is taken in between.
    order = []
    s.end("first")
    while s.engine.state.jobs:
        launched = [d.job for d in s.decisions if isinstance(d, ev.Launch)]
        order += launched
        s.end(*s.running)
    return "".join(order)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("fifo", "abcde"),
        ("sjf", "bdcae"),  # b before d: it was submitted before
        ("qssf", "daceb"),  # seconds × GPUs: 20, 50, 60, 60, 80
        ("srtf", "bdcae"),
        ("priority", "cdabe"),
        ("tiresias", "abcde"),  # nobody had any service yet
    ],
)
def test_order(order: str, expected: str) -> None:
    assert served(order=order) == expected


def test_fair_share_takes_turns_between_queues() -> None:
    s = Scenario(nodes(4), PolicyConfig(order="fair_share"))
    s.submit(job("first", gpus=4, queue="z"))
    s.submit(
        *(job(f"x{i}", queue="x") for i in range(4)), *(job(f"y{i}", queue="y") for i in "ab")
    )
    s.end("first")
    assert s.running == ["x0", "x1", "ya", "yb"]


@pytest.mark.parametrize(
    ("mode", "running"), [("strict", ["a", "b"]), ("greedy", ["a", "b", "small"])]
)
def test_a_job_that_does_not_fit_blocks_the_others_only_if_strict(
    mode: str, running: list[str]
) -> None:
    s = Scenario(nodes(4), PolicyConfig.model_validate({"mode": mode}))
    s.submit(job("a"), job("b"), job("big", gpus=3), job("small"))
    assert s.running == running


def test_remaining_time_counts_what_has_been_done() -> None:
    s = Scenario(nodes(1), PolicyConfig(order="srtf"), {"long": 100.0, "short": 30.0})
    s.submit(job("long"))
    s.go(ev.HaltRequested("long"), at=80.0)
    s.submit(job("gap"))
    s.stopped("long")
    s.submit(job("short"))
    s.go(ev.ResumeRequested("long"))
    s.end("gap")
    assert s.running == ["long"]  # 20 s are left of it


def test_tiresias_puts_who_had_much_behind_newcomers() -> None:
    rules = PolicyConfig(order="tiresias", threshold_gpu_s=100.0, round_s=10.0)
    s = Scenario(nodes(2), rules)
    s.submit(job("old", gpus=2))
    s.go(ev.HaltRequested("old"), at=60.0)  # 120 GPU-seconds
    s.submit(job("gap", gpus=2))
    s.stopped("old", at=60.0)
    s.go(ev.ResumeRequested("old"))
    s.submit(job("new", gpus=2))
    s.end("gap", at=70.0)
    assert s.running == ["new"]


@pytest.mark.parametrize(
    ("gpus", "expected"), [(1, 102.0), (2, 52.0), (0.5, 202.0)], ids=lambda value: f"{value:g}"
)
def test_tiresias_foresees_when_a_job_falls_to_the_lower_level(
    gpus: float, expected: float
) -> None:
    s = Scenario(nodes(2), "fifo")
    s.submit(job("a", gpus=gpus), at=2.0)
    rule = Tiresias(threshold_gpu_s=100.0)
    running = s.engine.state.jobs["a"]
    assert rule.next_change(running, 2.0) == expected
    assert rule.next_change(running, 30.0) == pytest.approx(expected)
    assert rule.next_change(running, expected + 1) is None


@pytest.mark.parametrize("round_s", [60.0, 10.0, 0.7, 0.1, 1 / 3])
def test_rounds_of_any_length_come_round(round_s: float) -> None:
    """Multiples of a fraction are not exact: a round must still be recognised when it comes."""
    s = Scenario(
        nodes(1), PolicyConfig(order="tiresias", round_s=round_s, threshold_gpu_s=round_s)
    )
    s.submit(job("a"))
    s.submit(job("b"), at=round_s * 1.5)
    for _ in range(4):
        due = s.engine.state.wake_at
        if due is None:
            break
        assert due > s.now
        s.go(ev.Woke(), at=due)
    s.end("a", at=s.now + round_s * 2.4)
    due = s.engine.state.wake_at
    assert due is not None
    assert s.now < due < s.now + 1.001 * round_s
    s.go(ev.Woke(), at=due)
    assert s.running == ["b"]


def test_a_change_on_a_round_is_seen_in_the_next() -> None:
    round_s = 0.7
    at = 3 * round_s  # divided by 0.7 this is a little less than 3
    s = Scenario(nodes(1), PolicyConfig(order="tiresias", round_s=round_s, threshold_gpu_s=at))
    s.submit(job("a"))
    s.submit(job("b"))
    assert s.engine.state.wake_at == 4 * round_s


ORDERS: list[Order] = [fifo, sjf, srtf, qssf, priority, Tiresias()]


@given(st.lists(job_specs(), min_size=2, max_size=5), st.sampled_from(ORDERS))
def test_keys_are_total(specs: list[JobSpec], order: Order) -> None:
    state = State()
    for k, spec in enumerate(specs):
        named = JobSpec(f"j{k}", spec.roles, queue=spec.queue, priority=spec.priority)
        state.apply(0.0, ev.JobSubmitted(named))
    plan, predict = Plan(state), StablePredictor()
    keys = [order(waiting, plan, predict) for waiting in state.jobs.values()]
    assert len(set(keys)) == len(keys)
    assert [key[-1] for key in keys] == list(range(len(keys)))
    sorted(keys)  # all of one kind, so that any two can be compared
