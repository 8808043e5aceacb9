"""Steps of distributed trainings: terms by hand, weights found again, what another task brings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from presage.foresee.answer import Quantiles
from presage.foresee.bursts.settings import Setting
from presage.foresee.bursts.steps import (
    TERMS,
    DistributedSteps,
    MeasuredStep,
    SetupTimes,
    fit_steps,
    measured_steps,
    terms,
)
from presage.foresee.bursts.use import distributed
from presage.model.errors import BundleError, UserError
from presage.telemetry.bursts import TARGETS

WORK = SetupTimes(compute_ms=90.0, slopes=12.5e6)
"""12.5 MB take 100 ms on 1 Gbit."""
TRUE = np.array([1.0, 1.1, 2.0, 1.5, 0.8, 4.0, 3.0, 0.5])


def told(setting: str, cores: float | None = None) -> dict[str, float]:
    return dict(zip(TERMS, terms(WORK, Setting.parse(setting), cores).tolist(), strict=True))


def test_terms_by_hand() -> None:
    ring = told("W4/1gbit")
    assert ring["wire"] == pytest.approx(150)  # 2 · 3/4 of 100 ms
    assert ring["turns"] == 90
    assert ring["hidden"] == pytest.approx(-60)  # two thirds of computing
    assert ring["copies"] == pytest.approx(37.5)  # MB, sent and received
    assert ring["fixed"] == 4
    assert told("W4/1gbit", cores=1)["turns"] == 360
    assert told("W4/1gbit", cores=1)["copies"] == pytest.approx(150)
    served = told("P2W4/1gbit")
    assert served["wire_servers"] == pytest.approx(200)  # a server hears of four workers
    assert served["copies"] == pytest.approx(50)
    assert served["fixed_servers"] == 6
    assert served["wire"] == served["hidden"] == 0
    assert told("P2W2/1gbit/async")["wire_async"] == pytest.approx(100)
    assert told("W2/none")["wire"] == 0
    assert told("W1/1gbit")["wire"] == told("W1/1gbit")["fixed"] == 0


def made_up(noise: float = 0.0) -> list[MeasuredStep]:
    chance = np.random.default_rng(0)
    rows = []
    settings = ("W2/1gbit", "W2/100mbit", "W4/1gbit", "P1W2/1gbit", "P2W2/1gbit", "P2W4/1gbit")
    for at in range(30):
        work = SetupTimes(chance.uniform(5, 300), 10 ** chance.uniform(5.5, 8))
        for name in (*settings, "P2W2/1gbit/async"):
            setting = Setting.parse(name)
            step = float(TRUE @ terms(work, setting, 1.0)) * np.exp(noise * chance.normal())
            rows.append(MeasuredStep(f"{at}", f"family{at % 6}", setting, work, step, 1.0))
    return rows


def test_weights_are_found_again() -> None:
    np.testing.assert_allclose(DistributedSteps.fit(made_up()).weights, TRUE, rtol=1e-3)


def test_intervals_hold_and_a_bundle_answers_alike(tmp_path: Path) -> None:
    rows = made_up(noise=0.2)
    model = fit_steps(rows, "2026-01-01")
    assert model.card is not None
    assert model.card["errors"]["family"]["median"] == pytest.approx(0.13, abs=0.04)
    low, middle, high = model.foresee(
        (90.0, 90.0, 90.0), WORK.slopes, Setting.parse("W2/1gbit")
    ).step_ms
    assert 0.15 < np.log(high / middle) < 0.5  # 1.28 · 0.2 is 0.26
    assert 0.15 < np.log(middle / low) < 0.5
    model.save(tmp_path / "steps.npz")
    again = DistributedSteps.load(tmp_path / "steps.npz")
    for setting in ("W2/1gbit", "P3W5/10gbit"):
        asked = Setting.parse(setting)
        ours = model.foresee((80.0, 90.0, 110.0), WORK.slopes, asked)
        assert again.foresee((80.0, 90.0, 110.0), WORK.slopes, asked) == ours
        assert ours.compute_ms + ours.exposed_ms == pytest.approx(ours.step_ms[1])
    with pytest.raises(UserError, match="two model families"):
        fit_steps(rows[:1], "2026-01-01")
    other = tmp_path / "other.npz"
    DistributedSteps(model.weights, model.spread, {**model.card, "name": "other"}).save(other)
    with pytest.raises(BundleError, match="no bundle of distributed steps"):
        DistributedSteps.load(other)


def test_what_another_task_brings() -> None:
    """Two servers with the links of six workers: another worker brings nothing, a server does."""
    model = DistributedSteps(TRUE)
    asked = Setting.parse("P2W6/1gbit")
    found = distributed(model, Quantiles(90, 90, 90), WORK.slopes, 8, asked)
    step = found.step_ms.p50
    assert found.samples_per_s == pytest.approx(1e3 * 8 * 6 / step, rel=1e-3)
    assert found.adding_a_worker_pct < 5
    assert found.adding_a_server_pct is not None
    assert found.adding_a_server_pct > 25
    assert [each.workers for each in found.by_workers] == [1, 2, 3, 4, 6, 7, 8]
    assert list(found.other) == ["W6/1gbit"]
    ring = distributed(model, Quantiles(90, 90, 90), WORK.slopes, 8, Setting.parse("W2/10gbit"))
    assert ring.adding_a_server_pct is None
    assert ring.adding_a_worker_pct > 30


def run(setting: str, steps: int, step_ms: float, **labels: float) -> dict[str, Any]:
    return {
        "workload": {"model": "mlp", "batch": 2},
        "setting": setting,
        "labels": dict.fromkeys(TARGETS, 1.0) | labels,
        "steps": steps,
        "step_ms": step_ms,
        "machine": {"cores": 1},
    }


def test_steps_are_read_from_runs() -> None:
    """Computing is what keeps workers busy in a step, the median over the settings."""
    busy = {"util_burst_pct": 50.0, "util_burst_ms": 30.0, "util_idle_ms": 10.0}
    runs = [run("W2/1gbit", 8, 100.0, **busy), run("W2/100mbit", 3, 4000.0, **busy)]
    name = json.dumps(runs[0]["workload"], sort_keys=True)
    first, second = measured_steps(runs, {name: 9.0 * 2**20}, {"mlp": "mlp"})
    assert first.step_ms == 100.0
    assert second.step_ms == 4000.0
    assert first.work.compute_ms == pytest.approx((37.5 + 1500.0) / 2)
    assert str(second.setting) == "W2/100mbit"
