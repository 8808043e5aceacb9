"""Placements that look at GPUs and where nodes stand: pack, spread, topology.

Each is one idea on a screen and knows no other. The placements of the openb study are in
`openb.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from presage.core.capacity import Capacity, lowest
from presage.model.cluster import WHOLE_GPU
from presage.policy.request import Floats, Request, feasible

__all__ = ["Pack", "Spread", "Topology"]


class Pack:
    """As few machines as possible.

    A job that fits on one node goes to the node with the fewest free GPUs that holds it; a larger
    one fills nodes in order of most free GPUs. Ties go to the node that joined first.
    """

    by_room = True

    def __call__(self, request: Request) -> Floats:
        """Fewest free GPUs first for one worker, most free first for a job over several nodes."""
        whole, size = _whole_and_size(request.capacity)
        if request.workers == 1:
            return 1 - whole / size
        score = whole / (2 * size)
        if request.placed:
            score[request.placed[-1]] = 1  # keep filling the node that was begun
        return score

    def pick(self, request: Request, nodes: int) -> int | None:
        """The same choice by lookup."""
        if request.workers == 1:
            return _first_fit(request, nodes)
        if request.placed:
            last = request.placed[-1]
            if nodes >> last & 1 and request.capacity.fits(last, request.ask, request.most):
                return last
        return _first_fit(request, nodes, most_free_first=True)

    def domains(self, request: Request, nodes: int) -> list[int]:
        """The best single node for the whole job, then everywhere."""
        if request.workers == 1:
            return [nodes]
        capacity, whole = request.capacity, request.whole_ask
        need = -(-whole.gpu_milli // WHOLE_GPU) if whole.gpu_milli >= WHOLE_GPU else 0
        for free in range(need, len(capacity.by_whole)):
            mask = capacity.by_whole[free] & nodes
            while mask:
                i = lowest(mask)
                if (
                    capacity.free_cpu[i] >= whole.cpu_milli
                    and capacity.free_memory[i] >= whole.memory_mib
                ):
                    return [1 << i, nodes]
                mask &= mask - 1
        return [nodes]


class Spread:
    """As many machines as possible: nodes without a worker of this job first, most free GPUs
    first."""

    by_room = True

    def __call__(self, request: Request) -> Floats:
        """Most free first, halved for nodes that hold a worker of this job already."""
        whole, size = _whole_and_size(request.capacity)
        score = 0.5 + whole / (2 * size)
        for i in request.placed:
            score[i] *= 0.5
        return score

    def pick(self, request: Request, nodes: int) -> int | None:
        """The same choice by lookup."""
        capacity, ask = request.capacity, request.ask
        if not request.placed:
            return _first_fit(request, nodes, most_free_first=True)
        fresh = nodes
        for i in request.placed:
            fresh &= ~(1 << i)
        first = _first_fit(request, fresh, most_free_first=True)
        if first is not None:
            return first
        used = [i for i in set(request.placed) if nodes >> i & 1]
        used = [i for i in used if capacity.fits(i, ask, request.most)]
        return min(used, key=lambda i: (request.placed.count(i), i), default=None)


class Topology:
    """In one rack, else in one network area, else anywhere; packed inside.

    The levels are names of node labels, nearest first.
    """

    by_room = True

    def __init__(self, levels: Sequence[str] = ("rack", "area")) -> None:
        self.levels = tuple(levels)
        self._pack = Pack()

    def __call__(self, request: Request) -> Floats:
        """As `pack`; the domains do the rest."""
        return self._pack(request)

    def pick(self, request: Request, nodes: int) -> int | None:
        """As `pack`."""
        return self._pack.pick(request, nodes)

    def domains(self, request: Request, nodes: int) -> list[int]:
        """One node, then each rack with the least room that has enough, then each area, then
        all."""
        capacity = request.capacity
        domains = self._pack.domains(request, nodes)[:-1]
        need = request.whole_ask.gpu_milli // WHOLE_GPU
        for level in self.levels:
            masks = [mask & nodes for mask in capacity.labels.get(level, {}).values()]
            sized = [(free_gpus(capacity, mask), mask) for mask in masks if mask]
            domains += [mask for free, mask in sorted(sized) if free >= need]
        return [*domains, nodes]


def free_gpus(capacity: Capacity, nodes: int) -> int:
    """Wholly free GPUs on the nodes of a mask."""
    return sum(
        count * (mask & nodes).bit_count() for count, mask in enumerate(capacity.by_whole) if count
    )


def _first_fit(request: Request, nodes: int, most_free_first: bool = False) -> int | None:
    """The first node that fits, walking the masks by free GPUs, fewest or most of them first."""
    capacity, ask = request.capacity, request.ask
    need = ask.gpu_milli // WHOLE_GPU
    masks = capacity.by_whole[need:]
    if most_free_first:
        masks.reverse()
    if need and capacity.plain and not ask.gpu_memory_mib:
        for mask in masks:
            mask &= nodes
            if mask:
                return (mask & -mask).bit_length() - 1
        return None
    if len(capacity.nodes) > 64:
        return _first_of(request, feasible(request, nodes), most_free_first)
    for mask in masks:
        mask &= nodes
        while mask:
            i = lowest(mask)
            if capacity.fits(i, ask, request.most):
                return i
            mask &= mask - 1
    return None


def _first_of(request: Request, good: np.ndarray, most_free_first: bool) -> int | None:
    fits = np.flatnonzero(good)
    if not len(fits):
        return None
    whole = request.capacity.arrays().whole[fits]
    return int(fits[whole.argmax() if most_free_first else whole.argmin()])


def _whole_and_size(capacity: Capacity) -> tuple[Floats, int]:
    return capacity.arrays().whole.astype(np.float64), max(1, len(capacity.by_whole) - 1)
