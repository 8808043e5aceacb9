"""GPU memory of a job from its graph: physics first, and little learned on top.

The median is what a process holds before its first tensor (`floors`), what PyTorch's allocator
reserves for the tensors that live together, and a learned *additive* term for what neither knows:
workspaces of convolutions, mostly. That term was learned from image models that one lab trained
with Adam on one GPU. It is bounded by the activations and fades with the distance from those runs,
so it never grows with the parameters of a model that is unlike them; intervals grow instead.

What a job cannot do without (`needs`) and what a measurement shows (`shows`) are kept apart. On a
full card the allocator returns what it keeps and convolutions do with smaller workspaces, so
neither decides whether a job fits; nor do workspaces that are only tried (`cudnn.benchmark`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from presage.foresee._memory_domain import Likeness, likeness
from presage.foresee._memory_features import (
    GRAPH_FEATURES,
    TRIED,
    TRIED_SUM,
    as_in_the_lab,
    memory_features,
    relative_features,
    without_optimizer,
)
from presage.foresee.allocator import MIB, least_bytes, live_peak, reserved_bytes
from presage.foresee.floors import Floor, floor_mib
from presage.foresee.gpus import Gpu
from presage.foresee.graph.opgraph import KINDS, OpGraph
from presage.foresee.memory_table import floor_of
from presage.foresee.sharding import communicator_bytes
from presage.learn import Estimator, Floats
from presage.learn.bundle import prefixed, under
from presage.learn.evaluate import grouped_folds
from presage.learn.residual import LogResidual
from presage.model.setup import Setup

__all__ = [
    "GRAPH_FEATURES",
    "MemoryEstimator",
    "MemoryForecast",
    "MemoryPhysics",
    "largest_batch",
    "memory_features",
]

_QUIET = 0.5
"""Share of the learned workspaces that is expected where cuDNN does not try them all: its
heuristics take some of those that the lab's runs, which tried, were seen with."""
_MOST_UP, _MOST_DOWN = 1.0, 0.15
"""Bounds of the learned term, as shares of what depends on the batch."""
_WIDER = 6.0
"""By how much an interval grows, in logarithms, from what was measured to what is unlike it."""
_LINKS = (0.3, 1.0, 2.5)
"""How much less or more the library that GPUs talk through holds than is reckoned, by version and
topology; it is outside the allocator."""
_FEWER, _MORE, _FEW_SOFTMAXES = 0.2, 0.5, 2
"""What such code may save less or more than a trace of today's PyTorch does, as shares: a GELU in
four operators saves three more tensors of the widest layer, and scores that are scaled apart one
more of theirs, about half of a BERT; fused dropouts and autocast save less. Which version runs is
not known. A model has it if it has more softmaxes than one and its gradient."""
_NOT_FULL = 0.9
"""Share of a card up to which a workspace that is only tried may lift the median."""


@dataclass(frozen=True, slots=True)
class MemoryPhysics:
    """What follows from a graph at a batch alone, in MiB; computed once for all GPUs."""

    graph: OpGraph
    batch: float
    reserved: float
    """By the replayed allocator where there is room, with the optimizer of the graph."""
    least: float
    """By the same on a full card, which returns segments that nothing is in."""
    peak: float
    """Of the tensors that live together."""
    by_role: dict[str, float]
    """Bytes at the peak."""
    lab: Floats
    """GRAPH_FEATURES as if the job were trained as those that were learned from."""

    @classmethod
    def of(cls, graph: OpGraph, batch: float) -> MemoryPhysics:
        """Replay a step."""
        peak = live_peak(graph, batch)
        reserved = reserved_bytes(graph, batch) / MIB
        spare = reserved - peak.bytes / MIB
        bare = without_optimizer(graph)
        row = memory_features(bare, batch, spare=spare)
        lab = as_in_the_lab(row[None, :])[0]
        least = min(least_bytes(graph, batch) / MIB, reserved)
        return cls(graph, batch, reserved, least, peak.bytes / MIB, peak.by_role, lab)

    @property
    def activations(self) -> float:
        """MiB that depend on the batch."""
        lasting = self.lab[2]
        return float(max(self.lab[1] - lasting, 0.0))


@dataclass(frozen=True, slots=True)
class MemoryForecast:
    """MiB that a job takes on one GPU."""

    needs: Floats
    """p10, p50, p90 of what it cannot do without."""
    shows: Floats
    """p10, p50, p90 of what a measurement shows."""
    parts: dict[str, float]
    """What the median of `shows` is made of; adds up to it, nothing is negative."""
    distance: float
    """From 0, like what was measured, to 1, like nothing that was."""
    words: str


class MemoryEstimator(Estimator):
    """MiB of a graph on a GPU. `predict_interval` is for rows of GRAPH_FEATURES, as that lab would
    have measured them."""

    def __init__(self, iterations: int = 300, folds: int = 10, seed: int = 0) -> None:
        self.iterations = iterations
        self.folds = folds
        self.seed = seed

    # -- learning, from rows of the lab

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> Self:
        """Learn from graphs without an optimizer's state and what the lab measured: its floor, the
        term, and how often a tried workspace is seen."""
        rows, truth = as_in_the_lab(np.asarray(X, np.float64)), np.asarray(y, np.float64)
        self.floor_ = floor_of(rows[:, 0], truth)
        self.residual_ = LogResidual(self.iterations, folds=self.folds, seed=self.seed).fit(
            relative_features(rows, self.floor_), truth, groups, base=self._base(rows)
        )
        self.typical_ = np.median(relative_features(rows, self.floor_), axis=0)
        self._learn_tried(rows, truth, np.arange(len(truth)) if groups is None else groups)
        return self

    def _learn_tried(self, rows: Floats, truth: Floats, groups: npt.ArrayLike) -> None:
        """From what the term alone missed in families it had not seen; `out_of_fold_` are the
        medians, each with a chance that was learned from other families too."""
        missed = np.log(truth / self.residual_.out_of_fold_)
        amount, rise = rows[:, TRIED_SUM], self._rise(rows)
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

    def predict_interval(self, X: npt.ArrayLike) -> Floats:
        """p10, p50, p90 of what the lab's measurement shows; the p50 is lifted by the chance that
        a tried workspace is seen."""
        self._check_fitted("residual_")
        rows = as_in_the_lab(np.asarray(X, np.float64))
        interval = self._without_tried(rows)
        interval[:, 1] *= np.exp(self._rise(rows) * np.interp(rows[:, TRIED_SUM], *self.chance_))
        interval[:, 2] = np.maximum(interval[:, 2], interval[:, 1])
        return interval

    # -- any graph on any GPU

    def forecast(
        self, physics: MemoryPhysics, gpu: Gpu, setup: Setup, floor: Floor | None = None
    ) -> MemoryForecast:
        """The whole answer for one GPU; `floor` is that of own runs on the machine, if any."""
        self._check_fitted("residual_")
        floor = floor or floor_mib(gpu)
        links = Floor(*(share * communicator_bytes(setup) / MIB for share in _LINKS))
        like = likeness(physics.graph, physics.batch, gpu, setup)
        term = self._term(physics, like)
        tries = setup.cudnn_benchmark and not setup.inference
        usual = term if tries or term < 0 else term * _QUIET
        written = _written_out(physics, setup)
        beside = floor.p50 + links.p50

        def spread(kept: float, taken: float) -> Floats:
            unsure = abs(term - taken)  # workspaces that may as well not be there, or all of them
            doubts = ((unsure, unsure), (written * _FEWER, written * _MORE))
            middle = beside + kept + taken
            return self._spread(middle, like, (floor, links), doubts, physics.peak)

        needs = spread(physics.least, min(term, term * _QUIET))
        shows = spread(physics.reserved, usual)
        if tries:
            shows = self._lifted(shows, physics, like, gpu)
        room = float(gpu.usable_mib)
        shows = np.maximum(needs, np.minimum(shows, room))
        parts = _parts(physics, floor.p50, links.p50, float(shows[1]))
        return MemoryForecast(needs, shows, parts, like.distance, like.words)

    def quantiles(self, graph: OpGraph, batch: float, gpu: Gpu, setup: Setup) -> Floats:
        """p10, p50, p90 of what a measurement shows."""
        return self.forecast(MemoryPhysics.of(graph, batch), gpu, setup).shows

    def needs(self, graph: OpGraph, batch: float, gpu: Gpu, setup: Setup) -> Floats:
        """p10, p50, p90 of what the job cannot do without; never less than its tensors."""
        return self.forecast(MemoryPhysics.of(graph, batch), gpu, setup).needs

    def parts(self, graph: OpGraph, batch: float, gpu: Gpu, setup: Setup) -> dict[str, float]:
        """Where the MiB go; they add up to the median."""
        return self.forecast(MemoryPhysics.of(graph, batch), gpu, setup).parts

    def domain(self, graph: OpGraph, batch: float, gpu: Gpu, setup: Setup) -> tuple[float, str]:
        """How far from what was measured, from 0 to 1, and in words."""
        like = likeness(graph, batch, gpu, setup)
        return like.distance, like.words

    def mattered(self, physics: MemoryPhysics) -> dict[str, float]:
        """The features that moved the learned term most."""
        names = (*GRAPH_FEATURES[1:TRIED], "batch", "log size", "log weights", "spare")
        relative = relative_features(physics.lab[None, :], self.floor_)[0]
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

    # -- inside

    def _term(self, physics: MemoryPhysics, like: Likeness) -> float:
        """The learned MiB, as the lab would have seen them, which tried all workspaces."""
        if like.weight <= 0:
            return 0.0
        row = physics.lab[None, :]
        factor = self.residual_.factor(relative_features(row, self.floor_))
        whole = float(self._base(row)[0] * np.expm1(factor[0]))
        bound = physics.activations
        return float(np.clip(whole, -_MOST_DOWN * bound, _MOST_UP * bound)) * like.weight

    def _spread(
        self,
        middle: float,
        like: Likeness,
        fixed: tuple[Floor, ...],
        unsure: tuple[tuple[float, float], ...],
        least: float,
    ) -> Floats:
        """Quantiles around the median: errors of the model, of the floors and of what may not be
        there (`unsure`: MiB less and more) are independent."""
        lab = self.residual_.intervals_[0]
        wider = 1 + _WIDER * like.distance
        down = middle * -np.expm1((lab.low - lab.middle) * wider)
        up = middle * np.expm1((lab.high - lab.middle) * wider)
        fewer, more = (sum(each[side] ** 2 for each in unsure) for side in (0, 1))
        below = np.sqrt(down**2 + sum((f.p50 - f.p10) ** 2 for f in fixed) + fewer)
        above = np.sqrt(up**2 + sum((f.p90 - f.p50) ** 2 for f in fixed) + more)
        interval: Floats = np.array([middle - below, middle, middle + above])
        return np.maximum(interval, least)

    def _lifted(self, shown: Floats, physics: MemoryPhysics, like: Likeness, gpu: Gpu) -> Floats:
        """What shows where cuDNN tries its ways: the median is lifted by the chance that one is
        seen, but not to where the card is full."""
        row = physics.lab[None, :]
        chance = np.interp(row[:, TRIED_SUM], *self.chance_) * like.weight
        lifted = float(shown[1] * np.exp(self._rise(row) * chance)[0])
        shows = shown.copy()
        shows[1] = max(shown[1], min(lifted, _NOT_FULL * gpu.usable_mib))
        shows[2] = max(shows[2], lifted)
        return shows

    def _without_tried(self, rows: Floats) -> Floats:
        interval = self.residual_.predict_interval(
            relative_features(rows, self.floor_), base=self._base(rows)
        )
        return np.maximum(interval, rows[:, 1:2])

    def _base(self, rows: Floats) -> Floats:
        base: Floats = self.floor_ + rows[:, 0]
        return base

    def _rise(self, rows: Floats) -> Floats:
        """Logarithm by which the largest tried workspace lifts memory when it is seen."""
        base = self._base(rows)
        rise: Floats = np.log(np.maximum(self.floor_ + rows[:, TRIED], base) / base)
        return rise


def _written_out(physics: MemoryPhysics, setup: Setup) -> float:
    """MiB that are saved for the backward pass of a model whose attention is written out, as code
    from before fused kernels has it; 0 for any other."""
    if setup.attention != "eager" or setup.inference:
        return 0.0
    softmaxes = int((physics.graph.kind == KINDS.index("softmax")).sum())
    return physics.by_role["saved"] / MIB if softmaxes > _FEW_SOFTMAXES else 0.0


def _parts(physics: MemoryPhysics, floor: float, links: float, middle: float) -> dict[str, float]:
    role = {name: size / MIB for name, size in physics.by_role.items()}
    parts = {
        "device and driver": floor,
        "weights": role["weight"] + role["buffer"],
        "gradients": role["gradient"],
        "optimizer": role["state"],
        "activations": role["saved"] + role["input"],
        "temporary": role["transient"],
        "allocator": max(physics.reserved - physics.peak, 0.0),
        "communication": links,
        "workspace and rest": 0.0,
    }
    rest = middle - sum(parts.values())
    parts["workspace and rest"] = max(rest, 0.0)
    for name in ("allocator", "temporary", "activations", "device and driver"):
        taken = min(parts[name], max(-rest, 0.0))  # the traced step had more than is foreseen
        parts[name] -= taken
        rest += taken
    if not links:
        del parts["communication"]
    return parts


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


def largest_batch(
    estimator: MemoryEstimator,
    graph: OpGraph,
    gpu: Gpu,
    setup: Setup,
    *,
    floor: Floor | None = None,
    most: int = 1 << 20,
) -> int:
    """The largest batch whose p90 stays within what the GPU leaves to programs, to half a percent;
    0 if not even one sample does."""
    room = float(gpu.usable_mib)

    def over(batch: int) -> float:
        answer = estimator.forecast(MemoryPhysics.of(graph, batch), gpu, setup, floor)
        return float(answer.needs[2] - room)

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
        # by turns: a curve would defeat one alone
        share = spare / (spare - excess) if aim else 0.5
        middle = min(max(low + round(share * (high - low)), low + 1), high - 1)
        aim = not aim
        beyond = over(middle)
        if beyond <= 0:
            low, spare = middle, beyond
        else:
            high, excess = middle, beyond
    return low
