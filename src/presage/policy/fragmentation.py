"""How much of the idle GPU capacity a workload cannot use: the F of fragmentation gradient descent.

For one node, F is a sum over request shapes, each weighted by its share of the workload, of the idle milli-GPUs
that this shape cannot use: all of them when it does not fit there (too few GPUs, too little CPU, another GPU
type) or asks for no GPU; otherwise only those on GPUs with less room than it asks for.

Computed shape by shape this costs nodes × shapes × devices. Here it is a lookup: what matters about a node is its
kind of GPU, how many CPU sizes it still satisfies and the room on each device, so two small tables of summed
weights answer for all shapes at once. Weights are integers, so equal nodes tie exactly whatever the order of
their devices.

Memory is left out, as in the publication. Chooses nothing: `openb.Fgd` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from presage.core.capacity import Arrays, Capacity, Ints
from presage.model.cluster import WHOLE_GPU, Node, Resources
from presage.model.job import Role

__all__ = ["FragmentationTable", "Shapes", "Typical", "fragmentation", "learned"]

Typical = tuple[Resources, tuple[str, ...], float]
"""A request shape, the GPU types it accepts (none: any) and its share of the workload, in any unit."""

_UNIT = 10**9
"""Shares are kept in billionths: sums over a node stay exact in 64 bits and in a double."""


def fragmentation(capacity: Capacity, typical: Iterable[Typical]) -> float:
    """Idle milli-GPUs on the open nodes that a workload of these shapes cannot use, in the mean."""
    arrays = capacity.arrays()
    if not len(capacity.nodes):
        return 0.0
    kinds, kind = node_kinds(capacity.nodes)
    table = FragmentationTable(Shapes(typical), kinds, arrays.gpu.shape[1])
    gpu = np.maximum(arrays.gpu, 0)
    usable = table.usable(table.rows(kind, arrays.cpu), gpu, arrays.whole)
    wasted = gpu.sum(axis=1) * table.total - usable
    return float(wasted[capacity.mask_array(capacity.open)].sum()) / max(1, table.total)


def learned(shapes: Mapping[tuple[Role, ...], int]) -> list[Typical]:
    """The typical shapes of what was submitted: every role, as often as it has workers."""
    return [
        (role.resources, role.gpu_types, float(count * role.min))
        for roles, count in shapes.items()
        for role in roles
    ]


def node_kinds(nodes: Sequence[Node]) -> tuple[list[frozenset[str]], Ints]:
    """The different sets of GPU types in a cluster, and which of them each node has."""
    found: dict[frozenset[str], int] = {}
    kind = [
        found.setdefault(frozenset(device.type for device in node.devices), len(found))
        for node in nodes
    ]
    return list(found), np.array(kind, dtype=np.int64)


class Shapes:
    """Request shapes with integer weights; those that differ only in memory are one."""

    def __init__(self, typical: Iterable[Typical]) -> None:
        merged: dict[tuple[int, int, tuple[str, ...]], float] = {}
        for ask, types, share in typical:
            key = (ask.cpu_milli, ask.gpu_milli, types)
            merged[key] = merged.get(key, 0.0) + share
        total = sum(merged.values())
        self.keys = list(merged)
        self.weights = [round(share / total * _UNIT) for share in merged.values()] if total else []


class FragmentationTable:
    """The two tables: weights of shared shapes by room on a device, of whole ones by free devices.

    A row of either is a kind of node and the number of CPU sizes it satisfies (`rows`).
    """

    def __init__(self, shapes: Shapes, kinds: Sequence[frozenset[str]], width: int) -> None:
        self.total = sum(shapes.weights)
        using = [
            (cpu, milli, frozenset(types), weight)
            for (cpu, milli, types), weight in zip(shapes.keys, shapes.weights, strict=True)
            if milli
        ]
        self._cpu = np.unique(np.array([cpu for cpu, _, _, _ in using], dtype=np.int64))
        sizes = np.unique(
            np.array([milli for _, milli, _, _ in using if milli < WHOLE_GPU], dtype=np.int64)
        )
        self._rank = np.searchsorted(sizes, np.arange(WHOLE_GPU + 1), side="right")
        shared = np.zeros((len(kinds), len(self._cpu) + 1, len(sizes) + 1), dtype=np.int64)
        whole = np.zeros((len(kinds), len(self._cpu) + 1, width + 1), dtype=np.int64)
        for cpu, milli, types, weight in using:
            level = int(np.searchsorted(self._cpu, cpu)) + 1
            for k, kind in enumerate(kinds):
                if types and not types & kind:
                    continue
                if milli < WHOLE_GPU:
                    shared[k, level, self._rank[milli]] += weight
                elif milli // WHOLE_GPU <= width:
                    whole[k, level, milli // WHOLE_GPU] += weight
        self._shared = shared.cumsum(axis=1).cumsum(axis=2).reshape(-1, len(sizes) + 1)
        self._whole = whole.cumsum(axis=1).cumsum(axis=2).reshape(-1, width + 1)
