"""GPU utilization of a training job, foreseen from its network, its batch and its GPU.

A model of a training step carries the estimate: kernels keep the GPU busy, launching them and
feeding samples keeps it waiting, and utilization is the share of the step in which it is busy. Its
few constants are fitted. A forest then learns what that model gets wrong, and is believed only as
far as a job resembles those it was fitted on; anywhere else the step model answers alone, with an
interval that is three times as wide. That is for nets like those it was fitted on; of a real job,
whose host and input pipeline nobody knows, `JobUtilization` tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from presage.foresee._jobsteps import JobUtilization
from presage.foresee._realjobs import read_miso_jobs
from presage.foresee._workloads import (
    Features,
    InputPipeline,
    LayerClass,
    TrainingProfile,
    families_of,
    features_of,
    names_of,
    profile_of,
    usable_rows,
    utilization_of,
)
from presage.learn import Estimator, Floats, sklearn_ensemble
from presage.learn.bundle import load_bundle, prefixed, under
from presage.learn.conformal import Conformal
from presage.learn.evaluate import coverage, grouped_folds, rmsle1p
from presage.learn.trees import TreeEnsemble
from presage.model.errors import UserError

if TYPE_CHECKING:
    pass

__all__ = [
    "Features",
    "InputPipeline",
    "JobUtilization",
    "LayerClass",
    "TrainingProfile",
    "UtilizationEstimator",
    "families_of",
    "features_of",
    "fit_shipped",
    "names_of",
    "profile_of",
    "usable_rows",
    "utilization_of",
]

# The constants of a step, with the values they have until data says otherwise. Kernels and
# launches: the order of magnitude of a small CUDA kernel and of a PyTorch operator. Samples: what
# the training process itself pays when loader workers prepare batches for it. That is the one
# value that matters where data cannot tell: fitted on CNNs, the error on MLPs is 0.22 to 0.35 for
# 0.25 to 4 µs a sample, and the value was settled after this was seen.
_CONSTANTS = {
    "compute": 1.0,  # share of the FP32 peak that kernels reach; tensor cores can exceed 1
    "bandwidth": 0.65,  # share of the peak bandwidth that kernels reach
    "kernel_s": 5e-6,  # the least a kernel keeps the GPU busy
    "update": 6.0,  # passes over the parameters in an optimizer step
    "step_s": 1e-3,  # what the host needs for a step, whatever the network
    "launch_s": 1e-5,  # and for each kernel
    "weight_s": 2e-5,  # and for each layer with parameters
    "element_s": 5e-10,  # and for each element of the input
    "vector_s": 1e-6,  # and for each sample, by pipeline
    "image_s": 1e-6,
    "environment_s": 1e-4,
    "at_most": 0.9,  # share of a run in which steps run at all
    "half": 2.0,  # how much faster matrix units are in half precision
    "cast": 1.3,  # how many more kernels there are in half precision
}
_KERNELS = np.array([3.0, 4.0, 2.0, 2.0])
"""Kernels of a layer in forward and backward pass, by `LayerClass`."""

_TRUST = 0.5
"""Share of the step model that the forest starts from: all of it where that model is good and
nothing where it is not would be best, and half does well in both cases."""

_ROWS_OF_FULL_TREES = 500
"""Up to twice as many rows, trees grow until each leaf is one row; then leaves grow with the
rows, or the bundle would."""

_FITTING = "fitting the utilization estimator"
_SHARPNESS = 4.0
"""Of the smooth maximum of the GPU's and the host's time: they overlap, but not perfectly."""

FEATURES = (
    "macs",
    "params",
    "activations",
    "input",
    "batch",
    "pipeline",
    "n_conv",
    "n_linear",
    "n_activation",
    "n_other",
    "macs × batch",
    "activations × batch",
    "half precision",
    "peak FLOP/s",
    "bandwidth",
    "step model: utilization",
    "step model: launching",
    "step model: feeding",
)


class UtilizationEstimator(Estimator):
    """GPU utilization in percent, for `Features`.

    `groups` in `fit` name the families of the rows. They decide how far the forest is to be
    believed (by how well it does on families left out) and the width of the intervals.
    """

    def __init__(
        self, trees: int = 200, folds: int = 5, pull: float = 0.05, seed: int = 0
    ) -> None:
        self.trees = trees
        self.folds = folds
        self.pull = pull
        self.seed = seed

    def fit(self, X: Features, y: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> Self:
        """Learn from workloads and their measured utilization in percent."""
        target = np.asarray(y, np.float64)
        if len(X) != target.size or len(X) < 2 * self.folds:
            raise UserError(
                f"fitting needs one utilization for each of at least {2 * self.folds} workloads"
            )
        if not np.all((target >= 0) & (target <= 100)):
            raise UserError("utilization is given in percent, 0 to 100")
        sklearn_ensemble(_FITTING)  # or an error that says how to get it
        families = np.arange(len(X)) if groups is None else np.asarray(groups)
        held_out = np.empty((3, len(X)))  # step model, correction by the forest, difficulty
        fold_of = grouped_folds(families, min(self.folds, np.unique(families).size), self.seed)
        for fold in range(fold_of.max() + 1):
            test = fold_of == fold
            self._fit_parts(X[~test], target[~test])
            held_out[:, test] = self._parts(X[test])
        base, correction, difficulty = held_out
        power = float(correction @ correction)
        agreement = float(correction @ (np.log1p(target) - base))
        self.belief_ = float(np.clip(agreement / power, 0, 1)) if power > 0 else 0.0
        foreseen = np.clip(np.expm1(base + self.belief_ * correction), 0, 100)
        self.conformal_ = Conformal.fit(target, foreseen, groups, difficulty, space="log1p")
        interval = np.clip(self.conformal_.interval(foreseen, difficulty), 0, 100)
        self.held_out_ = {
            "rmsle1p": rmsle1p(target, foreseen),
            "coverage": coverage(target, interval),
        }
        self._fit_parts(X, target)
        return self

    def predict_interval(self, X: Features) -> Floats:
        """p10, p50 and p90 in percent, as three columns."""
        self._check_fitted("belief_")
        base, correction, difficulty = self._parts(X)
        middle = np.expm1(base + self.belief_ * correction)
        interval = self.conformal_.interval(middle, difficulty)
        interval[:, 1] = middle
        return np.clip(np.sort(interval, axis=1), 0.0, 100.0)

    def base(self, X: Features) -> Floats:
        """What the step model says alone, as log(1 + percent)."""
        self._check_fitted("constants_")
        return np.asarray(np.log1p(_step(self.constants_, X)[0]))

    def explain(self, X: Features) -> list[dict[str, float]]:
        """For each row, what the step model says and how each feature moved the estimate.

        `step model` is in percent; the others tell by how many percent points the estimate would
        change if the forest saw that feature at its middle value in the training set.
        """
        self._check_fitted("belief_")
        table, base, known = self._table(X), self.base(X), self._resemblance(self._table(X))
        now = base + self.belief_ * self._correction(table, base) * known
        explained = [{"step model": float(value)} for value in np.expm1(base)]
        for column, name in enumerate(FEATURES):
            hidden = table.copy()
            hidden[:, column] = self.middle_[column]
            without = base + self.belief_ * self._correction(hidden, base) * known
            for row, change in zip(explained, np.expm1(now) - np.expm1(without), strict=True):
                row[name] = float(change)
        return explained

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        self._check_fitted("belief_")
        return {
            "constants": self.constants_,
            "range": self.range_,
            "middle": self.middle_,
            "belief": np.array(self.belief_),
            **prefixed("forest", self.forest_.to_arrays()),
            **prefixed("conformal", self.conformal_.to_arrays()),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> UtilizationEstimator:
        """A fitted estimator; needs no scikit-learn."""
        fitted = cls()
        try:
            fitted.constants_ = np.asarray(arrays["constants"], np.float64)
            fitted.range_ = np.asarray(arrays["range"], np.float64)
            fitted.middle_ = np.asarray(arrays["middle"], np.float64)
            fitted.belief_ = float(arrays["belief"])
        except (KeyError, TypeError, ValueError) as wrong:
            raise UserError(f"the bundle holds no utilization estimator: {wrong}") from None
        fitted.forest_ = TreeEnsemble.from_arrays(under("forest", arrays))
        fitted.conformal_ = Conformal.from_arrays(under("conformal", arrays))
        shapes = (fitted.constants_.shape, fitted.range_.shape, fitted.middle_.shape)
        expected = ((len(_CONSTANTS),), (2, len(FEATURES)), (len(FEATURES),))
        if shapes != expected or fitted.forest_.n_features != len(FEATURES):
            raise UserError("the bundle holds no utilization estimator of this version")
        return fitted

    @classmethod
    def from_bundle(cls, path: Path) -> UtilizationEstimator:
        """The estimator in a bundle file."""
        return cls.from_arrays(load_bundle(path)[0])

    def _fit_parts(self, X: Features, target: Floats) -> None:
        self.constants_ = _fit_constants(X, target, self.pull)
        table = self._table(X)
        self.range_ = np.stack([table.min(axis=0), table.max(axis=0)])
        self.middle_ = np.median(table, axis=0)
        missing = np.log1p(target) - _TRUST * self.base(X)
        forest = sklearn_ensemble(_FITTING).ExtraTreesRegressor(
            self.trees,
            max_features=0.5,
            min_samples_leaf=max(1, len(X) // _ROWS_OF_FULL_TREES),
            random_state=self.seed,
        )
        self.forest_ = TreeEnsemble.from_sklearn(forest.fit(table, missing))

    def _parts(self, X: Features) -> tuple[Floats, Floats, Floats]:
        """In log space the step model and the forest's correction to it; and the difficulty."""
        table, base = self._table(X), self.base(X)
        known = self._resemblance(table)
        return base, self._correction(table, base) * known, 3.0 - 2.0 * known

    def _correction(self, table: Floats, base: Floats) -> Floats:
        return self.forest_.predict(table) - (1 - _TRUST) * base

    def _resemblance(self, table: Floats) -> Floats:
        """1 within the ranges of the training set; falls by e for each span a row is outside."""
        low, high = self.range_
        outside = np.maximum(np.maximum(low - table, table - high), 0)
        spans = np.sum(outside / np.maximum(high - low, np.log(2)), axis=1)
        return np.asarray(np.exp(-spans))

    def _table(self, X: Features) -> Floats:
        """`FEATURES` for each row, as logarithms."""
        kinds, macs, _, out, params = X.layers.T
        batch, elements, pipeline, half, peak, bandwidth = X.rows.T[:6]
        total_macs, total_out = X.total(macs), X.total(out)
        utilization, step, launching, feeding = _step(self.constants_, X)
        table = np.column_stack(
            [
                total_macs,
                X.total(params),
                total_out,
                elements,
                batch,
                pipeline,
                *(X.total(kinds == kind) for kind in LayerClass),
                total_macs * batch,
                total_out * batch,
                half,
                peak,
                bandwidth,
                utilization,
                launching / step,
                feeding / step,
            ]
        )
        return np.asarray(np.log1p(table))


def _step(constants: Floats, X: Features) -> tuple[Floats, Floats, Floats, Floats]:
    """Utilization in percent, and seconds of a whole step, of launching and of feeding."""
    c = dict(zip(_CONSTANTS, constants, strict=True))
    kinds, macs, into, out, params = X.layers.T
    batch, elements, pipeline, half, peak, bandwidth = X.rows.T[:6]
    at = X.owner
    width = 4.0 - 2.0 * half  # bytes of an element
    flops = peak * c["compute"] * np.where(half > 0, c["half"], 1.0)
    moved = bandwidth * c["bandwidth"]
    kernels = _KERNELS[kinds.astype(np.intp)] * np.where(half > 0, c["cast"], 1.0)[at]
    # The backward pass costs twice the forward pass; a multiply-accumulate is two operations.
    compute = 6 * macs * batch[at] / flops[at]
    traffic = 3 * width[at] * ((into + out) * batch[at] + params) / moved[at]
    busy = X.total(np.maximum(compute, traffic) + c["kernel_s"] * kernels)
    busy += 4 * c["update"] * X.total(params) / moved
    launching = (
        c["step_s"] + c["launch_s"] * X.total(kernels) + c["weight_s"] * X.total(params > 0)
    )
    sample = np.array([c["vector_s"], c["image_s"], c["environment_s"]])
    feeding = batch * (sample[pipeline.astype(np.intp)] + c["element_s"] * elements)
    step = (busy**_SHARPNESS + launching**_SHARPNESS) ** (1 / _SHARPNESS) + feeding
    return 100 * np.minimum(c["at_most"], 1.0) * busy / step, step, launching, feeding


def _fit_constants(X: Features, target: Floats, pull: float) -> Floats:
    """Robust least squares on log utilization; `pull` holds what the data does not determine."""
    import scipy.optimize  # comes with scikit-learn

    known = np.log(list(_CONSTANTS.values()))

    def errors(moved: Floats) -> Floats:
        foreseen = _step(np.exp(known + moved), X)[0]
        return np.concatenate([np.log1p(foreseen) - np.log1p(target), pull * moved])

    # Searched as a distance from what is known: from 0 the solver takes short first steps, and
    # long ones end where every constant is absurd and no direction leads back.
    fit = scipy.optimize.least_squares(
        errors, np.zeros(known.size), loss="soft_l1", f_scale=0.1, max_nfev=200
    )
    return np.asarray(np.exp(known + fit.x), np.float64)


SHIPPED = ("gpumemnet_cnn_a100", "gpumemnet_mlp_a100", "miso_util_a100")
"""Tables whose licences allow to ship what is fitted on them."""


def read_profiles(data_dir: Path, names: tuple[str, ...]) -> tuple[Features, Floats, Any]:
    """Features, utilization and families of tables under `profiles/`."""
    import polars as pl  # when it is needed: it takes longer than an answer

    parts, targets, families = [], [], []
    for name in names:
        table = usable_rows(pl.read_parquet(data_dir / "profiles" / f"{name}.parquet"))
        parts.append(features_of(table))
        targets.append(utilization_of(table))
        families.append(families_of(table))
    return Features.joined(parts), np.concatenate(targets), np.concatenate(families)


def fit_shipped(data_dir: Path, date: str) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """The arrays and the card of the estimators that are shipped, for profiles like those of the
    tables and, under `jobs`, for real jobs; `date` is written on the card."""
    X, y, families = read_profiles(data_dir, SHIPPED)
    fitted = UtilizationEstimator().fit(X, y, families)
    real = read_miso_jobs(data_dir)
    jobs = JobUtilization(folds=8).fit(real.X, real.util_pct, real.models)
    errors = fitted.held_out_ | {"jobs_rmsle1p": rmsle1p(real.util_pct, jobs.held_out_)}
    card = {
        "name": "utilization",
        "version": "2",
        "date": date,
        "data": "GPUMemNet (itu-rad/GPUMemNet), MISO (boringlee24/socc22-miso)",
        "licence": "CC-BY-4.0, MIT",
        "features": list(FEATURES),
        "splits": f"{fitted.folds} folds without a family in training and test; {len(y)} rows, "
        f"{np.unique(families).size} families; jobs: each of {np.unique(real.models).size} models "
        f"left out, {len(real.util_pct)} rows of MISO",
        "errors": {name: round(value, 4) for name, value in errors.items()},
    }
    return fitted.to_arrays() | prefixed("jobs", jobs.to_arrays()), card
