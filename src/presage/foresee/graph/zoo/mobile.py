"""Small convolutional networks made of depthwise convolutions, from the shapes in their papers."""

# mypy: allow-subclassing-any
from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

__all__ = [
    "efficientnet",
    "efficientnet_features",
    "mnasnet",
    "mobilenet_v2",
    "mobilenet_v3",
    "shufflenet_v2",
]

_V3_LARGE = (  # kernel, expanded, out, squeeze, hard swish, stride
    (3, 16, 16, False, False, 1),
    (3, 64, 24, False, False, 2),
    (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2),
    (5, 120, 40, True, False, 1),
    (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2),
    (3, 200, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 480, 112, True, True, 1),
    (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2),
    (5, 960, 160, True, True, 1),
    (5, 960, 160, True, True, 1),
)
_V3_SMALL = (
    (3, 16, 16, True, False, 2),
    (3, 72, 24, False, False, 2),
    (3, 88, 24, False, False, 1),
    (5, 96, 40, True, True, 2),
    (5, 240, 40, True, True, 1),
    (5, 240, 40, True, True, 1),
    (5, 120, 48, True, True, 1),
    (5, 144, 48, True, True, 1),
    (5, 288, 96, True, True, 2),
    (5, 576, 96, True, True, 1),
    (5, 576, 96, True, True, 1),
)


def _conv(
    inner: int, outer: int, kernel: int, stride: int = 1, groups: int = 1, act: Any = None
) -> list[Any]:
    pad = (kernel - 1) // 2
    parts = [
        nn.Conv2d(inner, outer, kernel, stride, pad, groups=groups, bias=False),
        nn.BatchNorm2d(outer),
    ]
    return parts if act is None else [*parts, act(inplace=True)]


class _Squeeze(nn.Module):
    """Squeeze and excitation (arXiv:1709.01507)."""

    def __init__(self, width: int, narrow: int, act: Any, gate: Any) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(width, narrow, 1),
            act(inplace=True),
            nn.Conv2d(narrow, width, 1),
            gate(),
        )

    def forward(self, x: Any) -> Any:
        return x * self.layers(x)


class _Inverted(nn.Module):
    """Widen, filter each channel, narrow; with a shortcut where the shape stays."""

    def __init__(
        self,
        inner: int,
        outer: int,
        *,
        kernel: int,
        expanded: int,
        stride: int,
        act: Any,
        squeeze: Any = None,
    ) -> None:
        super().__init__()
        parts = _conv(inner, expanded, 1, act=act) if expanded != inner else []
        parts += _conv(expanded, expanded, kernel, stride, groups=expanded, act=act)
        if squeeze is not None:
            parts.append(squeeze)
        self.layers = nn.Sequential(*parts, *_conv(expanded, outer, 1))
        self.shortcut = stride == 1 and inner == outer

    def forward(self, x: Any) -> Any:
        return x + self.layers(x) if self.shortcut else self.layers(x)


def mobilenet_v2(classes: int = 1000) -> Any:
    """Sandler et al., 2018 (arXiv:1801.04381), table 2."""
    parts = _conv(3, 32, 3, 2, act=nn.ReLU6)
    inner = 32
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1))
    for times, outer, blocks, stride in (*stages, (6, 160, 3, 2), (6, 320, 1, 1)):
        for index in range(blocks):
            parts.append(
                _Inverted(
                    inner,
                    outer,
                    kernel=3,
                    expanded=inner * times,
                    stride=1 if index else stride,
                    act=nn.ReLU6,
                )
            )
            inner = outer
    parts += _conv(inner, 1280, 1, act=nn.ReLU6)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, classes)]
    return nn.Sequential(*parts, *head)


def mobilenet_v3(size: str, classes: int = 1000) -> Any:
    """Howard et al., 2019 (arXiv:1905.02244), tables 1 and 2; squeeze widths are multiples of 8
    as in the authors' code."""
    rows, hidden = (_V3_LARGE, 1280) if size == "large" else (_V3_SMALL, 1024)
    parts = _conv(3, 16, 3, 2, act=nn.Hardswish)
    inner = 16
    for kernel, expanded, outer, squeezed, hard, stride in rows:
        narrow = _multiple_of_8(expanded / 4)
        parts.append(
            _Inverted(
                inner,
                outer,
                kernel=kernel,
                expanded=expanded,
                stride=stride,
                act=nn.Hardswish if hard else nn.ReLU,
                squeeze=_Squeeze(expanded, narrow, nn.ReLU, nn.Hardsigmoid) if squeezed else None,
            )
        )
        inner = outer
    parts += _conv(inner, 6 * inner, 1, act=nn.Hardswish)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6 * inner, hidden), nn.Hardswish()]
    return nn.Sequential(*parts, *head, nn.Dropout(0.2), nn.Linear(hidden, classes))


def _multiple_of_8(width: float) -> int:
    """The nearest multiple of 8 that is not more than a tenth smaller."""
    near = max(8, int(width + 4) // 8 * 8)
    return near + 8 if near < 0.9 * width else near


def efficientnet_features(
    wide: float = 1.0, deep: float = 1.0, *, wide_squeeze: bool = False
) -> list[Any]:
    """The layers of an EfficientNet before its last convolution. `wide_squeeze`: squeezed to a
    quarter of the expanded width instead of the block's input, as NVIDIA's `widese` ones are."""
    stem = _multiple_of_8(32 * wide)
    parts: list[Any] = [nn.Sequential(*_conv(3, stem, 3, 2, act=nn.SiLU))]
    inner = stem
    stages = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3))
    later = ((6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3))
    for times, width, blocks, stride, kernel in (*stages, *later):
        outer = _multiple_of_8(width * wide)
        for index in range(math.ceil(blocks * deep)):
            expanded = inner * times
            narrow = (expanded if wide_squeeze else inner) // 4
            parts.append(
                _Inverted(
                    inner,
                    outer,
                    kernel=kernel,
                    expanded=expanded,
                    stride=1 if index else stride,
                    act=nn.SiLU,
                    squeeze=_Squeeze(expanded, narrow, nn.SiLU, nn.Sigmoid),
                )
            )
            inner = outer
    return parts


def efficientnet(
    wide: float = 1.0,
    deep: float = 1.0,
    classes: int = 1000,
    *,
    wide_squeeze: bool = False,
) -> Any:
    """Tan and Le, 2019 (arXiv:1905.11946), table 1; B4 is 1.4 as wide and 1.8 as deep."""
    parts = efficientnet_features(wide, deep, wide_squeeze=wide_squeeze)
    inner, last = _multiple_of_8(320 * wide), _multiple_of_8(1280 * wide)
    parts += _conv(inner, last, 1, act=nn.SiLU)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(last, classes)]
    return nn.Sequential(*parts, *head)


def mnasnet(wide: float = 1.0, classes: int = 1000) -> Any:
    """Tan et al., 2018 (arXiv:1807.11626), B1 as torchvision has it."""
    widths = [_multiple_of_8(n * wide) for n in (32, 16, 24, 40, 80, 96, 192, 320)]
    parts = _conv(3, widths[0], 3, 2, act=nn.ReLU)
    parts += _conv(widths[0], widths[0], 3, groups=widths[0], act=nn.ReLU)
    parts += _conv(widths[0], widths[1], 1)
    rows = ((3, 2, 3, 3), (5, 2, 3, 3), (5, 2, 6, 3), (3, 1, 6, 2), (5, 2, 6, 4), (3, 1, 6, 1))
    inner = widths[1]
    for outer, (kernel, stride, times, blocks) in zip(widths[2:], rows, strict=True):
        for index in range(blocks):
            parts.append(
                _Inverted(
                    inner,
                    outer,
                    kernel=kernel,
                    expanded=inner * times,
                    stride=1 if index else stride,
                    act=nn.ReLU,
                )
            )
            inner = outer
    parts += _conv(inner, 1280, 1, act=nn.ReLU)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, classes)]
    return nn.Sequential(*parts, *head)


class _Shuffle(nn.Module):
    """Half of the channels pass by (all of them where the image shrinks); then halves mix."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        half = outer // 2
        given = inner if stride > 1 else half
        self.stride = stride
        self.passing = nn.Sequential(
            *_conv(given, given, 3, stride, groups=given), *_conv(given, half, 1, act=nn.ReLU)
        )
        if stride == 1:
            self.passing = nn.Identity()
        self.working = nn.Sequential(
            *_conv(given, half, 1, act=nn.ReLU),
            *_conv(half, half, 3, stride, groups=half),
            *_conv(half, half, 1, act=nn.ReLU),
        )

    def forward(self, x: Any) -> Any:
        left, right = x.chunk(2, 1) if self.stride == 1 else (x, x)
        y = torch.stack([self.passing(left), self.working(right)], 2)
        return y.flatten(1, 2)


_SHUFFLED = {"0.5": (48, 1024), "1.0": (116, 1024), "1.5": (176, 1024), "2.0": (244, 2048)}


def shufflenet_v2(classes: int = 1000, *, wide: str = "1.0", small: bool = False) -> Any:
    """Ma et al., 2018 (arXiv:1807.11164), table 5. `small`: a stem for 32×32."""
    width, last = _SHUFFLED[wide]
    parts = _conv(3, 24, 3, 1 if small else 2, act=nn.ReLU)
    if not small:
        parts.append(nn.MaxPool2d(3, 2, 1))
    inner = 24
    for outer, blocks in ((width, 4), (2 * width, 8), (4 * width, 4)):
        for index in range(blocks):
            parts.append(_Shuffle(inner, outer, 1 if index else 2))
            inner = outer
    parts += _conv(inner, last, 1, act=nn.ReLU)
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, classes))
