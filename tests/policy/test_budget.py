"""Limits on CPUs, and budgets of GPU hours for queues, users and teams."""

from __future__ import annotations

import polars as pl
import pytest

from presage.core.loop import fold
from presage.core.spent import DAYS_KEPT, Spender, Spent
from presage.core.state import State
from presage.model import event as ev
from presage.model.cluster import Resources
from presage.model.job import JobSpec, Role
from presage.policy.budget import Period
from presage.policy.config import PolicyConfig
from presage.policy.registry import build
from presage.sim.run import simulate
from presage.sim.traces import Trace, complete
from tests.scenario import Scenario, job, nodes

HOUR = 3600.0
MONDAY = 4 * 86_400.0
"""The first one after the beginning of 1970, which was a Thursday."""


def config(mode: str = "strict", **queues: dict[str, object]) -> PolicyConfig:
    return PolicyConfig.model_validate({"mode": mode, "queues": queues})


def cpus(name: str, count: float, **spec: object) -> JobSpec:
    """A job that asks for cores alone."""
    role = Role("worker", Resources(cpu_milli=round(count * 1000)))
    return JobSpec(name, (role,), **spec)  # type: ignore[arg-type]


# -- CPUs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [{"limit_cpus": 4}, {"quota_cpus": 4, "borrow": False}])
def test_a_queue_holds_no_more_cores_than_it_may(rule: dict[str, object]) -> None:
    s = Scenario(nodes(8), config(a=rule))
    s.submit(*(cpus(f"a{k}", 1.5, queue="a") for k in range(3)), cpus("b", 60, queue="b"))
    assert s.running == ["a0", "a1", "b"]
    assert s.why("a2") == (
        "queue a holds 3 cores of the 4 cores it may hold; this job needs 1.5 cores"
    )
    s.end("a0")
    assert s.running == ["a1", "a2", "b"]


def test_a_job_with_more_cores_than_its_queue_may_hold_is_rejected() -> None:
    s = Scenario(nodes(8), config(a={"limit_cpus": 4}))
    (decision,) = s.submit(cpus("big", 5, queue="a"))
    assert isinstance(decision, ev.Reject)
    assert decision.reason.text == "it needs 5 cores; queue a may hold at most 4 cores"


# -- GPU hours ------------------------------------------------------------------------------------


def test_a_queue_that_spent_its_hours_waits_for_the_next_period() -> None:
    s = Scenario(nodes(4), config(a={"gpu_hours": 10, "period": "day"}))
    s.submit(job("a0", 2, queue="a"))
    s.end("a0", at=6 * HOUR)  # 12 hours
    s.submit(job("a1", queue="a"), job("b", queue="b"))
    assert s.running == ["b"]
    assert s.why("a1") == (
        "queue a has 12 of the 10 GPU hours of this day spent; "
        "the next day begins 1970-01-02 00:00 UTC"
    )
    assert s.engine.state.wake_at == 24 * HOUR
    s.go(ev.Woke(), at=24 * HOUR)
    assert s.running == ["a1", "b"]


def test_each_user_and_each_team_has_its_own() -> None:
    rule = {"user_gpu_hours": 4, "team_gpu_hours": 6, "period": "week"}
    s = Scenario(nodes(8), config(a=rule))
    s.submit(
        job("ada", queue="a", owner="ada", team="vision"),
        job("bob", queue="a", owner="bob", team="vision"),
    )
    s.end("ada", "bob", at=4 * HOUR)
    s.submit(
        job("ada2", queue="a", owner="ada", team="vision"),
        job("eve2", queue="a", owner="eve", team="speech"),
    )
    assert s.running == ["eve2"]  # though she came later, and asks for the same
    assert s.why("ada2").startswith("ada in queue a has 4 of the 4 GPU hours of this week spent")
    s.submit(job("cyd", queue="a", owner="cyd", team="vision"))
    assert s.why("cyd").startswith("team vision in queue a has 8 of the 6 GPU hours of this week")
    assert s.engine.state.wake_at == MONDAY


def test_what_runs_counts_as_it_runs() -> None:
    s = Scenario(nodes(8), config("greedy", a={"gpu_hours": 3, "period": "day"}))
    s.submit(job("a0", queue="a"))
    s.submit(job("a1", queue="a"), at=2.9 * HOUR)
    assert s.running == ["a0", "a1"]
    s.submit(job("a2", queue="a"), at=3 * HOUR)
    assert s.waiting == ["a2"]  # nothing is stopped for it
    assert s.running == ["a0", "a1"]


def test_a_time_limit_is_promised_and_what_it_did_not_take_is_given_back() -> None:
    s = Scenario(nodes(8), config(a={"gpu_hours": 10, "period": "day"}))
    s.submit(job("a0", queue="a", time_limit_s=6 * HOUR))
    s.submit(job("a1", queue="a", time_limit_s=6 * HOUR))
    assert s.why("a1") == (
        "queue a has 6 of the 10 GPU hours of this day spent or promised; this job may take 6; "
        "the next day begins 1970-01-02 00:00 UTC"
    )
    s.end("a0", at=1 * HOUR)
    assert s.running == ["a1"]


@pytest.mark.parametrize(
    ("rule", "limit", "says"),
    [
        ({"gpu_hours": 0}, None, "it needs GPUs; queue a may spend 0 in a month"),
        ({"gpu_hours": 5}, 6 * HOUR, "it may take 6 GPU hours; queue a may spend 5 in a month"),
        ({"user_gpu_hours": 5}, 6 * HOUR, "ada in queue a may spend 5 in a month"),
    ],
)
def test_what_no_period_can_pay_for_is_rejected(
    rule: dict[str, object], limit: float | None, says: str
) -> None:
    s = Scenario(nodes(8), config(a=rule))
    (decision,) = s.submit(job("big", queue="a", owner="ada", time_limit_s=limit))
    assert isinstance(decision, ev.Reject)
    assert says in decision.reason.text
    s.submit(cpus("small", 1, queue="a", owner="ada"))
    assert s.running == ["small"]  # without GPUs it spends nothing


def test_a_job_longer_than_the_day_is_charged_day_by_day() -> None:
    s = Scenario(nodes(8), config(a={"gpu_hours": 30, "period": "day"}))
    s.submit(job("a0", 2, queue="a", time_limit_s=40 * HOUR))  # 48 hours in a day is too much
    assert s.running == []
    s = Scenario(nodes(8), config(a={"gpu_hours": 48, "period": "day"}))
    s.submit(job("a0", 2, queue="a", time_limit_s=40 * HOUR))
    s.end("a0", at=40 * HOUR)
    days = [(row[0], row[4]) for row in s.engine.state.spent.rows()]
    assert days == [(0, 48 * HOUR), (1, 32 * HOUR)]


def test_a_server_that_starts_again_knows_what_was_spent() -> None:
    s = Scenario(nodes(4), config(a={"gpu_hours": 10, "period": "day"}))
    s.submit(job("a0", 2, queue="a"), job("a1", queue="a"))
    s.end("a0", at=2 * HOUR)
    state = s.engine.state
    again = State.restore(state.snapshot())
    assert again.spent.rows() == state.spent.rows() != []
    assert again.jobs["a1"].held_since == state.jobs["a1"].held_since
    assert again.snapshot() == state.snapshot()


def test_gpu_time_counts_from_the_moment_that_the_rules_say_so() -> None:
    events: list[tuple[float, ev.Event]] = [(0.0, ev.NodeUp(node)) for node in nodes(4)]
    s = Scenario(nodes(4))
    s.submit(job("a"))
    assert s.engine.state.spent.rows() == []
    s.go(ev.RulesChanged("", "", counts=True), at=5 * HOUR)
    s.end("a", at=6 * HOUR)
    assert [row[4] for row in s.engine.state.spent.rows()] == [HOUR]
    state = State()
    fold(events, state)
    assert "spent" not in state.snapshot()


def test_old_days_are_forgotten() -> None:
    spent = Spent()
    who = Spender("q", "ada", "")
    for day in range(100):
        spent.add(who, 1000, day * 86_400.0, day * 86_400.0 + 60.0)
    assert len(spent.rows()) == DAYS_KEPT == 32  # what a fold counts with stays


def test_periods_are_those_of_the_calendar() -> None:
    now = 1_795_000_000.0  # 2026-11-18, a Wednesday
    day, week, month = (kind.bounds(now) for kind in Period)
    assert (day[1] - day[0], week[1] - week[0], month[1] - month[0]) == (
        86_400.0,
        7 * 86_400.0,
        30 * 86_400.0,
    )
    assert week[0] == MONDAY + 7 * 86_400.0 * round((week[0] - MONDAY) / (7 * 86_400.0))
    assert all(start <= now < end for start, end in (day, week, month))


def test_the_simulator_obeys() -> None:
    count = 6
    columns = {
        "queue": ["a"] * count,
        "job_id": [str(n) for n in range(count)],
        "duration_s": [8 * HOUR] * count,
        "gpu_milli": [1000] * count,
    }
    trace = Trace("t", "test", complete(pl.DataFrame(columns)))
    ends = {}
    for hours in (None, 16):
        rule = {} if hours is None else {"gpu_hours": hours, "period": "day"}
        result = simulate(trace, nodes(2), build(config(a=rule)), name="budget")
        ends[hours] = sorted(result.jobs["end_s"].to_list())
    assert [end / HOUR for end in ends[None]] == [8, 8, 16, 16, 24, 24]
    assert [end / HOUR for end in ends[16]] == [8, 8, 32, 32, 56, 56]  # two jobs a day
