"""Views of the free capacity that several scores share: room by node and device, the largest node,
and which nodes changed since one last looked.

Reads `Capacity`; holds no choice and never writes.
"""

from __future__ import annotations

import numpy as np

from presage.core.capacity import Arrays, Bools, Capacity, Ints
from presage.model.cluster import UNLIMITED, WHOLE_GPU
from presage.policy.request import Request

__all__ = ["Fresh", "Largest", "free_gpu", "usable_devices"]


def free_gpu(capacity: Capacity) -> Ints:
    """Milli-GPUs free on each node; what is promised to somebody counts as nothing."""
    free: Ints = np.maximum(capacity.arrays().gpu, 0).sum(axis=1)
    return free


def usable_devices(request: Request, nodes: Ints | slice = slice(None)) -> Bools:
    """Which devices of some nodes could serve a request (as `Capacity.usable` says)."""
    arrays, ask = request.capacity.arrays(), request.ask
    usable: Bools = arrays.gpu[nodes] >= min(ask.gpu_milli, WHOLE_GPU)
    if ask.gpu_memory_mib:
        usable &= arrays.gpu_memory[nodes] >= ask.gpu_memory_mib
    if request.most is not None:
        usable &= arrays.sharers[nodes] < request.most
    return usable


class Largest:
    """The CPU and the GPUs of the largest node: what scores are relative to."""

    def __init__(self) -> None:
        self._capacity: Capacity | None = None
        self._seen = 0
        self._cpu_milli = 0
        self._devices = 1

    def scale(self, capacity: Capacity) -> tuple[int, int]:
        """CPU and GPU milli of the largest node; CPU is 0 when no node limits it."""
        if capacity is not self._capacity:
            self._capacity, self._seen, self._cpu_milli, self._devices = capacity, 0, 0, 1
        for node in capacity.nodes[self._seen :]:
            if node.cpu_milli < UNLIMITED:
                self._cpu_milli = max(self._cpu_milli, node.cpu_milli)
            self._devices = max(self._devices, len(node.devices))
        self._seen = len(capacity.nodes)
        return self._cpu_milli, self._devices * WHOLE_GPU

    def cpu(self, request: Request) -> tuple[Ints, int, int]:
        """CPU free on each node, CPU asked for, and the scale of both.

        A node without a limit counts as the largest; where none has one, CPU counts for nothing.
        """
        scale, _ = self.scale(request.capacity)
        free = np.minimum(request.capacity.arrays().cpu, scale)
        return (free, request.ask.cpu_milli, scale) if scale else (free, 0, 1)


class Fresh:
    """Which nodes changed since the last call."""

    def __init__(self) -> None:
        self._arrays: Arrays | None = None
        self._seen: Ints = np.zeros(0, dtype=np.int64)

    def stale(self, arrays: Arrays) -> Ints:
        """Indices of the nodes that changed; all of them when the cluster is another one."""
        # A node that joins makes new arrays, whose versions start over: only the object tells.
        if arrays is not self._arrays:
            self._arrays, self._seen = arrays, np.full(len(arrays.version), -1, dtype=np.int64)
        changed: Ints = np.flatnonzero(self._seen != arrays.version)
        self._seen[changed] = arrays.version[changed]
        return changed
