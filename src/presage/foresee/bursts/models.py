"""Burst models behind one interface: a forest on physics, trees on sums, networks of four kinds,
and a constant.

Each learns (n, 12) labels of `TARGETS` in one setting and foresees them. Labels are learned as
log(1 + y), since durations and rates spread over decades; networks get them divided by the
largest, and features as standardised logarithms. A fitted model is arrays; nothing here reads
files, chooses a model or makes intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from presage.foresee.bursts._passes import PUBLISHED, Form, GnnKind
from presage.foresee.bursts.forest import Forest
from presage.foresee.bursts.graphs import SUMMARY, GraphInput
from presage.foresee.bursts.net import BurstNet
from presage.foresee.bursts.settings import Setting
from presage.foresee.bursts.training import TrainOptions, starting_weights, train, tuning_start
from presage.foresee.graph.opgraph import PHASES
from presage.learn import Floats, sklearn_ensemble
from presage.learn.bundle import prefixed, under
from presage.learn.trees import TreeEnsemble

__all__ = [
    "TREE_SUMS",
    "BurstModel",
    "ForestModel",
    "MedianModel",
    "ModelKind",
    "NetModel",
    "TreeModel",
    "make",
    "read",
]

Arrays = dict[str, npt.NDArray[Any]]
TREE_SUMS = ("trained", "batch", "operators", "written", "read", "weights_read", "macs")
"""What trees are told, as logarithms of one and more."""
_FEW = [SUMMARY.index(name) for name in TREE_SUMS[:-1]]
_MACS = [SUMMARY.index(f"macs_{phase}") for phase in PHASES]


class ModelKind(StrEnum):
    """What foresees."""

    CONSTANT = "constant"
    """The median of each label: what others have to beat."""
    FOREST = "forest"
    """What follows from sizes of the graph, and a forest on what that leaves open."""
    TREES = "trees"
    """Gradient boosting on sums over the graph."""
    GCN = "gcn"
    """The published network."""
    GIN = "gin"
    """It with sums of neighbours."""
    GAT = "gat"
    """It with attention."""
    MPNN = "mpnn"
    """It with messages."""


class BurstModel(Protocol):
    """What all of them do."""

    kind: ModelKind

    def fit(
        self, inputs: Sequence[GraphInput], labels: Floats, step_ms: Floats | None = None
    ) -> Self: ...
    def predict(self, inputs: Sequence[GraphInput]) -> Floats: ...
    def to_arrays(self) -> Arrays: ...


class MedianModel:
    """The median of each label."""

    kind = ModelKind.CONSTANT

    def fit(
        self, inputs: Sequence[GraphInput], labels: Floats, step_ms: Floats | None = None
    ) -> Self:
        self.median_ = np.median(labels, axis=0)
        return self

    def predict(self, inputs: Sequence[GraphInput]) -> Floats:
        return np.tile(self.median_, (len(inputs), 1))

    def to_arrays(self) -> Arrays:
        return {"median": self.median_}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        made = cls()
        made.median_ = np.asarray(arrays["median"], np.float64)
        return made


class TreeModel:
    """Gradient boosting for each label, with the least absolute error: labels of some workloads
    are far from those of all others."""

    kind = ModelKind.TREES

    def __init__(self, trees: int = 150, depth: int = 3, rate: float = 0.05) -> None:
        self.trees, self.depth, self.rate = trees, depth, rate

    def fit(
        self, inputs: Sequence[GraphInput], labels: Floats, step_ms: Floats | None = None
    ) -> Self:
        ensemble = sklearn_ensemble("fitting burst models")
        rows = _sums(inputs)
        self.trees_ = []
        for column in np.log1p(labels).T:
            model = ensemble.GradientBoostingRegressor(
                loss="absolute_error",
                n_estimators=self.trees,
                max_depth=self.depth,
                learning_rate=self.rate,
                subsample=0.7,
                min_samples_leaf=3,
                random_state=0,
            )
            self.trees_.append(TreeEnsemble.from_sklearn(model.fit(rows, column)))
        return self

    def predict(self, inputs: Sequence[GraphInput]) -> Floats:
        rows = _sums(inputs)
        return _back(np.stack([each.predict(rows) for each in self.trees_], axis=1))

    def to_arrays(self) -> Arrays:
        out: Arrays = {}
        for at, each in enumerate(self.trees_):
            out |= prefixed(f"label{at}", each.to_arrays())
        return out

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        made = cls()
        parts = (under(f"label{at}", arrays) for at in range(12))
        made.trees_ = [TreeEnsemble.from_arrays(part) for part in parts]
        return made


class ForestModel:
    """`Forest` on the summaries of graphs; `buckets` as there."""

    kind = ModelKind.FOREST

    def __init__(self, buckets: bool) -> None:
        self.buckets = buckets

    def fit(
        self, inputs: Sequence[GraphInput], labels: Floats, step_ms: Floats | None = None
    ) -> Self:
        steps = np.full(len(labels), np.nan) if step_ms is None else step_ms
        self.forest_ = Forest(self.buckets).fit(_summaries(inputs), labels, steps)
        return self

    def predict(self, inputs: Sequence[GraphInput]) -> Floats:
        return _back(self.forest_.predict(_summaries(inputs)))

    def to_arrays(self) -> Arrays:
        return self.forest_.to_arrays()

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        forest = Forest.from_arrays(arrays)
        made = cls(forest.buckets)
        made.forest_ = forest
        return made


def _summaries(inputs: Sequence[GraphInput]) -> Floats:
    return np.stack([each.summary for each in inputs])


def _sums(inputs: Sequence[GraphInput]) -> Floats:
    """The sums that trees are told: few, since families are few."""
    rows = _summaries(inputs)
    macs = np.log1p(np.expm1(rows[:, _MACS]).sum(1))
    return np.column_stack([rows[:, _FEW], macs])


class NetModel:
    """A network, with what scales its features and labels. `base` is a fitted one of another
    setting: then only the part that a transfer leaves free is trained."""

    net_: BurstNet

    def __init__(
        self,
        kind: GnnKind,
        options: TrainOptions | None = None,
        base: NetModel | None = None,
        form: Form = PUBLISHED,
    ) -> None:
        self.kind = ModelKind(kind)
        self.options = options or TrainOptions()
        self.base, self.form = base, form

    def fit(
        self, inputs: Sequence[GraphInput], labels: Floats, step_ms: Floats | None = None
    ) -> Self:
        logs = np.log1p(np.concatenate([each.x for each in inputs]))
        self.mean_, self.spread_ = logs.mean(0), logs.std(0) + 1e-9
        self.largest_ = np.maximum(np.log1p(labels).max(0), 1e-9)
        gnn, free = GnnKind(self.kind), None
        start: Mapping[str, Floats] = starting_weights(gnn, self.options.seed)
        if self.base is not None:
            self.mean_, self.spread_ = self.base.mean_, self.base.spread_
            start, free = tuning_start(self.base.net_.arrays)
        pairs = [(self._scaled(each.x), each.adj) for each in inputs]
        scaled = np.log1p(labels) / self.largest_
        learned = train(gnn, start, pairs, scaled, self.options, free, self.form)
        self.net_ = BurstNet.from_arrays(learned, gnn, self.form)
        return self

    def predict(self, inputs: Sequence[GraphInput]) -> Floats:
        out = [self.net_.forward(self._scaled(g.x)[None], g.adj[None])[0] for g in inputs]
        return _back(np.stack(out) * self.largest_)

    def _scaled(self, x: Floats) -> Floats:
        scaled: Floats = (np.log1p(x) - self.mean_) / self.spread_
        return scaled

    def to_arrays(self) -> Arrays:
        scales = {"mean": self.mean_, "spread": self.spread_, "largest": self.largest_}
        halves = {name: array.astype(np.float32) for name, array in self.net_.arrays.items()}
        return scales | prefixed("net", halves)

    @classmethod
    def from_arrays(cls, kind: GnnKind, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        made = cls(kind)
        made.mean_, made.spread_, made.largest_ = (
            np.asarray(arrays[name], np.float64) for name in ("mean", "spread", "largest")
        )
        made.net_ = BurstNet.from_arrays(under("net", arrays), kind)
        return made


def make(
    kind: ModelKind, setting: Setting | None = None, options: TrainOptions | None = None
) -> BurstModel:
    """An unfitted model of a setting; of an all-reduce if none is given."""
    if kind is ModelKind.CONSTANT:
        return MedianModel()
    if kind is ModelKind.FOREST:
        return ForestModel(buckets=setting is None or not setting.servers)
    return TreeModel() if kind is ModelKind.TREES else NetModel(GnnKind(kind), options)


def read(kind: ModelKind, arrays: Mapping[str, npt.NDArray[Any]]) -> BurstModel:
    """The fitted model in these arrays."""
    if kind is ModelKind.CONSTANT:
        return MedianModel.from_arrays(arrays)
    if kind is ModelKind.FOREST:
        return ForestModel.from_arrays(arrays)
    if kind is ModelKind.TREES:
        return TreeModel.from_arrays(arrays)
    return NetModel.from_arrays(GnnKind(kind), arrays)


def _back(logs: Floats) -> Floats:
    """From log(1 + y), never negative nor beyond what a double holds."""
    return np.expm1(np.clip(logs, 0.0, 30.0))
