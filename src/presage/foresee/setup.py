"""How a model is run: everything that is asked beside the model, its batch and the GPU.

One frozen value that commands, manifests, the page and the estimators share. It is checked where it
is made, so that the estimators only meet set-ups that make sense. Nothing here predicts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Attention",
    "Checkpointing",
    "Layout",
    "LoraAdapter",
    "LossMemory",
    "Offload",
    "Parallelism",
    "Quantization",
    "Setup",
    "Sharding",
    "TrainingPrecision",
]

Sharding = Literal["none", "ddp", "zero1", "zero2", "zero3", "fsdp"]
TrainingPrecision = Literal["fp32", "tf32", "amp", "amp-bf16", "bf16", "fp16", "fp8"]
Quantization = Literal["none", "nf4", "int8"]
Checkpointing = Literal["none", "selective", "full"]
LossMemory = Literal["full", "chunked"]
Attention = Literal["eager", "sdpa", "flash"]
Layout = Literal["nchw", "nhwc"]
Offload = Literal["none", "optimizer", "params"]


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How the work is divided among GPUs; what is left of them after tensor, pipeline and context
    parallelism is data parallel."""

    sharding: Sharding = "none"
    """Of weights, gradients and optimizer state among data-parallel ranks."""
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    interleave: int = 1
    """Model chunks of a pipeline rank (virtual pipeline stages)."""


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """Low-rank adapters beside frozen weights."""

    rank: int
    targets: tuple[str, ...] = ("q", "v")
    """Projections that have one: q, k, v, o, gate, up, down, head."""


@dataclass(frozen=True, slots=True)
class Setup:
    """How a model is trained or served on `gpus` equal GPUs. `batch` is asked for elsewhere: the
    samples that one GPU (of tensor, pipeline and context ranks: one group) takes in one go."""

    optimizer: str = "sgd"
    precision: TrainingPrecision = "fp32"
    seq: int | None = None
    """Tokens of a sample; None for what the model says."""
    accumulate: int = 1
    """Micro-batches before the optimizer steps."""
    gpus: int = 1
    parallel: Parallelism = Parallelism()
    lora: LoraAdapter | None = None
    quant: Quantization = "none"
    checkpoint: Checkpointing = "none"
    loss: LossMemory = "full"
    attention: Attention = "sdpa"
    layout: Layout = "nchw"
    compile: bool = False
    cudnn_benchmark: bool = False
    offload: Offload = "none"
    interconnect: str | None = None
    """Between GPUs: nvlink, pcie, ib400, eth100 and the like; None for what the GPU usually has."""
    inference: bool = False
    kv_len: int | None = None
    """Tokens that the cache of a served sequence holds at most."""
    concurrency: int = 1
    """Sequences that are served at once."""

    @property
    def data_parallel(self) -> int:
        """Replicas that see different samples."""
        p = self.parallel
        return max(1, self.gpus // (p.tensor * p.pipeline * p.context))
