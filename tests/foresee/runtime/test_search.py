"""Choosing configurations of measured tables."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from presage.foresee.runtime.search import ConfigSearch, Pick, settings_for, teach
from presage.foresee.runtime.trials import read_trials, trials_ahead
from presage.model.errors import UserError


def measured(programs: int, seed: int = 0) -> pl.DataFrame:
    """Programs that want cores or memory, each in its own measure, on 12 machines."""
    rng = np.random.default_rng(seed)
    rows = []
    for program in range(programs):
        taste, level = rng.uniform(0, 1), rng.uniform(3, 6)
        for vm, (cores, memory) in enumerate((c, m) for c in (2, 4, 8, 16) for m in (4, 8, 16)):
            log = level - taste * np.log(cores) + 1.5 * (1 - taste) * (8 / memory)
            for _ in range(2):
                rows.append((f"p{program}", vm, cores, memory, np.exp(log + rng.normal(0, 0.01))))
    return pl.DataFrame(
        rows, ["workload", "vm_no", "cores", "memory", "elapsed_time"], orient="row"
    )


def test_repeats_are_averaged_and_what_never_completed_is_not_there() -> None:
    table = measured(1).with_columns(completed=pl.col("vm_no") != 3)
    trials = read_trials([table], "time", workload="workload")[0]
    assert len(trials.of("p0")) == 11
    first = table.filter(pl.col("vm_no") == 0)["elapsed_time"].mean()
    assert trials.of("p0")[0] == pytest.approx(first)


def test_other_workloads_show_where_to_look() -> None:
    trials, known = read_trials([measured(1, seed=9), measured(8)], "time", workload="workload")
    values = trials.of("p0")
    taught = teach(known, trials.configs.height)
    search = ConfigSearch(trials, list(values), taught, settings_for(known, 3))
    done = search.run(values.__getitem__, 3, later_runs=np.inf)
    assert len(done.picks) == 3
    assert done.took <= 1.05 * min(values.values())
    for pick in done.picks:
        assert pick.low is not None
        assert pick.expected is not None
        assert pick.high is not None
        assert pick.low <= pick.expected <= pick.high


def test_it_stops_when_a_trial_would_not_pay() -> None:
    trials, known = read_trials([measured(1, seed=9), measured(8)], "time", workload="workload")
    values = trials.of("p0")
    taught = teach(known, trials.configs.height)
    done = ConfigSearch(trials, list(values), taught).run(values.__getitem__, 12, later_runs=2)
    assert len(done.picks) < 12
    assert "later runs" in done.stopped


def test_all_is_tried_where_there_is_little() -> None:
    trials = read_trials([measured(1)[:4]], "time", workload="workload")[0]
    values = trials.of("p0")
    taught = teach(None, trials.configs.height)
    done = ConfigSearch(trials, list(values), taught).run(values.__getitem__, 9, later_runs=np.inf)
    assert len(done.picks) == 2
    assert done.took == min(values.values())


def test_cost_needs_prices() -> None:
    with pytest.raises(UserError, match="--cost"):
        read_trials([measured(1)], "cost", workload="workload")


def test_negative_times_are_refused() -> None:
    with pytest.raises(UserError, match="below 0"):
        read_trials([measured(1).with_columns(elapsed_time=pl.lit(-1.0))], "time")


def test_before_anything_is_known_nothing_is_expected_and_a_failed_trial_is_passed_over() -> None:
    trials = read_trials([measured(1)], "time", workload="workload")[0]
    values = trials.of("p0")
    taught = teach(None, trials.configs.height)
    broken = dict.fromkeys([1, 2, 3, 4], np.inf)
    told: list[Pick] = []
    done = ConfigSearch(trials, list(values), taught).run(
        {**values, **broken}.__getitem__, 8, later_runs=np.inf, told=told.append
    )
    assert tuple(told) == done.picks
    assert done.picks[0].expected is None
    assert all(pick.expected is not None for pick in done.picks[1:])
    assert done.took == min(pick.took for pick in done.picks if not pick.failed)
    with pytest.raises(UserError, match="none of the 2 trials"):
        ConfigSearch(trials, [1, 2, 3], taught).run(broken.__getitem__, 2, later_runs=np.inf)


def test_a_fraction_in_what_is_known_is_not_cut_to_a_whole_number() -> None:
    points = pl.DataFrame({"x": [1, 2, 3]})
    known = pl.DataFrame({"x": [1.5, 2.0], "time_s": [3.0, 4.0]})
    ahead, taught = trials_ahead(points, known, "time_s")
    assert taught is not None
    assert ahead.configs["x"].to_list() == [1.0, 2.0, 3.0, 1.5]
    assert taught.config.tolist() == [3, 1]
    whole, _ = trials_ahead(points, known.filter(pl.col("x") == 2), "time_s")
    assert whole.configs["x"].to_list() == [1, 2, 3]
