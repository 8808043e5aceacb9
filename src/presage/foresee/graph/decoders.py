"""The shape of a decoder language model, as its configuration says it; needs no PyTorch.

Counts of parameters and products follow from it. Nothing here knows a GPU or a set-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["DECODER_TYPES", "DecoderShape"]

DECODER_TYPES = frozenset(
    [
        "RefinedWebModel",
        "baichuan",
        "bloom",
        "cohere",
        "deepseek_v2",
        "deepseek_v3",
        "exaone",
        "falcon",
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "gpt2",
        "gpt_bigcode",
        "gpt_neo",
        "gpt_neox",
        "gpt_oss",
        "gptj",
        "granite",
        "granitemoe",
        "internlm2",
        "kimi_k2",
        "llama",
        "minicpm",
        "mistral",
        "mixtral",
        "mpt",
        "olmo",
        "olmo2",
        "olmoe",
        "opt",
        "phi",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "smollm3",
        "stablelm",
        "starcoder2",
    ]
)
"""`model_type` of the configurations that `DecoderShape.from_config` reads."""


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
    wide_norm: bool = False
    """A norm's scale is applied in fp32, before the result is made narrow (Gemma)."""
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
    norms: int = 2
    """Norms of a block."""
    embedding_norm: bool = False
    embedding_width: int = 0
    """Of the token embedding, where it differs from `width`."""
    head_bias: bool = False
    expert_bias: bool = False
    softcap: bool = False
    """Scores and logits go through a tanh: no fused attention before 2024."""
    sinks: bool = False
    activation: str = "silu"
    """silu, gelu, relu, or gelu_new: the tanh form written out in Python."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any], name: str = "") -> DecoderShape:
        """The shape that a Hugging Face configuration describes."""
        from presage.foresee.graph.decoder_configs import shape_from_config

        return shape_from_config(config, name)

    # -- parameters

    @property
    def value_size(self) -> int:
        """Width of a head's values."""
        return self.value_width or self.head_width

    @property
    def query_size(self) -> int:
        """Width of a head's queries and keys."""
        return self.head_width + self.rope_width if self.kv_rank else self.head_width

    @property
    def attention_params(self) -> int:
        """Of one layer, without its norms."""
        d, h = self.width, self.heads
        out = h * self.value_size * d + (d if self.out_bias else 0)
        if self.kv_rank:
            query = (
                d * self.query_rank + self.query_rank + self.query_rank * h * self.query_size
                if self.query_rank
                else d * h * self.query_size
            )
            latent = d * (self.kv_rank + self.rope_width) + self.kv_rank
            return query + latent + self.kv_rank * h * (self.head_width + self.value_size) + out
        qkv = (h + 2 * self.kv_heads) * self.head_width
        norm = 2 * self.head_width if self.head_norm else 0
        return d * qkv + (qkv if self.qkv_bias else 0) + out + norm + (h if self.sinks else 0)

    def mlp_params(self, inner: int, bias: bool | None = None) -> int:
        """Of an MLP of that width."""
        matrices = 3 if self.gated else 2
        biases = (matrices - 1) * inner + self.width
        has = self.mlp_bias if bias is None else bias
        return matrices * self.width * inner + (biases if has else 0)

    @property
    def norm_params(self) -> int:
        """Of one norm."""
        return self.width * (1 if self.rms_norm else 2)

    @property
    def layer_params(self) -> int:
        """Of one layer: with experts, where there are any."""
        return self._layer(experts=bool(self.experts))

    @property
    def dense_layer_params(self) -> int:
        """Of one layer without experts."""
        return self._layer(experts=False)

    def _layer(self, *, experts: bool) -> int:
        base = self.attention_params + self.norms * self.norm_params
        if not experts:
            return base + self.mlp_params(self.inner)
        mlp = self.experts * self.mlp_params(self.expert_inner, self.expert_bias)
        router = self.width * self.experts + (self.experts if self.expert_bias else 0)
        shared = self.mlp_params(self.shared_inner) if self.shared_inner else 0
        return base + mlp + router + shared

    @property
    def embedding_params(self) -> int:
        """Tokens, positions, and the norm or projection that follows."""
        wide = self.embedding_width or self.width
        tokens = self.vocabulary * wide + self.positions * self.width
        project = 2 * wide * self.width if wide != self.width else 0
        return tokens + project + (self.norm_params if self.embedding_norm else 0)

    @property
    def head_params(self) -> int:
        """Beside what is tied."""
        own = 0 if self.tied else self.vocabulary * (self.embedding_width or self.width)
        return own + (self.vocabulary if self.head_bias else 0)

    @property
    def expert_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def params(self) -> int:
        """All of them."""
        plain = self.layers - self.expert_layers
        return (
            self.embedding_params
            + plain * self.dense_layer_params
            + self.expert_layers * self.layer_params
            + self.norm_params
            + self.head_params
        )

    @property
    def active_params(self) -> int:
        """Those that one token uses."""
        idle = self.experts - self.experts_per_token
        spare = self.expert_layers * idle * self.mlp_params(self.expert_inner, self.expert_bias)
        return self.params - spare

    # -- work

    def attended(self, seq: int) -> float:
        """Tokens that a token looks at on average over layers, causally."""
        full = seq / 2
        near = min(self.window, seq) if self.window else seq
        short = near - near * near / (2 * seq) if self.window else full
        share = self.windowed_layers / self.layers
        return share * short + (1 - share) * full

    def flops_per_token(self, seq: int) -> float:
        """Forward and backward of one token: six a weight that is used, and the attention."""
        wide = self.embedding_width or self.width
        used = self.active_params - self.vocabulary * wide * (0 if self.tied else 1)
        used -= self.positions * self.width
        scores = self.layers * self.heads * (self.query_size + self.value_size)
        return 6.0 * (used + scores * self.attended(seq))

    def kv_values_per_token(self) -> int:
        """Numbers that the cache keeps for a token over all layers."""
        if self.kv_rank:
            return self.layers * (self.kv_rank + self.rope_width)
        return self.layers * 2 * self.kv_heads * self.head_width

    def kv_bytes_per_token(self, bytes_each: float = 2.0) -> float:
        """Of the cache, over all layers."""
        return self.kv_values_per_token() * bytes_each
