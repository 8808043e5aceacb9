"""The experiment on phases, on the authors' own series alone; the figures are in the results."""

from __future__ import annotations

from pathlib import Path

import pytest

from presage.model.errors import UserError
from presage.reproduce import ai4dl


def test_forecast_needs_less_than_adaptive_where_both_serve_the_same(
    shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ai4dl, "TARGETS", (90.0, 95.0, 99.0))  # fewer points of the same curve
    ((name, window_s, training, held_out),) = ai4dl.splits(shared_data, ("vr",))
    rows = ai4dl.measure(name, window_s, training, held_out, ("adaptive", "phase", "forecast"))
    cpu = next(row for row in rows if row["resource"] == "cpu")
    assert cpu["equal"]["forecast"] < cpu["equal"]["adaptive"]
    lines = ai4dl._lines(cpu)
    assert [line.what for line in lines][:2] == [
        "vr, cpu: allocation, phase ÷ adaptive",
        "vr, cpu: allocation, forecast ÷ adaptive",
    ]


def test_data_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not there; name the directory"):
        list(ai4dl.splits(tmp_path, ("vr",)))


def test_a_curve_is_read_where_it_serves_enough() -> None:
    assert ai4dl.at_equal_service([(90.0, 1.0), (100.0, 2.0)]) == pytest.approx(1.5)
    assert ai4dl.at_equal_service([(80.0, 1.0), (90.0, 2.0)]) is None
