"""A training step of a real job: kernels, their launches, and what feeds it.

The GPU is busy while kernels run. A step lasts as long as the slowest of three that overlap: the
kernels, the host that launches them, and the input pipeline. Utilization is the busy part of it.
The constants start from what is known of GPUs and frameworks, and data may move them only a
little, so that a handful of jobs is enough. What a network does not tell (how fast the host is,
how fast samples come) is a distribution, not a number: its spread is learned from jobs left out,
and the interval of an unknown job is what follows from it. Nothing here reads tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from presage.foresee._workloads import Features, InputPipeline
from presage.learn import Estimator, Floats
from presage.model.errors import UserError

__all__ = ["JobUtilization"]

# What is known before any job is seen. Shares of a peak: what well-tuned kernels reach. Kernels:
# the mean length of small ones. Host: PyTorch and TensorFlow take 20 to 50 µs for an operator of a
# training step, and 150 µs for the backward pass, the hooks and the update of a layer's weights
# (the step times of small models in published tables say so, and were seen before this was
# written). Samples: a process with some loader workers prepares an image in 50 µs and copies a
# vector in 0.05 µs.
_CONSTANTS = {
    "compute": 0.5,
    "bandwidth": 0.6,
    "kernel_s": 8e-6,
    "update": 6.0,
    "step_s": 2e-3,
    "launch_s": 2e-5,
    "weight_s": 1.5e-4,
    "element_s": 1e-10,
    "vector_s": 5e-8,
    "image_s": 5e-5,
    "at_most": 0.95,
    "cast": 1.2,
}
_PULL = 1.0
"""What moving a constant by a factor of e costs, against a job whose utilization is off by e."""
_KERNELS = np.array([3.0, 4.0, 2.0, 2.0])
"""Kernels of a layer in forward and backward pass, by `LayerClass`."""
_SERIAL_KERNELS = 3.0
"""Kernels of a step of a fused recurrent layer, which one launch starts."""
_SHARPNESS = 4.0
_PER_GROUP = 20
"""Rows of one model that are fitted on at most: more of them tell little."""
_SPREADS = [
    (host, feed, rest)
    for host in (0.25, 0.5, 0.75)
    for feed in (0.5, 1.0, 1.5)
    for rest in (0.05, 0.1)
]
"""Of the logarithms of the host's pace, of the pipeline's, and of all else."""
_NODES = {"host": 3, "feed": 7, "rest": 3}
_SCALES = np.geomspace(0.05, 10.0, 33)
_TAIL = 0.1


class JobUtilization(Estimator):
    """GPU utilization of a real job in percent, for `Features`; `groups` in `fit` are models."""

    def __init__(self, folds: int = 6, seed: int = 0) -> None:
        self.folds = folds
        self.seed = seed

    def fit(self, X: Features, y: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> Self:
        """Learn from jobs and their measured utilization in percent."""
        target = np.asarray(y, np.float64)
        if len(X) != target.size or len(X) < 4:
            raise UserError("fitting needs one utilization for each of at least 4 jobs")
        if not np.all((target >= 0) & (target <= 100)):
            raise UserError("utilization is given in percent, 0 to 100")
        names = np.arange(len(X)).astype(str) if groups is None else np.asarray(groups, str)
        parts = _Terms(X)
        held_out = np.empty((len(X), 4))
        for test in self._left_out(names):
            constants = self._constants(parts, target, names, ~test)
            held_out[test] = parts.at(constants)[test]
        self.spreads_ = max(
            _SPREADS, key=lambda spreads: _likelihood(held_out, target, names, spreads)
        )
        self.low_, self.high_ = self._scales(held_out, target, names)
        self.held_out_ = np.clip(100 * _share(held_out), 0, 100)
        self.constants_ = self._constants(parts, target, names, np.ones(len(X), np.bool_))
        return self

    def predict(self, X: Features) -> Floats:
        """The middle, in percent."""
        self._check_fitted("constants_")
        return np.asarray(np.clip(100 * _share(_Terms(X).at(self.constants_)), 0, 100))

    def predict_interval(self, X: Features) -> Floats:
        """p10, p50 and p90 in percent, as three columns: the job may wait for what feeds it."""
        self._check_fitted("constants_")
        return self._interval(_Terms(X).at(self.constants_))

    def unstarved(self, X: Features) -> Floats:
        """The same for a job that never waits for samples: what its network would do."""
        self._check_fitted("constants_")
        times = _Terms(X).at(self.constants_)
        times[:, 2] = 0.0
        return self._interval(times)

    def starved(self, X: Features) -> Floats:
        """The chance that samples come more slowly than the step could take them."""
        self._check_fitted("constants_")
        busy, host, feed, _ = _Terms(X).at(self.constants_).T
        away = np.log(np.maximum(busy, host) / np.maximum(feed, 1e-12)) / self.spreads_[1]
        return np.array([1 - NormalDist().cdf(float(z)) for z in away])

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        self._check_fitted("constants_")
        return {
            "constants": self.constants_,
            "spreads": np.array(self.spreads_),
            "scales": np.array([self.low_, self.high_]),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> JobUtilization:
        """A fitted estimator."""
        fitted = cls()
        try:
            fitted.constants_ = np.asarray(arrays["constants"], np.float64)
            host, feed, rest = (float(value) for value in arrays["spreads"])
            fitted.low_, fitted.high_ = (float(value) for value in arrays["scales"])
        except (KeyError, TypeError, ValueError) as wrong:
            raise UserError(f"the bundle holds no utilization of jobs: {wrong}") from None
        fitted.spreads_ = (host, feed, rest)
        if fitted.constants_.shape != (len(_CONSTANTS),):
            raise UserError("the bundle holds no utilization of jobs of this version")
        return fitted

    def _left_out(self, names: npt.NDArray[np.str_]) -> list[npt.NDArray[np.bool_]]:
        """Each model left out by itself, or several at once where there are many."""
        known = np.random.default_rng(self.seed).permutation(np.unique(names))
        parts = np.array_split(known, min(self.folds, known.size))
        return [np.isin(names, part) for part in parts]

    def _constants(
        self,
        parts: _Terms,
        target: Floats,
        names: npt.NDArray[np.str_],
        usable: npt.NDArray[np.bool_],
    ) -> Floats:
        """Robust least squares on log utilization; models weigh as the root of their rows."""
        import scipy.optimize  # comes with scikit-learn

        chosen, weights = _balanced(names, usable, self.seed)
        some, truth = parts.take(chosen), np.log1p(target[chosen])
        known = np.log(list(_CONSTANTS.values()))

        def errors(moved: Floats) -> Floats:
            foreseen = 100 * _share(some.at(np.exp(known + moved)))
            return np.concatenate([weights * (np.log1p(foreseen) - truth), _PULL * moved])

        fit = scipy.optimize.least_squares(
            errors, np.zeros(known.size), loss="soft_l1", f_scale=0.3, max_nfev=25
        )
        return np.asarray(np.exp(known + fit.x))

    def _scales(
        self, held_out: Floats, target: Floats, names: npt.NDArray[np.str_]
    ) -> tuple[float, float]:
        """How much wider than the spreads say each side must be, so that it holds for nine of ten
        jobs of a model that was left out. The sets are nested, so this is conformal."""
        low = np.stack([_quantile(held_out, self.spreads_, by, _TAIL) for by in _SCALES])
        high = np.stack([_quantile(held_out, self.spreads_, by, 1 - _TAIL) for by in _SCALES])
        weights = 1 / np.sqrt(np.unique(names, return_counts=True)[1])
        weights = weights[np.unique(names, return_inverse=True)[1].reshape(-1)]
        first, last = _needed(low <= target), _needed(high >= np.minimum(target, 99.5))
        return _weighted(first, weights), _weighted(last, weights)

    def _interval(self, times: Floats) -> Floats:
        middle = np.clip(100 * _share(times), 0, 100)
        low = np.minimum(_quantile(times, self.spreads_, self.low_, _TAIL), middle)
        high = np.maximum(_quantile(times, self.spreads_, self.high_, 1 - _TAIL), middle)
        return np.column_stack([low, middle, high])


class _Terms:
    """The sums that a step is made of, whatever the constants; equal layers that follow each other
    are counted once."""

    def __init__(self, X: Features) -> None:
        new = np.ones(X.owner.size, np.bool_)
        new[1:] = (np.diff(X.owner) != 0) | np.any(np.diff(X.layers, axis=0) != 0, axis=1)
        first = np.flatnonzero(new)
        self.rows, self.layers, self.owner = X.rows, X.layers[first], X.owner[first]
        self.times = np.diff(np.append(first, X.owner.size)).astype(np.float64)

    def take(self, rows: npt.NDArray[np.intp]) -> _Terms:
        """Some of the rows, in ascending order."""
        made = object.__new__(_Terms)
        kept = np.isin(self.owner, rows)
        made.rows, made.layers, made.times = self.rows[rows], self.layers[kept], self.times[kept]
        made.owner = np.searchsorted(rows, self.owner[kept])
        return made

    def at(self, constants: Floats) -> Floats:
        """Seconds that the GPU, the host and the input pipeline need for a step, and the share of
        a run in which steps run at all, as four columns."""
        c = dict(zip(_CONSTANTS, constants, strict=True))
        kinds, macs, into, out, params = self.layers.T
        batch, elements, pipeline, half, _, bandwidth, peak, serial = self.rows.T
        at = self.owner
        width = 4.0 - 2.0 * half
        flops, moved = peak * min(c["compute"], 1.0), bandwidth * min(c["bandwidth"], 1.0)
        kernels = _KERNELS[kinds.astype(np.intp)] * np.where(half > 0, c["cast"], 1.0)[at]
        compute = 6 * macs * batch[at] / flops[at]
        traffic = 3 * width[at] * ((into + out) * batch[at] + params) / moved[at]
        weights = self._total(params)
        busy = self._total(np.maximum(compute, traffic) + c["kernel_s"] * kernels)
        busy += 4 * c["update"] * weights / moved + _SERIAL_KERNELS * c["kernel_s"] * serial
        host = c["step_s"] + c["launch_s"] * self._total(kernels)
        host += c["weight_s"] * self._total(params > 0)
        sample = np.where(pipeline == InputPipeline.IMAGES, c["image_s"], c["vector_s"])
        feed = batch * (sample + c["element_s"] * elements)
        steps = np.full(len(busy), min(c["at_most"], 1.0))
        return np.column_stack([busy, host, feed, steps])

    def _total(self, values: npt.NDArray[Any]) -> Floats:
        return np.bincount(self.owner, values * self.times, len(self.rows)).astype(np.float64)


def _share(times: Floats, host: Any = 1.0, feed: Any = 1.0) -> Floats:
    """Of the time, how much the GPU is busy, with a host and a pipeline so many times slower."""
    busy, launching, feeding, steps = times.T
    longest = (
        busy**_SHARPNESS + (host * launching) ** _SHARPNESS + (feed * feeding) ** _SHARPNESS
    ) ** (1 / _SHARPNESS)
    return np.asarray(steps * busy / longest)


def _possible(times: Floats, spreads: tuple[float, float, float], by: float) -> Floats:
    """Utilization in percent for each of the equally likely paces of host and pipeline, one column
    for each, without what else differs."""
    host, feed, _ = (by * spread for spread in spreads)
    return np.column_stack(
        [
            100 * _share(times, np.exp(host * h), np.exp(feed * f))
            for h in _likely(_NODES["host"])
            for f in _likely(_NODES["feed"])
        ]
    )


def _quantile(
    times: Floats, spreads: tuple[float, float, float], by: float, level: float
) -> Floats:
    """A quantile of utilization in percent, with all spreads so many times wider."""
    possible = _possible(times, spreads, by)
    rest = np.exp(by * spreads[2] * np.array(_likely(_NODES["rest"])))
    every = (possible[:, :, None] * rest).reshape(len(times), -1)
    return np.asarray(np.clip(np.quantile(every, level, axis=1), 0.0, 100.0))


def _likely(count: int) -> list[float]:
    """The middle of each of so many equally likely parts of a normal distribution."""
    return [NormalDist().inv_cdf((n + 0.5) / count) for n in range(count)]


def _likelihood(
    times: Floats,
    target: Floats,
    names: npt.NDArray[np.str_],
    spreads: tuple[float, float, float],
) -> float:
    """Of what was measured, by models that weigh as the root of their rows."""
    off = (np.log1p(_possible(times, spreads, 1.0)) - np.log1p(target)[:, None]) / (2 * spreads[2])
    density = np.mean(np.exp(-0.5 * off**2), axis=1) / spreads[2]
    _, member, rows = np.unique(names, return_inverse=True, return_counts=True)
    return float(np.sum(np.log(density + 1e-3) / np.sqrt(rows)[member.reshape(-1)]))


def _needed(holds: npt.NDArray[np.bool_]) -> Floats:
    """For each row, the smallest of `_SCALES` from which on a bound holds."""
    first = np.where(holds.any(axis=0), np.argmax(holds, axis=0), len(_SCALES) - 1)
    return np.asarray(_SCALES[first])


def _weighted(values: Floats, weights: Floats) -> float:
    """The quantile that leaves a tail out, with the finite-sample correction."""
    order = np.argsort(values)
    share = np.cumsum(weights[order]) / (weights.sum() + weights.mean())
    at = min(int(np.searchsorted(share, 1 - _TAIL)), len(values) - 1)
    return float(values[order][at])


def _balanced(
    names: npt.NDArray[np.str_], usable: npt.NDArray[np.bool_], seed: int
) -> tuple[npt.NDArray[np.intp], Floats]:
    """Rows to fit on, few of each model, and their weights."""
    chance = np.random.default_rng(seed)
    chosen = np.concatenate(
        [
            chance.permutation(np.flatnonzero(usable & (names == name)))[:_PER_GROUP]
            for name in np.unique(names[usable])
        ]
    )
    chosen = np.sort(chosen)
    _, member, rows = np.unique(names[chosen], return_inverse=True, return_counts=True)
    return chosen, np.asarray(rows[member.reshape(-1)] ** -0.25)
