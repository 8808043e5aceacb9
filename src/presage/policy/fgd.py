"""Fragmentation gradient descent (FGD, ATC 2023): each worker goes where the idle GPUs that nobody
can use grow least. `fragmentation.py` counts them.

A score is worked out once for each kind of request and then only for nodes that changed. What is
remembered only saves time: it may be forgotten at any moment without changing a decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from presage.core.capacity import Arrays, Ints
from presage.core.state import State
from presage.model.cluster import WHOLE_GPU
from presage.model.job import Role
from presage.policy._views import Fresh, usable_devices
from presage.policy.fragmentation import (
    FragmentationTable,
    Shapes,
    Typical,
    learned,
    node_kinds,
)
from presage.policy.request import Floats, Request

__all__ = ["Fgd"]

_MOST_KNOWN = 512
"""Kinds of requests whose scores are kept; a workload has some dozens."""


class Fgd:
    """The node and device with the largest drop (least rise) of fragmentation.

    `typical` are the request shapes of the workload with their shares; without it, all jobs
    submitted so far are the workload.
    """

    def __init__(self, typical: Iterable[Typical] | None = None, exact: bool = False) -> None:
        self.exact = exact
        self._workload = _Demand(typical)
        self._cluster: Arrays | None = None
        self._kind: Ints = np.zeros(0, dtype=np.int64)
        self._shapes: Shapes | None = None
        self._weights: Ints | None = None
        self._table = FragmentationTable(self._workload.shapes, (), 0)
        self._known: dict[tuple[int, int, int, int | None], _ScoreCache] = {}

    def __call__(self, request: Request) -> Floats:
        """0.5 where fragmentation stays as it is, more where it drops."""
        return self._evaluate(request).score.copy()

    def devices(self, request: Request, node: int) -> tuple[int, ...]:
        """For a share, the device with the largest drop; the first of those that are equal."""
        if request.ask.shared:
            return (int(self._evaluate(request).device[node]),)
        return request.capacity.devices(node, request.ask, request.most)

    def _evaluate(self, request: Request) -> _ScoreCache:
        arrays, ask = request.capacity.arrays(), request.ask
        self._prepare(request, arrays)
        key = (ask.cpu_milli, ask.gpu_milli, ask.gpu_memory_mib, request.most)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[key] = _ScoreCache(len(arrays.cpu))
        stale = known.fresh.stale(arrays)
        if len(stale):
            known.score[stale], known.device[stale] = self._best(request, stale)
        return known

    def _prepare(self, request: Request, arrays: Arrays) -> None:
        """Bring the table up to date; what another cluster or workload gave is forgotten."""
        shapes, weights = self._workload.learn(request.plan.state)
        if arrays is not self._cluster or shapes is not self._shapes:
            self._cluster, self._shapes, self._weights = arrays, shapes, None
            kinds, self._kind = node_kinds(request.capacity.nodes)
            self._table = FragmentationTable(shapes, kinds, arrays.gpu.shape[1])
        if weights is not self._weights:
            self._weights = weights
            self._table.weigh(weights)
            self._known.clear()

    def _best(self, request: Request, nodes: Ints) -> tuple[Floats, Ints]:
        """The best score on each of these nodes and, for a share, the device that gives it."""
        ask, arrays, table = request.ask, request.capacity.arrays(), self._table
        kind, cpu, whole = self._kind[nodes], arrays.cpu[nodes], arrays.whole[nodes]
        gpu = np.maximum(arrays.gpu[nodes], 0)
        before = table.usable(table.rows(kind, cpu), gpu, whole)
        rows = table.rows(kind, cpu - ask.cpu_milli)
        gone = ask.gpu_milli * table.total
        if not ask.shared:
            after = _after_whole(table, rows, gpu, whole, ask.devices)
            return self._score(gone + after - before), np.zeros(len(nodes), dtype=np.int64)
        after = _after_share(table, rows, gpu, whole, ask.gpu_milli)
        score = self._score(gone + after - before[:, np.newaxis])
        score[~usable_devices(request, nodes)] = -1  # below any device that serves
        device = score.argmax(axis=1)
        return np.maximum(score[np.arange(len(nodes)), device], 0), device

    def _score(self, drop: Ints) -> Floats:
        """A drop of F (weight × milli) as a score: the study's sigmoid, or a line when exact."""
        gpus = drop / (WHOLE_GPU * max(1, self._table.total))
        if self.exact:
            width = self._cluster.gpu.shape[1] if self._cluster is not None else 1
            return np.clip(0.5 + gpus / (2 * width), 0, 1)
        return np.floor(100 / (1 + np.exp(-gpus))) / 100


def _after_whole(
    table: FragmentationTable, rows: Ints, gpu: Ints, whole: Ints, count: int
) -> Ints:
    """What can be used when `count` whole devices are gone; any of them, they are alike."""
    full = np.full((len(rows), 1), WHOLE_GPU)
    lost = count * table.on_devices(rows, full)[:, 0]
    kept: Ints = table.on_devices(rows, gpu).sum(axis=1) - lost
    return kept + table.on_whole(rows, np.maximum(whole - count, 0))


def _after_share(
    table: FragmentationTable, rows: Ints, gpu: Ints, whole: Ints, milli: int
) -> Ints:
    """What can be used when a part of a device is gone, for each device that could be."""
    now = table.on_devices(rows, gpu)
    then = table.on_devices(rows, np.maximum(gpu - milli, 0))
    kept = now.sum(axis=1) + table.on_whole(rows, whole)
    broken = table.on_whole(rows, np.maximum(whole - 1, 0)) - table.on_whole(rows, whole)
    after: Ints = then - now + kept[:, np.newaxis]
    after += (gpu == WHOLE_GPU) * broken[:, np.newaxis]
    return after


class _ScoreCache:
    """Scores of one kind of request."""

    def __init__(self, nodes: int) -> None:
        self.fresh = Fresh()
        self.score: Floats = np.zeros(nodes)
        self.device: Ints = np.zeros(nodes, dtype=np.int64)


class _Demand:
    """The shapes of the workload and their weights; each is a new object when it changed."""

    def __init__(self, typical: Iterable[Typical] | None) -> None:
        self._learns = typical is None
        self.shapes, shares = Shapes.of(typical or ())
        self._weights = self.shapes.weights(shares)
        self._seen: Mapping[tuple[Role, ...], int] | None = None
        self._submitted = 0
        self._combinations = 0
        self._which: Ints = np.zeros(0, dtype=np.int64)
        self._workers: Ints = np.zeros(0, dtype=np.int64)

    def learn(self, state: State) -> tuple[Shapes, Ints]:
        """What was given, or else what was submitted."""
        seen = state.shapes
        if self._learns and (seen is not self._seen or state.submitted != self._submitted):
            if seen is not self._seen or len(seen) != self._combinations:
                self._list(seen)
            self._seen, self._submitted = seen, state.submitted
            counts = np.fromiter(seen.values(), np.int64, len(seen))
            shares = (counts[self._which] * self._workers).astype(np.float64)
            self._weights = self.shapes.weights(shares)
        return self.shapes, self._weights

    def _list(self, seen: Mapping[tuple[Role, ...], int]) -> None:
        """Take in the combinations of roles; how often each came may change without this."""
        self._combinations = len(seen)
        self.shapes, _ = Shapes.of(learned(seen))
        pairs = [(n, role.min) for n, roles in enumerate(seen) for role in roles]
        which, workers = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        self._which, self._workers = which, workers
