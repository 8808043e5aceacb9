"""The shape of a decoder language model, as its configuration says it; needs no PyTorch.

Counts of parameters and products follow from it. Nothing here knows a GPU or a set-up.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DecoderShape"]


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """A stack of causal transformer blocks: dense, or with experts."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    inner: int
    """Width of the MLP of a dense layer."""
    vocabulary: int
    gated: bool = True
    """Three matrices in the MLP (SwiGLU) instead of two."""
    tied: bool = False
    """The head uses the embedding's weights."""
    rms_norm: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    rotary: bool = True
    positions: int = 0
    """Learned positions; 0 for none."""
    head_norm: bool = False
    parallel_block: bool = False
    """Attention and MLP read the same normalised input."""
    dropout: float = 0.0
    window: int = 0
    """Tokens that a windowed layer attends to; 0 for all."""
    windowed_layers: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_inner: int = 0
    shared_inner: int = 0
    """Width of the experts that every token uses; 0 for none."""
    dense_layers: int = 0
    """First layers without experts, where there are experts."""
    query_rank: int = 0
    """Multi-head latent attention: rank of the queries; 0 for none."""
    kv_rank: int = 0
    rope_width: int = 0
    """Of a latent head: values that carry positions, beside `head_width`."""
    value_width: int = 0
    """Of a head, where it differs from `head_width`."""
    longest: int = 2048
    """Positions that the configuration allows."""
