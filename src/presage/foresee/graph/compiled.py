"""What `torch.compile` would not keep: an estimate on a graph that was traced as eager.

Its partitioner computes cheap results again in the backward pass instead of keeping them, inside
the kernels that need them. Here: the result of an elementwise operator or an activation is not
kept if all it is made of is kept anyway. Time is not changed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from presage.foresee.graph.opgraph import KINDS, ROLES, OpGraph

__all__ = ["without_recomputable"]

_CHEAP = [KINDS.index(kind) for kind in ("elementwise", "activation")]


def without_recomputable(graph: OpGraph) -> OpGraph:
    """The graph with cheap results let go after their last use in the forward pass."""
    tensors = graph.tensors
    backward = np.flatnonzero(graph.phase != 0)
    turn = int(backward[0]) if backward.size else len(graph)
    saved = (tensors.role == ROLES.index("saved")) & (tensors.born >= 0) & (tensors.died > turn)
    sources, readers = defaultdict(list), defaultdict(list)
    for source, reader in graph.edges.tolist():
        sources[reader].append(source)
        readers[source].append(reader)
    keeps = {int(op): True for op in tensors.born[saved]}
    died = tensors.died.copy()
    cheap = saved & np.isin(graph.kind[np.maximum(tensors.born, 0)], _CHEAP)
    for at in np.flatnonzero(cheap)[np.argsort(tensors.born[cheap], kind="stable")].tolist():
        op = int(tensors.born[at])
        if sources[op] and all(keeps.get(source, False) for source in sources[op]):
            used = [reader for reader in readers[op] if reader < turn]
            died[at] = min(int(died[at]), max([op, *used]) + 1)
            keeps[op] = False
    return replace(graph, tensors=replace(tensors, died=died))
