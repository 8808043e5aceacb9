"""How fast jobs run that share a GPU, and whether they fit, from what is known of each alone.

Speed is normalised: throughput beside others ÷ throughput alone. Jobs lose time when together they
want more of the GPU than there is (`over_capacity`); how much they want may itself only be
foreseen. Where pairs like these were measured, extra trees tell more, from the loads of the job
and of those beside it; the further the jobs are from those measured, the less they are asked. What
is not known of a job may be left out; the estimate gets wider. Whether jobs fit together is a
matter of memory and is foreseen apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from presage.foresee._colocation import (
    FEATURES,
    JobAlone,
    Pairs,
    limit_row,
    read_gavel,
    read_lucid,
    row,
)
from presage.foresee.gpus import Gpu
from presage.learn import Estimator, Floats, sklearn_ensemble
from presage.learn.bundle import load_bundle, prefixed, under
from presage.learn.conformal import Conformal
from presage.learn.evaluate import coverage, f1, grouped_folds, mae
from presage.learn.trees import TreeEnsemble
from presage.model.errors import UserError
from presage.model.estimate import Estimate

__all__ = [
    "FEATURES",
    "InterferenceEstimator",
    "JobAlone",
    "MemoryLimit",
    "Pairs",
    "fit_shipped",
    "over_capacity",
    "read_gavel",
    "read_lucid",
    "taking_turns",
]

_FASTEST = 1.5
"""Speeds above 1 are noise of measurements, but a model of them may repeat a little of it."""

_FITTING = "fitting the interference estimator"
_BANDWIDTH = FEATURES.index("GPU bandwidth")
_COST_ON_A_GPU = 0.65
"""Steps alone that are lost for each GPU that jobs want beyond the one there is: fitted to Gavel's
pairs on the V100, the latest of its GPUs, with utilization as it is foreseen from graphs. On the
P100 it is 0.92 and on the K80 1.15. A GPU counts as busy when any kernel runs, which leaves
something for others."""
_COSTS = 0.5
"""Spread of the logarithm of that, from GPU to GPU."""
_SCATTER = 0.08
"""Of the logarithm of a measured speed. Speeds above 1 can be nothing else and scatter about so
much in published pairs."""
_NEAR = 1.0
"""Distance in the logarithms of step, batch, parameters and work at which measured pairs are asked
for a third of the answer."""
_LIKENESS = [
    FEATURES.index(f"own {name}") for name in ("step time", "batch", "parameters", "work")
]
_NEGLIGIBLE = 0.02
_NORMAL = (-1.2816, -0.5244, 0.0, 0.5244, 1.2816)
"""The middles of five equally likely parts of a normal distribution."""


def taking_turns(own: float, others: Sequence[float], cost: float = 1.0) -> Floats:
    """How many times longer a job takes that shares a device which one of them at a time can use,
    p10, p50 and p90: while a job is busy, so are its neighbours for their part of the time.

    A busy part of u grows by those of the others; together they get no more than all of it. The
    bounds are those of what can be: no slower at all, and a device that is divided evenly.
    """
    beside = sum(others)
    times = max(1.0 + cost * own * beside, cost * (own + beside))
    return np.array([1.0, times, max(times, 1.0 + len(others))])


def over_capacity(
    own: JobAlone, others: Sequence[JobAlone], cost: float = _COST_ON_A_GPU
) -> Floats:
    """The normalised speed of a job beside others, p10, p50 and p90: 1 ÷ (1 + cost × what they
    want beyond the whole GPU), for all that utilizations, cost and scatter may be."""
    wanted = np.zeros(1)
    for job in (own, *others):
        wanted = (wanted[:, None] + _wants(job)).reshape(-1)
    beyond = np.maximum(wanted - 1, 0)[:, None, None]
    costs = cost * np.exp(_COSTS * np.array(_NORMAL))[:, None]
    speeds = np.exp(_SCATTER * np.array(_NORMAL)) / (1 + costs * beyond)
    low, _, high = np.quantile(speeds, (0.1, 0.5, 0.9))
    # The middle is that of what may be wanted, at the usual cost; scatter has no part in it.
    middle = float(np.median(1 / (1 + cost * beyond)))
    return np.array([min(low, middle), middle, max(high, middle)])


def _wants(job: JobAlone) -> Floats:
    """Likely shares of the time in which a job keeps the GPU busy. With those of two jobs that
    nobody knows, the middle of their speed is near 0.9, the constant that is hard to beat."""
    if np.isnan(job.util_pct):
        return np.array([0.2, 0.6, 1.0])
    told = [job.util_low_pct, job.util_pct, job.util_high_pct]
    return np.array([min(1.0, value / 100) for value in told if not np.isnan(value)])


class InterferenceEstimator(Estimator):
    """Normalised speed of a job beside others, for rows of `FEATURES` or for jobs.

    `groups` in `fit` has two columns: the model of the own job and of the other. The intervals
    come from predictions for models that were in no pair of the training set; `fit` keeps those
    predictions, row by row, in `held_out_speed_`.
    """

    def __init__(self, trees: int = 150, leaf: int = 2, folds: int = 5, seed: int = 0) -> None:
        self.trees = trees
        self.leaf = leaf
        self.folds = folds
        self.seed = seed

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> Self:
        """Learn from rows of features and measured speeds."""
        rows, speed = _rows(X), np.asarray(y, np.float64)
        if len(rows) != speed.size or len(rows) < 2 * self.folds:
            raise UserError(f"fitting needs one speed for each of {2 * self.folds} pairs or more")
        if not np.all(speed > 0):
            raise UserError("a normalised speed is above 0; leave out pairs that could not share")
        sides = np.repeat(np.arange(len(rows))[:, None], 2, axis=1)
        if groups is not None:
            sides = np.asarray(groups)
            if sides.shape != (len(rows), 2):
                raise UserError("groups has two columns: the model of the own and other job")
        self.known_ = ~np.all(np.isnan(rows), axis=0)
        self.jobs_ = np.unique(rows[:, [*_LIKENESS, _BANDWIDTH]], axis=0)
        held_out = np.empty(speed.size)
        fold_of = self._folds(sides)
        for fold in range(fold_of.max() + 1):
            test = fold_of[:, 0] == fold
            train = np.all(fold_of != fold, axis=1)
            held_out[test] = self._fit_trees(rows[train], speed[train]).predict(rows[test])
        self.conformal_ = Conformal.fit(
            speed, held_out, sides[:, 0], self._difficulty(rows), space="log"
        )
        interval = self.conformal_.interval(held_out, self._difficulty(rows))
        self.held_out_speed_ = held_out
        self.held_out_ = {"mae": mae(speed, held_out), "coverage": coverage(speed, interval)}
        self.middle_ = np.nan_to_num(np.nanmedian(rows[:, self.known_], axis=0))
        self.trees_ = self._fit_trees(rows, speed)
        return self

    def predict_interval(self, X: npt.ArrayLike) -> Floats:
        """p10, p50 and p90 of each row."""
        self._check_fitted("trees_")
        rows = _rows(X)
        middle = self.trees_.predict(rows)
        interval = self.conformal_.interval(middle, self._difficulty(rows))
        interval[:, 1] = middle
        return np.clip(np.sort(interval, axis=1), 0.0, _FASTEST)

    def speed(self, own: JobAlone, others: Sequence[JobAlone], gpu: Gpu) -> Estimate:
        """The speed of one job beside others, relative to having the GPU alone.

        Measurements are of pairs. Among several others, what each one adds to the time of a step
        is added up: speed = 1 ÷ (1 + Σ (1 ÷ pair speed − 1)). Nobody gets faster by company then,
        and n jobs that each fill the GPU get 1/n of it.
        """
        if not others:
            return Estimate.exact(1.0, "relative speed", "alone")
        self._check_fitted("trees_")
        physics = over_capacity(own, others)
        near = min(self._nearness(job, gpu) for job in (own, *others))
        if near < _NEGLIGIBLE:
            low, middle, high = (float(value) for value in physics)
            return Estimate(low, middle, high, "relative speed", "over capacity")
        pairs = self.predict_interval(np.stack([row(own, other, gpu) for other in others]))
        if len(others) > 1:
            added = 1 / np.clip(pairs, 0.01, 1.0) - 1
            pairs = 1 / (1 + added.sum(axis=0, keepdims=True))
        low, middle, high = (float(value) for value in near * pairs[0] + (1 - near) * physics)
        return Estimate(low, middle, high, "relative speed", "interference")

    def _nearness(self, job: JobAlone, gpu: Gpu) -> float:
        """1 for a job like one that was measured in pairs on this GPU, and less the further it is
        from all; 0 on a GPU where no pair was, and for a job of which nothing is known."""
        mine = row(job, job, gpu)
        there = self.jobs_[np.isclose(self.jobs_[:, -1], mine[_BANDWIDTH])][:, :-1]
        if not len(there):
            return 0.0
        apart = np.abs(there - mine[_LIKENESS])
        known = ~np.isnan(apart)
        if not known.any():
            return 0.0
        far = np.sqrt(np.sum(np.where(known, apart, 0.0) ** 2, axis=1)).min()
        return float(np.exp(-max(0.0, far / _NEAR - 1)))

    def speeds(self, jobs: Sequence[JobAlone], gpu: Gpu) -> Floats:
        """The speed of each job (row) beside each (column), the middle of what is foreseen."""
        rows = np.stack([row(own, other, gpu) for own in jobs for other in jobs])
        return self.predict_interval(rows)[:, 1].reshape(len(jobs), len(jobs))

    def explain(self, own: JobAlone, other: JobAlone, gpu: Gpu) -> dict[str, float]:
        """How much each known feature of a pair moves the speed away from what its middle value
        would give, the strongest first."""
        self._check_fitted("trees_")
        features = row(own, other, gpu)
        columns = np.flatnonzero(self.known_)
        hidden = np.repeat(features[None], columns.size, axis=0)
        hidden[np.arange(columns.size), columns] = self.middle_
        change = self.trees_.predict(features[None])[0] - self.trees_.predict(hidden)
        order = np.argsort(-np.abs(change))
        return {FEATURES[columns[n]]: float(change[n]) for n in order if change[n]}

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        self._check_fitted("trees_")
        return {
            "known": self.known_,
            "middle": self.middle_,
            "jobs": self.jobs_,
            **prefixed("trees", self.trees_.to_arrays()),
            **prefixed("conformal", self.conformal_.to_arrays()),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> InterferenceEstimator:
        """A fitted estimator; needs no scikit-learn."""
        fitted = cls()
        try:
            fitted.known_ = np.asarray(arrays["known"], np.bool_)
            fitted.middle_ = np.asarray(arrays["middle"], np.float64)
            fitted.jobs_ = np.asarray(arrays["jobs"], np.float64)
        except (KeyError, TypeError, ValueError) as wrong:
            raise UserError(f"the bundle holds no interference estimator: {wrong}") from None
        fitted.trees_ = TreeEnsemble.from_arrays(under("trees", arrays))
        fitted.conformal_ = Conformal.from_arrays(under("conformal", arrays))
        if (
            fitted.known_.shape != (len(FEATURES),)
            or fitted.middle_.shape != (int(fitted.known_.sum()),)
            or fitted.trees_.n_features != len(FEATURES)
            or fitted.jobs_.shape[1:] != (len(_LIKENESS) + 1,)
        ):
            raise UserError("the bundle holds no interference estimator of this version")
        return fitted

    @classmethod
    def from_bundle(cls, path: Path) -> InterferenceEstimator:
        """The estimator in a bundle file."""
        return cls.from_arrays(load_bundle(path)[0])

    def _fit_trees(self, rows: Floats, speed: Floats) -> TreeEnsemble:
        model = sklearn_ensemble(_FITTING).ExtraTreesRegressor(
            self.trees, min_samples_leaf=self.leaf, max_features=0.5, random_state=self.seed
        )
        return TreeEnsemble.from_sklearn(model.fit(rows, speed))

    def _folds(self, sides: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
        """The fold of the own and of the other model, for each row."""
        names, member = np.unique(sides[:, 0], return_inverse=True)
        fold = grouped_folds(sides[:, 0], min(self.folds, names.size), self.seed)
        of = dict(zip(names[member.reshape(-1)].tolist(), fold.tolist(), strict=True))
        return np.array([[of[own], of.get(other, -1)] for own, other in sides.tolist()])

    def _difficulty(self, rows: Floats) -> Floats:
        """1 where all is known that the training set knew, 3 where nothing is."""
        return np.asarray(1 + 2 * np.mean(np.isnan(rows[:, self.known_]), axis=1))


def _rows(X: npt.ArrayLike) -> Floats:
    rows = np.asarray(X, np.float64)
    if rows.ndim != 2 or rows.shape[1] != len(FEATURES):
        raise UserError(f"rows have {len(FEATURES)} features; got shape {rows.shape}")
    return rows


class MemoryLimit(Estimator):
    """Whether jobs cannot share a GPU for want of memory, for rows of `limit_row`.

    Logistic regression on the memory they ask for together and on the room that their contexts
    take, both relative to what the GPU has.
    """

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike, groups: object = None) -> Self:
        """Learn from pairs that could (false) and could not (true) share a GPU."""
        sklearn_ensemble("fitting the memory limit")
        from sklearn.linear_model import LogisticRegression

        model = LogisticRegression(C=100.0, max_iter=2000)
        model.fit(np.asarray(X, np.float64), np.asarray(y, np.bool_))
        self.weights_ = np.append(model.coef_[0], model.intercept_[0])
        return self

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[np.bool_]:  # type: ignore[override]  # yes/no
        """True where the jobs cannot share."""
        return self.probability(X) > 0.5

    def probability(self, X: npt.ArrayLike) -> Floats:
        """That the jobs cannot share."""
        self._check_fitted("weights_")
        score = np.asarray(X, np.float64) @ self.weights_[:-1] + self.weights_[-1]
        return np.asarray(1 / (1 + np.exp(-score)))

    def cannot_share(self, jobs: Sequence[JobAlone], gpu: Gpu) -> float:
        """The probability that these jobs cannot share the GPU."""
        return float(self.probability(limit_row(jobs, gpu)[None])[0])


def fit_shipped(
    data_dir: Path, date: str, trees: int = 150
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """The arrays and the card of the estimators that are shipped, fitted on Gavel alone.

    `InterferenceEstimator.from_arrays` takes all arrays; `limit` holds the `MemoryLimit`.
    """
    pairs = read_gavel(data_dir)
    able = pairs.take(~pairs.cannot)
    fitted = InterferenceEstimator(trees).fit(able.X, able.speed, able.models)
    limit = MemoryLimit().fit(pairs.limits, pairs.cannot)
    errors = {name: round(value, 4) for name, value in fitted.held_out_.items()}
    errors["f1_cannot_share_in_sample"] = round(f1(pairs.cannot, limit.predict(pairs.limits)), 4)
    card = {
        "name": "interference",
        "version": "3",
        "date": date,
        "data": "Gavel (stanford-futuredata/gavel): pairs on K80, P100 and V100",
        "licence": "MIT",
        "features": list(FEATURES),
        "splits": f"{fitted.folds} folds, no model of a test row in training; {len(able.speed)} "
        f"rows of {np.unique(able.models).size} models",
        "errors": errors,
    }
    return {**fitted.to_arrays(), "limit": limit.weights_}, card
