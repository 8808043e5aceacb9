"""The experiments on sharing GPUs, small enough for a test; the figures are in the results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from presage.policy.registry import NAMED
from presage.reproduce import hotcloud20, lucid_week
from presage.reproduce._pairs import Errors, MeasuredPairs, measured_pairs, read_table, unseen


@pytest.fixture(scope="module")
def week_pairs(shared_data: Path) -> MeasuredPairs:
    table = read_table(shared_data, lucid_week.WEEK)
    return measured_pairs(shared_data, lucid_week.profiles(table), trees=20)


def test_the_world_has_the_measured_speeds_and_predictions_do_not(
    week_pairs: MeasuredPairs,
) -> None:
    first, second = week_pairs.in_pairs[:2]
    true = week_pairs.slowdown(first, [second])
    assert true >= 1.0
    assert week_pairs.slowdown(first, [second, second]) == pytest.approx(2 * true - 1)
    exact, wrong, worse = (week_pairs.predictions(error).speed for error in (0.0, 1.0, 2.0))
    assert (exact == week_pairs.speed).all()
    assert abs(worse - exact).mean() > abs(wrong - exact).mean() > 0.01


def test_of_unseen_workloads_a_policy_sees_less_and_the_world_stays(
    week_pairs: MeasuredPairs, shared_data: Path
) -> None:
    timed = unseen(week_pairs, shared_data, "a graph and its loader")
    assert (timed.speed == week_pairs.speed).all()
    assert (timed.foreseen != week_pairs.foreseen).mean() > 0.5
    assert abs(timed.foreseen - timed.speed).mean() < 0.1
    assert timed.believed is not None
    off = [timed.believed[name].util_pct / one.util_pct for name, one in week_pairs.alone.items()]
    assert 0.1 < np.std(np.log(off)) < 0.3


@pytest.mark.slow
def test_sharing_pays_for_workloads_that_nobody_measured(
    week_pairs: MeasuredPairs, shared_data: Path
) -> None:
    known = unseen(week_pairs, shared_data, "a graph and honest intervals")
    batch = hotcloud20.draw(known, Errors.of_unseen_workloads(0.3), seed=7, error=1.0)
    ours, one = (
        hotcloud20.measure(batch, hotcloud20.POLICIES[name], known, 1.0)
        for name in ("colocate", "one job a GPU")
    )
    assert ours.makespan_s < 0.75 * one.makespan_s
    assert ours.jct_s < one.jct_s


@pytest.mark.slow
def test_sharing_beats_one_job_a_gpu_on_a_batch(week_pairs: MeasuredPairs) -> None:
    batch = hotcloud20.draw(week_pairs, Errors.of_shipped_models(), seed=7, error=1.0)
    found = {
        name: hotcloud20.measure(batch, policy, week_pairs, 1.0)
        for name, policy in hotcloud20.POLICIES.items()
    }
    ours, one = found["colocate"], found["one job a GPU"]
    assert all(figures.lost == 0 for figures in found.values())
    assert ours.utilization_pct > 1.3 * one.utilization_pct
    assert ours.jct_s < found["reactive"].jct_s
    assert one.run_s < ours.run_s
    assert ours.makespan_s < 0.8 * found["reactive"].makespan_s


@pytest.mark.slow
def test_reactive_that_starts_the_longest_first_ends_sooner(week_pairs: MeasuredPairs) -> None:
    batch = hotcloud20.draw(week_pairs, Errors.of_shipped_models(), seed=7, error=1.0)
    policy = hotcloud20.POLICIES["reactive"]
    runs = [
        hotcloud20.measure(batch, policy, week_pairs, 1.0, order)
        for order in (None, hotcloud20.longest)
    ]
    assert runs[1].makespan_s < 0.9 * runs[0].makespan_s
    assert runs[1].jct_s > runs[0].jct_s


@pytest.mark.slow
def test_the_given_week_is_not_slower_than_the_peer(
    shared_data: Path, week_pairs: MeasuredPairs
) -> None:
    table = read_table(shared_data, lucid_week.WEEK)
    found = lucid_week.simulate_week(lucid_week.given_week(shared_data), week_pairs).summary
    assert found["finished"] == table.height
    assert found["avg_jct_s"] < table["lucid_patched_jct"].mean()  # type: ignore[operator]
    assert found["avg_wait_s"] < 1000  # type: ignore[operator]
    assert found["cpu_s"] < 60  # type: ignore[operator]


def test_other_weeks_have_the_same_load(shared_data: Path, week_pairs: MeasuredPairs) -> None:
    table = read_table(shared_data, lucid_week.WEEK)
    ratios = (table["estimate_s"] / table["duration"]).to_numpy()
    week = lucid_week.itp_week(shared_data, "cluster07", 2, week_pairs, ratios)
    jobs = week.trace.jobs
    work = (jobs["duration_s"] * jobs["gpu_milli"]).sum() / 1000
    assert 0.5 < work / (len(week.nodes) * 8 * 7 * 86_400) < 1.0
    again = lucid_week.itp_week(shared_data, "cluster07", 2, week_pairs, ratios)
    assert again.trace.jobs.equals(jobs)
    assert again.workloads == week.workloads


def test_the_policies_of_the_experiment_are_one_pipeline() -> None:
    assert hotcloud20.POLICIES["colocate"] == NAMED["colocate"]
    assert {policy.order for policy in hotcloud20.POLICIES.values()} == {"qssf"}
