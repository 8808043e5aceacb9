"""GPU memory of a training job from a few totals or a tracer's estimate, where there is no graph.

Learned from one lab's runs of image models; the fewer columns a table has, the wider the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from presage.foresee.allocator import MIB
from presage.learn import Estimator, Floats
from presage.learn.bundle import prefixed, under
from presage.learn.residual import LogResidual
from presage.model.errors import UserError

if TYPE_CHECKING:
    import polars as pl

__all__ = ["TABLE_FEATURES", "TableMemoryEstimator", "floor_of", "table_features"]

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
    import polars as pl  # when it is needed: it takes longer than an answer

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
            self.floor_[way] = floor_of(_tensors(seen), truth)
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


def floor_of(reserved: Floats, truth: Floats) -> float:
    """What is used beside tensors: the constant of a line through relative errors."""
    weights = 1 / truth
    design = np.c_[np.ones(len(truth)), reserved] * weights[:, None]
    (constant, _), *_ = np.linalg.lstsq(design, truth * weights, rcond=None)
    return float(max(0.0, constant))
