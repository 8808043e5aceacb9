"""Fits burst networks with PyTorch: dense, in batches of graphs with as many groups.

The passes are those of `_passes`, so what is fitted answers alike as arrays. Labels and features
come scaled (`models` does that). Nothing here chooses, keeps or reads anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from presage.foresee.bursts._passes import PUBLISHED, Form, GnnKind, forward
from presage.foresee.bursts.net import shapes
from presage.learn import Floats
from presage.model.errors import MissingExtra

__all__ = ["TorchOps", "TrainOptions", "starting_weights", "train", "tuning_start"]

Pairs = Sequence[tuple[Floats, Floats]]
"""Features (N, 3) and adjacency (N, N) of each graph."""


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """How long and how fast."""

    epochs: int = 150
    lr: float = 0.003
    weight_decay: float = 1e-6
    batch: int = 32
    seed: int = 0


class TorchOps:
    """The functions of `_passes.Ops` for tensors."""

    def __init__(self) -> None:
        self.torch = _torch()

    def tanh(self, x: Any) -> Any:
        return self.torch.tanh(x)

    def relu(self, x: Any) -> Any:
        return self.torch.relu(x)

    def leaky(self, x: Any, slope: float) -> Any:
        return self.torch.nn.functional.leaky_relu(x, slope)

    def softmax(self, x: Any, axis: int) -> Any:
        return self.torch.softmax(x, axis)

    def join(self, parts: list[Any], axis: int) -> Any:
        return self.torch.cat(parts, axis)

    def zeros(self, like: Any, *shape: int) -> Any:
        return like.new_zeros(shape)

    def eye(self, like: Any, size: int) -> Any:
        return self.torch.eye(size, dtype=like.dtype)

    def most(self, x: Any) -> Any:
        return x.amax(1)


def starting_weights(kind: GnnKind, seed: int = 0) -> dict[str, Floats]:
    """Small numbers, drawn as PyTorch draws them for layers of that size."""
    chance = np.random.default_rng(seed)
    out = {}
    for name, shape in shapes(kind).items():
        dense = ".linear." in name
        inner = 128 if dense and ".0.linear" in name else 64
        out[name] = chance.uniform(-(inner**-0.5), inner**-0.5, shape)
        if name.endswith(".eps"):
            out[name] = np.zeros(shape)
    return out


def tuning_start(weights: Mapping[str, Floats]) -> tuple[dict[str, Floats], set[str]]:
    """Weights for another setting, and the names of those that are trained there: the later half
    of the shared layers, which starts from what they were, and the MLP. The first layer, the
    earlier half, GRU and Set2Set stay."""
    start = dict(weights)
    for name in [name for name in weights if name.startswith("conv_layers.1.")]:
        start.setdefault(name.replace("conv_layers.1.", "conv_layers.2."), weights[name].copy())
    free = {name for name in start if name.startswith(("conv_layers.2.", "graph_read_out.mlp."))}
    return start, free


def train(
    kind: GnnKind,
    start: Mapping[str, Floats],
    graphs: Pairs,
    targets: Floats,
    options: TrainOptions,
    free: set[str] | None = None,
    form: Form = PUBLISHED,
) -> dict[str, Floats]:
    """Weights that foresee the targets (n, 12), from those at the start; only `free` ones change
    if they are given."""
    torch = _torch()
    ops = TorchOps()
    weights = {
        name: torch.tensor(array, dtype=torch.float32, requires_grad=free is None or name in free)
        for name, array in start.items()
    }
    learned = [weight for weight in weights.values() if weight.requires_grad]
    adam = torch.optim.Adam(learned, options.lr, weight_decay=options.weight_decay)
    fade = torch.optim.lr_scheduler.CosineAnnealingLR(adam, options.epochs)
    batches = [
        tuple(torch.tensor(part, dtype=torch.float32) for part in batch)
        for batch in _batches(graphs, targets, options)
    ]
    chance = np.random.default_rng(options.seed)
    for _ in range(options.epochs):
        for at in chance.permutation(len(batches)):
            x, adj, y = batches[at]
            adam.zero_grad()
            loss = (forward(ops, weights, x, adj, kind, form) - y).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(learned, 1.0)
            adam.step()
        fade.step()
    return {name: weight.detach().double().numpy() for name, weight in weights.items()}


def _batches(
    graphs: Pairs, targets: Floats, options: TrainOptions
) -> list[tuple[Floats, Floats, Floats]]:
    """Graphs with as many groups together."""
    sizes = np.array([len(x) for x, _ in graphs])
    out = []
    for size in np.unique(sizes):
        here = np.flatnonzero(sizes == size)
        for first in range(0, len(here), options.batch):
            some = here[first : first + options.batch]
            x, adj = (np.stack([graphs[i][part] for i in some]) for part in (0, 1))
            out.append((x, adj, targets[some]))
    return out


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingExtra("torch", "fitting a burst network") from None
    return torch
