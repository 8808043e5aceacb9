"""What a training step of a decoder language model consists of: operations and bytes.

They follow from the model's shape, the set-up and the GPU's published figures alone; nothing that
was learned changes them. One pipeline stage of average size stands for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from presage.foresee.communication import KINDS, RankLoad, bubble_share, fabric, traffic
from presage.foresee.gpus import Gpu, Precision
from presage.foresee.graph.decoders import DecoderShape
from presage.model.optimizers import optimizer_memory
from presage.model.setup import Setup

__all__ = ["StepWork", "way", "work"]

_KERNELS = 120.0
"""Kernels of a layer in both passes, eager."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """One micro-batch on one rank of the average pipeline stage, in operations and bytes."""

    dense_flops: float
    """Of linear layers, forward and backward."""
    dense_thin: float
    """Operations times Σ 1/side of their matrices: what memory adds to small products."""
    expert_flops: float
    expert_thin: float
    head_flops: float
    head_last: float
    """What the last pipeline stage has of it beyond the average."""
    attention_flops: float
    score_bytes: float
    """Scores of eager attention, one pass."""
    wide_bytes: float
    """Values between layers, one pass."""
    inner_bytes: float
    routed_bytes: float
    loss_bytes: float
    quantized: float
    """Bytes of weights to be expanded before use."""
    passes: float
    """Of three: forward, backward, and again with recomputation."""
    optimizer_bytes: float
    offloaded: float
    """Bytes that cross to the host and back in a step."""
    kernels: float
    accumulate: float
    bubble: float
    replicas: float
    nvlink: float
    pcie: float
    """1 where this joins the GPUs of a machine; neither where copies go through the host."""
    peak: float
    """Operations a second of the linear layers' precision."""
    half_peak: float
    bytes_per_s: float
    watts: float
    """For 10¹² operations a second at 16 bits, over those of an A100."""
    compiled: float
    plain: float
    zero3: float
    eight: float
    four: float
    """1 where products have so many bits."""
    near: tuple[float, ...]
    far: tuple[float, ...]
    """Seconds by kind, in the order of `KINDS`."""
    tokens: float
    """Of a whole step on all GPUs."""
    flops: float
    """Of the model in a whole step on all GPUs, without recomputation."""


def work(
    shape: DecoderShape, setup: Setup, batch: int, gpu: Gpu, machine: int | None = None
) -> StepWork:
    """What a step consists of; `batch` is the samples of a micro-batch of one replica, `machine`
    the GPUs of a machine where that is known."""
    cut, seq = setup.parallel, setup.seq or shape.longest
    over = fabric(gpu, setup.interconnect, machine)
    trained = _trained(shape, setup)
    said = traffic(_load(shape, setup, batch * seq, trained), setup, over)
    shared = setup.data_parallel if cut.sharding not in ("none", "ddp") else 1
    kept = shape.params / (cut.tensor * cut.pipeline)
    tokens = batch * seq * setup.accumulate * setup.data_parallel
    return StepWork(
        **_products_of(shape, setup, batch * seq / cut.context),
        **_attention(shape, setup, batch * seq / cut.context, seq),
        **_passes(shape, setup, batch * seq / cut.context),
        **_gpu(setup, gpu),
        quantized=0.0 if setup.quant == "none" else kept * 2,
        optimizer_bytes=_optimizer_bytes(setup, trained, shared),
        offloaded=_offloaded(setup, kept, trained, shared),
        accumulate=setup.accumulate,
        bubble=bubble_share(setup),
        replicas=setup.data_parallel,
        nvlink=float(over.near.family == "nvlink"),
        pcie=float(over.near.family == "pcie"),
        near=tuple(said[kind][0] for kind in KINDS),
        far=tuple(said[kind][1] for kind in KINDS),
        tokens=tokens,
        flops=shape.flops_per_token(seq) * tokens,
    )


def way(setup: Setup) -> str:
    """What kind of software runs such a set-up: those that divide a model, that shard it, that use
    one GPU; with fused attention or from before it."""
    cut = setup.parallel
    if cut.tensor * cut.pipeline * cut.context * cut.expert > 1:
        kind = "divided"
    else:
        kind = "replicated" if setup.gpus > 1 else "single"
    return f"{kind}, {'plain' if setup.attention == 'eager' else 'fused'}"


def _again(setup: Setup) -> float:
    return 1.0 if setup.checkpoint == "full" else 0.0


def _gpu(setup: Setup, gpu: Gpu) -> dict[str, float]:
    """What the GPU does at best, and what the software is."""
    precision = _precision(setup)
    half: Precision = "bf16" if precision in ("fp8", "nvfp4") else precision
    at_16: Precision = "fp16" if precision in ("fp16", "fp32", "tf32") else "bf16"
    return {
        "peak": gpu.tflops(precision) * 1e12,
        "half_peak": gpu.tflops(half) * 1e12,
        "bytes_per_s": gpu.bandwidth_gbs * 1e9,
        "watts": (gpu.watts or 300.0) / gpu.tflops(at_16) / (400 / 312),
        "compiled": float(setup.compile),
        "plain": float(setup.attention == "eager"),
        "zero3": float(setup.parallel.sharding == "zero3"),
        "eight": float(precision == "fp8"),
        "four": float(precision == "nvfp4"),
    }


def _products_of(shape: DecoderShape, setup: Setup, tokens: float) -> dict[str, float]:
    """Operations of linear layers, in both passes."""
    frozen, stages = setup.lora is not None, setup.parallel.pipeline
    times = (2.1 if frozen else 3.0) + _again(setup)  # frozen weights have no gradients
    products = _products(shape, setup, tokens)
    sums = {kind: sum(f for f, _ in each) for kind, each in products.items()}
    thin = {kind: sum(f * sides for f, sides in each) for kind, each in products.items()}
    head = sums["head"] * (2 if frozen else 3)
    return {
        "dense_flops": sums["dense"] * times / stages,
        "dense_thin": thin["dense"] * times / stages,
        "expert_flops": sums["experts"] * times / stages,
        "expert_thin": thin["experts"] * times / stages,
        "head_flops": head / stages,
        "head_last": head * (1 - 1 / stages),
    }


def _attention(shape: DecoderShape, setup: Setup, tokens: float, seq: int) -> dict[str, float]:
    cut, again = setup.parallel, _again(setup)
    eager = setup.attention == "eager"
    per_rank = shape.heads / cut.tensor * shape.layers / cut.pipeline
    looked = shape.attended(seq) * (2 if eager else 1)
    once = 2 * tokens * looked * per_rank * (shape.query_size + shape.value_size)
    scores = tokens * seq * per_rank * _value_bytes(setup) * (3 + again) / 3
    return {
        # flash computes the scores once more on its way back
        "attention_flops": once * ((3.0 if eager else 3.5) + again),
        "score_bytes": scores if eager else 0.0,
    }


def _passes(shape: DecoderShape, setup: Setup, tokens: float) -> dict[str, float]:
    """Bytes that everything between products reads and writes, once."""
    cut, wide, again = setup.parallel, _value_bytes(setup), _again(setup)
    layers = shape.layers / cut.pipeline
    moe = shape.expert_layers / max(1, shape.layers)
    routed = shape.experts_per_token * moe
    return {
        "wide_bytes": tokens * shape.width * layers * wide / (cut.tensor if cut.sequence else 1),
        "inner_bytes": tokens * _inner_values(shape, moe) / cut.tensor * layers * wide,
        "routed_bytes": tokens * shape.width * routed * layers * wide,
        "loss_bytes": tokens * shape.vocabulary / cut.tensor * 4 / cut.pipeline,
        "passes": (3 + again) / 3,
        "kernels": _KERNELS * layers * (3 + again) / 3 * (1.5 if setup.lora else 1.0),
    }


def _value_bytes(setup: Setup) -> float:
    return 4.0 if setup.precision in ("fp32", "tf32") else 2.0


def _precision(setup: Setup) -> Precision:
    if setup.precision == "amp-bf16":
        return "bf16"
    return "fp16" if setup.precision == "amp" else setup.precision


def _products(
    shape: DecoderShape, setup: Setup, tokens: float
) -> dict[str, list[tuple[float, float]]]:
    """Forward operations of one rank without its share of stages, with Σ 1/side of each."""
    cut = setup.parallel
    d, tp = shape.width, cut.tensor
    dense: list[tuple[float, float]] = []
    experts: list[tuple[float, float]] = []

    def add(to: list[tuple[float, float]], rows: float, k: float, n: float, times: float) -> None:
        if rows > 0 and k > 0 and n > 0 and times > 0:
            to.append((2 * rows * k * n * times, 1 / rows + 1 / k + 1 / n))

    values = shape.heads * shape.value_size
    add(dense, tokens, d, max(1.0, (shape.attention_params / d - values) / tp), shape.layers)
    add(dense, tokens, values / tp, d, shape.layers)
    matrices = 3 if shape.gated else 2
    plain = shape.layers - shape.expert_layers
    add(dense, tokens, d, shape.inner / tp, matrices * plain)
    if shape.expert_layers:
        add(dense, tokens, d, shape.shared_inner / tp, matrices * shape.expert_layers)
        add(dense, tokens / tp, d, shape.experts, shape.expert_layers)
        held = max(1.0, shape.experts / cut.expert)
        sent = tokens / tp * shape.experts_per_token
        rows = sent / held
        add(experts, rows, d, shape.expert_inner, held * matrices * shape.expert_layers)
    head: list[tuple[float, float]] = []
    add(head, tokens, d, shape.vocabulary / tp, 1)
    return {"dense": dense, "experts": experts, "head": head}


def _inner_values(shape: DecoderShape, moe: float) -> float:
    """Values of a token inside a layer: queries, keys, values, and the MLP's."""
    heads = shape.heads * (shape.query_size + shape.value_size)
    kv = shape.kv_heads * (shape.query_size + shape.value_size)
    each = 3 if shape.gated else 2
    routed = shape.expert_inner * shape.experts_per_token + shape.shared_inner
    return heads + kv + each * ((1 - moe) * shape.inner + moe * routed)


def _trained(shape: DecoderShape, setup: Setup) -> float:
    """Parameters of a rank that have gradients."""
    cut = setup.parallel
    if setup.lora is not None:
        share = setup.lora.rank * len(setup.lora.targets)
        return shape.layers * share * 2 * shape.width / (cut.tensor * cut.pipeline)
    spread = cut.tensor * cut.pipeline
    routed = shape.experts * shape.expert_layers * shape.mlp_params(shape.expert_inner)
    own = routed / (cut.pipeline * max(1, cut.expert)) if routed else 0.0
    return (shape.params - routed) / spread + own


def _load(shape: DecoderShape, setup: Setup, tokens: float, trained: float) -> RankLoad:
    cut = setup.parallel
    kv = (
        shape.kv_rank + shape.rope_width
        if shape.kv_rank
        else 2 * shape.kv_heads * shape.head_width
    )
    return RankLoad(
        parameters=shape.params / (cut.tensor * cut.pipeline),
        trained=trained,
        layers=shape.layers / cut.pipeline,
        width=shape.width,
        kv_width=kv,
        tokens=tokens,
        routed=shape.experts_per_token * shape.expert_layers / cut.pipeline,
        gradient_bytes=2 if setup.parallel.sharding in ("fsdp", "zero3", "zero2") else 4,
    )


def _optimizer_bytes(setup: Setup, trained: float, shared: float) -> float:
    kept = optimizer_memory(setup.optimizer)
    state = kept.values * (4 if setup.precision not in ("bf16", "fp16") else 2)
    one = (
        2 * (state + kept.fixed_bytes + 4) + 4
    )  # state and weight read and written, gradient read
    return trained / shared * one * max(1.0, sqrt(kept.passes))


def _offloaded(setup: Setup, kept: float, trained: float, shared: float) -> float:
    if setup.offload == "none":
        return 0.0
    update = trained / shared * 16
    return update + (2 * 2 * kept / shared * setup.accumulate if setup.offload == "params" else 0)
