"""How long a training step or an inference takes, from the few totals that a table has.

Trees learn by which factor the roofline of the totals is off; of a model with a name and all
totals, names tell more. Nothing here reads a graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from presage.foresee.gpus import Gpu, find
from presage.foresee.roofline import matrix_peak
from presage.learn import Estimator, Floats
from presage.learn.bundle import prefixed, under
from presage.learn.conformal import Conformal
from presage.learn.evaluate import grouped_folds
from presage.learn.namesakes import Namesakes
from presage.learn.relatives import Relatives
from presage.learn.residual import LogResidual
from presage.model.errors import UserError

if TYPE_CHECKING:
    import polars as pl

__all__ = [
    "LATEST",
    "TOTALS",
    "Totals",
    "TotalsStepTimeEstimator",
    "totals",
    "totals_features",
]

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
    import polars as pl  # when it is needed: it takes longer than an answer

    if "model" not in table.columns:
        return np.full(table.height, "")
    named = table["model"].cast(pl.String).fill_null("").str.split(".").list.first()
    return np.array(named.to_list(), np.str_)


def _numbers(table: pl.DataFrame, name: str) -> Floats:
    import polars as pl  # when it is needed: it takes longer than an answer

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
    return _CPU_PEAK if gpu is None else matrix_peak(gpu, precision)


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
