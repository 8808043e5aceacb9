"""How long a training step or an inference takes, foreseen from a graph or from a few totals.

Both start from a roofline: an operator cannot be faster than its arithmetic at the GPU's peak, its
traffic at the GPU's bandwidth, or a launch. What is learned is by which factor the sum is off,
from features that are shares of that sum; so the answer moves with the specifications to GPUs that
were never measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import polars as pl

from presage.foresee.gpus import Gpu, find
from presage.foresee.graph.opgraph import KINDS, OpGraph
from presage.learn import Estimator, Floats
from presage.learn.bundle import prefixed, under
from presage.learn.residual import LogResidual
from presage.model.errors import UserError

__all__ = [
    "LATEST",
    "TOTALS",
    "Operators",
    "StepTimeEstimator",
    "TotalsStepTimeEstimator",
    "step_feature_names",
    "step_features",
    "totals",
    "totals_features",
]

_LAUNCH_MS = 0.004
_DENSE = ("conv", "pointwise", "depthwise", "grouped", "linear", "matmul", "attention")
_PHASES = ("forward", "backward")
_HALF = {"amp": 2, "amp_bf16": 2, "bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True, slots=True)
class Operators:
    """The operators of a step, like ones counted; sizes are polynomials in the batch."""

    kind: npt.NDArray[np.int64]
    phase: npt.NDArray[np.int64]
    count: Floats
    macs: Floats
    read: Floats
    written: Floats
    channels: Floats
    """Of the output: the second dimension of an image, else the last one."""
    side: Floats
    """Width of the output if it is an image, else 0."""
    params: float

    @classmethod
    def of(cls, graph: OpGraph) -> Operators:
        """Those of a graph; casts are left out, since the precision is asked for elsewhere."""
        kept = np.array([name != "_to_copy" for name in graph.operators], bool)
        channels = [abs(s[1]) if len(s) == 4 else abs(s[-1]) if s else 1 for s in graph.shapes]
        side = [abs(s[-1]) if len(s) == 4 else 0 for s in graph.shapes]
        rows = np.c_[
            graph.kind, graph.phase, graph.macs, graph.read, graph.written, channels, side
        ]
        unlike, count = np.unique(rows[kept], axis=0, return_counts=True)
        return cls.from_rows(np.c_[unlike, count], float(graph.params))

    @classmethod
    def from_rows(cls, rows: Floats, params: float) -> Operators:
        """From the columns that `rows` gives."""
        return cls(
            kind=rows[:, 0].astype(np.int64),
            phase=rows[:, 1].astype(np.int64),
            macs=rows[:, 2:5],
            read=rows[:, 5:8],
            written=rows[:, 8:11],
            channels=rows[:, 11],
            side=rows[:, 12],
            count=rows[:, 13],
            params=params,
        )

    def rows(self) -> Floats:
        """All columns as one table."""
        table: Floats = np.c_[
            self.kind,
            self.phase,
            self.macs,
            self.read,
            self.written,
            self.channels,
            self.side,
            self.count,
        ]
        return table


def step_feature_names() -> tuple[str, ...]:
    """The columns of `step_features`."""
    names = ["base_ms"]
    for phase in _PHASES:
        for kind in KINDS:
            names += [f"{phase} {kind} {what}" for what in ("time", "traffic", "writes", "count")]
        names += [f"{phase} {kind} arithmetic" for kind in _DENSE]
    names += ["update time"]
    for kind in _DENSE:
        names += [
            f"{kind} {what}" for what in ("reduction", "channels", "widest", "aligned", "narrow")
        ]
    return (*names, "scores", "reduction", "aligned", "few channels", "side", "launch bound")


def step_features(ops: Operators, batch: float, gpu: Gpu, precision: str = "amp") -> Floats:
    """One row: the roofline in ms, then shares of it and what tells how good kernels will be.

    Nothing here grows with the batch or the model by itself: each model was measured at the one
    batch that filled a GPU, and trees would take a small batch for the sign of a large model.
    """
    powers = np.power(float(batch), np.arange(3))
    macs, read, written = ops.macs @ powers, ops.read @ powers, ops.written @ powers
    peak, width = _peak(gpu, precision), _HALF.get(precision, 4)
    bandwidth = gpu.bandwidth_gbs * 1e9
    compute = 2e3 * macs / peak
    traffic = 1e3 * (read + written) * width / bandwidth
    writes = 1e3 * written * width / bandwidth
    each = np.maximum(np.maximum(compute, traffic), _LAUNCH_MS)
    time = each * ops.count
    base = time.sum()
    out = [base]
    slot = ops.kind + len(KINDS) * ops.phase
    size = len(KINDS) * 3
    sums = [
        np.bincount(slot, values, minlength=size)
        for values in (time, traffic * ops.count, writes * ops.count, ops.count * _LAUNCH_MS)
    ]
    arithmetic = np.bincount(slot, compute * ops.count, minlength=size)
    for phase in range(2):
        begin = phase * len(KINDS)
        for kind in range(len(KINDS)):
            out += [column[begin + kind] / base for column in sums]
        out += [arithmetic[begin + KINDS.index(kind)] / base for kind in _DENSE]
    out.append(sums[0][2 * len(KINDS) :].sum() / base)
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
        time[each <= 1.1 * _LAUNCH_MS].sum() / base,
    ]
    return np.array(out, np.float64)


def _peak(gpu: Gpu, precision: str) -> float:
    if precision in ("amp", "fp16"):
        return gpu.tflops("fp16") * 1e12
    if precision in ("bf16", "amp_bf16"):
        return gpu.tflops("bf16") * 1e12
    return gpu.tflops("fp32") * 1e12


class StepTimeEstimator(Estimator):
    """Milliseconds of a training step from `step_features` and a column that is 1 for nhwc."""

    def __init__(
        self, iterations: int = 400, forest: int = 150, folds: int = 10, seed: int = 0
    ) -> None:
        self.iterations = iterations
        self.forest = forest
        self.folds = folds
        self.seed = seed

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> Self:
        """Learn from measured steps; each layout has a model of its own."""
        rows, truth = np.asarray(X, np.float64), np.asarray(y, np.float64)
        families = np.arange(len(truth)) if groups is None else np.asarray(groups)
        self.residual_ = {}
        self.out_of_fold_ = np.empty(len(truth))
        for layout, here in _layouts(rows):
            inside = _inside(rows[here])
            model = LogResidual(
                iterations=self.iterations,
                learning_rate=0.04,
                leaves=8,
                least=6,
                share=0.3,
                forest=self.forest,
                folds=self.folds,
                seed=self.seed,
            ).fit(inside, truth[here], families[here], base=rows[here, 0])
            self.residual_[layout] = model
            self.out_of_fold_[here] = model.out_of_fold_
        self.typical_ = np.median(_inside(rows), axis=0)
        return self

    def predict_interval(self, X: npt.ArrayLike) -> Floats:
        """p10, p50, p90."""
        self._check_fitted("residual_")
        rows = np.asarray(X, np.float64)
        out = np.empty((len(rows), 3))
        for layout, here in _layouts(rows):
            model = self.residual_.get(layout) or next(iter(self.residual_.values()))
            out[here] = model.predict_interval(_inside(rows[here]), base=rows[here, 0])
        return out

    def explain(self, row: Floats) -> dict[str, float]:
        """The features that moved the answer most away from the roofline, as factors."""
        names = step_feature_names()[1:]
        layout = "nhwc" if row[-1] else "nchw"
        model = self.residual_.get(layout) or next(iter(self.residual_.values()))
        return model.mattered(_inside(row[None, :])[0], self.typical_, names)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        arrays: dict[str, npt.NDArray[Any]] = {"typical": self.typical_}
        for layout, model in self.residual_.items():
            arrays |= prefixed(layout, model.to_arrays())
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> StepTimeEstimator:
        """The estimator in these arrays."""
        made = cls()
        made.typical_ = arrays["typical"]
        made.residual_ = {
            layout: LogResidual.from_arrays(under(layout, arrays))
            for layout in ("nchw", "nhwc")
            if under(layout, arrays)
        }
        return made


def _layouts(rows: Floats) -> list[tuple[str, npt.NDArray[np.bool_]]]:
    last = rows[:, -1] > 0.5
    return [(name, mask) for name, mask in (("nchw", ~last), ("nhwc", last)) if mask.any()]


def _inside(rows: Floats) -> Floats:
    return rows[:, 1:-1]


TOTALS = ("gmacs", "macts", "param_count", "img_size", "batch_size")
_TRAFFIC = 6.0
"""Bytes that inference moves for each activation, over all operators, at half precision."""


def totals(table: pl.DataFrame) -> Floats:
    """TOTALS and settings of a table: NaN where it does not say."""
    if "batch_size" not in table.columns:
        raise UserError("a table for step_time needs the column batch_size")
    if not {"gmacs", "macts", "model"} & set(table.columns):
        raise UserError(
            "the table has no usable columns for step_time: it needs batch_size and at least one "
            "of model, gmacs, macts"
        )
    columns = [_numbers(table, name) for name in TOTALS]
    device = table["device"].to_list() if "device" in table.columns else ["rtx3090"] * table.height
    gpus = {name: _device(name) for name in set(device)}
    precision = table["dtype"].to_list() if "dtype" in table.columns else ["amp"] * table.height
    peak = [_peak_of(gpus[d], p) for d, p in zip(device, precision, strict=True)]
    bandwidth = [_bandwidth_of(gpus[d]) for d in device]
    layout = _flag(table, "layout", "nhwc")
    dynamo = _flag(table, "dynamo", True)
    brain = np.array(["bf16" in str(p) for p in precision], np.float64)
    pure = np.array([p in ("bf16", "fp16", "fp32") for p in precision], np.float64)
    release = _release(table)
    rows: Floats = np.c_[(*columns, peak, bandwidth, layout, dynamo, brain, pure, release)]
    return rows


def _numbers(table: pl.DataFrame, name: str) -> Floats:
    if name not in table.columns:
        return np.full(table.height, np.nan)
    return table[name].cast(pl.Float64, strict=False).fill_null(float("nan")).to_numpy().copy()


def _flag(table: pl.DataFrame, name: str, wanted: object) -> Floats:
    if name not in table.columns:
        return np.zeros(table.height)
    return np.array([value == wanted for value in table[name].to_list()], np.float64)


def release_of(text: str) -> float:
    """PyTorch's release as a number that grows: 113 for `pt113` and `1.13.1`, 209 for `pt291`."""
    major, dot, rest = text.removeprefix("pt").partition(".")
    if not dot:  # the last digit is a patch, from 2.0 on
        major, rest = major[:1], major[1:3] if major.startswith("1") else major[1:2]
    minor = rest.partition(".")[0]
    return 100.0 * int(major) + int(minor) if major.isdigit() and minor.isdigit() else LATEST


LATEST = 209.0
"""The newest release that was measured."""


def _release(table: pl.DataFrame) -> Floats:
    if "torch" not in table.columns:
        return np.full(table.height, LATEST)
    return np.array([release_of(str(text)) for text in table["torch"].to_list()])


_CPU_PEAK, _CPU_BANDWIDTH = 1.0e12, 50e9


def _device(name: str) -> Gpu | None:
    """A GPU of the catalogue; a CPU is none."""
    if name.lower().startswith(("i3", "i5", "i7", "i9", "xeon", "epyc", "ryzen", "cpu")):
        return None
    return find(name)


def _peak_of(gpu: Gpu | None, precision: str) -> float:
    return _CPU_PEAK if gpu is None else _peak(gpu, precision)


def _bandwidth_of(gpu: Gpu | None) -> float:
    return _CPU_BANDWIDTH if gpu is None else gpu.bandwidth_gbs * 1e9


def totals_features(rows: Floats) -> tuple[Floats, Floats]:
    """Features and the base in ms of rows of `totals`; a gap is filled by what is typical."""
    macs, acts, params, size, batch, peak, bandwidth, *settings = rows.T
    guess_acts = np.where(np.isnan(acts), np.nan_to_num(macs, nan=4.0) ** 0.7 * 5, acts)
    guess_macs = np.where(np.isnan(macs), (guess_acts / 5) ** (1 / 0.7), macs)
    weights = np.nan_to_num(params, nan=25.0)
    compute = 2e12 * guess_macs * batch / peak
    traffic = 1e3 * (guess_acts * 1e6 * batch * _TRAFFIC + weights * 2e6) / bandwidth
    columns = [
        np.log(batch),
        np.log(macs),
        np.log(acts),
        np.log(params),
        np.log(acts / params),
        np.log(macs / acts),
        size,
        *settings,
    ]
    return np.stack(columns, axis=1), compute + traffic


_ABSENT = [[1, 5], [2, 4], [3], [6]]
"""Columns of `totals_features` that may be absent together: macs, activations, params, size."""


class TotalsStepTimeEstimator(Estimator):
    """Milliseconds from `totals`, when there is no graph."""

    def __init__(self, iterations: int = 300, folds: int = 5, seed: int = 0) -> None:
        self.iterations = iterations
        self.folds = folds
        self.seed = seed

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> Self:
        """Learn from measured steps."""
        features, base = totals_features(np.asarray(X, np.float64))
        self.residual_ = LogResidual(
            iterations=self.iterations,
            least=10,
            optional=_ABSENT,
            folds=self.folds,
            seed=self.seed,
        ).fit(features, y, groups, base=base)
        return self

    def predict_interval(self, X: npt.ArrayLike) -> Floats:
        """p10, p50, p90; wider the more is absent."""
        self._check_fitted("residual_")
        features, base = totals_features(np.asarray(X, np.float64))
        return self.residual_.predict_interval(features, base=base)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        return self.residual_.to_arrays()

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> TotalsStepTimeEstimator:
        """The estimator in these arrays."""
        made = cls()
        made.residual_ = LogResidual.from_arrays(arrays)
        return made
