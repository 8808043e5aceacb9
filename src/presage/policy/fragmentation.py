"""How much of the idle GPUs a workload cannot use: the F of fragmentation gradient descent.

For one node, F is a sum over request shapes, each weighted by its share of the workload, of the
idle milli-GPUs that this shape cannot use: all of them when it does not fit there (too few GPUs,
too little CPU, another GPU type) or asks for no GPU; otherwise only those on GPUs with less room
than it asks for. Memory is left out, as in the publication.

Shape by shape this costs nodes × shapes × devices. Here it is a lookup: what matters of a node is
its kind of GPU, how many of the CPU sizes in the workload it still satisfies, and the room on each
device, so two small tables of summed weights answer for all shapes at once. Weights are integers:
nodes in the same condition tie exactly, whatever the order of their devices.

Chooses nothing: `fgd.py` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from presage.core.capacity import Capacity, Ints
from presage.model.cluster import WHOLE_GPU, Node, Resources
from presage.model.job import Role
from presage.policy.request import Floats

__all__ = ["FragmentationTable", "Shapes", "Typical", "fragmentation", "learned", "node_kinds"]

Typical = tuple[Resources, tuple[str, ...], float]
"""A request shape, the GPU types it accepts (none named: any), and its share of the workload."""

_UNIT = 10**9
"""Shares are kept in billionths: sums over a node are exact in 64 bits and in a double."""


def fragmentation(capacity: Capacity, typical: Iterable[Typical]) -> float:
    """Idle milli-GPUs of the open nodes that a workload of these shapes cannot use."""
    if not capacity.nodes:
        return 0.0
    arrays = capacity.arrays()
    shapes, shares = Shapes.of(typical)
    kinds, kind = node_kinds(capacity.nodes)
    table = FragmentationTable(shapes, kinds, arrays.gpu.shape[1])
    table.weigh(shapes.weights(shares))
    gpu = np.maximum(arrays.gpu, 0)
    usable = table.usable(table.rows(kind, arrays.cpu), gpu, arrays.whole)
    wasted = table.total * gpu.sum(axis=1) - usable
    return float(wasted[capacity.mask_array(capacity.open)].sum()) / max(1, table.total)


def learned(shapes: Mapping[tuple[Role, ...], int]) -> list[Typical]:
    """The typical shapes of what was submitted (`State.shapes`), each role once for a worker."""
    return [
        (role.resources, role.gpu_types, count * role.min)
        for roles, count in shapes.items()
        for role in roles
    ]


def node_kinds(nodes: Sequence[Node]) -> tuple[list[frozenset[str]], Ints]:
    """The different sets of GPU types in a cluster, and which of them each node has."""
    kinds: dict[frozenset[str], int] = {}
    kind = [
        kinds.setdefault(frozenset(device.type for device in node.devices), len(kinds))
        for node in nodes
    ]
    return list(kinds), np.array(kind, dtype=np.int64)


class Shapes:
    """Different request shapes; requests that differ only in memory are one shape."""

    def __init__(self, requests: Iterable[tuple[Resources, tuple[str, ...]]]) -> None:
        shapes: dict[tuple[int, int, frozenset[str]], int] = {}
        shape = [
            shapes.setdefault((ask.cpu_milli, ask.gpu_milli, frozenset(types)), len(shapes))
            for ask, types in requests
        ]
        self.keys = list(shapes)
        """CPU, GPU and accepted types of each shape."""
        self._shape = np.array(shape, dtype=np.int64)

    @classmethod
    def of(cls, typical: Iterable[Typical]) -> tuple[Shapes, Floats]:
        """The shapes in a list of typical requests, and the share of each request."""
        listed = list(typical)
        shares = np.array([share for _, _, share in listed], dtype=np.float64)
        return cls((ask, types) for ask, types, _ in listed), shares

    def weights(self, shares: Floats) -> Ints:
        """The weight of each shape, given the share of each request, in any unit."""
        merged = np.bincount(self._shape, shares, len(self.keys))
        total = merged.sum()
        if total <= 0:
            return np.zeros(len(self.keys), dtype=np.int64)
        weights: Ints = np.rint(merged * (_UNIT / total)).astype(np.int64)
        return weights


class FragmentationTable:
    """Summed weights of the shapes a node could serve.

    One table is for shapes that share a device, by the room on it; the other for those that take
    whole devices, by how many are free. A row of either is a kind of node and a number of CPU
    sizes that the node satisfies.
    """

    def __init__(self, shapes: Shapes, kinds: Sequence[frozenset[str]], width: int) -> None:
        self.total = 0
        """Weight of all shapes, those without a GPU included."""
        cpus = sorted({cpu for cpu, milli, _ in shapes.keys if milli})
        sizes = sorted({milli for _, milli, _ in shapes.keys if 0 < milli < WHOLE_GPU})
        level = {cpu: n for n, cpu in enumerate(cpus, 1)}
        size = {milli: n for n, milli in enumerate(sizes, 1)}
        size |= {WHOLE_GPU * n: n for n in range(1, width + 1)}
        cells: tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]] = ([], [])
        of: tuple[list[int], list[int]] = ([], [])
        for s, (cpu, milli, types) in enumerate(shapes.keys):
            for k, kind in enumerate(kinds):
                if milli in size and (not types or types & kind):
                    cells[milli >= WHOLE_GPU].append((k, level[cpu], size[milli]))
                    of[milli >= WHOLE_GPU].append(s)
        rows = (len(kinds), len(cpus) + 1)
        self._cpus = np.array(cpus, dtype=np.int64)
        self._rank = np.searchsorted(sizes, np.arange(WHOLE_GPU + 1), side="right")
        self._shared = _Summed((*rows, len(sizes) + 1), cells[False], of[False])
        self._whole = _Summed((*rows, width + 1), cells[True], of[True])

    def weigh(self, weights: Ints) -> None:
        """Set the weight of each shape."""
        self.total = int(weights.sum())
        self._shared.weigh(weights)
        self._whole.weigh(weights)

    def rows(self, kind: Ints, cpu: Ints) -> Ints:
        """Table rows of nodes of these kinds with this much CPU free."""
        return kind * (len(self._cpus) + 1) + np.searchsorted(self._cpus, cpu, side="right")

    def usable(self, rows: Ints, gpu: Ints, whole: Ints) -> Ints:
        """Weight × milli that can be used on nodes with this room on each device."""
        shared: Ints = self.on_devices(rows, gpu).sum(axis=1)
        return shared + self.on_whole(rows, whole)

    def on_devices(self, rows: Ints, gpu: Ints) -> Ints:
        """The part of `usable` that shapes which share a device bring, by device."""
        return gpu * self._shared.at(rows[:, np.newaxis], self._rank[gpu])

    def on_whole(self, rows: Ints, whole: Ints) -> Ints:
        """The part of `usable` that shapes which take whole devices bring."""
        return WHOLE_GPU * whole * self._whole.at(rows, whole)


class _Summed:
    """For each row and size, the weight of all shapes up to that size and up to the row's CPU."""

    def __init__(
        self, shape: tuple[int, int, int], cells: Sequence[tuple[int, int, int]], of: Sequence[int]
    ) -> None:
        self._dims = shape
        places = np.array(cells, dtype=np.int64).reshape(-1, 3)
        self._place = np.ravel_multi_index(tuple(places.T), shape)
        self._of = np.array(of, dtype=np.int64)
        self._sums = np.zeros(int(np.prod(shape)), dtype=np.int64)

    def weigh(self, weights: Ints) -> None:
        single = np.bincount(self._place, weights[self._of], self._sums.size)
        grid = single.astype(np.int64).reshape(self._dims)
        self._sums = grid.cumsum(axis=1).cumsum(axis=2).ravel()

    def at(self, rows: Ints, sizes: Ints) -> Ints:
        sums: Ints = self._sums[rows * self._dims[2] + sizes]
        return sums
