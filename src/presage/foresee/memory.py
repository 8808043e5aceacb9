"""GPU memory of a training or inference job, foreseen from its graph or from a few totals.

From a graph: what the device and the driver take, what PyTorch's allocator reserves for the
tensors that live together, and a learned factor for what neither knows (workspaces of
convolutions, mostly). Workspaces that are only tried count by how often they are seen. From a
table: the same with a tracer's estimate, or a rule of thumb over totals, in place of the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import polars as pl

from presage.foresee._workspaces import tried_workspaces
from presage.foresee.allocator import MIB, live_peak, reserved_bytes
from presage.foresee.graph.opgraph import CONVOLUTIONS, KINDS, ROLES, OpGraph
from presage.learn import Estimator, Floats
from presage.learn.bundle import prefixed, under
from presage.learn.evaluate import grouped_folds
from presage.learn.residual import LogResidual
from presage.model.errors import UserError

__all__ = [
    "GRAPH_FEATURES",
    "TABLE_FEATURES",
    "MemoryEstimator",
    "TableMemoryEstimator",
    "largest_batch",
    "memory_features",
    "table_features",
]

_TRAFFIC = ("conv", "pointwise", "depthwise", "grouped", "matmul")
GRAPH_FEATURES = (
    "reserved",
    "peak",
    "lasting",
    "weights",
    "saved",
    "forward_peak",
    "largest",
    "largest_5",
    "largest_20",
    "columns",
    "columns_sum",
    "operator",
    "operators_10",
    *(f"most_{kind}" for kind in _TRAFFIC),
    "tried",
    "tried_sum",
    "batch",
)
"""In MiB, but for the batch. `columns` is the largest convolution input spread out as a matrix,
what some algorithms for it need as workspace; `operator` what the largest operator touches;
`tried` and `tried_sum` are those of `tried_workspaces`."""

_TRIED, _TRIED_SUM = GRAPH_FEATURES.index("tried"), GRAPH_FEATURES.index("tried_sum")


def memory_features(graph: OpGraph, batch: float) -> Floats:
    """GRAPH_FEATURES of a graph at a batch."""
    peak = live_peak(graph, batch)
    tensors, sizes = graph.tensors, peak.sizes / MIB
    touched = (graph.at(graph.read, batch) + graph.at(graph.written, batch)) * 4 / MIB
    ordered = np.sort(sizes)[::-1]
    busiest = np.sort(touched)[::-1]
    columns = _spread_out(graph, batch)
    most = [touched[graph.kind == KINDS.index(kind)].max(initial=0.0) for kind in _TRAFFIC]
    return np.array(
        [
            reserved_bytes(graph, batch) / MIB,
            peak.bytes / MIB,
            sizes[tensors.born < 0].sum(),
            graph.params * 4 / MIB,
            sizes[tensors.role == ROLES.index("saved")].sum(),
            peak.forward / MIB,
            ordered[:1].sum(),
            ordered[:5].sum(),
            ordered[:20].sum(),
            columns.max(initial=0.0),
            columns.sum(),
            busiest[:1].sum(),
            busiest[:10].sum(),
            *most,
            *tried_workspaces(graph, batch, peak.alive),
            batch,
        ]
    )


def _spread_out(graph: OpGraph, batch: float) -> Floats:
    """MiB of each forward convolution's input with every window written out."""
    kinds = [KINDS.index(kind) for kind in CONVOLUTIONS]
    at = np.flatnonzero((graph.phase == 0) & np.isin(graph.kind, kinds))
    channels = np.array([_channels(graph.shapes[i]) for i in at], np.float64)
    spread: Floats = graph.at(graph.macs, batch)[at] / np.maximum(channels, 1) * 4 / MIB
    return spread


def _channels(shape: tuple[int, ...]) -> int:
    return abs(shape[1]) if len(shape) > 1 else 1


class MemoryEstimator(Estimator):
    """MiB from GRAPH_FEATURES."""

    def __init__(self, iterations: int = 300, folds: int = 10, seed: int = 0) -> None:
        self.iterations = iterations
        self.folds = folds
        self.seed = seed

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> Self:
        """Learn the floor, the factor, and how often a tried workspace is seen."""
        rows, truth = np.asarray(X, np.float64), np.asarray(y, np.float64)
        self.floor_ = _floor(rows[:, 0], truth)
        self.residual_ = LogResidual(self.iterations, folds=self.folds, seed=self.seed).fit(
            _relative(rows, self.floor_), truth, groups, base=self._base(rows)
        )
        self.typical_ = np.median(_relative(rows, self.floor_), axis=0)
        self._learn_tried(rows, truth, np.arange(len(truth)) if groups is None else groups)
        return self

    def _learn_tried(self, rows: Floats, truth: Floats, groups: npt.ArrayLike) -> None:
        """From what the factor alone missed in families it had not seen; `out_of_fold_` are the
        medians, each with a chance that was learned from other families too."""
        missed = np.log(truth / self.residual_.out_of_fold_)
        amount, rise = rows[:, _TRIED_SUM], self._rise(rows)
        members = np.asarray(groups)
        count = min(self.folds, len(np.unique(members)))
        place = grouped_folds(members, count, self.seed)
        lift = np.empty(len(truth))
        for fold in range(count):
            test = place == fold
            chance = _chance(amount[~test], rise[~test], missed[~test])
            lift[test] = rise[test] * np.interp(amount[test], *chance)
        self.out_of_fold_ = self.residual_.out_of_fold_ * np.exp(lift)
        self.chance_ = _chance(amount, rise, missed)

    def needs(self, X: npt.ArrayLike) -> Floats:
        """p10, p50, p90 of what a job cannot do without; never less than its tensors. A workspace
        that does not fit is not tried, so it decides nothing about whether the job fits."""
        self._check_fitted("residual_")
        rows = np.asarray(X, np.float64)
        interval = self.residual_.predict_interval(
            _relative(rows, self.floor_), base=self._base(rows)
        )
        return np.maximum(interval, rows[:, 1:2])

    def predict_interval(self, X: npt.ArrayLike) -> Floats:
        """p10, p50, p90 of what a measurement of training shows where there is room: the p50 is
        lifted by the chance that a tried workspace is seen."""
        rows = np.asarray(X, np.float64)
        interval = self.needs(rows)
        interval[:, 1] *= np.exp(self._rise(rows) * np.interp(rows[:, _TRIED_SUM], *self.chance_))
        interval[:, 2] = np.maximum(interval[:, 2], interval[:, 1])
        return interval

    def explain(self, graph: OpGraph, batch: float) -> dict[str, float]:
        """Where the MiB go; the parts add up to the median."""
        row = memory_features(graph, batch)
        return self.parts(row, live_peak(graph, batch).by_role)

    def parts(self, row: Floats, by_role: Mapping[str, float]) -> dict[str, float]:
        """The breakdown of one row of features."""
        middle = float(self.predict(row[None, :])[0])
        shares = {
            "device and driver": self.floor_,
            "weights": by_role["weight"] + by_role["buffer"],
            "gradients": by_role["gradient"],
            "optimizer": by_role["state"],
            "activations": by_role["saved"] + by_role["input"],
            "temporary": by_role["transient"],
        }
        inside = {
            name: size / (1 if name == "device and driver" else MIB)
            for name, size in shares.items()
        }
        inside["allocator"] = row[0] - row[1]
        inside["workspace and rest"] = middle - sum(inside.values())
        return inside

    def mattered(self, row: Floats) -> dict[str, float]:
        """The features that moved the learned factor most."""
        names = (*GRAPH_FEATURES[1:_TRIED], "batch", "log size", "log weights", "spare")
        relative = _relative(row[None, :], self.floor_)[0]
        return self.residual_.mattered(relative, self.typical_, names)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        return {
            "floor": np.array(self.floor_),
            "typical": self.typical_,
            "chance": self.chance_,
            **prefixed("residual", self.residual_.to_arrays()),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> MemoryEstimator:
        """The estimator in these arrays."""
        made = cls()
        made.floor_ = float(arrays["floor"])
        made.typical_ = arrays["typical"]
        made.chance_ = arrays.get("chance", _NEVER)  # not in what older releases fitted
        made.residual_ = LogResidual.from_arrays(under("residual", arrays))
        return made

    def _base(self, rows: Floats) -> Floats:
        base: Floats = self.floor_ + rows[:, 0]
        return base

    def _rise(self, rows: Floats) -> Floats:
        """Logarithm by which the largest tried workspace lifts memory when it is seen."""
        base = self._base(rows)
        rise: Floats = np.log(np.maximum(self.floor_ + rows[:, _TRIED], base) / base)
        return rise


def _floor(reserved: Floats, truth: Floats) -> float:
    """What is used beside tensors: the constant of a line through relative errors."""
    weights = 1 / truth
    design = np.c_[np.ones(len(truth)), reserved] * weights[:, None]
    (constant, _), *_ = np.linalg.lstsq(design, truth * weights, rcond=None)
    return float(max(0.0, constant))


_NEVER: Floats = np.zeros((2, 1))
_RISE = 0.05
"""Logarithm below which a workspace does not show."""


def _chance(amount: Floats, rise: Floats, missed: Floats) -> Floats:
    """How often a tried workspace is seen, over how much is tried in all: the more, the longer it
    takes and the likelier. Amounts and chances, for linear interpolation."""
    from sklearn.isotonic import IsotonicRegression

    shows = rise > _RISE
    if not shows.any():
        return _NEVER
    curve = IsotonicRegression(y_min=0.0, y_max=1.0).fit(
        amount[shows], missed[shows] / rise[shows], sample_weight=rise[shows] ** 2
    )
    return np.stack([curve.X_thresholds_, curve.y_thresholds_])


def _relative(rows: Floats, floor: float) -> Floats:
    base = floor + rows[:, 0]
    relative: Floats = np.c_[
        rows[:, 1:_TRIED] / base[:, None],
        rows[:, -1],
        np.log(base),
        np.log1p(rows[:, 3]),
        np.log(rows[:, 0] / np.maximum(rows[:, 1], 1e-6)),
    ]
    return relative


TABLE_FEATURES = (
    "faketensor_est_mb",
    "faketensor_fwd_mb",
    "faketensor_bwd_mb",
    "gmacs",
    "macts",
    "param_count",
    "img_size",
    "batch_size",
)


def table_features(table: pl.DataFrame) -> Floats:
    """TABLE_FEATURES of a table, NaN where it has no such column or value."""
    if "batch_size" not in table.columns:
        raise UserError("a table for memory needs the column batch_size")
    known = [c for c in ("faketensor_est_mb", "macts", "param_count") if c in table.columns]
    if not known:
        raise UserError(
            "the table has no usable columns for memory: it needs batch_size and at least one of "
            "model, faketensor_est_mb, macts, param_count"
        )
    columns = [
        table[name].cast(pl.Float64, strict=False).to_numpy()
        if name in table.columns
        else np.full(table.height, np.nan)
        for name in TABLE_FEATURES
    ]
    return np.array(columns, np.float64).T


class TableMemoryEstimator(Estimator):
    """MiB from TABLE_FEATURES, when there is no graph: one model for rows with a tracer's
    estimate, one for rows without."""

    def __init__(self, iterations: int = 300, folds: int = 10, seed: int = 0) -> None:
        self.iterations = iterations
        self.folds = folds
        self.seed = seed

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> Self:
        """Learn floors and factors from measured jobs with all columns."""
        rows, truth = np.asarray(X, np.float64), np.asarray(y, np.float64)
        self.floor_, self.residual_ = {}, {}
        for way, optional in _WAYS.items():
            seen = _seen(rows, way)
            self.floor_[way] = _floor(_tensors(seen), truth)
            self.residual_[way] = LogResidual(
                self.iterations, optional=optional, folds=self.folds, seed=self.seed
            ).fit(self._inside(seen, way), truth, groups, base=self._base(seen, way))
        return self

    def predict_interval(self, X: npt.ArrayLike) -> Floats:
        """p10, p50, p90; wider the more is absent."""
        self._check_fitted("residual_")
        rows = np.asarray(X, np.float64)
        out = np.empty((len(rows), 3))
        traced = ~np.isnan(rows[:, 0])
        for way, here in (("traced", traced), ("totals", ~traced)):
            if here.any():
                seen = _seen(rows[here], way)
                out[here] = self.residual_[way].predict_interval(
                    self._inside(seen, way), base=self._base(seen, way)
                )
        return out

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        for way in _WAYS:
            arrays[f"{way}.floor"] = np.array(self.floor_[way])
            arrays |= prefixed(f"{way}.residual", self.residual_[way].to_arrays())
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> TableMemoryEstimator:
        """The estimator in these arrays."""
        made = cls()
        made.floor_ = {way: float(arrays[f"{way}.floor"]) for way in _WAYS}
        made.residual_ = {
            way: LogResidual.from_arrays(under(f"{way}.residual", arrays)) for way in _WAYS
        }
        return made

    def _base(self, rows: Floats, way: str) -> Floats:
        base: Floats = self.floor_[way] + _tensors(rows)
        return base

    def _inside(self, rows: Floats, way: str) -> Floats:
        tracer, forward, backward, macs, acts, params, size, batch = rows.T
        base = self._base(rows, way)
        traced = [forward / base, backward / base, tracer / base] if way == "traced" else []
        columns = [
            np.log(base),
            np.log(batch),
            *traced,
            params * 4 / base,
            np.log(params),
            macs * batch / base,
            acts * batch * 4 / base,
            np.log(size),
            np.log(macs / acts),
            np.log(acts / params),
        ]
        return np.stack(columns, axis=1)


_WAYS: dict[str, list[list[int]]] = {
    "traced": [[5, 6], [7, 8, 9, 10, 11]],
    "totals": [[4, 6, 7], [2, 3, 8]],
}
"""Which columns of `_inside` may be absent together, by whether there is a tracer's estimate."""


def _seen(rows: Floats, way: str) -> Floats:
    """The rows without the columns that a way does not look at."""
    seen = rows.copy()
    if way == "totals":
        seen[:, :3] = np.nan
    return seen


def _tensors(rows: Floats) -> Floats:
    """MiB of tensors: a tracer's estimate, else what totals suggest."""
    tracer, acts, params, batch = rows[:, 0], rows[:, 4], rows[:, 5], rows[:, 7]
    million = 1e6 * 4 / MIB
    weights = np.nan_to_num(params) * million * 2
    totals = weights + np.nan_to_num(acts, nan=10.0) * batch * million * 1.8
    return np.where(np.isnan(tracer), totals, tracer)


def largest_batch(
    estimator: MemoryEstimator, graph: OpGraph, room_mib: float, most: int = 1 << 20
) -> int:
    """The largest batch whose p90 stays within so much memory, to half a percent; 0 if not even
    one sample does."""

    def over(batch: int) -> float:
        row = memory_features(graph, batch)
        return float(estimator.needs(row[None, :])[0, 2] - room_mib)

    low, spare = 1, over(1)
    if spare > 0:
        return 0
    high = min(64, most)
    excess = over(high)
    while excess <= 0 and high < most:
        # nearly a straight line in the batch: aim a little beyond where it meets the room
        slope = max((excess - spare) / max(high - low, 1), 1e-9)
        low, spare, high = high, excess, min(most, int(high - 1.02 * excess / slope) + 1)
        excess = over(high)
    if excess <= 0:
        return high
    aim = True
    while high - low > max(1, low // 200):
        share = (
            spare / (spare - excess) if aim else 0.5
        )  # by turns: a curve would defeat one alone
        middle = min(max(low + round(share * (high - low)), low + 1), high - 1)
        aim = not aim
        beyond = over(middle)
        if beyond <= 0:
            low, spare = middle, beyond
        else:
            high, excess = middle, beyond
    return low
