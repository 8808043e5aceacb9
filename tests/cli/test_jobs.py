"""How commands say when a job starts."""

from __future__ import annotations

import pytest

from presage.cli._job_words import span_words, starts_in
from presage.model.answers import Eta

Numbers = tuple[float | None, float | None, float | None]


@pytest.mark.parametrize(
    ("told", "words", "short"),
    [
        ((240, 420, 720), "starts in 4–12 min (most likely 7 min)", "4m–12m"),
        ((0, 30, 80), "starts in 0–80 s (most likely 30 s)", "0s–80s"),
        ((5400, 9000, 36_000), "starts in 1.5–10 h (most likely 2.5 h)", "1.5h–10h"),
        ((0, 0, 0), "starts in a moment", "0s"),
        ((240, 420, None), "starts in 4 min or much more (most likely 7 min)", "4m–…"),
        ((7200, None, None), "starts in 2 h or much more", "2h–…"),
        ((4.2, 60, 7900), "starts in 4.2 s to 2.2 h (most likely 60 s)", "4.2s–2.2h"),
        ((None, None, None), "starts later than can be foreseen", ""),
    ],
)
def test_a_start_in_words(told: Numbers, words: str, short: str) -> None:
    eta = Eta(*told, age_s=3.2)
    assert starts_in(eta) == f"{words}, estimated 3 s ago"
    assert starts_in(eta, age=False) == words
    assert span_words(eta) == short


def test_no_estimate_is_said() -> None:
    assert starts_in(None) == "starts at a time that is not known yet"
    assert span_words(None) == ""
