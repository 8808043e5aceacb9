"""Serving a decoder language model: weights, the cache of keys and values, and tokens a second.

Decoding reads all weights that its tokens use and the cache once for every step, so it is bound by
bandwidth; reading prompts is bound by products. Both are rooflines with shares of the peak that
serving engines are known to reach; nothing here was fitted on measurements, and the interval says
so.
"""

from __future__ import annotations

from dataclasses import dataclass

from presage.foresee.gpus import Gpu
from presage.foresee.graph.decoders import DecoderShape
from presage.model.errors import ConfigError
from presage.model.setup import Setup

__all__ = ["ServingFigures", "largest_concurrency", "serve"]

_MIB = 1 << 20
_WEIGHT_BYTES = {"fp32": 4.0, "tf32": 4.0, "fp8": 1.0}
_QUANT_BYTES = {"nf4": 0.5 + 4 / 64, "int8": 1.0}
_BANDWIDTH = (0.45, 0.70, 0.90)
"""Share of the memory bandwidth that decoding reaches: p10, p50, p90 of the throughput."""
_COMPUTE = (0.30, 0.55, 0.75)
_PREFILL_TOKENS = 8192
"""Tokens of prompts that an engine works on at once (`max_num_batched_tokens` of vLLM)."""
_LAYER_S = 25e-6
"""Launches and small operators of a layer in a decoding step, with CUDA graphs."""
_ALLREDUCE_S = 12e-6
"""Of a small message among GPUs with NVLink; two for every layer under tensor parallelism."""
_BLOCK = 16
"""Tokens of a page of the cache: what a sequence has begun it holds."""


@dataclass(frozen=True, slots=True)
class ServingFigures:
    """What one GPU holds and how fast a replica answers; rates are p10, p50, p90."""

    weights_mib: float
    cache_mib: float
    activations_mib: float
    decode_tokens_per_s: tuple[float, float, float]
    """Of all sequences together."""
    prefill_tokens_per_s: tuple[float, float, float]
    kv_len: int
    concurrency: int
    notes: tuple[str, ...] = ()

    @property
    def total_mib(self) -> float:
        """Beside what the process itself takes."""
        return self.weights_mib + self.cache_mib + self.activations_mib

    @property
    def sequence_tokens_per_s(self) -> float:
        """Of one sequence among all, typically."""
        return self.decode_tokens_per_s[1] / self.concurrency


def serve(shape: DecoderShape, setup: Setup, gpu: Gpu) -> ServingFigures:
    """Memory and speed of serving `setup.concurrency` sequences of up to `setup.kv_len` tokens."""
    if not setup.inference:
        raise ConfigError("this set-up trains: add --inference to serve")
    setup.check_for(shape)
    length = setup.kv_len or setup.seq or min(shape.longest, 4096)
    if length > shape.longest:
        raise ConfigError(
            f"{shape.name} has {shape.longest} positions: use --kv-len {shape.longest} or less"
        )
    ranks = setup.parallel.tensor * setup.parallel.pipeline
    weights = _weights(shape, setup) / ranks
    cache = setup.concurrency * _cache(shape, setup, length)
    return ServingFigures(
        weights / _MIB,
        cache / _MIB,
        _activations(shape, setup) / _MIB,
        _decode(shape, setup, gpu, length),
        _prefill(shape, setup, gpu, length),
        length,
        setup.concurrency,
        _notes(shape, setup),
    )


def largest_concurrency(shape: DecoderShape, setup: Setup, gpu: Gpu, room_mib: float) -> int:
    """Sequences that fit into so much memory; 0 if the weights alone do not."""
    one = serve(shape, setup, gpu)
    each = one.cache_mib / one.concurrency
    spare = room_mib - one.weights_mib - one.activations_mib
    return max(0, int(spare / each))


def _bytes_each(setup: Setup) -> float:
    return _QUANT_BYTES.get(setup.quant) or _WEIGHT_BYTES.get(setup.precision, 2.0)


def _ends(shape: DecoderShape, setup: Setup) -> tuple[float, float]:
    """Elements and bytes of embedding and head, which are not quantised."""
    count = float(shape.embedding_params + shape.head_params)
    return count, count * (4.0 if setup.precision in ("fp32", "tf32") else 2.0)


def _weights(shape: DecoderShape, setup: Setup) -> float:
    count, size = _ends(shape, setup)
    experts = max(1, setup.parallel.expert)
    inside = shape.params - count
    if experts > 1:
        all_experts = shape.expert_layers * shape.experts * shape.mlp_params(shape.expert_inner)
        inside -= all_experts * (1 - 1 / experts)
    return inside * _bytes_each(setup) + size


def _cache(shape: DecoderShape, setup: Setup, length: int) -> float:
    """Bytes that a sequence holds on one rank; windowed layers hold their window alone."""
    p = setup.parallel
    each = 4.0 if setup.precision in ("fp32", "tf32") else 2.0
    blocks = -(-length // _BLOCK) * _BLOCK
    near = min(blocks, shape.window) if shape.window else blocks
    share = shape.windowed_layers / shape.layers
    tokens = share * near + (1 - share) * blocks
    # a latent cache, and heads fewer than ranks, are held by every rank
    split = 1 if shape.kv_rank else min(p.tensor, shape.kv_heads)
    return tokens * shape.kv_bytes_per_token(each) / (split * p.pipeline)


def _activations(shape: DecoderShape, setup: Setup) -> float:
    """The widest moment of a prompt chunk, and the logits of every sequence in fp32."""
    tp = setup.parallel.tensor
    each = 4.0 if setup.precision in ("fp32", "tf32") else 2.0
    inner = max(shape.inner, shape.experts_per_token * shape.expert_inner)
    wide = (2 if shape.gated else 1) * inner / tp + inner / tp + 3 * shape.width
    return _PREFILL_TOKENS * wide * each + setup.concurrency * shape.vocabulary * 4.0


def _touched(shape: DecoderShape, tokens: float) -> float:
    """Parameters that a step on so many tokens reads: experts that none of them chose are not."""
    if not shape.experts:
        return float(shape.params)
    hit = 1.0 - float((1 - shape.experts_per_token / shape.experts) ** tokens)
    idle = shape.experts * (1 - hit) * shape.mlp_params(shape.expert_inner)
    return shape.params - shape.expert_layers * idle


def _decode(
    shape: DecoderShape, setup: Setup, gpu: Gpu, length: int
) -> tuple[float, float, float]:
    ranks, many = setup.parallel.tensor, setup.concurrency
    lookup = shape.vocabulary * shape.width if not shape.tied else 0
    read = (_touched(shape, many) - lookup) * _bytes_each(setup)
    # on average a sequence is half way through its cache
    read += many * _cache(shape, setup, max(1, length // 2)) * ranks * setup.parallel.pipeline
    products = 2.0 * shape.active_params * many
    steps = []
    for wide, fast in zip(_BANDWIDTH, _COMPUTE, strict=True):
        memory_s = read / ranks / (gpu.bandwidth_gbs * 1e9 * wide)
        compute_s = products / ranks / (_peak(gpu, setup) * fast)
        fixed_s = shape.layers * (_LAYER_S + (2 * _ALLREDUCE_S if ranks > 1 else 0.0))
        steps.append(max(memory_s, compute_s) + fixed_s)
    slow, middle, fast = (many / step for step in steps)
    return slow, middle, fast


def _prefill(
    shape: DecoderShape, setup: Setup, gpu: Gpu, length: int
) -> tuple[float, float, float]:
    flops = shape.flops_per_token(length) / 3  # forward alone
    ranks = setup.parallel.tensor * setup.parallel.pipeline
    slow, middle, fast = (_peak(gpu, setup) * ranks * share / flops for share in _COMPUTE)
    return slow, middle, fast


def _peak(gpu: Gpu, setup: Setup) -> float:
    """FLOP/s of the products; quantised weights are computed with in half precision."""
    if setup.precision == "fp32":
        return gpu.tflops("fp32") * 1e12
    if setup.precision == "tf32":
        return gpu.tflops("tf32") * 1e12
    return max(gpu.tflops("bf16"), gpu.tflops("fp16")) * 1e12


def _notes(shape: DecoderShape, setup: Setup) -> tuple[str, ...]:
    notes = ["rates are rooflines with usual shares of the peak, not measured"]
    if shape.experts:
        notes.append("tokens are taken to spread evenly over experts")
    if setup.precision == "fp8":
        notes.append("fp8 weights, the cache and products in bf16")
    return tuple(notes)
