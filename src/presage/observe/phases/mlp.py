"""A small multi-layer perceptron in NumPy: two hidden layers, Adam, several heads.

The outputs are groups of logits; a group is a softmax (targets are probabilities) or independent
sigmoids. Nothing here knows what the outputs mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from presage.model.errors import BundleError

__all__ = ["MLP", "Head"]

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Head = tuple[Literal["softmax", "sigmoid"], int]


class MLP:
    """Weights of three layers; `train` changes them, `logits` uses them."""

    def __init__(self, inputs: int, hidden: int, heads: Sequence[Head], seed: int) -> None:
        random = np.random.default_rng(seed)
        sizes = (inputs, hidden, hidden, sum(width for _, width in heads))
        self.heads = tuple(heads)
        self.layers: list[npt.NDArray[Any]] = []
        for before, after in pairwise(sizes):
            scale = np.sqrt(2 / before)
            self.layers.append(random.normal(0, scale, (before, after)).astype(np.float32))
            self.layers.append(np.zeros(after, np.float32))

    def train(
        self, batches: Iterable[tuple[Singles, Singles]], rate: float = 2e-3, decay: float = 1e-4
    ) -> None:
        """Adam over (inputs, targets)."""
        means = [np.zeros_like(part) for part in self.layers]
        squares = [np.zeros_like(part) for part in self.layers]
        for step, (rows, targets) in enumerate(batches, start=1):
            gradients = self._gradients(rows, targets)
            for at, gradient in enumerate(gradients):
                means[at] += np.float32(0.1) * (gradient - means[at])
                squares[at] += np.float32(0.001) * (gradient**2 - squares[at])
                size = np.float32(rate * np.sqrt(1 - 0.999**step) / (1 - 0.9**step))
                self.layers[at] -= size * means[at] / (np.sqrt(squares[at]) + np.float32(1e-8))
                self.layers[at] -= np.float32(rate * decay) * self.layers[at]

    def logits(self, rows: npt.NDArray[Any]) -> Floats:
        """The outputs before softmax and sigmoid, (n, outputs)."""
        W1, b1, W2, b2, W3, b3 = (part.astype(np.float64) for part in self.layers)
        hidden = np.maximum(np.maximum(rows @ W1 + b1, 0) @ W2 + b2, 0)
        return np.asarray(hidden @ W3 + b3)

    def split(self, outputs: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """Outputs by head."""
        return np.split(outputs, np.cumsum([width for _, width in self.heads])[:-1], axis=1)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        return {f"layer{at}": part for at, part in enumerate(self.layers)}

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, npt.NDArray[Any]], inputs: int, heads: Sequence[Head]
    ) -> MLP:
        """The network in these arrays; refuses any that do not fit."""
        try:
            layers = [np.asarray(arrays[f"layer{at}"]) for at in range(6)]
        except KeyError as missing:
            raise BundleError(f"the forecast's network lacks {missing}") from None
        hidden, outputs = layers[1].size, sum(width for _, width in heads)
        shapes = [(inputs, hidden), (hidden,), (hidden, hidden), (hidden,)]
        shapes += [(hidden, outputs), (outputs,)]
        if [part.shape for part in layers] != shapes or not all(
            part.dtype.kind == "f" and np.isfinite(part).all() for part in layers
        ):
            raise BundleError("the forecast's network is damaged or of another shape")
        network = cls(1, 1, heads, 0)
        network.layers = layers
        return network

    def _gradients(self, rows: Singles, targets: Singles) -> list[npt.NDArray[Any]]:
        """Of the mean cross entropy, summed over heads."""
        W1, b1, W2, b2, W3, b3 = self.layers
        first = np.maximum(rows @ W1 + b1, 0)
        second = np.maximum(first @ W2 + b2, 0)
        outputs = second @ W3 + b3
        for (kind, _), part in zip(self.heads, self.split(outputs), strict=True):
            if kind == "softmax":
                part -= part.max(axis=1, keepdims=True)
                np.exp(part, out=part)
                part /= part.sum(axis=1, keepdims=True)
            else:
                part[:] = 0.5 + 0.5 * np.tanh(0.5 * part)
        error = (outputs - targets) / np.float32(len(rows))
        back_2 = (error @ W3.T) * (second > 0)
        back_1 = (back_2 @ W2.T) * (first > 0)
        return [
            rows.T @ back_1,
            back_1.sum(axis=0),
            first.T @ back_2,
            back_2.sum(axis=0),
            second.T @ error,
            error.sum(axis=0),
        ]
