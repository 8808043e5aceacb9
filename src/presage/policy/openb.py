"""The placements compared in the openb study (FGD, ATC 2023): best fit, dot product, GPU packing,
GPU clustering, random, and fragmentation gradient descent (in `fgd.py`).

Each class is one of them and knows no other. In the study a score is a whole number from 0 to 100
and ties go to the node that comes first. That coarseness is part of the published behaviour (at
full resolution dot product and FGD end about one point lower), so it is the default; `exact=True`
keeps the full resolution.

Everything is a function of the free capacity, the request and, for `Random`, the seed in the
state: what is remembered between calls only saves time.
"""

from __future__ import annotations

import numpy as np

from presage.core.capacity import Arrays, Bools, Capacity, Ints
from presage.model.cluster import WHOLE_GPU
from presage.policy._views import Fresh, Largest, free_gpu, usable_devices
from presage.policy.fgd import Fgd
from presage.policy.request import Floats, Request

__all__ = ["BestFit", "DotProduct", "Fgd", "GpuClustering", "GpuPacking", "Random"]


class BestFit:
    """The node with the least CPU and GPU left over, each relative to the largest node."""

    def __init__(self, exact: bool = False) -> None:
        self.exact = exact
        self._largest = Largest()

    def __call__(self, request: Request) -> Floats:
        """1 − ½·(CPU left over) − ½·(GPU left over)."""
        cpu, ask_cpu, cpu_scale = self._largest.cpu(request)
        _, gpu_scale = self._largest.scale(request.capacity)
        gpu = free_gpu(request.capacity) - request.ask.gpu_milli
        # In integers: halves and hundredths must not depend on how a fraction was rounded.
        left = (cpu - ask_cpu) * gpu_scale + gpu * cpu_scale
        most = 2 * cpu_scale * gpu_scale
        score = (most - left) / most if self.exact else 100 * (most - left) // most / 100
        return np.clip(score, 0, 1)


class DotProduct:
    """The node whose free CPU and GPU are least in line with what is asked."""

    def __init__(self, exact: bool = False) -> None:
        self.exact = exact
        self._largest = Largest()

    def __call__(self, request: Request) -> Floats:
        """1 − ½·(free · asked), both relative to the largest node."""
        cpu, ask_cpu, cpu_scale = self._largest.cpu(request)
        _, gpu_scale = self._largest.scale(request.capacity)
        gpu, ask_gpu = free_gpu(request.capacity), request.ask.gpu_milli
        product = (cpu / cpu_scale) * (ask_cpu / cpu_scale)
        product += (gpu / gpu_scale) * (ask_gpu / gpu_scale)
        score = np.clip(1 - product / 2, 0, 1)
        return score if self.exact else np.floor(100 * score) / 100


class GpuPacking:
    """A GPU that is shared already, else free GPUs on a node in use, else an idle node.

    How many free GPUs it takes is the same wherever it goes, so nodes in use tie.
    """

    def __init__(self, exact: bool = False) -> None:
        self.exact = exact

    def __call__(self, request: Request) -> Floats:
        """0.9 to 1 for a shared GPU, less room first; 0.5; 0 to 0.33, smaller nodes first."""
        ask, arrays = request.ask, request.capacity.arrays()
        if not ask.gpu_milli:
            return np.zeros(len(arrays.whole))
        devices = (arrays.sharers >= 0).sum(axis=1)
        idle = 0.33 - np.minimum(devices, 33) / 100
        score = np.where(arrays.whole < devices, 0.5, idle)
        if ask.shared:
            begun = usable_devices(request) & (arrays.gpu < WHOLE_GPU)
            room = np.where(begun, arrays.gpu, WHOLE_GPU).min(axis=1)
            tenths = room / 100 if self.exact else room // 100
            score = np.where(room < WHOLE_GPU, 1 - tenths / 100, score)
        return score


class GpuClustering:
    """Nodes with only workers of the same kind, then mixed ones with some, then idle, then others.

    A kind is a number of whole GPUs; all workers that share a GPU are of one kind, those without a
    GPU of none.
    """

    def __init__(self, exact: bool = False) -> None:
        self.exact = exact
        self._largest = Largest()
        self._fresh = Fresh()
        self._arrays: Arrays | None = None
        self._kinds: Ints = np.zeros(0, dtype=np.int64)
        self._holds: dict[int, Bools] = {}

    def __call__(self, request: Request) -> Floats:
        """A quarter of the range for each band; inside a band, less GPU left is better."""
        capacity, kind = request.capacity, _kind(request.ask.gpu_milli)
        if not kind:
            return np.zeros(len(capacity.nodes))
        self._look(capacity)
        holds = self._holds.get(kind, False)
        alone = np.where(self._kinds == 1, 3, 2)
        band = np.where(holds, alone, np.where(self._kinds == 0, 1, 0))
        _, scale = self._largest.scale(capacity)
        used = scale - free_gpu(capacity)
        part = used / scale if self.exact else 25 * used // scale / 25
        return np.clip((band + part) / 4, 0, 1)

    def _look(self, capacity: Capacity) -> None:
        """Count the kinds on the nodes that changed."""
        arrays, count = capacity.arrays(), len(capacity.nodes)
        if arrays is not self._arrays:
            self._arrays, self._holds = arrays, {}
            self._kinds = np.zeros(count, dtype=np.int64)
        for i in self._fresh.stale(arrays):
            held = {_kind(milli) for milli, workers in capacity.tenants[i].items() if workers}
            held.discard(0)
            self._kinds[i] = len(held)
            for kind in held - self._holds.keys():
                self._holds[kind] = np.zeros(count, dtype=np.bool_)
            for kind, holds in self._holds.items():
                holds[i] = kind in held


class Random:
    """A random node that fits and random devices of it, drawn anew for each attempt and worker."""

    def __call__(self, request: Request) -> Floats:
        """A number for each node."""
        return _lot(request, 0).random(len(request.capacity.nodes))

    def devices(self, request: Request, node: int) -> tuple[int, ...]:
        """As many of the usable devices as the worker needs."""
        count = request.ask.devices
        if not count:
            return ()
        usable = sorted(request.capacity.usable(node, request.ask, request.most))
        chosen = _lot(request, 1).permutation(len(usable))[:count]
        return tuple(sorted(usable[n] for n in chosen))


def _kind(gpu_milli: int) -> int:
    return 1 if 0 < gpu_milli < WHOLE_GPU else gpu_milli


def _lot(request: Request, what: int) -> np.random.Generator:
    """A generator that depends on the seed, the job, its attempt and the worker alone."""
    job = request.job
    worker = len(job.allocation) + len(request.placed)
    seed = request.plan.state.seed % 2**64
    return np.random.default_rng((seed, job.seq, job.attempt, worker, what))
