"""Input pipelines and small nets for `benchmarks.loader_live`: real decoding and augmentation.

Samples are made once from a seed and kept compressed, as data sets are; each is unpacked and
changed at random when it is asked for. Every pipeline is there without workers and with one.
`python -m benchmarks.loader_live` names the functions of this file as a user names theirs.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

__all__ = ["KINDS", "make_net"]

_SAMPLES = 8192
"""Enough that no epoch ends while a pipeline is watched: workers start anew with each."""
Sample = tuple[npt.NDArray[np.float32], int]


class _Kept(Dataset[Sample]):  # type: ignore[misc]  # PyTorch's types are not looked at
    """Compressed samples, and what is done to one when it is asked for."""

    def __init__(
        self,
        shape: tuple[int, ...],
        prepare: Callable[[npt.NDArray[Any], np.random.Generator], npt.NDArray[np.float32]],
    ) -> None:
        chance = np.random.default_rng(0)
        self.shape, self.prepare = shape, prepare
        self.kept = [
            zlib.compress(chance.integers(0, 64, shape, np.uint8).tobytes(), 6) for _ in range(16)
        ]

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, at: int) -> Sample:
        raw = np.frombuffer(zlib.decompress(self.kept[at % 16]), np.uint8).reshape(self.shape)
        return self.prepare(raw, np.random.default_rng(at)), at % 10


def _image(raw: npt.NDArray[Any], chance: np.random.Generator) -> npt.NDArray[np.float32]:
    """Crop, turn, blur, change colours, normalise."""
    y, x = chance.integers(0, 16, 2)
    part = raw[:, y : y + 64, x : x + 64].astype(np.float32)
    if chance.random() < 0.5:
        part = part[:, :, ::-1]
    soft = sum(np.roll(part, shift, axis) for shift in (-1, 0, 1) for axis in (1, 2)) / 6
    changed = soft * chance.uniform(0.8, 1.2, (3, 1, 1)) + chance.uniform(-5, 5, (3, 1, 1))
    mean, spread = (
        changed.mean(axis=(1, 2), keepdims=True),
        changed.std(axis=(1, 2), keepdims=True),
    )
    return np.ascontiguousarray((changed - mean) / (spread + 1e-3), np.float32)


def _audio(raw: npt.NDArray[Any], chance: np.random.Generator) -> npt.NDArray[np.float32]:
    """A spectrogram with noise and masked bands."""
    wave = raw.astype(np.float32) - 32 + chance.normal(0, 2, raw.shape).astype(np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(wave, 512)[::128] * np.hanning(512)
    power = np.log1p(np.abs(np.fft.rfft(frames, axis=1))[:, :64]).astype(np.float32)
    at = int(chance.integers(0, 56))
    power[:, at : at + 8] = 0
    return np.ascontiguousarray(power)


def _text(raw: npt.NDArray[Any], chance: np.random.Generator) -> npt.NDArray[np.float32]:
    """Split into words, look each up by its hash, count."""
    words = "".join(chr(97 + value % 27) if value % 27 < 26 else " " for value in raw.tolist())
    counts = np.zeros(512, np.float32)
    for word in words.split():
        counts[zlib.crc32(word.encode()) % 512] += 1
    return counts


def _points(raw: npt.NDArray[Any], chance: np.random.Generator) -> npt.NDArray[np.float32]:
    """Turn a cloud of points and keep those that are far apart."""
    cloud = raw.reshape(-1, 3).astype(np.float32) / 32 - 1
    turn, _ = np.linalg.qr(chance.normal(size=(3, 3)))
    cloud = cloud @ turn.astype(np.float32)
    far, chosen = np.full(len(cloud), np.inf, np.float32), [0]
    for _ in range(31):
        far = np.minimum(far, ((cloud - cloud[chosen[-1]]) ** 2).sum(axis=1))
        chosen.append(int(far.argmax()))
    return np.ascontiguousarray(cloud[chosen].reshape(-1))


def _table(raw: npt.NDArray[Any], chance: np.random.Generator) -> npt.NDArray[np.float32]:
    """Numbers scaled by rank, and products of each two of them."""
    numbers = raw.astype(np.float32)
    ranked = numbers.argsort().argsort().astype(np.float32) / numbers.size
    ranked += chance.normal(0, 0.01, ranked.shape).astype(np.float32)
    return np.outer(ranked, ranked)[np.triu_indices(ranked.size)].astype(np.float32)


KINDS: dict[str, tuple[tuple[int, ...], Any, int]] = {
    "images": ((3, 80, 80), _image, 32),
    "audio": ((16_000,), _audio, 32),
    "text": ((1_000,), _text, 64),
    "points": ((900,), _points, 32),
    "table": ((64,), _table, 64),
}
"""Shape of a kept sample, what is done to it, and the batch."""


def _loader(kind: str, workers: int) -> DataLoader[Sample]:
    shape, prepare, batch = KINDS[kind]
    return DataLoader(
        _Kept(shape, prepare), batch, shuffle=True, num_workers=workers, drop_last=True
    )


def __getattr__(name: str) -> Callable[[], DataLoader[Sample]]:
    """`images_0` is a function that makes the pipeline of images without workers."""
    kind, _, workers = name.rpartition("_")
    if kind not in KINDS or not workers.isdigit():
        raise AttributeError(name)
    return lambda: _loader(kind, int(workers))


def make_net(kind: str, large: bool) -> nn.Module:
    """A net for the samples of a kind: one that waits for them, or one that they wait for."""
    width = {True: 6, False: 1}[large]
    if kind == "images":
        c = 8 * width
        return nn.Sequential(
            nn.Conv2d(3, c, 3, stride=2 if large else 4, padding=1), nn.BatchNorm2d(c), nn.ReLU(),
            nn.Conv2d(c, 2 * c, 3, stride=2, padding=1), nn.BatchNorm2d(2 * c), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * c, 10),
        )  # fmt: skip
    if kind == "audio":
        return _LastOfGru(64, 256, 1) if large else _LastOfGru(64, 16, 4)
    sizes = {"text": 512, "points": 96, "table": 2080}
    hidden = 2048 if large else 512
    return nn.Sequential(
        nn.Linear(sizes[kind], hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
        nn.Linear(hidden, 10),
    )  # fmt: skip


class _LastOfGru(nn.Module):  # type: ignore[misc]
    def __init__(self, size: int, hidden: int, every: int) -> None:
        super().__init__()
        self.every = every
        self.gru, self.head = nn.GRU(size, hidden, batch_first=True), nn.Linear(hidden, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of each class."""
        scores: torch.Tensor = self.head(self.gru(x[:, :: self.every])[0][:, -1])
        return scores
