"""Prices of GPUs: the shipped list is sound, people's own replaces it, what has none says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from presage.foresee.gpus import catalogue, find
from presage.foresee.prices import cost_of, price_list, price_of, price_source, prices_file
from presage.model.errors import ConfigError


@pytest.fixture(autouse=True)
def _no_files_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PRESAGE_PRICES", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def own(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"usd_per_gpu_hour:\n{text}")
    return path


def test_shipped_prices_are_of_gpus_there_are_and_in_a_plausible_range() -> None:
    assert set(price_list()) <= set(catalogue())
    assert len(price_list()) >= 20
    assert all(0.2 <= price <= 10 for price in price_list().values())
    assert price_list()["l4"] < price_list()["a100-80g"] < price_list()["h100-80g"]


def test_own_prices_replace_and_add(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert price_of(find("rtx2080ti")) is None
    assert "typical" in price_source()
    mine = own(tmp_path / "config" / "presage" / "prices.yaml", "  RTX 2080 Ti: 0.1\n")
    assert price_of(find("rtx2080ti")) == 0.1
    assert price_of(find("h100-80g")) == 2.99  # the rest stays
    assert str(mine) in price_source()
    other = own(tmp_path / "other.yaml", "  h100-80g: 1.5\n")
    monkeypatch.setenv("PRESAGE_PRICES", str(other))
    assert prices_file() == other
    assert price_of(find("h100-80g")) == 1.5
    assert price_of(find("rtx2080ti")) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("  h1000: 2\n", "unknown GPU"),
        ("  h100-80g: -1\n", "greater than 0"),
        ("  h100-80g: free\n", "number"),
        ("  a100-80g: 1\n  a100-sxm4-80gb: 2\n", "has a price already"),
    ],
)
def test_a_wrong_file_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, problem: str
) -> None:
    monkeypatch.setenv("PRESAGE_PRICES", str(own(tmp_path / "mine.yaml", text)))
    with pytest.raises(ConfigError, match=problem) as caught:
        price_list()
    assert "mine.yaml" in str(caught.value)


def test_cost_of_a_rate() -> None:
    cost = cost_of(find("h100-80g"), 8, 1e6 / 3600, "tokens")  # a million an hour
    assert cost is not None
    assert cost.usd_per_hour == pytest.approx(8 * 2.99)
    assert cost.usd_per_million == pytest.approx(8 * 2.99)
    assert cost.unit == "tokens"
    assert cost_of(find("rtx2080ti"), 1, 10.0) is None
