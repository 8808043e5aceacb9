"""Resampling against a consumer that sees one sample at a time, and the rules at the edges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.model.errors import TelemetryError
from presage.telemetry.resample import held_rows, resample, tick_of
from presage.telemetry.series import Series
from tests.counting import opcodes

NAN = float("nan")


def pod(times: list[float], values: list[float], name: str = "p") -> Series:
    return Series(name, np.array(times), np.array(values)[:, None], ("x",))


def online(series: Series, every: float, hold: int) -> tuple[list[float], list[float]]:
    """What a consumer of one feature knows after each sample, and the rows it has seen; written
    the slow way, from the rules."""
    current: list[float] = []
    rows: list[float] = []
    tick, total, count = 0, 0.0, 0
    last, last_tick = NAN, 0  # the newest mean of a full row before this one

    def held(at: int) -> float:
        return last if at - last_tick <= hold else NAN

    for t, x in zip(series.times, series.values[:, 0], strict=True):
        now = int(tick_of(float(t), float(series.times[0]), every))
        if now != tick:
            rows.append(total / count if count else held(tick))
            if count:
                last, last_tick = total / count, tick
            empty = now - tick - 1
            rows += [held(tick + 1 + i) for i in range(min(empty, hold))]
            rows += [NAN] * (empty > hold)
            tick, total, count = now, 0.0, 0
        if not np.isnan(x):
            total, count = total + float(x), count + 1
        current.append(total / count if count else held(tick))
    rows.append(total / count if count else held(tick))
    return current, rows


@st.composite
def pods(draw: st.DrawFn) -> Series:
    steps = draw(st.lists(st.integers(1, 40) | st.integers(1, 400), min_size=1, max_size=15))
    start = draw(st.sampled_from([0.0, 1_565_962_220.0]))
    value = st.floats(-1e9, 1e9) | st.just(NAN)
    values = draw(st.lists(value, min_size=len(steps), max_size=len(steps)))
    return pod((start + np.cumsum(steps) / 2).tolist(), values)


@settings(max_examples=80)
@given(st.lists(pods(), max_size=3), st.sampled_from([5.0, 15.0, 0.5]), st.integers(0, 5))
def test_it_is_what_one_sample_at_a_time_gives(
    series: list[Series], every: float, hold: int
) -> None:
    grid = resample(series, ["x"], every, hold * every)
    answers = [online(one, every, hold) for one in series]
    for i, (current, rows) in enumerate(answers):
        samples = slice(grid.sample_offsets[i], grid.sample_offsets[i + 1])
        own = slice(grid.offsets[i], grid.offsets[i + 1])
        np.testing.assert_array_equal(grid.current[samples, 0], current)  # to the last bit
        np.testing.assert_array_equal(grid.values[own, 0], rows)
        assert grid.ticks[own][0] == 0
        assert (np.diff(grid.ticks[own]) > 0).all()
        at = grid.starts[i] + grid.ticks[grid.bucket[samples]] * every
        behind = at - series[i].times
        assert ((behind > -1e-3) & (behind < every)).all()


@settings(max_examples=80)
@given(pods(), st.integers(1, 15))
def test_the_future_changes_nothing(series: Series, length: int) -> None:
    early = Series("p", series.times[:length], series.values[:length], ("x",))
    whole, part = (resample([one], ["x"], 15.0) for one in (series, early))
    np.testing.assert_array_equal(part.current, whole.current[:length])
    closed = len(part.values) - 1  # the last row may get more samples
    np.testing.assert_array_equal(part.values[:closed], whole.values[:closed])


def test_the_rules_by_example() -> None:
    grid = resample([pod([100, 110, 115, 116, 190, 300], [1, 2, 4, 6, 7, 8])], ["x"], 15.0, 45.0)
    held, broken = [6.0] * 3, [NAN]
    expected = [1, 3, 6, *held, 7, *[7.0] * 3, *broken, 8]
    np.testing.assert_array_equal(grid.values[:, 0], expected)
    assert grid.ticks.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 14]
    np.testing.assert_array_equal(grid.current[:, 0], [1, 2, 3, 6, 7, 8])
    assert grid.bucket.tolist() == [0, 1, 1, 2, 6, 11]


def test_a_feature_that_is_missing_is_held_on_its_own() -> None:
    values = np.array([[1.0, 5.0], [2.0, NAN], [3.0, NAN], [4.0, NAN]])
    series = Series("p", np.array([0.0, 10, 20, 30]), values, ("a", "b"))
    grid = resample([series], ["a", "b"], 10.0, 20.0)
    np.testing.assert_array_equal(grid.values, [[1, 5], [2, 5], [3, 5], [4, NAN]])


def test_nothing_is_held_from_another_pod() -> None:
    grid = resample([pod([0, 15, 30], [1, 2, 3]), pod([0, 15], [NAN, 5])], ["x"], 15.0)
    np.testing.assert_array_equal(grid.values[:, 0], [1, 2, 3, NAN, 5])
    np.testing.assert_array_equal(grid.current[:, 0], [1, 2, 3, NAN, 5])


def test_resources_are_added_up() -> None:
    series = Series(
        "p", np.array([0.0, 5]), np.array([[1.0, 2], [3, 4]]), ("u", "s"), (), {"cpu": ("u", "s")}
    )
    assert resample([series], ["cpu"], 5.0).values[:, 0].tolist() == [3, 7]


def test_rounding_does_not_move_a_sample_to_the_next_row() -> None:
    times = np.arange(1000, dtype=np.float64) * 0.1  # 0.1 * 3 is a little more than 0.3
    grid = resample([Series("p", times, np.ones((1000, 1)), ("x",))], ["x"], 0.1)
    assert grid.bucket.tolist() == list(range(1000))


def test_a_gap_of_years_costs_no_memory() -> None:
    grid = resample([pod([0, 1e9], [1, 2])], ["x"], 1.0)
    np.testing.assert_array_equal(grid.values[:, 0], [1, 1, 1, 1, 1, NAN, 2])


def test_no_pods_and_empty_pods() -> None:
    nothing = resample([], ["x"], 15.0)
    assert nothing.values.shape == nothing.current.shape == (0, 1)
    assert nothing.offsets.tolist() == nothing.sample_offsets.tolist() == [0]
    empty = Series("e", np.empty(0), np.empty((0, 1)), ("x",))
    grid = resample([empty, pod([0], [1]), empty], ["x"], 15.0)
    assert grid.offsets.tolist() == grid.sample_offsets.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(("every", "gap"), [(0.0, None), (-1.0, None), (NAN, None), (5.0, -1.0)])
def test_grids_that_make_no_sense_are_refused(every: float, gap: float | None) -> None:
    with pytest.raises(TelemetryError, match="give"):
        held_rows(every, gap)


def test_a_missing_feature_is_named() -> None:
    with pytest.raises(TelemetryError, match="no feature 'y'; it has x"):
        resample([pod([0], [1])], ["y"], 15.0)


def test_rows_are_not_looped_over_in_python() -> None:
    """600,000 rows of 10,000 pods take half a second."""
    rng = np.random.default_rng(0)
    features = tuple("abcdefgh")

    def work(pods: int, rows: int) -> int:
        series = [
            Series(str(i), np.cumsum(rng.uniform(3, 7, rows)), rng.random((rows, 8)), features)
            for i in range(pods)
        ]
        assert len(resample(series, features, 15.0).current) == pods * rows
        return opcodes(lambda: resample(series, features, 15.0))

    assert work(100, 600) <= work(100, 60) + 1000
    assert work(1000, 60) <= 11 * work(100, 60)
