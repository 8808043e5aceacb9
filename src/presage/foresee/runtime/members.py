"""The models of one table that are asked together: trees, a network, a scaling law.

Each member gives the logarithm of a time; `weigh` finds what share each has in the answer, from
predictions out of fold. Fitting needs scikit-learn, answering NumPy alone. Nothing here knows
groups or columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from presage.foresee.runtime.laws import ScalingLaw
from presage.foresee.runtime.network import Network
from presage.learn import Floats, sklearn_ensemble
from presage.learn.bundle import prefixed, under
from presage.learn.trees import TreeEnsemble

__all__ = ["MEMBERS", "BlendedModels", "Effort", "blend", "boost", "far_off", "weigh"]

MEMBERS = ("boosting", "forest", "network", "law")
_FAR = float(np.log(4.0))
"""A run is odd if it took four times as long as like runs, or a quarter ..."""
_FAR_SPREADS = 6.0
"""... and this many times further off than the median run."""
_MOST_ODD = 0.05
"""With more than this share of them, it is the models that are off."""
_BEYOND = 1.0
"""How far, in logarithms, an answer may leave the range of what was measured."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much work a fit is worth."""

    boosting: int = 250
    leaves: int = 63
    forest: int = 20
    steps: int = 1500
    """Of the network."""

    @classmethod
    def of(cls, rows: int) -> Effort:
        """What so many rows are worth."""
        return cls(
            boosting=min(250, 60 + rows // 20),
            leaves=63 if rows > 2000 else 31,
            steps=min(1500, 200 + rows),
        )

    def lighter(self) -> Effort:
        """For the many fits that only measure how good one is."""
        return Effort(max(20, self.boosting // 3), 31, max(5, self.forest // 3), self.steps // 4)


@dataclass(frozen=True, slots=True, eq=False)
class BlendedModels:
    """Fitted models and their shares."""

    boosting: TreeEnsemble
    forest: TreeEnsemble
    network: Network
    law: ScalingLaw
    low: float
    high: float

    @classmethod
    def fit(
        cls,
        rows: Floats,
        logs: Floats,
        n_numbers: int,
        *,
        weights: Floats | None = None,
        own: tuple[int, int] = (0, 0),
        effort: Effort = Effort(),  # noqa: B008  # frozen
        seed: int = 0,
    ) -> BlendedModels:
        """Fit them all; `own` are the columns of categories with scaling laws of their own."""
        ensemble = sklearn_ensemble("fitting run times")
        forest = ensemble.ExtraTreesRegressor(
            effort.forest, min_samples_leaf=2, max_features=0.6, random_state=seed
        )
        return cls(
            boost(rows, logs, effort, weights, seed),
            TreeEnsemble.from_sklearn(forest.fit(rows, logs)),
            Network.fit(rows, logs, n_numbers, steps=effort.steps, seed=seed),
            ScalingLaw.fit(rows, logs, n_numbers, own),
            float(logs.min()),
            float(logs.max()),
        )

    def predict(self, rows: Floats) -> Floats:
        """A column of logarithms for each of `MEMBERS`."""
        models = (self.boosting, self.forest, self.network, self.law)
        said = np.stack([model.predict(rows) for model in models], axis=1)
        return np.clip(said, self.low - _BEYOND, self.high + _BEYOND)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        arrays: dict[str, npt.NDArray[Any]] = {"range": np.array([self.low, self.high])}
        for name in MEMBERS:
            arrays |= prefixed(name, getattr(self, name).to_arrays())
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> BlendedModels:
        """The members in these arrays."""
        low, high = map(float, arrays["range"])
        return cls(
            TreeEnsemble.from_arrays(under("boosting", arrays)),
            TreeEnsemble.from_arrays(under("forest", arrays)),
            Network.from_arrays(under("network", arrays)),
            ScalingLaw.from_arrays(under("law", arrays)),
            low,
            high,
        )


def boost(
    rows: Floats, logs: Floats, effort: Effort, weights: Floats | None = None, seed: int = 0
) -> TreeEnsemble:
    """Boosted trees of the logarithm of a time."""
    model = sklearn_ensemble("fitting run times").HistGradientBoostingRegressor(
        max_iter=effort.boosting,
        max_leaf_nodes=effort.leaves,
        learning_rate=0.07,
        min_samples_leaf=min(8, max(1, len(rows) // 10)),
        l2_regularization=1.0,
        early_stopping=False,
        random_state=seed,
    )
    return TreeEnsemble.from_sklearn(model.fit(rows, logs, sample_weight=weights))


def far_off(rows: Floats, logs: Floats, effort: Effort, seed: int = 0) -> npt.NDArray[np.bool_]:
    """Runs that took so much longer or shorter than like ones that something else was at work."""
    half = np.random.default_rng(seed).integers(0, 2, len(logs)) == 0
    off = np.zeros(len(logs))
    for test in (half, ~half):
        if test.all() or not test.any():
            return np.zeros(len(logs), np.bool_)
        quick = boost(rows[~test], logs[~test], effort.lighter(), seed=seed)
        off[test] = np.abs(logs[test] - quick.predict(rows[test]))
    odd: npt.NDArray[np.bool_] = off > max(_FAR, _FAR_SPREADS * float(np.median(off)))
    return odd if odd.mean() <= _MOST_ODD else np.zeros(len(logs), np.bool_)


def weigh(
    said: Floats, logs: Floats, weights: Floats | None = None, ridge: float = 0.02
) -> Floats:
    """The share of each column of `said` that comes closest to `logs`; shares add up to 1.

    Large misses count linearly, so that a few odd rows do not decide.
    """
    count = said.shape[1]
    shares = np.full(count, 1 / count)
    base = np.ones(len(logs)) if weights is None else weights / weights.mean()
    for _ in range(200):
        error = said @ shares - logs
        steep = base * np.clip(error, -0.5, 0.5)
        slope = said.T @ steep / len(logs) + ridge * (shares - 1 / count)
        curve = np.mean(base[:, None] * (said - said.mean(axis=1, keepdims=True)) ** 2, axis=0)
        shares = _simplex(shares - slope / (2 * float(curve.sum()) + ridge))
    return shares


def _simplex(values: Floats) -> Floats:
    """The nearest shares: none below 0, 1 in all."""
    down = np.sort(values)[::-1]
    sums = np.cumsum(down) - 1
    last = int(np.flatnonzero(down - sums / np.arange(1, len(values) + 1) > 0)[-1])
    out: Floats = np.maximum(values - sums[last] / (last + 1), 0.0)
    return out


def blend(said: Floats, shares: Sequence[float] | Floats) -> Floats:
    """One answer of several."""
    out: Floats = said @ np.asarray(shares)
    return out
