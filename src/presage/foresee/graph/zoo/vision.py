"""Convolutional networks for images, from the shapes in their papers."""

# mypy: allow-subclassing-any
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["alexnet", "convnext", "densenet", "resnet", "squeezenet", "vgg", "yolov3"]

_RESNETS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
_VGGS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_DENSENETS = {
    121: (32, (6, 12, 24, 16)),
    161: (48, (6, 12, 36, 24)),
    169: (32, (6, 12, 32, 32)),
    201: (32, (6, 12, 48, 32)),
}


def _conv_norm(inner: int, outer: int, kernel: int, stride: int = 1, groups: int = 1) -> list[Any]:
    pad = (kernel - 1) // 2
    conv = nn.Conv2d(inner, outer, kernel, stride, pad, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outer)]


class _Residual(nn.Module):
    """Layers beside a shortcut, which is a projection where the shape changes."""

    def __init__(self, inner: int, outer: int, stride: int, layers: Sequence[Any]) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        same = stride == 1 and inner == outer
        self.shortcut = None if same else nn.Sequential(*_conv_norm(inner, outer, 1, stride))

    def forward(self, x: Any) -> Any:
        y = self.layers(x)
        y += x if self.shortcut is None else self.shortcut(x)
        return F.relu(y, inplace=True)


def _basic(inner: int, width: int, stride: int) -> _Residual:
    first = [*_conv_norm(inner, width, 3, stride), nn.ReLU(inplace=True)]
    return _Residual(inner, width, stride, [*first, *_conv_norm(width, width, 3)])


class _Weigh(nn.Module):
    """Squeeze and excitation (arXiv:1709.01507)."""

    def __init__(self, width: int, narrow: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(width, narrow, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(narrow, width, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Any) -> Any:
        return x * self.layers(x)


def _bottleneck(
    inner: int, width: int, stride: int, groups: int, per_group: int, squeeze: bool = False
) -> _Residual:
    """The stride is in the 3×3 convolution, as everybody trains it today."""
    middle = width * per_group // 64 * groups
    layers = [
        *_conv_norm(inner, middle, 1),
        nn.ReLU(inplace=True),
        *_conv_norm(middle, middle, 3, stride, groups),
        nn.ReLU(inplace=True),
        *_conv_norm(middle, 4 * width, 1),
    ]
    layers += [_Weigh(4 * width, width // 4)] if squeeze else []
    return _Residual(inner, 4 * width, stride, layers)


def resnet(
    depth: int,
    classes: int = 1000,
    *,
    small: bool = False,
    groups: int = 1,
    per_group: int = 64,
    squeeze: bool = False,
) -> Any:
    """He et al., 2015 (arXiv:1512.03385); groups as in ResNeXt (1611.05431), per_group 128 makes a
    wide one (1605.07146), `squeeze` one that weighs its channels (1709.01507). `small`: a 3×3 stem
    without pooling, for images of 32×32."""
    stem = _conv_norm(3, 64, 3) if small else _conv_norm(3, 64, 7, 2)
    parts: list[Any] = [*stem, nn.ReLU(inplace=True)]
    if not small:
        parts.append(nn.MaxPool2d(3, 2, 1))
    inner = 64
    for stage, blocks in enumerate(_RESNETS[depth]):
        width = 64 << stage
        for index in range(blocks):
            stride = 2 if stage and not index else 1
            if depth < 50:
                parts.append(_basic(inner, width, stride))
                inner = width
            else:
                parts.append(_bottleneck(inner, width, stride, groups, per_group, squeeze))
                inner = 4 * width
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, classes))


def vgg(depth: int, classes: int = 1000, *, norm: bool = False, small: bool = False) -> Any:
    """Simonyan and Zisserman, 2014 (arXiv:1409.1556). `small`: one linear layer, for 32×32."""
    parts: list[Any] = []
    inner = 3
    for stage, convolutions in enumerate(_VGGS[depth]):
        width = min(64 << stage, 512)
        for _ in range(convolutions):
            parts.append(nn.Conv2d(inner, width, 3, padding=1))
            if norm:
                parts.append(nn.BatchNorm2d(width))
            parts.append(nn.ReLU(inplace=True))
            inner = width
        parts.append(nn.MaxPool2d(2, 2))
    if small:
        return nn.Sequential(*parts, nn.Flatten(), nn.Linear(512, classes))
    return nn.Sequential(*parts, nn.Flatten(), *_classifier(512 * 7 * 7, classes))


def _classifier(inner: int, classes: int) -> list[Any]:
    hidden = [nn.Linear(inner, 4096), nn.ReLU(inplace=True), nn.Dropout()]
    return [
        *hidden,
        nn.Linear(4096, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(4096, classes),
    ]


def alexnet(classes: int = 1000) -> Any:
    """Krizhevsky, 2014, the one-column form (arXiv:1404.5997)."""
    parts: list[Any] = [nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)]
    parts += [nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)]
    for inner, outer in ((192, 384), (384, 256), (256, 256)):
        parts += [nn.Conv2d(inner, outer, 3, padding=1), nn.ReLU(inplace=True)]
    parts += [nn.MaxPool2d(3, 2), nn.Flatten(), nn.Dropout()]
    return nn.Sequential(*parts, *_classifier(256 * 6 * 6, classes))


class _Fire(nn.Module):
    def __init__(self, inner: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inner, squeeze, 1)
        self.one = nn.Conv2d(squeeze, expand, 1)
        self.three = nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.squeeze(x), inplace=True)
        return torch.cat([F.relu(self.one(x)), F.relu(self.three(x))], 1)


def squeezenet(classes: int = 1000, *, version: str = "1.1") -> Any:
    """Iandola et al., 2016 (arXiv:1602.07360), and version 1.1 of the authors' repository."""
    first = version == "1.0"
    stem = nn.Conv2d(3, 96, 7, 2) if first else nn.Conv2d(3, 64, 3, 2)
    parts: list[Any] = [stem, nn.ReLU(inplace=True)]
    inner = 96 if first else 64
    stages: tuple[tuple[int, ...], ...] = ((16, 16), (32, 32), (48, 48, 64, 64))
    for stage in ((16, 16, 32), (32, 48, 48, 64), (64,)) if first else stages:
        parts.append(nn.MaxPool2d(3, 2, ceil_mode=True))
        for squeeze in stage:
            parts.append(_Fire(inner, squeeze, 4 * squeeze))
            inner = 8 * squeeze
    parts += [nn.Dropout(), nn.Conv2d(inner, classes, 1), nn.ReLU(inplace=True)]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten())


class _Dense(nn.Module):
    """A layer that adds `growth` channels to what it was given."""

    def __init__(self, inner: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
            nn.Conv2d(inner, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(inplace=True),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, parts: list[Any]) -> Any:
        return self.layers(torch.cat(parts, 1))


class _DenseStage(nn.Module):
    """Each layer sees the outputs of all those before it."""

    def __init__(self, inner: int, growth: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Dense(inner + i * growth, growth) for i in range(layers))

    def forward(self, x: Any) -> Any:
        parts = [x]
        for layer in self.layers:
            parts.append(layer(parts))
        return torch.cat(parts, 1)


def densenet(depth: int, classes: int = 1000) -> Any:
    """Huang et al., 2016 (arXiv:1608.06993)."""
    growth, stages = _DENSENETS[depth]
    width = 2 * growth
    parts: list[Any] = [*_conv_norm(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    for index, layers in enumerate(stages):
        parts.append(_DenseStage(width, growth, layers))
        width += layers * growth
        parts += [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        if index < len(stages) - 1:
            parts += [nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2, 2)]
            width //= 2
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


class _ChannelNorm(nn.LayerNorm):
    """Layer normalization over the channels of an image."""

    def forward(self, x: Any) -> Any:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class _ConvNextBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.rise, self.fall = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width, 1, 1), 1e-6))

    def forward(self, x: Any) -> Any:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.fall(F.gelu(self.rise(y))).permute(0, 3, 1, 2)
        return x + self.scale * y


def convnext(stages: Sequence[int] = (3, 3, 9, 3), width: int = 96, classes: int = 1000) -> Any:
    """Liu et al., 2022 (arXiv:2201.03545)."""
    parts: list[Any] = [nn.Conv2d(3, width, 4, 4), _ChannelNorm(width, eps=1e-6)]
    for index, blocks in enumerate(stages):
        if index:
            parts += [_ChannelNorm(width, eps=1e-6), nn.Conv2d(width, 2 * width, 2, 2)]
            width *= 2
        parts += [_ConvNextBlock(width) for _ in range(blocks)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(width, eps=1e-6)]
    return nn.Sequential(*parts, *head, nn.Linear(width, classes))


def _leaky(inner: int, outer: int, kernel: int, stride: int = 1) -> Any:
    return nn.Sequential(
        *_conv_norm(inner, outer, kernel, stride), nn.LeakyReLU(0.1, inplace=True)
    )


class _DarknetBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(_leaky(width, width // 2, 1), _leaky(width // 2, width, 3))

    def forward(self, x: Any) -> Any:
        return x + self.layers(x)


def _neck(inner: int, width: int) -> Any:
    """Five convolutions between the backbone and a head."""
    return nn.Sequential(
        _leaky(inner, width, 1),
        _leaky(width, 2 * width, 3),
        _leaky(2 * width, width, 1),
        _leaky(width, 2 * width, 3),
        _leaky(2 * width, width, 1),
    )


class _Yolo(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = _leaky(3, 32, 3)
        width, stages = 32, []
        for blocks in (1, 2, 8, 8, 4):
            body = [_DarknetBlock(2 * width) for _ in range(blocks)]
            stages.append(nn.Sequential(_leaky(width, 2 * width, 3, 2), *body))
            width *= 2
        self.stages = nn.ModuleList(stages)
        self.necks = nn.ModuleList([_neck(1024, 512), _neck(768, 256), _neck(384, 128)])
        self.narrow = nn.ModuleList([_leaky(512, 256, 1), _leaky(256, 128, 1)])
        outputs = 3 * (5 + classes)
        self.heads = nn.ModuleList(
            nn.Sequential(_leaky(w, 2 * w, 3), nn.Conv2d(2 * w, outputs, 1))
            for w in (512, 256, 128)
        )

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        levels = []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        scores = []
        for index, level in enumerate(reversed(levels[2:])):
            if index:
                up = F.interpolate(self.narrow[index - 1](x), scale_factor=2.0)
                level = torch.cat([up, level], 1)
            x = self.necks[index](level)
            scores.append(self.heads[index](x))
        return scores


def yolov3(classes: int = 80) -> Any:
    """Redmon and Farhadi, 2018 (arXiv:1804.02767)."""
    return _Yolo(classes)
