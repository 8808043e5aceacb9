"""Guesses of what a workload is like, and the process around them."""

from __future__ import annotations

import numpy as np
import pytest

from presage.foresee.runtime.surrogate import (
    Case,
    Described,
    Guesses,
    KernelShares,
    Posterior,
    likely_shares,
)
from presage.learn import Floats

_CORES, _MEMORY = np.meshgrid(np.arange(4.0), np.arange(5.0), indexing="ij")
_DESCRIBED = Described(
    np.stack([_CORES.ravel() - 1.5, _MEMORY.ravel() - 2.0], axis=1), (0, 1), _MEMORY.ravel() + 2
)


def guesses(cliffs: bool) -> Guesses:
    """Two known workloads, of which one wants cores and the other hardly."""
    known = np.stack([-0.7 * _CORES.ravel(), -0.1 * _CORES.ravel()])
    known -= known.mean(axis=1, keepdims=True)
    mean = known.mean(axis=0)
    return Guesses.of(_DESCRIBED, mean, known - mean, np.array([0.5, 0.5]), cliffs)


def believed(made: Guesses, logs: Floats, tried: list[int]) -> tuple[Floats, float]:
    """What is expected everywhere after some trials, less its mean."""
    belief: Posterior = made.believe(KernelShares(KernelShares.usual(2).kernels * 0.05, 0.001))
    means, around, odds = belief.told(tried, logs[tried])
    said = odds @ means
    return said - said.mean(), float(around.max())


def test_trials_say_which_known_workload_it_is_like() -> None:
    made = guesses(False)
    logs = 3.0 - 0.7 * _CORES.ravel()
    before, unsure = believed(made, logs, [])
    after, sure = believed(made, logs, [0, 15])
    truth = logs - logs.mean()
    assert np.abs(after - truth).max() < 0.15 < np.abs(before - truth).max()
    assert sure < unsure


def test_a_cliff_is_believed_where_little_memory_is_slow() -> None:
    fits = _MEMORY.ravel() >= 2
    logs = 3.0 - 0.1 * _CORES.ravel() + np.where(fits, 0.0, 1.0)
    tried = [0, 4, 15, 19]  # the least and the most memory, with few cores and many
    with_cliffs, _ = believed(guesses(True), logs, tried)
    without, _ = believed(guesses(False), logs, tried)
    short = [5, 6]  # never tried, in the valley of memory
    assert (with_cliffs[short] - with_cliffs[9]).min() > 0.3
    truth = logs - logs.mean()
    assert np.abs(with_cliffs - truth).mean() < np.abs(without - truth).mean()


def test_shares_have_the_slope_they_say_and_explain_what_was_measured() -> None:
    rng = np.random.default_rng(0)
    made = guesses(True)
    cases = []
    for _ in range(4):
        logs = -0.3 * _CORES.ravel() + rng.normal(0, 0.3) * _MEMORY.ravel()
        cases.append(Case.of(made, logs, rng.permutation(20)[:8].astype(np.intp), 1.0))
    values = np.append(KernelShares.usual(2).kernels, 0.02)
    value, slope = cases[0].unlikely(values)
    for place in (0, 1, 6, 7):
        more = values.copy()
        more[place] *= np.exp(1e-5)
        assert (cases[0].unlikely(more)[0] - value) / 1e-5 == pytest.approx(
            slope[place], rel=1e-3, abs=1e-4
        )
    found = likely_shares(cases)
    fitted = np.append(found.kernels, found.noise)
    assert sum(one.unlikely(fitted)[0] for one in cases) < sum(
        one.unlikely(values)[0] for one in cases
    )
    memory = found.kernels[5:]  # near, and linear, in memory
    assert memory.max() > found.kernels[3:5].max()
