"""How long the tasks of a stage take at another scale or on other executors.

A Gaussian process for each stage over its measurements: lines in the logarithms, and smooth
departures from them. How large these are is learned once from many stages. Answers what trees
cannot: values between, and beyond, those measured. Knows no DAG.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from presage.learn import Floats
from presage.model.errors import MissingExtra

__all__ = ["START", "at_places", "most_probable_powers"]

START = np.array(
    [
        *(-2.97, -1.11, -1.28, -2.74, 0.21, -2.17, -1.95, -2.39),
        *(1.05, -1.31, 0.02, -0.87, 0.78, -2.24, -1.56, -2.32),
    ]
)
"""Powers to start from: lines, then sizes and lengths of what is smooth, then noise by wave."""
_LEVEL = 25.0
"""Variance of a stage's own level: anything goes."""
_FARTHEST = 6.0
"""How far powers may go from where they start: measurements without noise would send them off."""
_CENTRE = np.array([2.5, 0.0, 3.0, 3.0])


def at_places(rows: Floats, logs: Floats, places: Floats, powers: Floats) -> Floats:
    """The logarithm of a task's time at each place, after rows where it is known."""
    middle = logs.mean()
    inside = _kernel(rows, rows, powers) + np.diag(_noise(rows, powers))
    told = np.linalg.solve(inside, logs - middle)
    out: Floats = _kernel(places, rows, powers) @ told + middle
    return out


def most_probable_powers(stages: Sequence[tuple[Floats, Floats]], rounds: int = 25) -> Floats:
    """The powers that make the measurements of these stages most probable."""
    try:
        from scipy.optimize import minimize
    except ImportError:
        raise MissingExtra("learn", "fitting queries") from None

    def unlikely(powers: Floats) -> float:
        total = 0.05 * float(np.sum((powers - START) ** 2))
        for rows, logs in stages:
            inside = _kernel(rows, rows, powers) + np.diag(_noise(rows, powers))
            try:
                half = np.linalg.cholesky(inside)
            except np.linalg.LinAlgError:
                return 1e9
            left = np.linalg.solve(half, logs - logs.mean())
            total += float(0.5 * left @ left + np.log(np.diag(half)).sum())
        return total

    bounds = [(power - _FARTHEST, power + _FARTHEST) for power in START]
    fit = minimize(unlikely, START, method="L-BFGS-B", bounds=bounds, options={"maxiter": rounds})
    out: Floats = fit.x
    return out


def _noise(rows: Floats, powers: Floats) -> Floats:
    out: Floats = np.exp(2 * np.where(rows[:, 4] > 0, powers[14], powers[15]))
    return out


def _kernel(left: Floats, right: Floats, powers: Floats) -> Floats:
    sizes = np.exp(2 * powers)
    lines = (_lines(left) * sizes[:7]) @ _lines(right).T
    scale = ((left[:, [0]] - right[:, 0][None]) ** 2) / 2
    wide = ((left[:, [2]] - right[:, 2][None]) ** 2) / 2
    same = left[:, [4]] == right[:, 4][None]
    by_executors = np.exp(-wide / sizes[10])
    out: Floats = (
        _LEVEL
        + lines
        + sizes[7] * np.exp(-scale / sizes[8])
        + sizes[9] * by_executors
        + sizes[11] * np.exp(-(scale + wide) / sizes[12]) * (0.5 + 0.5 * same)
        + sizes[13] * same * by_executors
    )
    return out


def _lines(rows: Floats) -> Floats:
    near = rows[:, :4] - _CENTRE
    wave = rows[:, 4]
    return np.column_stack([near, wave, wave * near[:, 3], wave * rows[:, 1]])
