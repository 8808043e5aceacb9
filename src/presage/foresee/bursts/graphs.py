"""What a burst model is told of a training: its graph in groups for networks, sums for trees.

Nodes are the operators of a step at its batch, with the size of the tensor that they write and how
frequent their type is in the graph. Isolated ones are dropped and the largest component kept, as
published; then asynchronous fluid communities make groups of them, whose features are sums. The
number of groups is proportional to the logarithm of the number of nodes, in multiples of four, so
that graphs of like size can be trained in one batch (as published it is that of a batch's mean).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
import numpy.typing as npt

from presage.foresee.bursts.communities import fluid_communities, largest_component
from presage.foresee.graph.opgraph import KINDS, PHASES, OpGraph
from presage.foresee.sharding import DDP_BUCKET_BYTES
from presage.learn import Floats
from presage.model.errors import GraphError

__all__ = ["SUMMARY", "GraphInput", "graph_input", "group_count", "grouped", "summary"]

SCALE = 3.0
"""Groups for each e-fold of nodes."""
_SEED = 42
_FIRST_BUCKET = 1 << 20

SUMMARY = (
    *("params", "trained", "batch", "operators", "written", "read", "weights_read"),
    *(f"macs_{phase}" for phase in PHASES),
    *(f"written_{phase}" for phase in PHASES),
    *(f"macs_{kind}" for kind in KINDS),
    *(f"count_{kind}" for kind in KINDS),
    "buckets",
)
"""What is summed over a graph, as logarithms of one and more."""


@dataclass(frozen=True, slots=True, eq=False)
class GraphInput:
    """A graph as a burst model takes it."""

    x: Floats
    """Of each group: size of tensors, number of nodes, sum of frequencies."""
    adj: Floats
    """Which groups have an edge between them; 1 or 0, without self-loops."""
    summary: Floats


def graph_input(
    graph: OpGraph, batch: int, groups: Callable[[int], int] | None = None
) -> GraphInput:
    """What there is to tell of a graph at a batch; `groups` says how many for so many nodes."""
    if not len(graph):
        raise GraphError("the model computes nothing")
    sizes = graph.at(graph.written, batch)
    counts = Counter(graph.kind.tolist())
    often = np.array([counts[kind] / len(graph) for kind in graph.kind.tolist()])
    x, adj = grouped(sizes, often, graph.edges, groups or group_count)
    return GraphInput(x, adj, summary(graph, batch))


def group_count(nodes: int, scale: float = SCALE) -> int:
    """So many groups: proportional to log(nodes), a multiple of four, never more than nodes."""
    return min(nodes, max(4, 4 * round(scale * log(max(nodes, 2)) / 4)))


def grouped(
    sizes: Floats,
    often: Floats,
    edges: npt.NDArray[Any],
    groups: Callable[[int], int] = group_count,
) -> tuple[Floats, Floats]:
    """Features (N, 3) and adjacency (N, N) of the groups of a graph's largest component."""
    neighbours: list[dict[int, None]] = [{} for _ in sizes]  # in the order of the edges
    for a, b in edges.tolist():
        if a != b:
            neighbours[a][b] = neighbours[b][a] = None
    kept = largest_component([list(each) for each in neighbours])
    place = {node: at for at, node in enumerate(kept)}
    inside = [[place[other] for other in neighbours[node]] for node in kept]
    communities = fluid_communities(inside, min(len(kept), groups(len(kept))), _SEED)
    group_of = np.full(len(sizes), -1)
    for group, each in enumerate(communities):
        for at in each:
            group_of[kept[at]] = group
    x, adj = np.zeros((len(communities), 3)), np.zeros((len(communities), len(communities)))
    for column, values in enumerate((sizes, np.ones(len(sizes)), often)):
        x[:, column] = np.bincount(group_of[kept], values[kept], len(communities))
    first, second = group_of[edges[group_of[edges].min(1) >= 0]].T  # of nodes that were kept
    adj[first, second] = adj[second, first] = 1.0
    np.fill_diagonal(adj, 0.0)
    return x, adj


def summary(graph: OpGraph, batch: int) -> Floats:
    """The features of `SUMMARY`."""
    macs, written = graph.at(graph.macs, batch), graph.at(graph.written, batch)
    kinds = np.arange(len(KINDS))
    of_kind = graph.kind[:, None] == kinds
    of_phase = graph.phase[:, None] == np.arange(len(PHASES))
    values = np.concatenate(
        [
            [graph.params, graph.trainable, batch, len(graph), written.sum()],
            [graph.at(graph.read, batch).sum(), graph.weights.sum()],
            macs @ of_phase,
            written @ of_phase,
            macs @ of_kind,
            of_kind.sum(0),
            [_buckets(graph)],
        ]
    )
    told: Floats = np.log1p(values)
    return told


def _buckets(graph: OpGraph) -> int:
    """In how many buckets DistributedDataParallel shares slopes when it may meet parameters that
    are not used: filled as the forward pass meets them, the first with 1 MiB."""
    count, size, most, left = 0, 0.0, _FIRST_BUCKET, graph.trainable
    for elements in graph.weights[graph.phase == 0].tolist():
        new = min(elements, left)  # weights that are read again are shared once
        left, size = left - new, size + 4.0 * new
        if size >= most:
            count, size, most = count + 1, 0.0, DDP_BUCKET_BYTES
    return count + (size + left > 0)
