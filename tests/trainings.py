"""A small world in which trainings are foreseen by arithmetic, for tests of what builds on it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from presage.foresee.answer import OnGpu, Prediction, Quantiles
from presage.foresee.gpus import Gpu
from presage.foresee.graph.decoders import DecoderShape
from presage.model.setup import Setup

__all__ = ["SHAPE", "World"]

SHAPE = DecoderShape("8b", 32, 4096, 32, 8, 128, 14336, 128_256)


class World:
    """Trainings of a model with so many parameters, by arithmetic; counts what it is asked."""

    def __init__(self, billions: float = 8.0) -> None:
        self.params = billions * 1e9
        self.asked = 0

    def __call__(self, batch: int, gpus: Sequence[Gpu], setup: Setup) -> Prediction:
        self.asked += len(gpus)
        on = {gpu.name: self._on(batch, gpu, setup) for gpu in gpus}
        return Prediction("8b", batch, 0.0, 0.0, int(self.params), 0.0, {}, on)

    def _on(self, batch: int, gpu: Gpu, setup: Setup) -> OnGpu:
        p, replicas = setup.parallel, setup.data_parallel
        split = p.tensor * p.pipeline
        parts = {"weights": 4.0, "gradients": 4.0, "optimizer": 8.0}
        parts = {name: self.params * size / split / 2**20 for name, size in parts.items()}
        for part, sharded in {
            "optimizer": ("zero1", "zero2", "zero3", "fsdp"),
            "gradients": ("zero2", "zero3", "fsdp"),
            "weights": ("zero3", "fsdp"),
        }.items():
            if p.sharding in sharded:
                parts[part] = parts[part] / replicas * 1.1
        kept = {"none": 34.0, "selective": 16.0, "full": 2.6}[setup.checkpoint]
        sample = kept * 32 * 4096 * 4096 / 2**20 / p.tensor**0.8
        parts["activations"] = batch * sample * min(p.pipeline, setup.accumulate) / p.pipeline
        parts["device and driver"] = 900.0
        mib = sum(parts.values())
        again = {"none": 1.0, "selective": 1.04, "full": 1.3}[setup.checkpoint]
        busy = 0.55 * batch / (batch + 0.4)
        flop = 6 * self.params * 4096 * batch * again / split
        micro = flop / (gpu.tflops("bf16") * 1e12 * busy) * 1000 * (1 + 0.05 * math.log2(p.tensor))
        step = micro * (setup.accumulate + p.pipeline - 1)
        if replicas > 1:
            link = 100e9 if gpu.bandwidth_gbs > 1200 else 15e9
            link = link if setup.gpus <= 8 else link / 3
            times = 2 + (2 * setup.accumulate if p.sharding in ("zero3", "fsdp") else 0)
            step += 0.4 * times * 4 * self.params / split / link * 1000
        room = gpu.usable_mib
        return OnGpu(
            memory_mib=Quantiles(0.93 * mib, mib, 1.08 * mib),
            breakdown=parts,
            gpu_util_pct=Quantiles(80, 90, 95),
            step_ms=Quantiles(0.85 * step, step, 1.2 * step),
            max_batch=1,
            fits=1.08 * mib <= room,
            headroom_mib=room - 1.08 * mib,
            reason="",
            mattered={},
            chance_fits=float(np.clip(0.5 + 4 * math.log(room / mib), 0, 1)),
        )
