"""Run times from history: levels, recency, survival, limits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from presage.model.estimate import Estimate, Estimates
from presage.model.job import Job, JobSpec, JobState
from presage.sim.history import DAY_S, RuntimeHistory
from tests.scenario import job


def draws(
    history: RuntimeHistory,
    spec: JobSpec,
    ran_s: float = 0.0,
    now: float = 0.0,
    samples: int = 4000,
) -> npt.NDArray[np.float64]:
    return left(history, Job(spec, 0, now, now, ran_s=ran_s), now, samples)


def left(
    history: RuntimeHistory, waiting: Job, now: float = 0.0, samples: int = 4000
) -> npt.NDArray[np.float64]:
    return history.sample([waiting], now, samples, np.random.default_rng(0)).reshape(-1)


def test_many_runs_are_reproduced() -> None:
    history, runs = RuntimeHistory(), np.random.default_rng(1).lognormal(7, 1, 200)
    for ran_s in runs:
        history.add(job("x"), float(ran_s), 0.0)
    levels = (0.1, 0.25, 0.5, 0.75, 0.9)
    drawn = np.quantile(draws(history, job("new")), levels)
    assert drawn == pytest.approx(np.quantile(runs, levels), rel=0.1)


def test_the_nearest_level_is_believed_most() -> None:
    history = RuntimeHistory()
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
    history = RuntimeHistory()
    history.add(job("a"), 7.0, 0.0)
    few = draws(history, job("b"))
    assert np.mean(few > 600) > 0.3  # the wide guess still has a say
    for _ in range(300):
        history.add(job("a"), 7.0, 0.0)
    assert np.mean(draws(history, job("b")) > 600) < 0.05


def test_what_it_knows_decides_how_long_a_running_job_goes_on() -> None:
    history = RuntimeHistory()
    for _ in range(300):
        history.add(job("a"), 100.0, 0.0)
        history.add(job("a"), 5000.0, 0.0)
    # Whoever is past 200 s is one of the long ones.
    long = draws(history, job("b"), ran_s=200.0)
    assert np.median(long) == pytest.approx(4800, rel=0.05)
    # Past everything that was ever seen, it goes on in proportion to its age.
    old = draws(history, job("b"), ran_s=1e6)
    assert np.all(old >= 1)
    assert 1e5 < np.median(old) < 1e6


def test_younger_runs_weigh_more() -> None:
    history = RuntimeHistory(half_life_s=7 * DAY_S)
    for day in range(200):
        history.add(job("a"), 100.0 if day < 170 else 9000.0, day * DAY_S)
    assert np.median(draws(history, job("b"), now=200 * DAY_S)) > 5000


def test_a_time_limit_caps() -> None:
    history = RuntimeHistory()
    for _ in range(100):
        history.add(job("a"), 5000.0, 0.0)
    limited = job("b", time_limit_s=600.0)
    assert np.max(draws(history, limited)) == 600.0
    assert np.max(draws(history, limited, ran_s=590.0)) == 10.0
    assert np.max(draws(history, limited, ran_s=700.0)) == 1.0


def test_nothing_known_is_a_wide_guess() -> None:
    estimate = RuntimeHistory().estimate(job("a"), 0.0, 0.0)
    assert estimate.p10 < 1800 < estimate.p50 < 7200 < estimate.p90


def test_memory_is_bounded() -> None:
    history = RuntimeHistory()
    for k in range(12_000):
        history.add(job("a", entrypoint=(f"script{k}",)), 100.0, float(k))
    kept = [len(level.runs) for level in history._levels]
    assert kept == [10_000, 1, 1, 1]
    assert len(history) == 8192


def test_a_job_draws_the_same_whoever_stands_behind_it() -> None:
    history = RuntimeHistory()
    for k in range(100):
        history.add(job("a"), 100.0 + k, 0.0)
    rng = np.random.default_rng
    first, second, third = (
        Job(spec, 0, 0.0, 0.0) for spec in (job("x"), job("y", 2), job("y", 4, queue="q"))
    )
    some = history.sample([first, second], 0.0, 8, rng(5))
    other = history.sample([first, third], 0.0, 8, rng(5))
    assert np.array_equal(some[0], other[0])


# -- progress and estimates -----------------------------------------------------------------------


def hours() -> RuntimeHistory:
    """Everything it has seen took five hours, or a little less or more."""
    history = RuntimeHistory()
    for k in range(300):
        history.add(job("a"), 18_000.0 + 10 * k, 0.0)
    return history


def running(done: float, told_at_s: float, ran_s: float, **spec: object) -> Job:
    """A job that reported progress after so many seconds and has run for some more since."""
    return Job(
        job("b", **spec),  # type: ignore[arg-type]
        *(0, 0.0, 0.0),
        state=JobState.RUNNING,
        progress=done,
        progress_s=told_at_s,
        mark=-ran_s,
    )


def quantiles(found: npt.NDArray[np.float64]) -> list[float]:
    return [float(q) for q in np.quantile(found, (0.1, 0.5, 0.9))]


def test_progress_outdoes_history() -> None:
    history = hours()
    assert np.median(left(history, running(0.0, 0.0, 10.0))) > 15_000
    low, middle, high = quantiles(left(history, running(0.5, 10.0, 10.0)))
    assert middle == pytest.approx(10.0, rel=0.1)
    assert middle / 1.5 < low < middle < high < 1.5 * middle
    # A quarter took 900 s, so an hour is the whole, and some of the rest is over.
    assert np.median(left(history, running(0.25, 900.0, 1000.0))) == pytest.approx(2600, rel=0.1)


def test_the_further_the_surer() -> None:
    history = hours()
    widths = []
    for done in (0.05, 0.2, 0.8):
        total = 1000.0
        low, _, high = quantiles(left(history, running(done, done * total, done * total)))
        widths.append(high / low)
    assert widths[0] > widths[1] > widths[2]
    # One part in a thousand says next to nothing.
    assert np.median(left(history, running(0.001, 1.0, 1.0))) > 15_000


def test_who_does_not_end_as_its_progress_said_is_doubted() -> None:
    history = hours()
    # Half was done after 10 s, and nothing was heard of it for an hour.
    assert np.median(left(history, running(0.5, 10.0, 3600.0))) > 10_000
    assert np.max(left(history, running(1.0, 10.0, 10.0), samples=20)) < 10  # it is about to end


def test_a_time_limit_caps_progress_too() -> None:
    assert np.max(left(hours(), running(0.1, 100.0, 100.0, time_limit_s=300.0))) == 200.0


def foreseen(source: str, p10_s: float, p50_s: float, p90_s: float) -> Job:
    runtime = Estimate(p10_s, p50_s, p90_s, "s", source)
    return Job(job("b", entrypoint=("train",)), 0, 0.0, 0.0, estimates=Estimates("1", runtime))


def test_an_estimate_counts_like_eight_runs_of_the_same_job() -> None:
    history = hours()
    estimated = foreseen("500 steps × step time", 80.0, 100.0, 120.0)
    drawn = left(history, estimated)
    assert np.mean(drawn < 1000) == pytest.approx(0.5, abs=0.03)
    assert quantiles(drawn[drawn < 1000]) == pytest.approx([80, 100, 120], rel=0.03)
    for _ in range(200):
        history.add(estimated.spec, 3000.0, 0.0)
    known = left(history, estimated)
    assert np.mean(known < 1000) < 0.08  # own runs tell more
    assert np.median(known) == pytest.approx(3000, rel=0.05)


@pytest.mark.parametrize("told", [(0.0, 0.0, 0.0), (5.0, 4.0, 6.0), (1.0, 2.0, float("inf"))])
def test_an_estimate_that_says_nothing_changes_nothing(told: tuple[float, float, float]) -> None:
    plain = left(hours(), Job(job("b", entrypoint=("train",)), 0, 0.0, 0.0))
    assert np.array_equal(left(hours(), foreseen("a model", *told)), plain)


def test_an_estimate_of_its_own_is_not_heard_twice() -> None:
    history = hours()
    mine = history.estimate(job("b"), 0.0, 0.0)
    again = foreseen(mine.source, 1.0, 2.0, 3.0)
    assert np.min(left(history, again)) > 100


def test_an_exact_estimate_is_nearly_exact() -> None:
    drawn = left(RuntimeHistory(), foreseen("user", 100.0, 100.0, 100.0))
    near = drawn[np.abs(drawn - 100) < 20]
    assert len(near) > 0.45 * len(drawn)


def _of_much_work(scatter: float) -> RuntimeHistory:
    """Two runs each of 60 kinds of work between a minute and a day, repeated as alike as said."""
    history, rng = RuntimeHistory(), np.random.default_rng(3)
    for k in range(60):
        usual = float(np.exp(rng.uniform(np.log(60), np.log(86_400))))
        for _ in range(2):
            ran_s = usual * float(np.exp(rng.normal(0, scatter)))
            history.add(job(f"j{k}", owner="ann", entrypoint=(f"work-{k}",)), ran_s, 0.0)
    return history


def test_where_repeats_are_alike_one_run_tells_the_next() -> None:
    history = _of_much_work(0.05)
    history.add(job("first", owner="ann", entrypoint=("mine",)), 1000.0, 0.0)
    low, middle, high = np.quantile(
        draws(history, job("n", owner="ann", entrypoint=("mine",))), (0.1, 0.5, 0.9)
    )
    assert middle == pytest.approx(1000, rel=0.05)
    assert low > 800
    assert high < 1300


def test_where_repeats_differ_one_run_tells_little() -> None:
    history = _of_much_work(2.0)
    history.add(job("first", owner="ann", entrypoint=("mine",)), 1000.0, 0.0)
    drawn = draws(history, job("n", owner="ann", entrypoint=("mine",)))
    assert np.quantile(drawn, 0.9) / np.quantile(drawn, 0.1) > 20


def test_an_estimate_has_the_quantiles_of_its_draws() -> None:
    """Made from lots that are kept, an estimate is what 200 fresh draws with its seed would give,
    to the last bit."""
    history = RuntimeHistory()
    rng = np.random.default_rng(0)
    for count, ran_s in enumerate(np.exp(rng.normal(7.0, 2.0, 60)).tolist()):
        spec = job(f"j{count % 7}")
        history.add(spec, ran_s, 100.0 * count)
        for seed in (0, 5):
            waiting = [Job(spec, 0, 0.0, 0.0)]
            drawn = history.sample(waiting, 0.0, 200, np.random.default_rng(seed))[0]
            told = history.estimate(spec, 0.0, 0.0, seed)
            assert (told.p10, told.p50, told.p90) == tuple(np.quantile(drawn, (0.1, 0.5, 0.9)))
