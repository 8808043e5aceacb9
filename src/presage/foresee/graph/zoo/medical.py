"""Networks that label every point of an image or a volume, from the shapes in their papers."""

# mypy: allow-subclassing-any
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

__all__ = ["nnunet", "unet", "unet3d"]


def _layers(dims: int) -> tuple[Any, Any, Any]:
    if dims == 3:
        return nn.Conv3d, nn.ConvTranspose3d, nn.InstanceNorm3d
    return nn.Conv2d, nn.ConvTranspose2d, nn.InstanceNorm2d


class _Twice(nn.Module):
    """Two convolutions with normalization; the first may be strided."""

    def __init__(self, dims: int, inner: int, outer: int, stride: int, norm: bool) -> None:
        super().__init__()
        conv, _, normalize = _layers(dims)
        parts: list[Any] = []
        for n in range(2):
            parts.append(conv(outer if n else inner, outer, 3, 1 if n else stride, 1))
            parts += [normalize(outer, affine=True)] if norm else []
            parts.append(nn.LeakyReLU(0.01, True) if norm else nn.ReLU(True))
        self.layers = nn.Sequential(*parts)

    def forward(self, x: Any) -> Any:
        return self.layers(x)


class _Unet(nn.Module):
    """Down and up again with shortcuts; pooled or strided, with deep supervision or without."""

    def __init__(
        self,
        dims: int,
        widths: Sequence[int],
        *,
        channels: int,
        classes: int,
        strided: bool,
        heads: int,
    ) -> None:
        super().__init__()
        conv, up, _ = _layers(dims)
        given = [channels, *widths]
        self.down = nn.ModuleList(
            _Twice(dims, a, b, 2 if strided and n else 1, strided)
            for n, (a, b) in enumerate(zip(given, widths, strict=False))
        )
        self.pool = None if strided else nn.MaxPool2d(2) if dims == 2 else nn.MaxPool3d(2)
        pairs = list(zip(widths[::-1], widths[-2::-1], strict=False))
        self.raise_ = nn.ModuleList(up(a, b, 2, 2) for a, b in pairs)
        self.up = nn.ModuleList(_Twice(dims, 2 * b, b, 1, strided) for _, b in pairs)
        self.heads = nn.ModuleList(conv(b, classes, 1) for _, b in pairs[len(pairs) - heads :])

    def forward(self, x: Any) -> Any:
        kept = []
        for n, layer in enumerate(self.down):
            x = layer(self.pool(x) if n and self.pool is not None else x)
            kept.append(x)
        out = []
        for n, (raised, layer) in enumerate(zip(self.raise_, self.up, strict=True)):
            x = layer(torch.cat([raised(x), kept[-2 - n]], 1))
            place = n - (len(self.up) - len(self.heads))
            if place >= 0:
                out.append(self.heads[place](x))
        return out


def nnunet(dims: int) -> Any:
    """Isensee et al., 2018 (arXiv:1809.10486), as NVIDIA's trainer has it for brain tumours: 4
    channels, patches of 128³ or 192×160."""
    widths = (32, 64, 128, 256, 320, 320) if dims == 3 else (32, 64, 128, 256, 512, 512)
    return _Unet(dims, widths, channels=4, classes=4, strided=True, heads=3)


def unet(classes: int = 2) -> Any:
    """Ronneberger et al., 2015 (arXiv:1505.04597), with borders kept."""
    widths = (64, 128, 256, 512, 1024)
    return _Unet(2, widths, channels=1, classes=classes, strided=False, heads=1)


def unet3d(classes: int = 4) -> Any:
    """Çiçek et al., 2016 (arXiv:1606.06650), 128³."""
    widths = (32, 64, 128, 256, 320)
    return _Unet(3, widths, channels=4, classes=classes, strided=False, heads=1)
