"""Networks of parallel branches: GoogLeNet and Inception v3, from the shapes in their papers."""

# mypy: allow-subclassing-any
from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["googlenet", "inception_v3"]

Size = int | tuple[int, int]


def _conv(inner: int, outer: int, kernel: Size = 1, stride: int = 1, pad: Size = 0) -> Any:
    return nn.Sequential(
        nn.Conv2d(inner, outer, kernel, stride, pad, bias=False),
        nn.BatchNorm2d(outer, eps=1e-3),
        nn.ReLU(inplace=True),
    )


class _Branches(nn.Module):
    """What several networks make of one input, side by side."""

    def __init__(self, *branches: Any) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Any) -> Any:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _chain(inner: int, *rows: tuple[int, Size, Size]) -> Any:
    parts = []
    for outer, kernel, pad in rows:
        parts.append(_conv(inner, outer, kernel, 1, pad))
        inner = outer
    return nn.Sequential(*parts)


def _inception(
    inner: int, one: int, three: tuple[int, int], five: tuple[int, int], pool: int
) -> Any:
    return _Branches(
        _conv(inner, one),
        _chain(inner, (three[0], 1, 0), (three[1], 3, 1)),
        _chain(inner, (five[0], 1, 0), (five[1], 3, 1)),
        nn.Sequential(nn.MaxPool2d(3, 1, 1), _conv(inner, pool)),
    )


def googlenet(classes: int = 1000) -> Any:
    """Szegedy et al., 2014 (arXiv:1409.4842), with batch normalization and without the helping
    classifiers, as torchvision has it."""
    parts: list[Any] = [_conv(3, 64, 7, 2, 3), nn.MaxPool2d(3, 2, ceil_mode=True)]
    parts += [_conv(64, 64), _conv(64, 192, 3, 1, 1), nn.MaxPool2d(3, 2, ceil_mode=True)]
    rows: tuple[tuple[int, int, tuple[int, int], tuple[int, int], int] | None, ...] = (
        (192, 64, (96, 128), (16, 32), 32),
        (256, 128, (128, 192), (32, 96), 64),
        None,
        (480, 192, (96, 208), (16, 48), 64),
        (512, 160, (112, 224), (24, 64), 64),
        (512, 128, (128, 256), (24, 64), 64),
        (512, 112, (144, 288), (32, 64), 64),
        (528, 256, (160, 320), (32, 128), 128),
        None,
        (832, 256, (160, 320), (32, 128), 128),
        (832, 384, (192, 384), (48, 128), 128),
    )
    for row in rows:
        parts.append(nn.MaxPool2d(3, 2, ceil_mode=True) if row is None else _inception(*row))
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1024, classes)]
    return nn.Sequential(*parts, *head)


def _a(inner: int, pool: int) -> Any:
    return _Branches(
        _conv(inner, 64),
        _chain(inner, (48, 1, 0), (64, 5, 2)),
        _chain(inner, (64, 1, 0), (96, 3, 1), (96, 3, 1)),
        nn.Sequential(nn.AvgPool2d(3, 1, 1), _conv(inner, pool)),
    )


def _b(inner: int) -> Any:
    three = nn.Sequential(_chain(inner, (64, 1, 0), (96, 3, 1)), _conv(96, 96, 3, 2))
    return _Branches(_conv(inner, 384, 3, 2), three, nn.MaxPool2d(3, 2))


def _c(inner: int, mid: int) -> Any:
    row, column = ((1, 7), (0, 3)), ((7, 1), (3, 0))
    return _Branches(
        _conv(inner, 192),
        _chain(inner, (mid, 1, 0), (mid, *row), (192, *column)),
        _chain(inner, (mid, 1, 0), (mid, *column), (mid, *row), (mid, *column), (192, *row)),
        nn.Sequential(nn.AvgPool2d(3, 1, 1), _conv(inner, 192)),
    )


def _d(inner: int) -> Any:
    seven = _chain(inner, (192, 1, 0), (192, (1, 7), (0, 3)), (192, (7, 1), (3, 0)))
    return _Branches(
        nn.Sequential(_conv(inner, 192), _conv(192, 320, 3, 2)),
        nn.Sequential(seven, _conv(192, 192, 3, 2)),
        nn.MaxPool2d(3, 2),
    )


def _e(inner: int) -> Any:
    def split(width: int) -> Any:
        return _Branches(
            _conv(width, 384, (1, 3), 1, (0, 1)), _conv(width, 384, (3, 1), 1, (1, 0))
        )

    return _Branches(
        _conv(inner, 320),
        nn.Sequential(_conv(inner, 384), split(384)),
        nn.Sequential(_chain(inner, (448, 1, 0), (384, 3, 1)), split(384)),
        nn.Sequential(nn.AvgPool2d(3, 1, 1), _conv(inner, 192)),
    )


def inception_v3(classes: int = 1000) -> Any:
    """Szegedy et al., 2015 (arXiv:1512.00567), without the helping classifier."""
    parts: list[Any] = [_conv(3, 32, 3, 2), _conv(32, 32, 3), _conv(32, 64, 3, 1, 1)]
    parts += [nn.MaxPool2d(3, 2), _conv(64, 80), _conv(80, 192, 3), nn.MaxPool2d(3, 2)]
    parts += [_a(192, 32), _a(256, 64), _a(288, 64), _b(288)]
    parts += [_c(768, mid) for mid in (128, 160, 160, 192)]
    parts += [_d(768), _e(1280), _e(2048)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(2048, classes)]
    return nn.Sequential(*parts, *head)
