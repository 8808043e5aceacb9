"""Encoders, speech and CLIP as PyTorch modules, from the blocks of the zoo's transformers."""

# mypy: allow-subclassing-any
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from presage.foresee.graph.zoo.transformers import (
    TransformerConfig,
    _Attention,
    _Block,
    _Embedding,
    _Stack,
)

__all__ = [
    "DisentangledEncoder",
    "FactoredEncoder",
    "SpeechEncoder",
    "SpeechTranscriber",
    "TextAndImages",
]


class FactoredEncoder(nn.Module):
    """ALBERT and ELECTRA: tokens, positions and types are embedded narrow and projected; ALBERT
    runs one block again and again."""

    def __init__(
        self, shape: TransformerConfig, narrow: int, *, shared: bool, pooler: bool
    ) -> None:
        super().__init__()
        small = replace(shape, width=narrow, norm_embeddings=True)
        self.embedding = _Embedding(small)
        self.up = nn.Linear(narrow, shape.width) if shared or narrow != shape.width else None
        self.times = shape.layers if shared else 1
        self.stack = _Stack(replace(shape, layers=1) if shared else shape)
        self.pooler = nn.Linear(shape.width, shape.width) if pooler else None

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens)
        if self.up is not None:
            x = self.up(x)
        for _ in range(self.times):
            x = self.stack(x)
        return x if self.pooler is None else torch.tanh(self.pooler(x[:, 0]))


class _Disentangled(nn.Module):
    """Attention with terms between content and relative positions, score by score (DeBERTa,
    arXiv:2006.03654)."""

    def __init__(self, shape: TransformerConfig, terms: int, own_keys: bool) -> None:
        super().__init__()
        self.heads, self.terms = shape.heads, terms
        self.query, self.key, self.value, self.out = (
            nn.Linear(shape.width, shape.width) for _ in range(4)
        )
        own = own_keys and terms
        self.of_places = (
            nn.ModuleList(nn.Linear(shape.width, shape.width) for _ in range(terms))
            if own
            else None
        )

    def forward(self, x: Any, memory: Any, bias: Any, places: Any) -> Any:
        q, k, v = (self._split(layer(x)) for layer in (self.query, self.key, self.value))
        scores = q @ k.transpose(-2, -1) / (q.shape[-1] * (1 + self.terms)) ** 0.5
        length = x.shape[1]
        for term in range(self.terms):
            layer = (
                self.of_places[term]
                if self.of_places is not None
                else (self.key if term else self.query)
            )
            near = self._split(layer(places)[None])
            apart = (k if term else q) @ near.transpose(-2, -1)
            where = torch.zeros(1, 1, length, length, dtype=torch.int64, device=x.device)
            index = where.expand(x.shape[0], self.heads, length, length)
            scores = scores + torch.gather(apart, -1, index)
        mixed = torch.softmax(scores, -1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _split(self, x: Any) -> Any:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class DisentangledEncoder(nn.Module):
    """DeBERTa, versions 1 to 3, without a head."""

    def __init__(
        self, shape: TransformerConfig, apart: int, *, terms: int, own_keys: bool
    ) -> None:
        super().__init__()
        self.embedding = _Embedding(shape)
        self.places = nn.Parameter(torch.empty(apart, shape.width)) if apart else None
        self.norm = nn.LayerNorm(shape.width) if apart else None
        self.blocks = nn.ModuleList(_Block(shape, cross=False) for _ in range(shape.layers))
        for block in self.blocks:
            block.attention = _Disentangled(shape, terms, own_keys)

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens)
        places = None if self.norm is None else self.norm(self.places)
        for block in self.blocks:
            x = block(x, None, None, places)
        return x


class SpeechTranscriber(nn.Module):
    """Whisper (arXiv:2212.04356): frames of a spectrogram in, scores of words out."""

    def __init__(
        self, shape: TransformerConfig, decoder_layers: int, *, bins: int, frames: int, words: int
    ) -> None:
        super().__init__()
        width = shape.width
        self.near = nn.Conv1d(bins, width, 3, padding=1)
        self.halve = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.times = nn.Parameter(torch.empty(frames, width), requires_grad=False)
        self.encoder = _Stack(shape)
        self.tokens = nn.Embedding(shape.vocabulary, width)
        self.positions = nn.Parameter(torch.empty(words, width))
        self.decoder = _Stack(replace(shape, layers=decoder_layers, causal=True), cross=True)
        for part in self.modules():
            if isinstance(part, _Attention):
                part.key = nn.Linear(width, width, bias=False)

    def forward(self, sound: Any, tokens: Any) -> Any:
        x = F.gelu(self.halve(F.gelu(self.near(sound)))).transpose(1, 2)
        memory = self.encoder(x + self.times[: x.shape[1]])
        text = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        return F.linear(self.decoder(text, memory), self.tokens.weight)


class _SoundLayer(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, bias: bool) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, stride, bias=bias)
        self.norm: Any = None
        self.layered = False

    def forward(self, x: Any) -> Any:
        x = self.conv(x)
        if self.norm is not None and self.layered:
            x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        elif self.norm is not None:
            x = self.norm(x)
        return F.gelu(x)


class SpeechEncoder(nn.Module):
    """wav2vec 2.0 (arXiv:2006.11477) and HuBERT: samples of sound to a vector each 20 ms; `scores`
    of letters if there are any."""

    def __init__(
        self,
        shape: TransformerConfig,
        layers: Sequence[tuple[int, int, int]],
        *,
        bias: bool,
        layered: bool,
        reach: int,
        groups: int,
        scores: int,
    ) -> None:
        super().__init__()
        width, before = shape.width, 1
        self.sound = nn.ModuleList()
        for at, (channels, kernel, stride) in enumerate(layers):
            layer = _SoundLayer(before, channels, kernel, stride, bias)
            layer.layered = layered
            if layered or at == 0:
                layer.norm = (
                    nn.LayerNorm(channels) if layered else nn.GroupNorm(channels, channels)
                )
            self.sound.append(layer)
            before = channels
        self.norm, self.up = nn.LayerNorm(before), nn.Linear(before, width)
        self.drop = nn.Dropout(shape.dropout)
        self.masked = nn.Parameter(torch.empty(width))
        self.scale = nn.Parameter(torch.empty(1, 1, reach))
        self.places = nn.Parameter(torch.empty(width, width // groups, reach))
        self.places_bias = nn.Parameter(torch.empty(width))
        self.groups, self.reach = groups, reach
        self.after = nn.LayerNorm(width)
        self.stack = _Stack(shape)
        self.head = nn.Linear(width, scores) if scores else nn.Identity()

    def forward(self, samples: Any) -> Any:
        x = samples.unsqueeze(1)
        for layer in self.sound:
            x = layer(x)
        x = self.drop(self.up(self.norm(x.transpose(1, 2))))
        x = x + 0 * self.masked
        weight = self.places * (self.scale / self.places.norm(dim=(0, 1), keepdim=True))
        near = F.conv1d(
            x.transpose(1, 2),
            weight,
            self.places_bias,
            padding=self.reach // 2,
            groups=self.groups,
        )
        x = self.after(x + F.gelu(near[..., : x.shape[1]]).transpose(1, 2))
        return self.head(self.stack(x))


class TextAndImages(nn.Module):
    """CLIP (arXiv:2103.00020): every text of a batch against every image."""

    def __init__(
        self,
        text: TransformerConfig,
        vision: TransformerConfig,
        *,
        image: int,
        patch: int,
        width: int,
    ) -> None:
        super().__init__()
        self.words, self.text = _Embedding(text), _Stack(text)
        self.patches = nn.Conv2d(3, vision.width, patch, patch, bias=False)
        self.first = nn.Parameter(torch.empty(vision.width))
        self.places = nn.Embedding((image // patch) ** 2 + 1, vision.width)
        self.before, self.after = nn.LayerNorm(vision.width), nn.LayerNorm(vision.width)
        self.vision = _Stack(vision)
        self.of_text = nn.Linear(text.width, width, bias=False)
        self.of_image = nn.Linear(vision.width, width, bias=False)
        self.scale = nn.Parameter(torch.empty(()))

    def forward(self, tokens: Any, pixels: Any) -> Any:
        words = self.of_text(self.text(self.words(tokens))[:, -1])
        x = self.patches(pixels).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], 1, -1), x], 1) + self.places.weight
        seen = self.of_image(self.after(self.vision(self.before(x))[:, 0]))
        words, seen = F.normalize(words, dim=-1), F.normalize(seen, dim=-1)
        return self.scale.exp() * words @ seen.t()
