"""Calibrated intervals cover what they promise, on forecasts they were not fitted on."""

from __future__ import annotations

import numpy as np
import pytest

from presage.model.errors import UserError
from presage.sim.calibrate import Calibration, ForecastLog


def made_up(seed: int, n: int = 4000) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """p10, p50, p90 and the truth: the forecaster is 30 % too early and far too sure."""
    rng = np.random.default_rng(seed)
    middle = rng.lognormal(9, 1, n)
    told = rng.choice([1.1, 2.0], n)
    truth = middle * 1.3 * np.exp(rng.normal(0, 0.7, n))
    return np.array([middle / told, middle, middle * told, truth])


def test_coverage_holds_on_other_forecasts() -> None:
    calibration = Calibration.fit(*made_up(0))
    low, middle, high, truth = made_up(1)
    raw = np.mean((truth >= low) & (truth <= high))
    told = np.array([calibration.interval(*row) for row in zip(low, middle, high, strict=True)])
    inside = (truth >= told[:, 0]) & (truth <= told[:, 2])
    assert raw < 0.5
    assert 0.77 < inside.mean() < 0.83
    assert np.median(truth / told[:, 1]) == pytest.approx(1.0, abs=0.05)
    assert np.all(told[:, 0] >= 0)


def test_jobs_that_still_wait_count_as_waiting_so_long() -> None:
    """Whoever looks at a moment sees the short waits first."""
    low, middle, high, truth = made_up(3)
    submitted = np.linspace(0.0, 5e4, truth.size)
    now = 5e4
    started = submitted + truth < now
    assert 0.3 < started.mean() < 0.8
    waited = np.minimum(truth, now - submitted)
    naive = Calibration.fit(low[started], middle[started], high[started], truth[started])
    fair = Calibration.fit(low, middle, high, waited, started=started)
    everything = Calibration.fit(low, middle, high, truth)
    for name in ("low", "middle", "high"):
        right = getattr(everything.errors, name)
        assert abs(getattr(fair.errors, name) - right) < 0.15
        assert getattr(naive.errors, name) < right - 0.15
    with pytest.raises(UserError, match="some that are over"):
        Calibration.fit(low, middle, high, waited, started=np.zeros(truth.size, bool))


def test_old_forecasts_weigh_less() -> None:
    low, middle, high, truth = made_up(4)
    age_s = np.where(np.arange(truth.size) % 2, 0.0, 140 * 86_400.0)
    truth = np.where(age_s > 0, truth * 100, truth)
    learned = Calibration.fit(low, middle, high, truth, age_s=age_s)
    recent = Calibration.fit(*made_up(4)[:, age_s == 0])
    assert learned.errors.high == pytest.approx(recent.errors.high, abs=0.1)


def test_a_log_learns_once_it_has_seen_enough() -> None:
    log = ForecastLog(most=500, least=100)
    prior = Calibration.prior().interval(50.0, 100.0, 200.0)
    low, middle, high, truth = made_up(2, 700)
    for k in range(700):
        assert len(log) >= 100 or log.calibration(3600.0 * k).interval(50.0, 100.0, 200.0) == prior
        log.made(f"j{k}", 3600.0 * k, low[k], middle[k], high[k])
        log.made(f"j{k}", 3600.0 * k + 5, 1.0, 2.0, 3.0)  # a later one does not count
        log.started(f"j{k}", 3600.0 * k + truth[k])
    assert len(log) == 500
    learned = log.calibration(3600.0 * 700)
    assert learned.errors.low < 0 < learned.errors.middle < learned.errors.high


def test_who_did_not_wait_or_never_started_teaches_nothing() -> None:
    log = ForecastLog()
    log.made("at once", 10.0, 0.0, 0.0, 0.0)
    log.started("at once", 10.0)
    log.made("cancelled", 10.0, 1.0, 2.0, 3.0)
    log.gone("cancelled")
    log.started("cancelled", 20.0)
    log.started("unknown", 20.0)
    assert len(log) == 0
