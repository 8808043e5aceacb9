"""Speech, both ways, from the shapes in NVIDIA's public trainers and the papers they name."""

# mypy: allow-subclassing-any
from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["jasper", "quartznet", "waveglow"]


class _Flow(nn.Module):
    """A 1×1 convolution and a network of dilated convolutions over half of the channels."""

    def __init__(self, channels: int, width: int, mels: int) -> None:
        super().__init__()
        self.half = channels // 2
        self.mix = nn.Conv1d(channels, channels, 1, bias=False)
        self.start = nn.Conv1d(self.half, width, 1)
        self.conditions = nn.Conv1d(mels, 2 * width * 8, 1)
        self.inner = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 3, dilation=1 << n, padding=1 << n) for n in range(8)
        )
        self.skips = nn.ModuleList(
            nn.Conv1d(width, 2 * width if n < 7 else width, 1) for n in range(8)
        )
        self.end = nn.Conv1d(width, 2 * self.half, 1)
        self.width = width

    def forward(self, x: Any, mels: Any) -> tuple[Any, Any]:
        x = self.mix(x)
        first, second = x[:, : self.half], x[:, self.half :]
        y, conditions = self.start(first), self.conditions(mels)
        total: Any = None
        for n, (inner, skip) in enumerate(zip(self.inner, self.skips, strict=True)):
            begin = 2 * n * self.width
            acts = inner(y) + conditions[:, begin : begin + 2 * self.width]
            acts = torch.tanh(acts[:, : self.width]) * torch.sigmoid(acts[:, self.width :])
            out = skip(acts)
            if n < 7:
                y = y + out[:, : self.width]
                out = out[:, self.width :]
            total = out if total is None else total + out
        log_scale, shift = self.end(total).chunk(2, 1)
        return torch.cat([first, torch.exp(log_scale) * second + shift], 1), log_scale


class _WaveGlow(nn.Module):
    def __init__(self, width: int, samples: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose1d(80, 80, 1024, 256)
        self.samples = samples
        left = [8 - 2 * (n // 4) for n in range(12)]
        self.flows = nn.ModuleList(_Flow(channels, width, 640) for channels in left)

    def forward(self, mels: Any, sound: Any) -> Any:
        spectrum = self.up(mels)[:, :, : self.samples]
        spectrum = spectrum.unflatten(2, (-1, 8)).permute(0, 1, 3, 2).flatten(1, 2)
        x = sound.unflatten(1, (-1, 8)).transpose(1, 2)
        done, scales = [], []
        for n, flow in enumerate(self.flows):
            if n and n % 4 == 0:
                done.append(x[:, :2])
                x = x[:, 2:]
            x, scale = flow(x, spectrum)
            scales.append(scale)
        return [torch.cat([*done, x], 1), *scales]


def waveglow(width: int = 512, samples: int = 8000) -> Any:
    """Prenger et al., 2018 (arXiv:1811.00002): 12 flows of 8 layers, 512 wide as in the paper and
    as NVIDIA's trainer has them unless it is told otherwise, on a third of a second."""
    return _WaveGlow(width, samples)


class _JasperBlock(nn.Module):
    """Convolutions beside projections of the outputs of earlier blocks."""

    def __init__(
        self, inner: int, outer: int, kernel: int, repeat: int, before: list[int], separable: bool
    ) -> None:
        super().__init__()
        layers: list[Any] = []
        for n in range(repeat):
            given = outer if n else inner
            if separable:
                depth = nn.Conv1d(
                    given, given, kernel, padding=kernel // 2, groups=given, bias=False
                )
                layers += [depth, nn.Conv1d(given, outer, 1, bias=False)]
            else:
                layers.append(nn.Conv1d(given, outer, kernel, padding=kernel // 2, bias=False))
            layers.append(nn.BatchNorm1d(outer))
            if n < repeat - 1:
                layers += [nn.ReLU(), nn.Dropout(0.2)]
        self.layers = nn.Sequential(*layers)
        self.residual = nn.ModuleList(
            nn.Sequential(nn.Conv1d(width, outer, 1, bias=False), nn.BatchNorm1d(outer))
            for width in before
        )

    def forward(self, earlier: list[Any]) -> Any:
        y = self.layers(earlier[-1])
        for layer, x in zip(self.residual, earlier[-len(self.residual) :], strict=True):
            y = y + layer(x)
        return F.dropout(F.relu(y), 0.2, self.training)


class _Jasper(nn.Module):
    def __init__(
        self,
        blocks: list[tuple[int, int]],
        *,
        repeat: int,
        dense: bool,
        separable: bool,
        last: tuple[tuple[int, int, int], ...],
        letters: int,
    ) -> None:
        super().__init__()
        self.dense = dense
        kernel = 33 if separable else 11
        stem: list[Any] = [nn.Conv1d(64, 256, kernel, 2, kernel // 2, bias=False)]
        if separable:
            depth = nn.Conv1d(64, 64, kernel, 2, kernel // 2, groups=64, bias=False)
            stem = [depth, nn.Conv1d(64, 256, 1, bias=False)]
        self.stem = nn.Sequential(*stem, nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.2))
        widths, made = [256], []
        for outer, kernel in blocks:
            before = widths if dense else widths[-1:]
            made.append(_JasperBlock(widths[-1], outer, kernel, repeat, list(before), separable))
            widths.append(outer)
        self.blocks = nn.ModuleList(made)
        tail: list[Any] = []
        inner = widths[-1]
        for outer, kernel, dilation in last:
            pad = dilation * (kernel // 2)
            groups = inner if separable and kernel > 1 else 1
            if groups > 1:
                tail.append(nn.Conv1d(inner, inner, kernel, 1, pad, dilation, groups, bias=False))
                tail.append(nn.Conv1d(inner, outer, 1, bias=False))
            else:
                tail.append(nn.Conv1d(inner, outer, kernel, 1, pad, dilation, bias=False))
            tail += [nn.BatchNorm1d(outer), nn.ReLU(), nn.Dropout(0.4)]
            inner = outer
        self.tail = nn.Sequential(*tail, nn.Conv1d(inner, letters, 1))

    def forward(self, sound: Any) -> Any:
        earlier = [self.stem(sound)]
        for block in self.blocks:
            out = block(earlier)
            earlier = [*earlier, out] if self.dense else [out]
        return self.tail(earlier[-1]).transpose(1, 2)


def jasper(letters: int = 29) -> Any:
    """Li et al., 2019 (arXiv:1904.03288), 10×5 with dense residuals."""
    sizes = ((256, 11), (384, 13), (512, 17), (640, 21), (768, 25))
    blocks = [size for size in sizes for _ in range(2)]
    last = ((896, 29, 2), (1024, 1, 1))
    return _Jasper(blocks, repeat=5, dense=True, separable=False, last=last, letters=letters)


def quartznet(letters: int = 29) -> Any:
    """Kriman et al., 2019 (arXiv:1910.10261), 15×5."""
    sizes = ((256, 33), (256, 39), (512, 51), (512, 63), (512, 75))
    blocks = [size for size in sizes for _ in range(3)]
    last = ((512, 87, 2), (1024, 1, 1))
    return _Jasper(blocks, repeat=5, dense=False, separable=True, last=last, letters=letters)
