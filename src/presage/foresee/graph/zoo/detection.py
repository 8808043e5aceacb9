"""Detectors of objects, from the shapes in their papers and NVIDIA's public trainers.

What chooses and matches boxes is left out: it has little arithmetic, and as many operators as
whoever wrote it wanted.
"""

# mypy: allow-subclassing-any
from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from presage.foresee.graph.zoo.mobile import efficientnet_features
from presage.foresee.graph.zoo.vision import resnet

__all__ = ["efficientdet_d0", "maskrcnn", "ssd300"]


class _Ssd(nn.Module):
    """ResNet-50 without its last stage and with stride 1 in its third, six levels, two heads."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        trunk = list(resnet(50).children())[:-3]
        body = trunk[:17]  # stem and the first three stages
        for block in (body[11],):
            block.layers[3].stride = (1, 1)
            block.shortcut[0].stride = (1, 1)
        self.trunk = nn.Sequential(*body)
        sizes = ((1024, 256, 512), (512, 256, 512), (512, 128, 256), (256, 128, 256))
        self.more = nn.ModuleList(
            self._extra(inner, narrow, outer, index < 3)
            for index, (inner, narrow, outer) in enumerate((*sizes, (256, 128, 256)))
        )
        widths, boxes = (1024, 512, 512, 256, 256, 256), (4, 6, 6, 6, 4, 4)
        pairs = list(zip(widths, boxes, strict=True))
        self.places = nn.ModuleList(nn.Conv2d(w, 4 * n, 3, padding=1) for w, n in pairs)
        self.scores = nn.ModuleList(nn.Conv2d(w, classes * n, 3, padding=1) for w, n in pairs)
        self.classes = classes

    @staticmethod
    def _extra(inner: int, narrow: int, outer: int, strided: bool) -> Any:
        last = nn.Conv2d(narrow, outer, 3, 2 if strided else 1, 1 if strided else 0, bias=False)
        parts = [nn.Conv2d(inner, narrow, 1, bias=False), nn.BatchNorm2d(narrow), nn.ReLU(True)]
        return nn.Sequential(*parts, last, nn.BatchNorm2d(outer), nn.ReLU(True))

    def forward(self, x: Any) -> Any:
        levels = [self.trunk(x)]
        for layer in self.more:
            levels.append(layer(levels[-1]))
        pairs = list(zip(levels, self.places, strict=True))
        places = torch.cat([head(level).flatten(2).flatten(1) for level, head in pairs], 1)
        pairs = list(zip(levels, self.scores, strict=True))
        scores = torch.cat(
            [head(level).unflatten(1, (self.classes, -1)).flatten(2) for level, head in pairs], 2
        )
        return places, F.log_softmax(scores, 1)


def ssd300(classes: int = 81) -> Any:
    """Liu et al., 2015 (arXiv:1512.02325) on a ResNet-50, as NVIDIA's trainer has it."""
    return _Ssd(classes)


class _Pyramid(nn.Module):
    """Feature pyramid (arXiv:1612.03144) over four levels."""

    def __init__(self, widths: tuple[int, ...] = (256, 512, 1024, 2048)) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Conv2d(width, 256, 1) for width in widths)
        self.outer = nn.ModuleList(nn.Conv2d(256, 256, 3, padding=1) for _ in widths)

    def forward(self, levels: list[Any]) -> list[Any]:
        x = self.inner[-1](levels[-1])
        out = [self.outer[-1](x)]
        for place in range(len(levels) - 2, -1, -1):
            below = self.inner[place](levels[place])
            x = below + F.interpolate(x, size=below.shape[-2:])
            out.insert(0, self.outer[place](x))
        return [*out, F.max_pool2d(out[-1], 1, 2)]


class _MaskRcnn(nn.Module):
    """The first stage is frozen and statistics of batches are constants, as everybody trains it.
    Boxes and masks are looked up on 512 and 128 places an image."""

    def __init__(self, classes: int, boxes: int, masks: int) -> None:
        super().__init__()
        parts = list(resnet(50).children())[:-3]
        _freeze(parts)
        self.stages = nn.ModuleList(
            nn.Sequential(*parts[begin:end])
            for begin, end in ((0, 7), (7, 11), (11, 17), (17, 20))
        )
        for weight in self.stages[0].parameters():
            weight.requires_grad = False
        self.pyramid = _Pyramid()
        self.proposals = nn.Conv2d(256, 256, 3, padding=1)
        self.objects, self.shifts = nn.Conv2d(256, 3, 1), nn.Conv2d(256, 12, 1)
        self.boxes, self.masks = boxes, masks
        self.head = nn.Sequential(
            nn.Linear(256 * 49, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()
        )
        self.classes, self.corners = nn.Linear(1024, classes), nn.Linear(1024, 4 * classes)
        mask: list[Any] = []
        for _ in range(4):
            mask += [nn.Conv2d(256, 256, 3, padding=1), nn.ReLU()]
        mask += [nn.ConvTranspose2d(256, 256, 2, 2), nn.ReLU(), nn.Conv2d(256, classes, 1)]
        self.mask = nn.Sequential(*mask)

    def forward(self, x: Any) -> Any:
        levels = []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        pyramid = self.pyramid(levels)
        out = []
        for level in pyramid:
            y = F.relu(self.proposals(level))
            out += [self.objects(y), self.shifts(y)]
        places = _looked_up(pyramid[0], self.boxes, 7)
        y = self.head(places.flatten(1))
        masks = self.mask(_looked_up(pyramid[0], self.masks, 14))
        return [*out, self.classes(y), self.corners(y), masks]


def _looked_up(level: Any, count: int, side: int) -> Any:
    """Regions of one level: as many values as an RoI align would give."""
    flat = level.flatten(2)[:, :, : side * side]
    regions = flat.unsqueeze(1).expand(-1, count, -1, -1)
    return regions.reshape(-1, level.shape[1], side, side)


class _Constant(nn.Module):
    """Batch normalization whose statistics and weights do not change: a product and a sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(1, width, 1, 1))
        self.register_buffer("shift", torch.zeros(1, width, 1, 1))

    def forward(self, x: Any) -> Any:
        return x * self.scale + self.shift


def _freeze(parts: list[Any]) -> None:
    """Constants in the place of every batch normalization."""
    for place, part in enumerate(parts):
        if isinstance(part, nn.BatchNorm2d):
            parts[place] = _Constant(part.num_features)
        else:
            for name, module in list(part.named_modules()):
                if isinstance(module, nn.BatchNorm2d):
                    owner, _, last = name.rpartition(".")
                    setattr(part.get_submodule(owner), last, _Constant(module.num_features))


def maskrcnn(classes: int = 81, boxes: int = 512, masks: int = 128) -> Any:
    """He et al., 2017 (arXiv:1703.06870), ResNet-50 with a feature pyramid."""
    return _MaskRcnn(classes, boxes, masks)


def _separable(inner: int, outer: int) -> Any:
    return nn.Sequential(
        nn.Conv2d(inner, inner, 3, padding=1, groups=inner, bias=False),
        nn.Conv2d(inner, outer, 1),
        nn.BatchNorm2d(outer),
    )


class _BiLayer(nn.Module):
    """One layer of a pyramid in both directions (arXiv:1911.09070) over five levels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.nodes = nn.ModuleList(_separable(width, width) for _ in range(8))

    def forward(self, levels: list[Any]) -> list[Any]:
        down = [levels[-1]]
        for place in range(len(levels) - 2, -1, -1):
            up = F.interpolate(down[0], size=levels[place].shape[-2:])
            node = self.nodes[place]
            down.insert(0, node(F.silu(levels[place] + up)))
        out = [down[0]]
        for place in range(1, len(levels)):
            less = F.adaptive_max_pool2d(out[-1], levels[place].shape[-2:])
            out.append(self.nodes[3 + place](F.silu(levels[place] + down[place] + less)))
        return out


class _EfficientDet(nn.Module):
    def __init__(self, width: int, layers: int, depth: int, classes: int) -> None:
        super().__init__()
        self.trunk = nn.ModuleList(efficientnet_features())
        self.narrow = nn.ModuleList(
            nn.Sequential(nn.Conv2d(inner, width, 1), nn.BatchNorm2d(width))
            for inner in (40, 112, 320, 320)
        )
        self.layers = nn.ModuleList(_BiLayer(width) for _ in range(layers))
        self.scores = self._head(width, depth, 9 * classes)
        self.boxes = self._head(width, depth, 36)

    @staticmethod
    def _head(width: int, depth: int, outer: int) -> Any:
        parts: list[Any] = []
        for _ in range(depth):
            parts += [_separable(width, width), nn.SiLU()]
        last = [nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False)]
        return nn.Sequential(*parts, *last, nn.Conv2d(width, outer, 1))

    def forward(self, x: Any) -> Any:
        kept = []
        for place, part in enumerate(self.trunk):
            x = part(x)
            if place in (5, 11, 16):
                kept.append(x)
        levels = [head(level) for head, level in zip(self.narrow, [*kept, kept[-1]], strict=True)]
        levels[3] = F.max_pool2d(levels[3], 3, 2, 1)
        levels.append(F.max_pool2d(levels[3], 3, 2, 1))
        for layer in self.layers:
            levels = layer(levels)
        return [*map(self.scores, levels), *map(self.boxes, levels)]


def efficientdet_d0(classes: int = 90) -> Any:
    """Tan et al., 2019 (arXiv:1911.09070): 64 wide, 3 layers of the pyramid, heads of 3."""
    return _EfficientDet(64, 3, 3, classes)
