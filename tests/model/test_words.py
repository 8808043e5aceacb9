"""How times, amounts and shares are written."""

from __future__ import annotations

import pytest

from presage.model.words import amount, duration, interval, memory, moment, share, short_duration


@pytest.mark.parametrize(
    ("seconds", "words", "word"),
    [
        (0, "0 s", "0s"),
        (-3, "0 s", "0s"),
        (0.0004, "0.4 ms", "0s"),
        (4.212, "4.2 s", "4.2s"),
        (89, "89 s", "89s"),
        (95, "1.6 min", "1.6m"),
        (3600 * 3.5, "3.5 h", "3.5h"),
        (86_400 * 40, "40 d", "40d"),
    ],
)
def test_a_time_has_the_unit_that_suits_it(seconds: float, words: str, word: str) -> None:
    assert duration(seconds) == words
    assert short_duration(seconds) == word


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (240, 720, "4–12 min"),
        (0, 80, "0–80 s"),
        (4.212, 7900, "4.2 s to 2.2 h"),
        (0.001, 0.0042, "1–4.2 ms"),
        (7200, 7201, "2 h"),
    ],
)
def test_an_interval_never_hides_its_lower_end(low: float, high: float, words: str) -> None:
    assert interval(low, high) == words


def test_amounts_and_shares() -> None:
    assert [memory(mib) for mib in (12.2, 1536)] == ["12 MiB", "1.5 GiB"]
    assert [share(value) for value in (0, 0.004, 0.4, 1)] == ["0 %", "0.4 %", "40 %", "100 %"]
    assert [amount(value) for value in (0.25, 12_345.6)] == ["0.25", "12,346"]


def test_a_point_in_time_is_a_date_unless_it_counts_from_nothing() -> None:
    assert moment(1_700_000_000.4) == "2023-11-14T22:13:20Z"
    assert moment(33_600) == "33600"
