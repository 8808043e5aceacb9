"""What is kept of how fast runs were: a point a size, bounded, and the latest counts."""

from __future__ import annotations

from math import inf

import pytest

from presage.model import speed
from presage.model.speed import SpeedBook, SpeedPoint


def test_points_of_one_size_become_one_and_the_longer_counts_more() -> None:
    book = SpeedBook()
    book.add("a", SpeedPoint(2, 1, 100.0, 30.0))
    book.add("a", SpeedPoint(4, 1, 50.0, 30.0))
    book.add("a", SpeedPoint(2, 1, 400.0, 10.0))
    four, two = book.of("a")
    assert four == SpeedPoint(4, 1, 50.0, 30.0)
    assert (two.workers, two.measured_s) == (2, 40.0)
    assert two.whole_s == pytest.approx(100.0 * 4**0.25)
    assert book.count == 3
    assert book.of("b") == ()


def test_the_past_fades() -> None:
    book = SpeedBook()
    for _ in range(1000):
        book.add("a", SpeedPoint(2, 1, 100.0, 3600.0))
    for _ in range(20):
        book.add("a", SpeedPoint(2, 1, 200.0, 3600.0))
    assert 195 < book.of("a")[0].whole_s < 200


def test_what_is_kept_is_bounded_and_the_latest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "MOST_WORKLOADS", 3)
    monkeypatch.setattr(speed, "MOST_SIZES", 2)
    book = SpeedBook()
    for work in "abcad":  # b was not measured for the longest
        book.add(work, SpeedPoint(1, 1, 9.0, 9.0))
    assert list(book.points) == ["c", "a", "d"]
    for workers in (1, 2, 3, 2, 4):
        book.add("a", SpeedPoint(workers, 1, 9.0, 9.0))
    assert [point.workers for point in book.of("a")] == [2, 4]


def test_a_copy_is_its_own() -> None:
    book = SpeedBook()
    book.add("a", SpeedPoint(1, 1, 9.0, 9.0))
    copy = book.copy()
    copy.add("a", SpeedPoint(2, 1, 9.0, 9.0))
    assert (len(book.of("a")), len(copy.of("a")), book.count, copy.count) == (1, 2, 1, 2)


@pytest.mark.parametrize(
    "bad",
    [(1, 1, 0.0, 9.0), (1, 1, 9.0, -1.0), (1, 1, inf, 9.0), (1, 2, 9.0, 9.0), (0, 0, 9.0, 9.0)],
)
def test_a_point_that_cannot_be_is_refused(bad: tuple[int, int, float, float]) -> None:
    with pytest.raises(ValueError, match="a point of a speed needs"):
        SpeedPoint(*bad)
