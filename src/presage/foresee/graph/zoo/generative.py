"""Generators and discriminators, trained together: a forward pass in training does what one
iteration of the public trainers does, in inference it only generates."""

# mypy: allow-subclassing-any
from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["cyclegan", "dcgan"]


def _dcgan_generator(noise: int, width: int) -> Any:
    parts: list[Any] = []
    inner = noise
    for times, stride, pad in ((8, 1, 0), (4, 2, 1), (2, 2, 1), (1, 2, 1)):
        outer = width * times
        parts += [
            nn.ConvTranspose2d(inner, outer, 4, stride, pad, bias=False),
            nn.BatchNorm2d(outer),
            nn.ReLU(inplace=True),
        ]
        inner = outer
    return nn.Sequential(*parts, nn.ConvTranspose2d(inner, 3, 4, 2, 1, bias=False), nn.Tanh())


def _dcgan_discriminator(width: int) -> Any:
    parts: list[Any] = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)]
    inner = width
    for times in (2, 4, 8):
        outer = width * times
        parts += [
            nn.Conv2d(inner, outer, 4, 2, 1, bias=False),
            nn.BatchNorm2d(outer),
            nn.LeakyReLU(0.2, inplace=True),
        ]
        inner = outer
    return nn.Sequential(*parts, nn.Conv2d(inner, 1, 4, 1, 0, bias=False), nn.Flatten())


class _Dcgan(nn.Module):
    def __init__(self, noise: int, width: int) -> None:
        super().__init__()
        self.generator = _dcgan_generator(noise, width)
        self.discriminator = _dcgan_discriminator(width)

    def forward(self, noise: Any, real: Any) -> Any:
        made = self.generator(noise)
        if not self.training:
            return made
        judge = self.discriminator
        return judge(real), judge(made.detach()), judge(made)


def dcgan(noise: int = 100, width: int = 64) -> Any:
    """Radford et al., 2015 (arXiv:1511.06434), images of 64×64. In training the discriminator
    judges real images, generated ones, and the same again for the generator."""
    return _Dcgan(noise, width)


def _norm_relu(width: int) -> list[Any]:
    return [nn.InstanceNorm2d(width), nn.ReLU(inplace=True)]


class _ResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReflectionPad2d(1),
            nn.Conv2d(width, width, 3),
            *_norm_relu(width),
            nn.ReflectionPad2d(1),
            nn.Conv2d(width, width, 3),
            nn.InstanceNorm2d(width),
        )

    def forward(self, x: Any) -> Any:
        return x + self.layers(x)


def _cycle_generator(blocks: int = 9, width: int = 64) -> Any:
    parts: list[Any] = [nn.ReflectionPad2d(3), nn.Conv2d(3, width, 7), *_norm_relu(width)]
    for _ in range(2):
        parts += [nn.Conv2d(width, 2 * width, 3, 2, 1), *_norm_relu(2 * width)]
        width *= 2
    parts += [_ResidualBlock(width) for _ in range(blocks)]
    for _ in range(2):
        up = nn.ConvTranspose2d(width, width // 2, 3, 2, 1, output_padding=1)
        parts += [up, *_norm_relu(width // 2)]
        width //= 2
    return nn.Sequential(*parts, nn.ReflectionPad2d(3), nn.Conv2d(width, 3, 7), nn.Tanh())


def _patch_discriminator(width: int = 64) -> Any:
    parts: list[Any] = [nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True)]
    for stride in (2, 2, 1):
        parts += [
            nn.Conv2d(width, 2 * width, 4, stride, 1),
            nn.InstanceNorm2d(2 * width),
            nn.LeakyReLU(0.2, inplace=True),
        ]
        width *= 2
    return nn.Sequential(*parts, nn.Conv2d(width, 1, 4, 1, 1))


class _Cyclegan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_b, self.to_a = _cycle_generator(), _cycle_generator()
        self.judge_a, self.judge_b = _patch_discriminator(), _patch_discriminator()

    def forward(self, a: Any, b: Any) -> Any:
        made_b, made_a = self.to_b(a), self.to_a(b)
        if not self.training:
            return made_b, made_a
        again = [self.to_a(made_b), self.to_b(made_a)]
        same = [self.to_b(b), self.to_a(a)]
        fooled = [self.judge_b(made_b), self.judge_a(made_a)]
        judged = [
            self.judge_b(b),
            self.judge_b(made_b.detach()),
            self.judge_a(a),
            self.judge_a(made_a.detach()),
        ]
        return [*again, *same, *fooled, *judged]


def cyclegan() -> Any:
    """Zhu et al., 2017 (arXiv:1703.10593): two generators of nine residual blocks, two 70×70
    PatchGANs. A training pass runs each generator three times and each discriminator three."""
    return _Cyclegan()
