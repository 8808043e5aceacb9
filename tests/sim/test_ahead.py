"""Running ahead: exact where run times are known, seeded where they are drawn, and without a trace
on the state it began with."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
import numpy.typing as npt
import pytest

from presage.core.state import State
from presage.model import event as ev
from presage.model.job import Job, Reason, ReasonCode, StopIntent
from presage.model.speed import SpeedPoint
from presage.policy.config import PolicyConfig
from presage.policy.registry import build
from presage.sim.ahead import Start, StartForecast, TimeBox, run_ahead
from presage.sim.history import RuntimeHistory
from tests.scenario import Scenario, job, nodes


class Exactly:
    """Run times that are known: 100 s unless said otherwise."""

    def __init__(self, **total_s: float) -> None:
        self.total_s = total_s

    def sample(
        self, jobs: Sequence[Job], now: float, samples: int, rng: np.random.Generator
    ) -> npt.NDArray[np.float64]:
        left = np.array([self.total_s.get(job.id, 100.0) - job.ran(now) for job in jobs])
        return np.repeat(left[:, None], samples, axis=1)


def waits(scenario: Scenario, policy: str = "fifo", **total_s: float) -> dict[str, float | None]:
    forecast = run_ahead(
        scenario.engine.state, lambda: build(policy), Exactly(**total_s), now=scenario.now
    )
    return {name: start.p50_s for name, start in forecast.starts.items()}


def test_running_jobs_go_on_from_their_age() -> None:
    scenario = Scenario(nodes(1))
    scenario.submit(job("a"), job("b"), job("c"), at=0.0)
    scenario.go(ev.Woke(), at=70.0)
    assert waits(scenario, a=100.0, b=50.0) == {"b": 30.0, "c": 80.0}


def test_it_says_where_a_job_starts() -> None:
    scenario = Scenario(nodes(4, 2))
    scenario.submit(job("big", 4), job("small", 2), job("next", 2), at=0.0)
    state = scenario.engine.state
    forecast = run_ahead(state, lambda: build("fifo"), Exactly(big=50.0, small=500.0))
    assert forecast.starts["next"].nodes == ("n0",)
    assert forecast.starts["next"].p10_s == forecast.starts["next"].p90_s == 50.0


@pytest.mark.parametrize("policy", ["fifo", "sjf", "backfill", "srtf", "tiresias", "elastic"])
def test_known_run_times_give_the_starts_that_then_happen(policy: str) -> None:
    rng = np.random.default_rng(3)
    total = {f"j{k}": float(rng.integers(10, 500)) for k in range(30)}
    scenario = Scenario(nodes(4, 4), policy, runtimes=total)
    sizes = rng.choice([1, 1, 2, 4], 30)
    scenario.submit(*(job(f"j{k}", int(sizes[k])) for k in range(30)), at=0.0)
    foreseen = waits(scenario, policy, **total)
    assert len(foreseen) > 10
    started = _starts(scenario, total)
    assert {name: started[name] for name in foreseen} == pytest.approx(foreseen)


def _starts(scenario: Scenario, total: dict[str, float]) -> dict[str, float]:
    """Let everything happen as the run times say; when each job first starts."""
    state, left = scenario.engine.state, dict(total)
    found: dict[str, float] = {}
    began: dict[str, float] = {}
    stopped: list[str] = []

    def note() -> None:
        for decision in scenario.decisions:
            if isinstance(decision, ev.Launch):
                found.setdefault(decision.job, scenario.now)
                began[decision.job] = scenario.now
            elif isinstance(decision, ev.Stop):
                left[decision.job] -= scenario.now - began.pop(decision.job)
                stopped.append(decision.job)

    note()
    while state.jobs:
        ends = {name: began[name] + left[name] for name in began}
        due = min(ends.values(), default=inf)
        now = min(due, inf if state.wake_at is None else state.wake_at)
        if now < due:
            scenario.go(ev.Woke(), at=now)
        else:
            over = [name for name, at in ends.items() if at == now]
            for name in over:
                del began[name]
            scenario.end(*over, at=now)
        note()
        while stopped:
            names, stopped[:] = list(stopped), []
            scenario.stopped(*names)
            note()
    return found


def test_a_job_that_is_not_submitted_yet_joins_the_queue() -> None:
    scenario = Scenario(nodes(2))
    scenario.submit(job("a", 2), job("b", 1), at=10.0)
    state = scenario.engine.state
    forecast = run_ahead(
        state, lambda: build("fifo"), Exactly(), asked=(), submit=[job("new", 1), job("huge", 9)]
    )
    assert forecast.starts.keys() == {"new"}  # nothing can hold the other
    assert forecast.starts["new"].p50_s == 100.0
    assert "new" not in state.jobs


def test_runs_that_are_leaving_leave_and_come_back() -> None:
    scenario = Scenario(nodes(2))
    scenario.submit(job("a", 2), job("b", 2), at=0.0)
    state = scenario.engine.state
    reason = Reason(ReasonCode.DRAINED, "make way")
    state.apply(20.0, ev.Stop("a", 1, StopIntent.REQUEUE, reason))
    forecast = run_ahead(state, lambda: build("fifo"), Exactly(a=100.0, b=30.0), now=20.0)
    assert forecast.starts["b"].p50_s == 80.0  # a is first in line again, with 80 s to go
    state.apply(20.0, ev.Stop("a", 1, StopIntent.CANCEL, reason))
    forecast = run_ahead(state, lambda: build("fifo"), Exactly(a=100.0, b=30.0), now=20.0)
    assert forecast.starts["b"].p50_s == 0.0


def test_beyond_the_horizon_there_is_no_number() -> None:
    scenario = Scenario(nodes(1))
    scenario.submit(job("a"), job("b"), at=0.0)
    state = scenario.engine.state
    forecast = run_ahead(state, lambda: build("fifo"), Exactly(), horizon_s=99.0)
    assert forecast.starts["b"].p50_s is None
    assert forecast.starts["b"].nodes == ()


def test_draws_are_seeded_and_the_state_stays_as_it_was() -> None:
    scenario = Scenario(nodes(8))
    scenario.submit(*(job(f"j{k}", 1 + k % 4) for k in range(40)), at=0.0)
    state = scenario.engine.state
    before = state.snapshot()
    history = RuntimeHistory()
    for k in range(50):
        history.add(job("old", 1), 50.0 + 10 * k, 0.0)
    one, same, other = (
        run_ahead(state, lambda: build("fifo"), history, now=5.0, seed=seed) for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other
    assert state.snapshot() == before
    last = one.starts["j39"]
    assert last.p10_s is not None
    assert last.p50_s is not None
    assert last.p90_s is not None
    assert 0 < last.p10_s < last.p50_s < last.p90_s


def test_a_copy_is_what_a_snapshot_restores() -> None:
    config = PolicyConfig(order="priority", preempt="priority", elastic=True)
    scenario = Scenario(nodes(4, 4, 4), config)
    scenario.submit(job("wide", 1, 2, most=6), job("low", 4), job("more", 2, 2), at=1.0)
    scenario.submit(job("high", 4, priority=5), at=2.0)
    scenario.go(ev.NodeDraining("n1"), at=3.0)
    state = scenario.engine.state
    state.apply(4.0, ev.HaltRequested("more"))
    state.apply(4.0, ev.SpeedMeasured("wide", 1, SpeedPoint(2, 1, 9.0, 9.0)))
    assert state.speeds.count == 1
    copy = state.copy()
    assert copy.snapshot() == state.snapshot() == State.restore(state.snapshot()).snapshot()
    copy.check()
    scenario.go(ev.NodeDown("n0"), at=9.0)
    assert copy.now == 4.0


class Ticking:
    """A clock on which every look takes as long as was set."""

    def __init__(self, step_s: float) -> None:
        self.now, self.step_s = 0.0, step_s

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now


def queue_of(count: int) -> Scenario:
    scenario = Scenario(nodes(1))
    scenario.submit(*(job(f"j{k}", 1) for k in range(count)), at=0.0)
    return scenario


def boxed(most_s: float, step_s: float = 1.0, samples: int = 24) -> tuple[StartForecast, int]:
    rests = []
    box = TimeBox(Ticking(step_s), most_s, lambda: rests.append(1))
    total = {f"j{k}": 10.0 for k in range(9)}
    forecast = run_ahead(
        queue_of(9).engine.state,
        lambda: build("fifo"),
        Exactly(**total),
        samples=samples,
        time_box=box,
    )
    return forecast, len(rests)


def test_a_time_box_with_enough_time_changes_nothing() -> None:
    forecast, rests = boxed(1e9)
    assert forecast.samples == 24
    assert rests >= 24 * 7
    assert forecast.starts["j8"].p50_s == 80.0


def test_when_time_is_short_there_are_fewer_runs() -> None:
    forecast, _ = boxed(100.0)
    assert 3 <= forecast.samples < 12
    assert forecast.starts["j8"].p50_s == 80.0


def test_when_time_is_very_short_runs_end_early_and_tell_what_they_saw() -> None:
    forecast, _ = boxed(12.0)
    assert forecast.samples == 3
    assert forecast.starts["j1"].p50_s == 10.0
    assert forecast.starts["j8"] == Start(None, None, None, ())


@pytest.mark.parametrize("policy", ["fifo", "backfill", "tiresias", "elastic"])
def test_a_coarse_look_is_late_by_its_grain_at_most(policy: str) -> None:
    rng = np.random.default_rng(5)
    total = {f"j{k}": float(rng.integers(10, 500)) for k in range(40)}
    scenario = Scenario(nodes(4, 4), policy, runtimes=total)
    sizes = rng.choice([1, 1, 2, 4], 40)
    scenario.submit(*(job(f"j{k}", int(sizes[k])) for k in range(40)), at=0.0)
    state = scenario.engine.state

    def starts(grain: float) -> dict[str, float]:
        forecast = run_ahead(
            state, lambda: build(policy), Exactly(**total), samples=1, grain=grain
        )
        return {name: start.p50_s or 0.0 for name, start in forecast.starts.items()}

    exact, coarse = starts(0.0), starts(0.02)
    assert exact.keys() == coarse.keys()
    assert exact != coarse or policy == "tiresias"  # whose rounds are coarser
    late = np.array([coarse[name] - exact[name] for name in exact])
    # A queue adds the lateness of the jobs before; others may also pass at another moment.
    assert abs(np.median(late)) <= 0.1 * max(exact.values())
