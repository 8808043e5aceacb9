"""How long a training step or an inference takes, foreseen from a graph.

`presage.foresee.roofline` answers everywhere. In one lab hundreds of models were measured on one
GPU with AMP: there, and for models like those, it is learned by which factor a plain roofline is
off, from features that are shares of it: as one factor for each class of operators, which holds
for unusual mixtures of them, and by trees that are told the outcome. With the distance from that
GPU, that precision and those models the trees fade. Totals of tables are in `steptime_totals`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from presage.foresee._operators import CLASSES, Operators
from presage.foresee.gpus import Gpu, find
from presage.foresee.graph.opgraph import KINDS, OpGraph
from presage.foresee.roofline import matrix_peak, plain_precision
from presage.foresee.roofline_steps import RooflineSteps, shipped_steps
from presage.model.setup import Setup
from presage.foresee.steptime_totals import (
    LATEST,
    TOTALS,
    Totals,
    TotalsStepTimeEstimator,
    totals,
    totals_features,
)
from presage.learn import Estimator, Floats
from presage.learn.bundle import prefixed, under
from presage.learn.evaluate import grouped_folds
from presage.learn.residual import LogResidual

__all__ = [
    "LATEST",
    "MEASURED_ON",
    "TOTALS",
    "Operators",
    "StepTimeEstimator",
    "Totals",
    "TotalsStepTimeEstimator",
    "class_factors",
    "step_feature_names",
    "step_features",
    "totals",
    "totals_features",
]

_LAUNCH_MS = 0.004
_DIRECT = 0.1
"""Share of the FP32 peak that is a depthwise convolution's: tensor cores are of no use to it, and
it reads about as much from the caches as it computes."""
_DENSE = ("conv", "pointwise", "depthwise", "grouped", "linear", "matmul", "attention")
_PHASES = ("forward", "backward")
_HALF = {"amp": 2, "amp-bf16": 2, "bf16": 2, "fp16": 2, "fp32": 4}


def step_feature_names() -> tuple[str, ...]:
    """The columns of `step_features`."""
    names = ["base_ms"]
    names += [f"{phase} {name} time" for phase in _PHASES for name in CLASSES]
    names += ["update time", "launches time"]
    for phase in _PHASES:
        for kind in KINDS:
            names += [f"{phase} {kind} {what}" for what in ("traffic", "writes", "count")]
        names += [f"{phase} {kind} arithmetic" for kind in _DENSE]
    for kind in _DENSE:
        names += [
            f"{kind} {what}" for what in ("reduction", "channels", "widest", "aligned", "narrow")
        ]
    return (*names, "scores", "reduction", "aligned", "few channels", "side")


_TIMES = slice(1, 3 + len(_PHASES) * len(CLASSES))
"""The columns of `step_features` that are shares of the base and add up to 1."""


def step_features(ops: Operators, batch: float, gpu: Gpu, precision: str = "amp") -> Floats:
    """One row: the roofline in ms, then shares of it and what tells how good kernels will be.

    Nothing here grows with the batch or the model by itself: each model was measured at the one
    batch that filled a GPU, and trees would take a small batch for the sign of a large model.
    """
    powers = np.power(float(batch), np.arange(3))
    macs, read, written = ops.macs @ powers, ops.read @ powers, ops.written @ powers
    peak, width = matrix_peak(gpu, precision), _HALF.get(plain_precision(precision), 4)
    bandwidth = gpu.bandwidth_gbs * 1e9
    direct = min(peak, _DIRECT * gpu.fp32_tflops * 1e12)
    compute = 2e3 * macs / np.where(ops.kind == KINDS.index("depthwise"), direct, peak)
    traffic = 1e3 * (read + written) * width / bandwidth
    writes = 1e3 * written * width / bandwidth
    each = np.maximum(np.maximum(compute, traffic), _LAUNCH_MS)
    time = each * ops.count
    base = time.sum()
    out = [base, *_class_times(ops, each) / base]
    slot = ops.kind + len(KINDS) * ops.phase
    size = len(KINDS) * 3
    sums = [
        np.bincount(slot, values * ops.count, minlength=size) / base
        for values in (traffic, writes, np.full(len(slot), _LAUNCH_MS), compute)
    ]
    for phase in range(2):
        begin = phase * len(KINDS)
        for kind in range(len(KINDS)):
            out += [column[begin + kind] for column in sums[:3]]
        out += [sums[3][begin + KINDS.index(kind)] for kind in _DENSE]
    reduction = np.log(np.maximum(macs / np.maximum(written, 1), 1))
    forward = ops.phase == 0
    for name in _DENSE:
        here = forward & (ops.kind == KINDS.index(name))
        weight = time[here]
        total = weight.sum()
        if not total:
            out += [0.0, 0.0, 0.0, 1.0, 0.0]
            continue
        usable = np.minimum(1, np.exp(reduction[here]) / 256) * np.minimum(
            1, ops.channels[here] / 128
        )
        out += [
            (reduction[here] * weight).sum() / total,
            (np.log(np.maximum(ops.channels[here], 1)) * weight).sum() / total,
            reduction[here].max(),
            ((ops.channels[here] % 8 == 0) * weight).sum() / total,
            (compute[here] * ops.count[here] / np.maximum(usable, 1e-3)).sum() / base,
        ]
    attention = ops.kind == KINDS.index("attention")
    scores = macs[attention] / np.maximum(2 * ops.channels[attention], 1) * ops.count[attention]
    done = macs * ops.count
    all_macs = done.sum() + 1
    out += [
        1e3 * scores.sum() * width / bandwidth / base,
        (reduction * done).sum() / all_macs,
        (done * (ops.channels % 8 == 0)).sum() / all_macs,
        (done * (ops.channels < 64)).sum() / all_macs,
        (np.log1p(ops.side) * done).sum() / all_macs,
    ]
    return np.array(out, np.float64)


def _class_times(ops: Operators, each: Floats) -> Floats:
    """Time of each class forward and backward, of the update, and of what is all launch."""
    update, launches = len(_PHASES) * len(CLASSES), len(_PHASES) * len(CLASSES) + 1
    slot = np.where(ops.phase < len(_PHASES), ops.classes() + ops.phase * len(CLASSES), update)
    slot[each <= 1.1 * _LAUNCH_MS] = launches
    return np.asarray(np.bincount(slot, each * ops.count, minlength=launches + 1), np.float64)


_USUAL, _SHRINK, _FAR = 0.6, 5e-5, 0.15
"""Of `class_factors`: the centre and the weight of its ridge penalty, and where Huber's loss turns
from quadratic to linear."""


def class_factors(shares: Floats, factor: Floats) -> Floats:
    """Logarithms of what to multiply each class of operators with, so that their times add up to
    the measured one: the rows of `shares` add up to `factor` (a logarithm too) then.

    Gauss–Newton with Huber's loss and a ridge penalty.
    """
    logs = np.full(shares.shape[1], _USUAL)
    for _ in range(15):
        parts = shares * np.exp(logs)
        total = parts.sum(axis=1, keepdims=True)
        slope, error = parts / total, factor - np.log(total[:, 0])
        weight = np.minimum(1.0, _FAR / np.maximum(np.abs(error), 1e-9)) / len(factor)
        square = slope.T @ (slope * weight[:, None]) + _SHRINK * np.eye(len(logs))
        toward = slope.T @ (error * weight) - _SHRINK * (logs - _USUAL)
        step = np.clip(np.linalg.solve(square, toward), -0.7, 0.7)
        logs = np.clip(logs + step, -2.0, 5.0)
        if np.abs(step).max() < 1e-3:
            break
    return logs


def _with_sum(rows: Floats, factors: Floats) -> Floats:
    """What the trees see: the features, and what the factors of the classes add up to."""
    seen: Floats = np.c_[rows[:, 1:-1], np.log(rows[:, _TIMES] @ np.exp(factors))]
    return seen


class StepTimeEstimator(Estimator):
    """Milliseconds of a training step from `step_features` and a column that is 1 for nhwc."""

    def __init__(
        self, iterations: int = 300, forest: int = 100, folds: int = 10, seed: int = 0
    ) -> None:
        self.iterations = iterations
        self.forest = forest
        self.folds = folds
        self.seed = seed

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> Self:
        """Learn from measured steps; each layout has a model of its own."""
        rows, truth = np.asarray(X, np.float64), np.asarray(y, np.float64)
        families = np.arange(len(truth)) if groups is None else np.asarray(groups)
        self.factors_: dict[str, Floats] = {}
        self.residual_: dict[str, LogResidual] = {}
        self.out_of_fold_ = np.empty(len(truth))
        for layout, here in _layouts(rows):
            mine, members = rows[here], families[here]
            factor = np.log(truth[here] / mine[:, 0])
            model = LogResidual(
                iterations=self.iterations,
                learning_rate=0.05,
                leaves=8,
                least=6,
                share=0.3,
                forest=self.forest,
                folds=self.folds,
                seed=self.seed,
            ).fit(self._unseen(mine, factor, members), truth[here], members, base=mine[:, 0])
            self.factors_[layout] = class_factors(mine[:, _TIMES], factor)
            self.residual_[layout] = model
            self.out_of_fold_[here] = model.out_of_fold_
        self.typical_ = np.median(rows, axis=0)
        self.reach_ = np.quantile(rows[:, _TIMES], _REACH, axis=0)
        return self

    def _unseen(self, rows: Floats, factor: Floats, families: npt.NDArray[Any]) -> Floats:
        """What the trees learn from: sums that were made without the family of the row, so that
        they are as good as those of a family nobody has seen."""
        folds = min(self.folds, len(np.unique(families)))
        fold = grouped_folds(families, folds, self.seed)
        out = np.empty((len(rows), rows.shape[1] - 1))
        for n in range(folds):
            test = fold == n
            out[test] = _with_sum(rows[test], class_factors(rows[~test, _TIMES], factor[~test]))
        return out

    def predict_interval(self, X: npt.ArrayLike) -> Floats:
        """p10, p50, p90."""
        self._check_fitted("residual_")
        rows = np.asarray(X, np.float64)
        out = np.empty((len(rows), 3))
        for layout, here in _layouts(rows):
            known = layout if layout in self.residual_ else next(iter(self.residual_))
            seen = _with_sum(rows[here], self.factors_[known])
            out[here] = self.residual_[known].predict_interval(seen, base=rows[here, 0])
        return out

    def quantiles(
        self,
        model: OpGraph | Operators,
        batch: float,
        gpu: Gpu,
        setup: Setup,
        steps: RooflineSteps | None = None,
    ) -> Floats:
        """p10, p50, p90 in milliseconds of a step (all its micro-batches) or an inference on one
        GPU; `steps` is the shipped roofline unless another is given."""
        known = steps or shipped_steps()
        ops, asked = _asked(model, setup)
        far = np.log(known.quantiles(ops, batch, gpu, asked))
        inside = self.inside(ops, batch, gpu, asked)
        if inside <= 0.0:
            return np.asarray(np.exp(far))
        near = np.log(self.predict_interval(_row(ops, batch, gpu, asked)[None, :])[0])
        return np.asarray(np.exp(inside * near + (1.0 - inside) * far))

    def domain(
        self,
        model: OpGraph | Operators,
        batch: float,
        gpu: Gpu,
        setup: Setup,
        steps: RooflineSteps | None = None,
    ) -> tuple[float, str]:
        """How far from what was measured: 0 to 1, and in words."""
        ops, asked = _asked(model, setup)
        distance = (steps or shipped_steps()).distance(ops, batch, gpu, asked)
        inside = self.inside(ops, batch, gpu, asked)
        if inside > 0.5:
            words = "hundreds of models like it were measured there"
            return (1.0 - inside) * distance.value, words
        return distance.value, distance.words

    def inside(self, ops: Operators, batch: float, gpu: Gpu, setup: Setup) -> float:
        """How much the trees are asked, 0 to 1: for the GPU they know or one that is like it, with
        AMP, and for a step that fills the GPU with operators such as they have seen."""
        plain = setup.accumulate == 1 and setup.checkpoint == "none" and not setup.compile
        amp = plain_precision(setup.precision) == "amp"
        if not (amp and plain) or setup.inference or setup.attention == "eager":
            return 0.0
        row = _row(ops, batch, gpu, setup)
        strange = float(np.maximum(row[_TIMES] - self.reach_, 0.0).sum())
        full = 1.0 / (1.0 + (_FULL_MS / max(row[0], 1e-9)) ** 4)
        return float(_like_the_measured(gpu) * np.exp(-strange / _STRANGE) * full)

    def mattered(
        self, model: OpGraph | Operators, batch: float, gpu: Gpu, setup: Setup
    ) -> dict[str, float]:
        """What moved the answer of the trees, as factors; nothing where they are not asked."""
        ops, asked = _asked(model, setup)
        if self.inside(ops, batch, gpu, asked) <= 0.0:
            return {}
        return self.explain(_row(ops, batch, gpu, asked))

    def explain(self, row: Floats) -> dict[str, float]:
        """The features that moved the answer most away from the roofline, as factors."""
        names = step_feature_names()
        columns = 1 + np.flatnonzero(row[1:-1] != self.typical_[1:-1])
        changed = np.repeat(row[None, :], len(columns) + 1, axis=0)
        changed[np.arange(len(columns)) + 1, columns] = self.typical_[columns]
        answers = np.log(self.predict_interval(changed)[:, 1])
        moved = answers[0] - answers[1:]
        order = np.argsort(-np.abs(moved))[:5]
        return {names[columns[i]]: float(np.exp(moved[i])) for i in order if moved[i]}

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        arrays: dict[str, npt.NDArray[Any]] = {"typical": self.typical_, "reach": self.reach_}
        for layout, model in self.residual_.items():
            arrays |= prefixed(layout, {"factors": self.factors_[layout], **model.to_arrays()})
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> StepTimeEstimator:
        """The estimator in these arrays."""
        made = cls()
        made.typical_ = arrays["typical"]
        made.reach_ = arrays["reach"] if "reach" in arrays else made.typical_[_TIMES]
        parts = {layout: under(layout, arrays) for layout in ("nchw", "nhwc")}
        made.factors_ = {layout: part["factors"] for layout, part in parts.items() if part}
        made.residual_ = {
            layout: LogResidual.from_arrays(part) for layout, part in parts.items() if part
        }
        return made


MEASURED_ON = "rtx3090"
_REACH = 0.995
"""Quantile of the shares that a class of operators had in measured steps: beyond is strange."""
_STRANGE, _ALIKE = 0.1, 0.3
"""Strange share of a step, and difference of the logarithms of GPUs' intensities, at which the
trees have faded to about a third."""
_FULL_MS = 20.0
"""Roofline of a step that fills a GPU, as all measured steps did."""


def _like_the_measured(gpu: Gpu) -> float:
    """1 for the GPU that was measured; less for others of its generation, the more arithmetic and
    memory differ; 0 for other generations."""
    known = find(MEASURED_ON)
    if gpu.architecture != known.architecture:
        return 0.0
    mine, theirs = (matrix_peak(g, "amp") / g.bandwidth_gbs for g in (gpu, known))
    return float(np.exp(-((np.log(mine / theirs) / _ALIKE) ** 2)))


def _asked(model: OpGraph | Operators, setup: Setup) -> tuple[Operators, Setup]:
    """The operators of a graph; what it was traced with is not computed twice."""
    if isinstance(model, Operators):
        return model, setup
    asked = replace(setup, inference=setup.inference or bool(model.options.get("inference")))
    if model.options.get("checkpointing"):
        asked = replace(asked, checkpoint="none")
    return Operators.of(model), asked


def _row(ops: Operators, batch: float, gpu: Gpu, setup: Setup) -> Floats:
    """What the trees are told."""
    features = step_features(ops, batch, gpu, plain_precision(setup.precision))
    return np.append(features, float(setup.layout == "nhwc"))


def _layouts(rows: Floats) -> list[tuple[str, npt.NDArray[np.bool_]]]:
    last = rows[:, -1] > 0.5
    return [(name, mask) for name, mask in (("nchw", ~last), ("nhwc", last)) if mask.any()]
