"""The most probable parameters of a model of known form, around what one expected of them.

Levenberg and Marquardt's method with numeric derivatives, for a few dozen parameters; large
residuals count by their size instead of its square (Huber), so that some rows that something else
slowed do not decide. Knows nothing of what is fitted.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from presage.learn import Floats

__all__ = ["most_probable"]

_STEP = 1e-4
_FARTHEST = 0.5
"""The most that a parameter moves at once."""


def most_probable(
    residuals: Callable[[Floats], Floats],
    expected: Floats,
    surprise: Floats,
    robust: float = 1.5,
    rounds: int = 40,
) -> Floats:
    """Parameters that make the residuals (in units of their noise) small without being far from
    what was `expected`, in units of `surprise`; residuals beyond `robust` count linearly."""

    def cost(left: Floats, x: Floats) -> float:
        size = np.abs(left)
        beyond = np.where(size < robust, size**2, 2 * robust * size - robust**2)
        return float(beyond.sum() + np.sum(((x - expected) / surprise) ** 2))

    x, damping = expected.copy(), 1e-2
    left = residuals(x)
    best = cost(left, x)
    for _ in range(rounds):
        slopes = _slopes(residuals, x, left)
        weights = np.minimum(1.0, robust / np.maximum(np.abs(left), 1e-9))[:, None] * slopes
        curved = weights.T @ slopes + np.diag(1 / surprise**2)
        downhill = weights.T @ left + (x - expected) / surprise**2
        for _ in range(8):
            move = np.linalg.solve(curved + damping * np.diag(np.diag(curved)), -downhill)
            trial = x + np.clip(move, -_FARTHEST, _FARTHEST)
            tried = residuals(trial)
            if (now := cost(tried, trial)) < best:
                break
            damping *= 4
        else:
            return x
        gained, best = best - now, now
        x, left, damping = trial, tried, max(damping / 6, 1e-6)
        if gained < 1e-3:
            break
    return x


def _slopes(residuals: Callable[[Floats], Floats], x: Floats, left: Floats) -> Floats:
    slopes = np.empty((len(left), len(x)))
    for column in range(len(x)):
        moved = x.copy()
        moved[column] += _STEP
        slopes[:, column] = (residuals(moved) - left) / _STEP
    return slopes
