"""Memory of tasks that are run again and again."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.model.errors import ProvisionError, UserError
from presage.provision.task_table import TaskRun, read_tasks, replay_tasks
from presage.provision.tasks import SizingCost, TaskSizer


def taught(peaks: list[float], hours: float = 1.0, cost: SizingCost | None = None) -> TaskSizer:
    sizer = TaskSizer(cost)
    for peak in peaks:
        sizer.learn("t", peak, hours)
    return sizer


def amount(sizer: TaskSizer) -> float:
    size = sizer.size("t")
    assert size is not None
    return size.amount_mib


def test_a_large_steady_task_gets_little_more_than_it_held() -> None:
    rng = np.random.default_rng(0)
    sizer = taught((40_000 + rng.normal(0, 30, 40)).tolist())
    assert 40_000 < amount(sizer) < 42_000


def test_a_small_one_gets_plenty_since_a_failure_costs_more() -> None:
    rng = np.random.default_rng(0)
    peaks = rng.lognormal(3, 0.5, 60)
    assert amount(taught(peaks.tolist(), hours=0.01)) > peaks.max()


def test_what_a_failure_costs_decides_whether_rare_large_runs_count() -> None:
    peaks = [1_000.0] * 19 + [30_000.0]
    dear = taught(peaks * 3, cost=SizingCost(failure_mib_h=1e8))
    cheap = taught(peaks * 3, cost=SizingCost(failure_mib_h=1.0))
    assert amount(dear) >= 30_000
    assert amount(cheap) < 2_000
    size = cheap.size("t")
    assert size is not None
    assert size.failed >= 2


def test_nothing_is_said_of_what_ran_too_seldom() -> None:
    assert TaskSizer().size("t") is None
    assert taught([100.0]).size("t") is None
    assert taught([100.0, 100.0]).size("t") is not None


def test_after_a_failure_it_gets_twice_as_much_or_the_largest_known() -> None:
    sizer = taught([100.0, 900.0])
    assert sizer.after_failure("t", 100.0) == 900.0
    assert sizer.after_failure("t", 800.0) == 1600.0
    assert sizer.after_failure("new", 10.0) == 20.0


@pytest.mark.parametrize("peak", [0.0, -1.0, float("nan"), float("inf")])
def test_what_no_run_can_hold_is_refused(peak: float) -> None:
    with pytest.raises(ProvisionError, match="teaches nothing"):
        TaskSizer().learn("t", peak)


@given(st.lists(st.floats(1, 1e6), min_size=2, max_size=30))
def test_every_answer_rests_on_the_history(peaks: list[float]) -> None:
    size = taught(peaks).size("t")
    assert size is not None
    assert min(peaks) <= size.amount_mib <= 4.3 * max(peaks)
    assert 0 <= size.failed <= 20 * len(peaks)


def run(task: str, peak: float, at: float, *, ended: float | None = None) -> TaskRun:
    return TaskRun(task, peak, 2.0, 4096.0, at, at + 1 if ended is None else ended)


def test_a_replay_counts_waste_failures_and_the_cold_start() -> None:
    runs = [run("a", 1024.0, 0), run("a", 1024.0, 2), run("a", 1024.0, 4)]
    made = replay_tasks(runs)
    size = made.next[0].size
    assert size is not None
    assert (made.runs, made.cold, made.failed_tries) == (3, 2, 0)
    assert made.asked_wasted_gib_h == pytest.approx(3 * 3 * 2)
    # two got the 4 GiB asked for, the third what two runs say
    third = made.wasted_gib_h - 2 * 3 * 2
    assert 0 <= third < 6


def test_a_failed_try_wastes_all_it_had() -> None:
    calm = [run("a", 1024.0, at) for at in range(0, 200, 2)]
    before, after = replay_tasks(calm), replay_tasks([*calm, run("a", 4000.0, 300)])
    assert after.failed_runs == before.failed_runs + 1
    assert after.wasted_gib_h > before.wasted_gib_h + 2 * 1.0


def test_what_had_not_ended_is_not_known() -> None:
    together = [run("a", 1024.0, at, ended=100.0) for at in range(5)]
    assert replay_tasks(together).cold == 5
    later = replay_tasks([*together, run("a", 1024.0, 100.0)])
    assert later.cold == 5


def test_a_trace_of_nextflow_is_known_by_its_columns() -> None:
    table = pl.DataFrame(
        {
            "process": ["p", "p", "q"],
            "peak_rss": ["1048576", "-", "2097152"],
            "memory": [4 << 20, 4 << 20, 4 << 20],
            "realtime": [3_600_000, 1, 7_200_000],
            "submit": [2000, 1000, 1500],
            "complete": [3000, 2000, 2500],
            "status": ["COMPLETED"] * 3,
        }
    )
    runs = read_tasks(table)
    assert [(one.task, one.peak_mib, one.hours) for one in runs] == [("q", 2, 2), ("p", 1, 1)]
    assert runs[0].submitted_s == 1.5


def test_columns_that_lack_or_lie_are_named() -> None:
    table = pl.DataFrame({"job": ["a"], "held": [-3.0]})
    with pytest.raises(UserError, match="--task"):
        read_tasks(table)
    with pytest.raises(UserError, match="no column memory"):
        read_tasks(table, task="job", peak="memory")
    with pytest.raises(UserError, match="row 1, which is below 0"):
        read_tasks(table, task="job", peak="held")
    with pytest.raises(UserError, match="no run"):
        read_tasks(pl.DataFrame({"job": ["a"], "held": [None]}), task="job", peak="held")
