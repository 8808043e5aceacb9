"""Transformers of every kind from one description: encoders, decoders, both, and of images.

`TransformerConfig` says what papers and Hugging Face configurations say; the same blocks serve the
zoo and `huggingface.py`.
"""

# mypy: allow-subclassing-any
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

__all__ = [
    "EncoderDecoder",
    "TextModel",
    "TransformerConfig",
    "VisionModel",
    "bart_large",
    "bert",
    "gpt",
    "memory_transformer",
    "translator",
    "vit",
]

_ACTIVATIONS: dict[str, Any] = {
    "gelu": F.gelu,
    "tanh_gelu": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """What a stack of transformer blocks looks like."""

    layers: int
    width: int
    heads: int
    inner: int
    vocabulary: int = 0
    positions: int = 0
    """Learned positions; 0 for none."""
    token_types: int = 0
    kv_heads: int = 0
    """Heads that keys and values have; 0 for as many as queries."""
    head_width: int = 0
    """0 for width ÷ heads."""
    embedding_width: int = 0
    """Where tokens are embedded narrower or wider and projected; 0 for width."""
    rotary: int = 0
    """How many of a head's values carry rotary positions."""
    buckets: int = 0
    """Relative positions as T5 has them, a learned value for each bucket and head."""
    causal: bool = False
    rms_norm: bool = False
    norm_first: bool = True
    norm_embeddings: bool = False
    final_norm: bool = True
    parallel: bool = False
    """Attention and MLP both read the block's input (GPT-NeoX)."""
    gated: bool = False
    activation: str = "gelu"
    one_projection: bool = False
    """One matrix for queries, keys and values."""
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    head_norm: bool = False
    """Queries and keys are normalized head by head (Qwen3)."""
    dropout: float = 0.0


def _norm(shape: TransformerConfig, width: int = 0) -> Any:
    width = width or shape.width
    return nn.RMSNorm(width, eps=1e-6) if shape.rms_norm else nn.LayerNorm(width)


class _Attention(nn.Module):
    def __init__(self, shape: TransformerConfig, *, causal: bool) -> None:
        super().__init__()
        self.causal, self.heads = causal, shape.heads
        self.dropout = shape.dropout
        self.kv_heads = shape.kv_heads or shape.heads
        self.size = shape.head_width or shape.width // shape.heads
        ours, theirs = self.heads * self.size, self.kv_heads * self.size
        if shape.one_projection:
            self.together = nn.Linear(shape.width, ours + 2 * theirs, shape.qkv_bias)
        else:
            self.together = None
            self.query = nn.Linear(shape.width, ours, shape.qkv_bias)
            self.key = nn.Linear(shape.width, theirs, shape.qkv_bias)
            self.value = nn.Linear(shape.width, theirs, shape.qkv_bias)
        self.norms = None
        if shape.head_norm:
            self.norms = nn.ModuleList([_norm(shape, self.size), _norm(shape, self.size)])
        self.out = nn.Linear(ours, shape.width, shape.out_bias)

    def forward(self, x: Any, memory: Any, bias: Any = None, turn: Any = None) -> Any:
        if self.together is not None:
            ours, theirs = self.heads * self.size, self.kv_heads * self.size
            q, k, v = self.together(x).split([ours, theirs, theirs], -1)
        else:
            q, k, v = self.query(x), self.key(memory), self.value(memory)
        q, k, v = (t.unflatten(-1, (-1, self.size)) for t in (q, k, v))
        if self.norms is not None:
            q, k = self.norms[0](q), self.norms[1](k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        if turn is not None:
            q, k = _rotated(q, *turn), _rotated(k, *turn)
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=bias,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal and bias is None,
            enable_gqa=self.kv_heads != self.heads,
        )
        return self.out(y.transpose(1, 2).flatten(2))


def _turns(x: Any, size: int) -> tuple[Any, Any]:
    """Cosines and sines of rotary positions (arXiv:2104.09864) for `size` values of a head."""
    at = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)
    speed = 10000.0 ** -(torch.arange(0, size, 2, device=x.device, dtype=torch.float32) / size)
    angle = torch.outer(at, speed).repeat(1, 2)
    return angle.cos().to(x.dtype), angle.sin().to(x.dtype)


def _rotated(x: Any, cos: Any, sin: Any) -> Any:
    size = cos.shape[-1]
    part, rest = x[..., :size], x[..., size:]
    one, two = part.chunk(2, -1)
    turned = part * cos + torch.cat([-two, one], -1) * sin
    return torch.cat([turned, rest], -1) if size < x.shape[-1] else turned


class _Feedforward(nn.Module):
    def __init__(self, shape: TransformerConfig) -> None:
        super().__init__()
        self.act = _ACTIVATIONS[shape.activation]
        self.rise = nn.Linear(shape.width, shape.inner, shape.mlp_bias)
        self.gate = nn.Linear(shape.width, shape.inner, shape.mlp_bias) if shape.gated else None
        self.fall = nn.Linear(shape.inner, shape.width, shape.mlp_bias)

    def forward(self, x: Any) -> Any:
        if self.gate is None:
            return self.fall(self.act(self.rise(x)))
        return self.fall(self.act(self.gate(x)) * self.rise(x))


class _Block(nn.Module):
    def __init__(self, shape: TransformerConfig, *, cross: bool) -> None:
        super().__init__()
        self.first, self.parallel = shape.norm_first, shape.parallel
        self.attention = _Attention(shape, causal=shape.causal)
        self.attention_norm = _norm(shape)
        plain = replace(shape, one_projection=False)
        self.cross = _Attention(plain, causal=False) if cross else None
        self.cross_norm = _norm(shape) if cross else None
        self.mlp, self.mlp_norm = _Feedforward(shape), _norm(shape)
        self.drop = nn.Dropout(shape.dropout) if shape.dropout else nn.Identity()

    def forward(self, x: Any, memory: Any, bias: Any, turn: Any) -> Any:
        if self.parallel:
            y = self.attention_norm(x)
            return (
                x
                + self.drop(self.attention(y, y, bias, turn))
                + self.drop(self.mlp(self.mlp_norm(x)))
            )
        x = self._add(x, self.attention_norm, lambda y: self.attention(y, y, bias, turn))
        if self.cross is not None:
            x = self._add(x, self.cross_norm, lambda y: self.cross(y, memory))
        return self._add(x, self.mlp_norm, self.mlp)

    def _add(self, x: Any, norm: Any, layer: Any) -> Any:
        if self.first:
            return x + self.drop(layer(norm(x)))
        return norm(x + self.drop(layer(x)))


class _Stack(nn.Module):
    """Blocks, with relative positions and a last norm if the shape has them."""

    def __init__(self, shape: TransformerConfig, *, cross: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block(shape, cross=cross) for _ in range(shape.layers))
        self.buckets, self.rotary = shape.buckets, shape.rotary
        self.relative = nn.Embedding(shape.buckets, shape.heads) if shape.buckets else None
        self.norm = _norm(shape) if shape.final_norm else nn.Identity()

    def forward(self, x: Any, memory: Any = None) -> Any:
        bias = None
        if self.relative is not None:
            at = torch.arange(x.shape[1], device=x.device)
            apart = (at[:, None] - at[None]).abs().clamp(max=self.buckets - 1)
            bias = self.relative(apart).permute(2, 0, 1)[None].to(x.dtype)
        turn = _turns(x, self.rotary) if self.rotary else None
        for block in self.blocks:
            x = block(x, memory, bias, turn)
        return self.norm(x)


class _Embedding(nn.Module):
    def __init__(self, shape: TransformerConfig, tokens: Any = None) -> None:
        super().__init__()
        width = shape.embedding_width or shape.width
        self.tokens = tokens if tokens is not None else nn.Embedding(shape.vocabulary, width)
        self.up = nn.Linear(width, shape.width, bias=False) if width != shape.width else None
        self.positions = nn.Embedding(shape.positions, shape.width) if shape.positions else None
        self.types = nn.Embedding(shape.token_types, shape.width) if shape.token_types else None
        self.norm = nn.LayerNorm(shape.width) if shape.norm_embeddings else nn.Identity()
        self.drop = nn.Dropout(shape.dropout) if shape.dropout else nn.Identity()

    def forward(self, tokens: Any) -> Any:
        x = self.tokens(tokens)
        if self.up is not None:
            x = self.up(x)
        if self.types is not None:
            x = x + self.types(torch.zeros_like(tokens))
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.drop(self.norm(x))


class TextModel(nn.Module):
    """A stack over tokens with a head: `tied` or `untied` scores over the vocabulary, `masked`
    (tied, after one more layer, as BERT and RoBERTa have it), `span` (scores a token), `class`
    (scores from the pooled first token), `pooled`, or `none`."""

    def __init__(self, shape: TransformerConfig, head: str, scores: int = 2) -> None:
        super().__init__()
        self.kind = head
        self.embedding = _Embedding(shape)
        self.stack = _Stack(shape)
        width = shape.embedding_width or shape.width
        self.down: Any = None
        if width != shape.width:
            self.down = nn.Linear(shape.width, width, bias=False)
        self.extra, self.head = None, None
        if head == "masked":
            self.extra = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        if head in ("class", "pooled"):
            self.extra = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        if head in ("tied", "untied", "masked"):
            self.head = nn.Linear(width, shape.vocabulary, bias=head == "masked")
        if head in ("span", "class"):
            self.head = nn.Linear(width, scores)
        if head in ("tied", "masked") and self.head is not None:
            self.head.weight = self.embedding.tokens.weight

    def forward(self, tokens: Any) -> Any:
        x = self.stack(self.embedding(tokens))
        if self.down is not None:
            x = self.down(x)
        if self.kind in ("class", "pooled"):
            x = x[:, 0]
        if self.extra is not None:
            x = self.extra(x)
        return x if self.head is None else self.head(x)


class EncoderDecoder(nn.Module):
    """Two stacks over one vocabulary; the second attends to the first."""

    def __init__(
        self, shape: TransformerConfig, *, decoder_layers: int, tied: bool = True
    ) -> None:
        super().__init__()
        below = replace(shape, layers=decoder_layers, causal=True)
        self.source = _Embedding(replace(shape, causal=False))
        self.target = _Embedding(below, tokens=self.source.tokens)
        self.encoder = _Stack(replace(shape, causal=False))
        self.decoder = _Stack(below, cross=True)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        if tied:
            self.head.weight = self.source.tokens.weight

    def forward(self, source: Any, target: Any) -> Any:
        memory = self.encoder(self.source(source))
        return self.head(self.decoder(self.target(target), memory))


class VisionModel(nn.Module):
    """Patches, a class token, a stack, and scores from the class token (0 classes: none)."""

    def __init__(
        self, shape: TransformerConfig, *, image: int, patch: int, channels: int, classes: int
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, shape.width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, shape.width))
        count = (image // patch) ** 2 + 1
        self.positions = nn.Parameter(torch.zeros(1, count, shape.width))
        self.drop = nn.Dropout(shape.dropout) if shape.dropout else nn.Identity()
        self.stack = _Stack(shape)
        self.head = nn.Linear(shape.width, classes) if classes else nn.Identity()

    def forward(self, x: Any) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head(self.stack(self.drop(x))[:, 0])


def bert(size: str, head: str) -> Any:
    """Devlin et al., 2018 (arXiv:1810.04805), uncased vocabulary."""
    layers, width, heads = (12, 768, 12) if size == "base" else (24, 1024, 16)
    shape = TransformerConfig(
        layers,
        width,
        heads,
        4 * width,
        vocabulary=30522,
        positions=512,
        token_types=2,
        norm_first=False,
        norm_embeddings=True,
        final_norm=False,
        dropout=0.1,
    )
    return TextModel(shape, head)


def gpt(
    layers: int,
    width: int,
    heads: int,
    *,
    positions: int = 1024,
    vocabulary: int = 50257,
    activation: str = "tanh_gelu",
) -> Any:
    """Radford et al., 2019 (GPT-2); GPT-3 (arXiv:2005.14165) and OPT (2205.01068) differ little:
    dense attention is taken everywhere."""
    shape = TransformerConfig(
        layers,
        width,
        heads,
        4 * width,
        vocabulary=vocabulary,
        positions=positions,
        causal=True,
        activation=activation,
        one_projection=True,
        dropout=0.1,
    )
    return TextModel(shape, "tied")


def translator(vocabulary: int = 37000, layers: int = 6, width: int = 512, heads: int = 8) -> Any:
    """Vaswani et al., 2017 (arXiv:1706.03762), base; 1024 wide with 16 heads is their big one.
    Sine positions are constants and left out."""
    shape = TransformerConfig(
        layers,
        width,
        heads,
        4 * width,
        vocabulary=vocabulary,
        norm_first=False,
        final_norm=False,
        activation="relu",
        dropout=0.1,
    )
    return EncoderDecoder(shape, decoder_layers=layers)


def bart_large() -> Any:
    """Lewis et al., 2019 (arXiv:1910.13461)."""
    shape = TransformerConfig(
        12,
        1024,
        16,
        4096,
        vocabulary=50265,
        positions=1026,
        norm_first=False,
        norm_embeddings=True,
        final_norm=False,
        dropout=0.1,
    )
    return EncoderDecoder(shape, decoder_layers=12)


def memory_transformer(
    layers: int, width: int, heads: int, inner: int, *, vocabulary: int = 267735
) -> Any:
    """Transformer-XL, Dai et al., 2019 (arXiv:1901.02860), as a decoder over the tokens of a
    segment: what it keeps of the segment before is left out, and the scores are not adaptive but
    over the 20,000 most frequent words, about as much work."""
    shape = TransformerConfig(
        layers,
        width,
        heads,
        inner,
        vocabulary=vocabulary,
        causal=True,
        norm_first=False,
        final_norm=False,
        activation="relu",
        one_projection=True,
        qkv_bias=False,
        out_bias=False,
        dropout=0.1,
    )
    return _AdaptiveModel(shape, 20000)


class _AdaptiveModel(nn.Module):
    """A decoder whose head has only the frequent words."""

    def __init__(self, shape: TransformerConfig, frequent: int) -> None:
        super().__init__()
        self.body = TextModel(shape, "none")
        self.head = nn.Linear(shape.width, frequent)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.body(tokens))


def vit(classes: int = 1000) -> Any:
    """ViT-B/16, Dosovitskiy et al., 2020 (arXiv:2010.11929)."""
    shape = TransformerConfig(12, 768, 12, 3072, one_projection=True)
    return VisionModel(shape, image=224, patch=16, channels=3, classes=classes)
