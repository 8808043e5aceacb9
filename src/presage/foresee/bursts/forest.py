"""What bursts follow from, and a forest on what that leaves open.

A training computes and talks in turns, so a burst and an idle time make a period, and most of the
twelve numbers follow from three sizes: how long a device is busy in a period, how long the period
is, and how long the bytes of a burst take. Each is a sum of sizes of the graph, fitted on relative
errors with no weight below zero; an all-reduce sends slopes in buckets, which make several periods
of a step. What that leaves open is the ratio of the truth to it. A forest says which measured
workloads a new one is like, and the weighted median of their ratios is the answer: it has the
least mean error, and says 0 where most have no bursts at all. Nothing here reads files or makes
intervals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from presage.foresee.bursts.graphs import SUMMARY
from presage.learn import Floats, sklearn_ensemble
from presage.learn.bundle import prefixed, under
from presage.learn.trees import TreeEnsemble
from presage.model.errors import UserError

__all__ = ["SIZES", "Forest", "Rhythm"]

SIZES = {
    "dense convolutions": ("macs_conv", "macs_pointwise"),
    "other convolutions": ("macs_depthwise", "macs_grouped"),
    "products": ("macs_linear", "macs_matmul", "macs_attention", "macs_recurrent"),
    "operators": ("operators",),
    "written": ("written",),
    "weights read": ("weights_read",),
    "trained": ("trained",),
}
"""What computing and periods are sums of, and a constant."""
_TOLD = ("trained", "operators", "macs_forward")
_TRAINED = SUMMARY.index("trained")
_SAMPLE_MS = 25.0
"""Between two samples: nothing shorter is seen."""
_UTIL, _NETWORK = 0, (6, 9)
"""Where the three numbers of utilization, and of bytes sent and received, start."""
_UNITS = np.array([1e9, 1e7, 1e9, 1e2, 1e7, 1e7, 1e6, 1.0])
"""Of sizes and the constant."""
_ALIKE = 0.2
"""How much all measured workloads count beside those that the forest finds."""


@dataclass(frozen=True, slots=True, eq=False)
class Rhythm:
    """Twelve numbers from sizes alone, in one setting."""

    buckets: bool
    """Whether slopes are shared in buckets, as an all-reduce does."""
    heights: Floats
    """The median of each number; those of heights count."""
    busy: Floats
    """By size: milliseconds of a step for which a device is busy, at its whole height."""
    steps: Floats
    """By size: milliseconds of a step."""
    bursts: Floats
    """Milliseconds of bursts of sent and received in a step, for each trained parameter."""

    @classmethod
    def fit(cls, rows: Floats, labels: Floats, step_ms: Floats, buckets: bool) -> Self:
        """From summaries and what was measured; a step that was not is the longest period."""
        sizes, parts = _sizes(rows), _parts(rows, buckets)
        cycles = np.stack([labels[:, at + 1] + labels[:, at + 2] for at in (_UTIL, *_NETWORK)])
        steps = np.where(np.isfinite(step_ms), step_ms, cycles.max(0))
        share = labels[:, _UTIL + 1] / np.maximum(cycles[0], 1e-9)
        busy = np.maximum(labels[:, _UTIL] / 100 * share * steps, 0.5)
        trained = np.maximum(np.expm1(rows[:, _TRAINED]), 1.0)
        bursts = [np.median(labels[:, at + 1] * parts / trained) for at in _NETWORK]
        weights = _weights(sizes, busy), _weights(sizes, np.maximum(steps, 1.0))
        return cls(buckets, np.median(labels, axis=0), *weights, np.array(bursts))

    def __call__(self, rows: Floats) -> tuple[Floats, Floats]:
        """(n, 12) numbers, 0 for memory, which follows from none of these; and what they were
        made of, as logarithms."""
        sizes, parts = _sizes(rows), _parts(rows, self.buckets)
        out = np.zeros((len(rows), 12))
        busy = np.maximum(sizes @ self.busy, 1.0)
        steps = np.maximum(sizes @ self.steps, 2 * _SAMPLE_MS)
        height = max(self.heights[_UTIL], 1.0)
        out[:, _UTIL] = height
        out[:, _UTIL + 1] = np.clip(100 * busy / height, _SAMPLE_MS, 0.95 * steps)
        out[:, _UTIL + 2] = np.maximum(steps - out[:, _UTIL + 1], _SAMPLE_MS)
        cycle = np.maximum(steps / parts, 2 * _SAMPLE_MS)
        for at, each in zip(_NETWORK, self.bursts, strict=True):
            whole = each * np.expm1(rows[:, _TRAINED]) / parts
            out[:, at] = self.heights[at]
            out[:, at + 1] = np.clip(whole, _SAMPLE_MS, cycle - _SAMPLE_MS / 2)
            out[:, at + 2] = cycle - out[:, at + 1]
        sent, idle = out[:, _NETWORK[0] + 1], out[:, _NETWORK[0] + 2]
        told = [busy, steps, parts, busy / sent, idle]
        return out, np.column_stack([np.log(each) for each in told])

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        names = ("buckets", "heights", "busy", "steps", "bursts")
        return {name: np.asarray(getattr(self, name)) for name in names}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """The weights in these arrays."""
        names = ("heights", "busy", "steps", "bursts")
        told = [np.asarray(arrays[name], np.float64) for name in names]
        shapes = [(12,), (len(SIZES) + 1,), (len(SIZES) + 1,), (2,)]
        if [each.shape for each in told] != shapes:
            raise UserError("these arrays hold no weights of sizes")
        return cls(bool(arrays["buckets"]), *told)


class Forest:
    """A forest on the ratios of measured numbers to those of a `Rhythm`."""

    def __init__(self, buckets: bool, trees: int = 100, least: int = 6) -> None:
        self.buckets, self.trees, self.least = buckets, trees, least

    def fit(self, rows: Floats, labels: Floats, step_ms: Floats) -> Self:
        """From (n, `SUMMARY`), (n, 12) and the step of each, nan where it is not known."""
        ensemble = sklearn_ensemble("fitting burst models")
        self.rhythm_ = Rhythm.fit(rows, labels, step_ms, self.buckets)
        whole, told = self.rhythm_(rows)
        self.ratios_ = np.log1p(labels) - np.log1p(whole)
        forest = ensemble.ExtraTreesRegressor(
            self.trees, min_samples_leaf=self.least, max_features=0.5, random_state=0
        )
        features = _features(rows, told)
        forest.fit(features, self.ratios_ / (self.ratios_.std(0) + 1e-6))
        self.forest_ = TreeEnsemble.from_sklearn(forest)
        self.leaves_ = self.forest_.leaves(features)
        return self

    def predict(self, rows: Floats) -> Floats:
        """(n, 12), as logarithms of one and more."""
        whole, told = self.rhythm_(rows)
        alike = np.full((len(rows), len(self.ratios_)), _ALIKE / len(self.ratios_))
        here = self.forest_.leaves(_features(rows, told))
        for mine, theirs in zip(here, self.leaves_, strict=True):
            same = mine[:, None] == theirs
            alike += same / same.sum(1, keepdims=True) / len(here)
        out: Floats = np.log1p(whole) + _medians(self.ratios_, alike)
        return out

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        own = {"ratios": self.ratios_, "leaves": self.leaves_}
        parts = prefixed("rhythm", self.rhythm_.to_arrays())
        return own | parts | prefixed("forest", self.forest_.to_arrays())

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """The forest in these arrays."""
        rhythm = Rhythm.from_arrays(under("rhythm", arrays))
        made = cls(rhythm.buckets)
        made.rhythm_, made.forest_ = rhythm, TreeEnsemble.from_arrays(under("forest", arrays))
        made.ratios_, made.leaves_ = np.asarray(arrays["ratios"], np.float64), arrays["leaves"]
        fits = made.ratios_.shape == (made.leaves_.shape[-1], 12)
        if not fits or len(made.leaves_) != len(made.forest_.roots):
            raise UserError("these arrays hold no forest of bursts: they contradict each other")
        return made


def _features(rows: Floats, told: Floats) -> Floats:
    return np.column_stack([rows[:, [SUMMARY.index(name) for name in _TOLD]], told])


def _sizes(rows: Floats) -> Floats:
    """(n, sizes), each of about one for a network of middle size, so that none is lost."""
    values = np.expm1(rows)
    sums = [values[:, [SUMMARY.index(n) for n in names]].sum(1) for names in SIZES.values()]
    sizes: Floats = np.column_stack([*sums, np.ones(len(rows))]) / _UNITS
    return sizes


def _parts(rows: Floats, buckets: bool) -> Floats:
    """In how many parts the bytes of a step go; the first bucket, which is small, is none."""
    if not buckets:
        return np.ones(len(rows))
    parts: Floats = np.maximum(np.expm1(rows[:, SUMMARY.index("buckets")]) - 1, 1.0)
    return parts


def _weights(sizes: Floats, truth: Floats) -> Floats:
    """Weights of zero or more with the least relative errors, far ones counting less."""
    from scipy.optimize import nnls  # comes with scikit-learn

    shares, counts = sizes / np.maximum(truth, 1e-9)[:, None], np.ones(len(truth))
    for _ in range(3):
        weights, _ = nnls(shares * counts[:, None], counts)
        counts = np.maximum(np.abs(shares @ weights - 1), 0.02) ** -0.5
    out: Floats = weights
    return out


def _medians(values: Floats, weights: Floats) -> Floats:
    """Of each column of values, the median under each row of weights."""
    out = np.empty((len(weights), values.shape[1]))
    for at, column in enumerate(values.T):
        order = np.argsort(column, kind="stable")
        below = np.cumsum(weights[:, order], axis=1)
        first = (below >= 0.5 * below[:, -1:]).argmax(1)
        out[:, at] = column[order][first]
    return out
