"""Features of a graph's memory at a batch, and the same as the lab's runs had them.

The measured image models were trained with Adam (the lab's perceptrons, whose memory is nearly all
parameters, took 5.2 times their weights: weights, gradients, two moments and a temporary square
root). The graphs of known models have no optimizer; `as_in_the_lab` adds it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from presage.foresee._workspaces import tried_workspaces
from presage.foresee.allocator import MIB, live_peak, reserved_bytes
from presage.foresee.graph.opgraph import (
    CONVOLUTIONS,
    KINDS,
    PHASES,
    ROLES,
    OpGraph,
    Tensors,
)
from presage.learn import Floats

__all__ = [
    "GRAPH_FEATURES",
    "TRIED",
    "TRIED_SUM",
    "as_in_the_lab",
    "memory_features",
    "relative_features",
    "without_optimizer",
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

TRIED, TRIED_SUM = GRAPH_FEATURES.index("tried"), GRAPH_FEATURES.index("tried_sum")
_PEAK, _LASTING, _WEIGHTS = (GRAPH_FEATURES.index(n) for n in ("peak", "lasting", "weights"))
_STATES, _AT_THE_STEP = 2.0, 5.0
"""Of Adam in its foreach form, in weights: what is kept beside them, and all there is while it
steps (weights, gradients, two moments, a square root)."""


def memory_features(graph: OpGraph, batch: float, *, spare: float | None = None) -> Floats:
    """GRAPH_FEATURES of a graph at a batch; `spare` are MiB that the allocator has reserved beyond
    the peak, if that is known already."""
    peak = live_peak(graph, batch)
    tensors, sizes = graph.tensors, peak.sizes / MIB
    touched = (graph.at(graph.read, batch) + graph.at(graph.written, batch)) * 4 / MIB
    ordered = np.sort(sizes)[::-1]
    busiest = np.sort(touched)[::-1]
    columns = _spread_out(graph, batch)
    most = [touched[graph.kind == KINDS.index(kind)].max(initial=0.0) for kind in _TRAFFIC]
    reserved = reserved_bytes(graph, batch) / MIB if spare is None else peak.bytes / MIB + spare
    return np.array(
        [
            reserved,
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


def without_optimizer(graph: OpGraph) -> OpGraph:
    """The same step without what an optimizer keeps and makes."""
    tensors = graph.tensors
    steps = np.flatnonzero(graph.phase == PHASES.index("optimizer"))
    first = int(steps[0]) if steps.size else len(graph)
    kept = (tensors.role != ROLES.index("state")) & (tensors.born < first)
    if kept.all():
        return graph
    columns = (tensors.born, tensors.died, tensors.scale, tensors.power, tensors.role)
    return replace(graph, tensors=Tensors(*(column[kept] for column in columns)))


def as_in_the_lab(rows: Floats) -> Floats:
    """Rows without an optimizer's state, with that of the lab's."""
    weights, peak = rows[:, _WEIGHTS], rows[:, _PEAK]
    out = rows.copy()
    more = np.maximum(peak + _STATES * weights, _AT_THE_STEP * weights) - peak
    out[:, 0] += more
    out[:, _PEAK] += more
    out[:, _LASTING] += _STATES * weights
    tried = rows[:, TRIED]
    out[:, TRIED] = np.where(tried > 0, tried + _STATES * weights, 0.0)
    return out


def relative_features(rows: Floats, floor: float) -> Floats:
    """What the learned term looks at: sizes as shares of the whole."""
    base = floor + rows[:, 0]
    relative: Floats = np.c_[
        rows[:, 1:TRIED] / base[:, None],
        rows[:, -1],
        np.log(base),
        np.log1p(rows[:, 3]),
        np.log(rows[:, 0] / np.maximum(rows[:, 1], 1e-6)),
    ]
    return relative


def _spread_out(graph: OpGraph, batch: float) -> Floats:
    """MiB of each forward convolution's input with every window written out."""
    kinds = [KINDS.index(kind) for kind in CONVOLUTIONS]
    at = np.flatnonzero((graph.phase == 0) & np.isin(graph.kind, kinds))
    channels = np.array([_channels(graph.shapes[i]) for i in at], np.float64)
    spread: Floats = graph.at(graph.macs, batch)[at] / np.maximum(channels, 1) * 4 / MIB
    return spread


def _channels(shape: tuple[int, ...]) -> int:
    return abs(shape[1]) if len(shape) > 1 else 1
