"""How long a training step or an inference takes, foreseen from a graph or from a few totals.

Both start from a roofline: an operator cannot be faster than its arithmetic at the GPU's peak, its
traffic at the GPU's bandwidth, or a launch. What is learned is by which factor the sum is off,
from features that are shares of that sum; so the answer moves with the specifications to GPUs that
were never measured. From a graph it is learned twice: as one factor for each class of operators,
which holds for unusual mixtures of them, and by trees that are told the outcome.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import polars as pl

from presage.foresee._operators import CLASSES, Operators
from presage.foresee.gpus import Gpu, find
from presage.foresee.graph.opgraph import KINDS
from presage.learn import Estimator, Floats
from presage.learn.bundle import prefixed, under
from presage.learn.conformal import Conformal
from presage.learn.evaluate import grouped_folds
from presage.learn.namesakes import Namesakes
from presage.learn.relatives import Relatives
from presage.learn.residual import LogResidual
from presage.model.errors import UserError

__all__ = [
    "LATEST",
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
_HALF = {"amp": 2, "amp_bf16": 2, "bf16": 2, "fp16": 2, "fp32": 4}


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
    peak, width = _peak(gpu, precision), _HALF.get(precision, 4)
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


_TFLOPS_A_WATT = 0.9
"""What matrix units sustain at most: about 630 TFLOP/s on an H100 of 700 W, whose peak is 989. The
peak of a card with little power for its size is no more than a figure."""


def _peak(gpu: Gpu, precision: str) -> float:
    if precision not in ("amp", "fp16", "bf16", "amp_bf16"):
        return gpu.tflops("fp32") * 1e12
    peak = gpu.tflops("bf16" if "bf16" in precision else "fp16")
    return min(peak, _TFLOPS_A_WATT * (gpu.watts or float("inf"))) * 1e12


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
        arrays: dict[str, npt.NDArray[Any]] = {"typical": self.typical_}
        for layout, model in self.residual_.items():
            arrays |= prefixed(layout, {"factors": self.factors_[layout], **model.to_arrays()})
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> StepTimeEstimator:
        """The estimator in these arrays."""
        made = cls()
        made.typical_ = arrays["typical"]
        parts = {layout: under(layout, arrays) for layout in ("nchw", "nhwc")}
        made.factors_ = {layout: part["factors"] for layout, part in parts.items() if part}
        made.residual_ = {
            layout: LogResidual.from_arrays(part) for layout, part in parts.items() if part
        }
        return made


def _layouts(rows: Floats) -> list[tuple[str, npt.NDArray[np.bool_]]]:
    last = rows[:, -1] > 0.5
    return [(name, mask) for name, mask in (("nchw", ~last), ("nhwc", last)) if mask.any()]


TOTALS = ("gmacs", "macts", "param_count", "img_size", "batch_size")
_TRAFFIC = 6.0
"""Bytes that inference moves for each activation, over all operators, at half precision."""


@dataclass(frozen=True, slots=True, eq=False)
class Totals:
    """What a table says of each job; indexing chooses rows, as with a NumPy array."""

    rows: Floats
    """TOTALS and settings: NaN where it does not say."""
    names: npt.NDArray[np.str_]
    """Of the models; empty where it does not say."""

    @classmethod
    def of(cls, X: Totals | npt.ArrayLike) -> Totals:
        """As they are, or plain rows as jobs without a name."""
        if isinstance(X, Totals):
            return X
        rows = np.asarray(X, np.float64)
        return cls(rows, np.full(len(rows), ""))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Totals:
        return Totals(self.rows[index], self.names[index])


def totals(table: pl.DataFrame) -> Totals:
    """Totals, settings and names of a table."""
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
    return Totals(rows, _names(table))


def _names(table: pl.DataFrame) -> npt.NDArray[np.str_]:
    """Without the training recipe that timm writes after a dot."""
    if "model" not in table.columns:
        return np.full(table.height, "")
    named = table["model"].cast(pl.String).fill_null("").str.split(".").list.first()
    return np.array(named.to_list(), np.str_)


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
    number = {text: release_of(str(text)) for text in table["torch"].unique()}
    return np.array([number[text] for text in table["torch"].to_list()])


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


_GPU = slice(5, 7)
"""Columns of `Totals.rows` that tell a GPU: peak and bandwidth."""
_LAYOUT = 7
"""Column of `Totals.rows` that is 1 for nhwc; the next is 1 for a compiled model."""
_CLOSE = (0.5, 2.0, 0.5, 2.0, 1.0)
"""How many standard deviations of the logarithm of the batch, macs, activations, params and size
count as close, for relatives."""
_FEWEST, _MOST = 40, 4000
"""Rows with a name and all totals from which relatives are learned."""


class TotalsStepTimeEstimator(Estimator):
    """Milliseconds from `totals`, when there is no graph.

    Trees answer for every row. Of one with a name and all totals, names tell more: with few rows
    the answer is the geometric mean of the trees' and of what its relatives took; with many, on
    several GPUs, a model that was measured on others is off here as it was there. `fit` keeps what
    it foresaw for families left out in `out_of_fold_`.
    """

    def __init__(self, iterations: int = 300, folds: int = 5, seed: int = 0) -> None:
        self.iterations = iterations
        self.folds = folds
        self.seed = seed

    def fit(
        self, X: Totals | npt.ArrayLike, y: npt.ArrayLike, groups: npt.ArrayLike | None = None
    ) -> Self:
        """Learn from measured steps."""
        jobs, truth = Totals.of(X), np.asarray(y, np.float64)
        members = np.arange(len(jobs)) if groups is None else np.asarray(groups)
        features, base = totals_features(jobs.rows)
        self.residual_ = self._trees(self.folds).fit(features, truth, members, base=base)
        self.out_of_fold_ = self.residual_.out_of_fold_.copy()
        self.relatives_: Relatives | None = None
        self.namesakes_: Namesakes | None = None
        whole = _whole(jobs)
        if _FEWEST <= whole.sum() <= _MOST and np.unique(members[whole]).size > 1:
            self._fit_relatives(jobs[whole], truth[whole], members[whole], base[whole], whole)
        elif whole.sum() > _MOST:
            self._fit_namesakes(jobs[whole], truth[whole], features[whole], base[whole])
        return self

    def _trees(self, folds: int) -> LogResidual:
        return LogResidual(
            iterations=self.iterations, least=10, optional=_ABSENT, folds=folds, seed=self.seed
        )

    def _fit_namesakes(self, jobs: Totals, truth: Floats, features: Floats, base: Floats) -> None:
        """Intervals are those of GPUs left out."""
        gpus, place = np.unique(jobs.rows[:, _GPU], axis=0, return_inverse=True)
        if len(gpus) < 2:
            return
        target, place, guess = np.log(truth / base), place.reshape(-1), np.empty(len(truth))
        for gpu in range(len(gpus)):
            here, others = place == gpu, np.flatnonzero(place != gpu)
            trees = self._trees(2).fit(features[others], truth[others], base=base[others])
            left = target[others] - trees.factor(features[others])
            known = Namesakes.fit(*_called(jobs[others]), left)
            factor = trees.factor(features[here]) + known.predict(*_called(jobs[here]))
            guess[here] = base[here] * np.exp(factor)
        self.namesakes_ = Namesakes.fit(*_called(jobs), target - self.residual_.factor(features))
        self.beside_namesakes_ = Conformal.fit(truth, guess, place, space="log")

    def _fit_relatives(
        self,
        jobs: Totals,
        truth: Floats,
        members: npt.NDArray[Any],
        base: Floats,
        whole: npt.NDArray[np.bool_],
    ) -> None:
        factor = np.log(truth / base)
        count = min(self.folds, np.unique(members).size)
        fold = grouped_folds(members, count, self.seed)
        guess = np.empty(len(truth))
        for n in range(count):
            test = fold == n
            learned = _relatives(jobs[~test], factor[~test], members[~test])
            guess[test] = base[test] * np.exp(learned.predict(*_kinship(jobs[test])))
        self.relatives_ = _relatives(jobs, factor, members)
        self.out_of_fold_[whole] = np.sqrt(self.out_of_fold_[whole] * guess)
        self.beside_relatives_ = Conformal.fit(
            truth, self.out_of_fold_[whole], members, space="log", balance=0.0
        )

    def predict_interval(self, X: Totals | npt.ArrayLike) -> Floats:
        """p10, p50, p90; wider the more is absent."""
        self._check_fitted("residual_")
        jobs = Totals.of(X)
        features, base = totals_features(jobs.rows)
        out = np.empty((len(jobs), 3))
        whole = _whole(jobs) if self.relatives_ else np.zeros(len(jobs), bool)
        if self.relatives_ and whole.any():
            factor = self.residual_.factor(features[whole])
            factor += self.relatives_.predict(*_kinship(jobs[whole]))
            out[whole] = self.beside_relatives_.interval(base[whole] * np.exp(factor / 2))
        elif self.namesakes_:
            whole = _whole(jobs) & self.namesakes_.knows(jobs.names)
            factor = self.residual_.factor(features[whole])
            factor += self.namesakes_.predict(*_called(jobs[whole]))
            out[whole] = self.beside_namesakes_.interval(base[whole] * np.exp(factor))
        if not whole.all():
            out[~whole] = self.residual_.predict_interval(features[~whole], base=base[~whole])
        return out

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        arrays = self.residual_.to_arrays()
        if self.relatives_:
            arrays |= prefixed("relatives", self.relatives_.to_arrays())
            arrays |= prefixed("beside", self.beside_relatives_.to_arrays())
        if self.namesakes_:
            arrays |= prefixed("namesakes", self.namesakes_.to_arrays())
            arrays |= prefixed("beside", self.beside_namesakes_.to_arrays())
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> TotalsStepTimeEstimator:
        """The estimator in these arrays."""
        made = cls()
        made.residual_ = LogResidual.from_arrays(arrays)
        kin = under("relatives", arrays)
        made.relatives_ = Relatives.from_arrays(kin) if kin else None
        if kin:
            made.beside_relatives_ = Conformal.from_arrays(under("beside", arrays))
        same = under("namesakes", arrays)
        made.namesakes_ = Namesakes.from_arrays(same) if same else None
        if same:
            made.beside_namesakes_ = Conformal.from_arrays(under("beside", arrays))
        return made


def _whole(jobs: Totals) -> npt.NDArray[np.bool_]:
    """Rows with a name and all totals."""
    return np.asarray((jobs.names != "") & ~np.isnan(jobs.rows[:, : len(TOTALS)]).any(axis=1))


def _kinship(jobs: Totals) -> tuple[Floats, Floats, npt.NDArray[np.str_]]:
    """What `Relatives` compare: numbers, the setting, names."""
    macs, acts, params, size, batch = jobs.rows[:, : len(TOTALS)].T
    numbers = np.log(np.stack([batch, macs, acts, params, size], axis=1))
    return numbers, jobs.rows[:, _LAYOUT], jobs.names


def _called(jobs: Totals) -> tuple[npt.NDArray[np.str_], Floats]:
    """What `Namesakes` compare: names, and whether in nhwc and compiled."""
    return jobs.names, jobs.rows[:, _LAYOUT] + 2 * jobs.rows[:, _LAYOUT + 1]


def _relatives(jobs: Totals, factor: Floats, members: npt.NDArray[Any]) -> Relatives:
    return Relatives.fit(*_kinship(jobs), factor, members, _CLOSE)
