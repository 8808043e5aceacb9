"""Run times from history: levels, recency, survival, limits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from presage.model.job import JobSpec
from presage.sim.history import DAY_S, History
from tests.scenario import job


def draws(
    history: History, spec: JobSpec, ran_s: float = 0.0, now: float = 0.0, samples: int = 4000
) -> npt.NDArray[np.float64]:
    found = history.sample([spec], [ran_s], now, samples, np.random.default_rng(0))
    return found.reshape(-1)


def test_many_runs_are_reproduced() -> None:
    history, runs = History(), np.random.default_rng(1).lognormal(7, 1, 200)
    for ran_s in runs:
        history.add(job("x"), float(ran_s), 0.0)
    levels = (0.1, 0.25, 0.5, 0.75, 0.9)
    drawn = np.quantile(draws(history, job("new")), levels)
    assert drawn == pytest.approx(np.quantile(runs, levels), rel=0.1)


def test_the_nearest_level_is_believed_most() -> None:
    history = History()
    for k in range(200):
        history.add(job(f"a{k}", owner="ann", entrypoint=("train",)), 1000.0, 0.0)
        history.add(job(f"b{k}", owner="ann", entrypoint=("test",)), 10.0, 0.0)
        history.add(job(f"c{k}", 4, owner="bob"), 50_000.0, 0.0)
    assert np.median(draws(history, job("n", owner="ann", entrypoint=("train",)))) > 900
    assert np.median(draws(history, job("n", owner="ann", entrypoint=("test",)))) < 12
    assert np.median(draws(history, job("n", 4, owner="bob"))) == pytest.approx(50_000, rel=0.1)
    stranger = draws(history, job("n", 2, owner="eve"))
    assert np.mean(stranger < 20) == pytest.approx(1 / 3, abs=0.1)  # as all of the queue


def test_few_runs_are_believed_a_little() -> None:
    history = History()
    history.add(job("a"), 7.0, 0.0)
    few = draws(history, job("b"))
    assert np.mean(few > 600) > 0.3  # the wide guess still has a say
    for _ in range(300):
        history.add(job("a"), 7.0, 0.0)
    assert np.mean(draws(history, job("b")) > 600) < 0.05


def test_what_it_knows_decides_how_long_a_running_job_goes_on() -> None:
    history = History()
    for _ in range(300):
        history.add(job("a"), 100.0, 0.0)
        history.add(job("a"), 5000.0, 0.0)
    # Whoever is past 200 s is one of the long ones.
    left = draws(history, job("b"), ran_s=200.0)
    assert np.median(left) == pytest.approx(4800, rel=0.05)
    # Past everything that was ever seen, it goes on in proportion to its age.
    old = draws(history, job("b"), ran_s=1e6)
    assert np.all(old >= 1)
    assert 1e5 < np.median(old) < 1e6


def test_younger_runs_weigh_more() -> None:
    history = History(half_life_s=7 * DAY_S)
    for day in range(200):
        history.add(job("a"), 100.0 if day < 170 else 9000.0, day * DAY_S)
    assert np.median(draws(history, job("b"), now=200 * DAY_S)) > 5000


def test_a_time_limit_caps() -> None:
    history = History()
    for _ in range(100):
        history.add(job("a"), 5000.0, 0.0)
    limited = job("b", time_limit_s=600.0)
    assert np.max(draws(history, limited)) == 600.0
    assert np.max(draws(history, limited, ran_s=590.0)) == 10.0
    assert np.max(draws(history, limited, ran_s=700.0)) == 1.0


def test_nothing_known_is_a_wide_guess() -> None:
    estimate = History().estimate(job("a"), 0.0, 0.0)
    assert estimate.p10 < 1800 < estimate.p50 < 7200 < estimate.p90


def test_memory_is_bounded() -> None:
    history = History()
    for k in range(12_000):
        history.add(job("a", entrypoint=(f"script{k}",)), 100.0, float(k))
    kept = [len(level.runs) for level in history._levels]
    assert kept == [10_000, 1, 1, 1]
    assert len(history) == 8192


def test_a_job_draws_the_same_whoever_stands_behind_it() -> None:
    history = History()
    for k in range(100):
        history.add(job("a"), 100.0 + k, 0.0)
    rng = np.random.default_rng
    some = history.sample([job("x"), job("y", 2)], [0.0, 0.0], 0.0, 8, rng(5))
    other = history.sample([job("x"), job("y", 4, queue="q")], [0.0, 0.0], 0.0, 8, rng(5))
    assert np.array_equal(some[0], other[0])
