"""Options that say how a model is run, for every command that foresees one.

They are names and help alone: `presage.model.setup.Setup.make` checks what people give.
"""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = [
    "Accumulate",
    "AttentionKind",
    "Checkpoint",
    "Compile",
    "Concurrency",
    "CudnnBenchmark",
    "Gpus",
    "Interconnect",
    "KvLen",
    "LayoutKind",
    "Lora",
    "Loss",
    "OffloadKind",
    "Optimizer",
    "Parallel",
    "Precision",
    "Quant",
    "Seq",
]

Optimizer = Annotated[
    str,
    typer.Option(help="sgd, momentum, adam, adamw, adamw-fused, adamw-8bit, adafactor, lion …"),
]
Precision = Annotated[
    str, typer.Option(help="fp32 (PyTorch's defaults), tf32, amp, amp-bf16, bf16, fp16 or fp8.")
]
MOST = 10**8
"""Tokens of a sample, samples of a step: beyond what anybody trains, so a slip of the finger."""
Seq = Annotated[int | None, typer.Option(min=1, max=MOST, help="Tokens of a sample.")]
Accumulate = Annotated[
    int, typer.Option(min=1, max=10**6, help="Micro-batches before the optimizer's step.")
]
Gpus = Annotated[
    int, typer.Option(min=1, max=10**6, help="How many GPUs of a kind work together.")
]
Parallel = Annotated[
    str | None,
    typer.Option(
        help="ddp, zero1, zero2, zero3, fsdp (fsdp,sync: gradients divided at each micro-batch), "
        "and tp=2,pp=2,cp=1,ep=8 in any mixture."
    ),
]
Lora = Annotated[
    str | None, typer.Option(help="Adapters beside frozen weights: r=16:q,k,v,o or r=16:all.")
]
Quant = Annotated[str | None, typer.Option(help="Of the frozen weights: nf4 or int8.")]
Checkpoint = Annotated[
    str | None, typer.Option(help="Activation checkpointing: none, selective or full.")
]
Loss = Annotated[str | None, typer.Option(help="Logits of all tokens at once (full) or chunked.")]
AttentionKind = Annotated[
    str | None, typer.Option("--attention", help="eager, sdpa (PyTorch's default) or flash.")
]
LayoutKind = Annotated[str | None, typer.Option("--layout", help="Of images: nchw or nhwc.")]
Compile = Annotated[bool, typer.Option("--compile", help="The model goes through torch.compile.")]
CudnnBenchmark = Annotated[
    bool, typer.Option("--cudnn-benchmark", help="torch.backends.cudnn.benchmark is on.")
]
OffloadKind = Annotated[
    str | None, typer.Option("--offload", help="To the host's memory: optimizer or params.")
]
Interconnect = Annotated[
    str | None, typer.Option(help="Between GPUs: nvlink, pcie, ib400, eth100 …")
]
KvLen = Annotated[
    int | None, typer.Option(min=1, help="With --inference: tokens that a served sequence holds.")
]
Concurrency = Annotated[
    int, typer.Option(min=1, max=MOST, help="With --inference: sequences that are served at once.")
]
