"""Swin transformers and the U-Nets of latent diffusion as PyTorch modules."""

# mypy: allow-subclassing-any
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["DenoisingUnet", "WindowedVision"]


class _WindowBlock(nn.Module):
    def __init__(self, width: int, heads: int, window: int, shift: int, ratio: float) -> None:
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.table = nn.Parameter(torch.empty((2 * window - 1) ** 2, heads))
        inner = int(width * ratio)
        self.mlp = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))

    def forward(self, x: Any) -> Any:
        batch, height, width, channels = x.shape
        size = min(self.window, height, width)
        y = self.first(x)
        if self.shift and size < height:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
        y = y.reshape(batch, height // size, size, width // size, size, channels)
        y = y.transpose(2, 3).reshape(-1, size * size, channels)
        q, k, v = self.qkv(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        apart = torch.zeros(size**4, dtype=torch.int64, device=x.device)
        bias = self.table[apart].reshape(size * size, size * size, -1).permute(2, 0, 1)
        scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5 + bias
        y = (torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2)
        y = self.out(y).reshape(batch, height // size, width // size, size, size, channels)
        y = y.transpose(2, 3).reshape(batch, height, width, channels)
        if self.shift and size < height:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        x = x + y
        return x + self.mlp(self.second(x))


class _Merge(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.fold = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Any) -> Any:
        corners = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        return self.fold(self.norm(torch.cat(corners, -1)))


class WindowedVision(nn.Module):
    """Swin (arXiv:2103.14030): attention inside windows, half as many patches after a stage."""

    def __init__(
        self,
        stages: Sequence[tuple[int, int]],
        *,
        width: int,
        window: int,
        image: int,
        patch: int,
        ratio: float,
        channels: int,
        classes: int,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.norm = nn.LayerNorm(width)
        self.stages, self.merges = nn.ModuleList(), nn.ModuleList()
        for at, (depth, heads) in enumerate(stages):
            shifts = [window // 2 * (i % 2) for i in range(depth)]
            self.stages.append(
                nn.Sequential(*(_WindowBlock(width, heads, window, s, ratio) for s in shifts))
            )
            if at < len(stages) - 1:
                self.merges.append(_Merge(width))
                width *= 2
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes) if classes else nn.Identity()

    def forward(self, pixels: Any) -> Any:
        x = self.norm(self.patches(pixels).permute(0, 2, 3, 1))
        for at, stage in enumerate(self.stages):
            x = stage(x)
            if at < len(self.merges):
                x = self.merges[at](x)
        return self.head(self.last(x).mean((1, 2)))


class _TimedBlock(nn.Module):
    """Two convolutions; how noisy the image is comes in between."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(32, inputs), nn.GroupNorm(32, outputs)
        self.one = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.two = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.past = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Any, time: Any) -> Any:
        y = self.one(F.silu(self.first(x))) + self.time(F.silu(time))[..., None, None]
        return self.past(x) + self.two(F.silu(self.second(y)))


class _Look(nn.Module):
    def __init__(self, width: int, heads: int, other: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key, self.value = (nn.Linear(other, width, bias=False) for _ in range(2))
        self.out = nn.Linear(width, width)

    def forward(self, x: Any, memory: Any) -> Any:
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for t in (self.query(x), self.key(memory), self.value(memory))
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class _LookBlock(nn.Module):
    def __init__(self, width: int, heads: int, text: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own, self.text = _Look(width, heads, width), _Look(width, heads, text)
        self.rise, self.fall = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any, text: Any) -> Any:
        y = self.norms[0](x)
        x = x + self.own(y, y)
        x = x + self.text(self.norms[1](x), text)
        value, gate = self.rise(self.norms[2](x)).chunk(2, -1)
        return x + self.fall(value * F.gelu(gate))


class _TextLayer(nn.Module):
    """Pixels look at each other and at the text."""

    def __init__(self, width: int, heads: int, depth: int, text: int, linear: bool) -> None:
        super().__init__()
        self.linear = linear
        self.norm = nn.GroupNorm(32, width)
        self.into, self.back = (
            nn.Linear(width, width) if linear else nn.Conv2d(width, width, 1) for _ in range(2)
        )
        self.blocks = nn.ModuleList(_LookBlock(width, heads, text) for _ in range(depth))

    def forward(self, x: Any, text: Any) -> Any:
        y = self.norm(x)
        y = y if self.linear else self.into(y)
        y = y.flatten(2).transpose(1, 2)
        y = self.into(y) if self.linear else y
        for block in self.blocks:
            y = block(y, text)
        y = self.back(y) if self.linear else y
        y = y.transpose(1, 2).unflatten(2, x.shape[2:])
        return x + (y if self.linear else self.back(y))


Level = tuple[int, bool, int, int]
"""Channels, whether it looks at the text, heads, blocks that look."""


class DenoisingUnet(nn.Module):
    """The U-Net of Stable Diffusion (arXiv:2112.10752) and SDXL (2307.01952), as diffusers has
    it. Takes an image's latents, the text, and with `added` what else SDXL is told."""

    def __init__(
        self,
        levels: Sequence[Level],
        *,
        layers: int,
        text: int,
        channels: tuple[int, int],
        linear: bool,
        added: int,
    ) -> None:
        super().__init__()
        first = levels[0][0]
        time = 4 * first
        self.first = first
        self.time = nn.Sequential(nn.Linear(first, time), nn.SiLU(), nn.Linear(time, time))
        self.added = (
            nn.Sequential(nn.Linear(added, time), nn.SiLU(), nn.Linear(time, time))
            if added
            else None
        )
        self.into = nn.Conv2d(channels[0], first, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        skips = [first]

        def pair(inputs: int, level: Level) -> Any:
            width, looks, heads, depth = level
            look = _TextLayer(width, heads, depth, text, linear) if looks else None
            return nn.ModuleList([_TimedBlock(inputs, width, time), *([look] if look else [])])

        width = first
        for at, level in enumerate(levels):
            parts = nn.ModuleList()
            for _ in range(layers):
                parts.append(pair(width, level))
                width = level[0]
                skips.append(width)
            last = at == len(levels) - 1
            halve = None if last else nn.Conv2d(width, width, 3, stride=2, padding=1)
            skips += [] if last else [width]
            self.down.append(nn.ModuleDict({"parts": parts} | ({"halve": halve} if halve else {})))
        bottom = (width, True, *levels[-1][2:])
        self.middle, self.middle_end = pair(width, bottom), _TimedBlock(width, width, time)
        for at, level in enumerate(reversed(levels)):
            parts = nn.ModuleList()
            for _ in range(layers + 1):
                parts.append(pair(width + skips.pop(), level))
                width = level[0]
            twice = nn.Conv2d(width, width, 3, padding=1) if at < len(levels) - 1 else None
            self.up.append(nn.ModuleDict({"parts": parts} | ({"twice": twice} if twice else {})))
        self.norm, self.out = nn.GroupNorm(32, width), nn.Conv2d(width, channels[1], 3, padding=1)

    def forward(self, latents: Any, text: Any, *more: Any) -> Any:
        time = self.time(latents.new_zeros(latents.shape[0], self.first))
        if self.added is not None:
            time = time + self.added(more[0])
        x = self.into(latents)
        kept = [x]
        for level in self.down:
            for part in level["parts"]:
                x = _through(part, x, time, text)
                kept.append(x)
            if "halve" in level:
                x = level["halve"](x)
                kept.append(x)
        x = self.middle_end(_through(self.middle, x, time, text), time)
        for level in self.up:
            for part in level["parts"]:
                x = _through(part, torch.cat([x, kept.pop()], 1), time, text)
            if "twice" in level:
                x = level["twice"](F.interpolate(x, scale_factor=2.0))
        return self.out(F.silu(self.norm(x)))


def _through(part: Any, x: Any, time: Any, text: Any) -> Any:
    x = part[0](x, time)
    return part[1](x, text) if len(part) > 1 else x
