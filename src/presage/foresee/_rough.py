"""A first estimate of thousands of ways to train, from two answers for one GPU.

It only says where to look: how much memory and time a way takes is asked afterwards, and each
answer corrects the estimates of its kind. Nothing of this reaches a user.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from presage.foresee._layouts import Candidate
from presage.foresee.answer import OnGpu
from presage.learn import Floats

__all__ = ["FirstEstimates", "Seed", "chances_of"]

_KEPT = {"none": 1.0, "selective": 0.6, "full": 0.15}
"""Share of the activations that checkpointing keeps."""
_AGAIN = {"none": 1.0, "selective": 1.1, "full": 1.33}
"""What computing the rest again costs."""
_HIDDEN = 0.5
"""Share of the communication that computation hides."""
_BOX = 8
"""GPUs that are in one machine."""
_SPREAD = 0.12
"""Of the logarithm of memory, for a first chance."""
_HOPE = (0.99, 0.97, 0.94, 0.9, 0.9)
"""Of the time, by how narrow the group is that corrects it."""


@dataclass(frozen=True, slots=True)
class Seed:
    """What one GPU alone would take, as a line over the batch."""

    fixed_mib: float
    sample_mib: float
    fixed_ms: float
    sample_ms: float
    weights_mib: float
    gradients_mib: float
    optimizer_mib: float

    @classmethod
    def of(cls, one: OnGpu, more: OnGpu, batch: int) -> Seed:
        """From the answers for a batch of 1 and for a larger one."""

        def line(low: float, high: float) -> tuple[float, float]:
            slope = max(0.0, (high - low) / (batch - 1)) if batch > 1 else 0.0
            return max(0.0, low - slope), slope

        mib = line(one.memory_mib.p50, more.memory_mib.p50)
        ms = line(one.step_ms.p50, more.step_ms.p50)
        parts = [
            float(one.breakdown.get(part, 0.0)) for part in ("weights", "gradients", "optimizer")
        ]
        return cls(*mib, *ms, *parts)

    def memory_mib(self, way: Candidate) -> float:
        """Of each GPU."""
        setup, p = way.setup, way.setup.parallel
        split, replicas = p.tensor * p.pipeline, setup.data_parallel
        weights = self.weights_mib / split
        gradients = self.gradients_mib / split
        optimizer = self.optimizer_mib / split
        rest = self.fixed_mib - self.weights_mib - self.gradients_mib - self.optimizer_mib
        if p.sharding != "none" and p.sharding != "ddp":
            optimizer /= replicas
        if p.sharding in ("zero2", "zero3", "fsdp"):
            gradients /= replicas
        if p.sharding in ("zero3", "fsdp"):
            weights /= replicas
        in_flight = min(p.pipeline, setup.accumulate) / p.pipeline
        kept = _KEPT[setup.checkpoint] * in_flight / (p.tensor * p.context)
        samples = self.sample_mib * way.batch * kept
        return max(0.0, rest) + weights + gradients + optimizer + samples

    def step_ms(self, way: Candidate) -> float:
        """Of one step of the optimizer."""
        setup, p = way.setup, way.setup.parallel
        micro = (self.fixed_ms + self.sample_ms * way.batch) * _AGAIN[setup.checkpoint]
        among = p.tensor * p.context
        micro *= (1 + 0.08 * math.log2(among)) / (among * p.pipeline)
        micros = setup.accumulate + p.pipeline - 1
        return micros * micro + self._exchange_ms(way)

    def _exchange_ms(self, way: Candidate) -> float:
        setup, p = way.setup, way.setup.parallel
        if setup.data_parallel == 1:
            return 0.0
        fast = way.gpu.bandwidth_gbs >= 1200 and way.gpu.memory_mib >= 40_000
        inside = setup.gpus <= _BOX
        gb_per_s = (150.0 if inside else 25.0) if fast else (12.0 if inside else 3.0)
        weights = self.weights_mib / (p.tensor * p.pipeline)
        sent = 2.0 * min(weights, self.gradients_mib or weights)
        if p.sharding in ("zero3", "fsdp"):
            sent += 2.0 * weights * setup.accumulate
        # Simpler ways first where nothing else tells them apart.
        extra = {"zero1": 1.01, "zero2": 1.02, "zero3": 1.02}.get(p.sharding, 1.0)
        return extra * sent * (1 - _HIDDEN) / gb_per_s * 1.05


def chances_of(memory_mib: Floats, room_mib: Floats) -> Floats:
    """That so much fits, by a first estimate: about normal in the logarithm."""
    z = np.log(room_mib / memory_mib) / _SPREAD
    chances: Floats = 1 / (1 + np.exp(-1.7 * np.clip(z, -50, 50)))
    return chances


class FirstEstimates:
    """Memory and time of many ways, corrected by what was answered since."""

    def __init__(self, ways: Sequence[Candidate], seeds: Mapping[str, Seed]) -> None:
        self._groups: dict[tuple[object, ...], int] = {}
        self._levels = np.array([self._numbers(way) for way in ways], dtype=np.int64)
        mib = [seeds[way.gpu.name].memory_mib(way) for way in ways]
        ms = [seeds[way.gpu.name].step_ms(way) for way in ways]
        self._mib: Floats = np.maximum(np.array(mib), 1.0)
        self._ms: Floats = np.maximum(np.array(ms), 1e-6)
        self._sums = np.zeros((len(self._groups), 2))
        self._counts = np.zeros(len(self._groups))

    def _numbers(self, way: Candidate) -> list[int]:
        """The groups that a way is in, the narrowest first."""
        kind = way.kind
        names: list[tuple[object, ...]] = [
            (way.gpu.name, way.setup.gpus, kind),
            (way.gpu.name, kind),
            (kind,),
            (kind[-1],),
            (),
        ]
        return [self._groups.setdefault(name, len(self._groups)) for name in names]

    def learn(self, place: int, on: OnGpu) -> None:
        """Take an answer for the way at a place."""
        error = (
            math.log(max(on.memory_mib.p50, 1.0) / self._mib[place]),
            math.log(max(on.step_ms.p50, 1e-6) / self._ms[place]),
        )
        self._sums[self._levels[place]] += error
        self._counts[self._levels[place]] += 1

    def now(self) -> tuple[Floats, Floats]:
        """MiB and ms of every way; a little less than expected of those whose kind was not asked
        yet, so that it will be."""
        means = self._sums / np.maximum(self._counts, 1)[:, None]
        known = self._counts[self._levels] > 0
        level = np.where(known.any(axis=1), known.argmax(axis=1), known.shape[1] - 1)
        group = self._levels[np.arange(len(self._levels)), level]
        shift = means[group]
        hope = np.array(_HOPE)[level]
        return self._mib * np.exp(shift[:, 0]), self._ms * np.exp(shift[:, 1]) * hope
