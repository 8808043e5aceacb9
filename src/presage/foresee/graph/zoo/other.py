"""Recommendation, point clouds, graphs, reinforcement learning, and a plain MLP."""

# mypy: allow-subclassing-any
from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

__all__ = [
    "a3c",
    "atari_network",
    "autoencoder",
    "dlrm",
    "gin",
    "mlp",
    "neumf",
    "neumf_wide",
    "pointnet",
    "ppo",
    "td3",
]


def _layers(sizes: Sequence[int], act: Any = nn.ReLU, dropout: float = 0.0) -> list[Any]:
    parts: list[Any] = []
    for inner, outer in pairwise(sizes):
        parts += [nn.Linear(inner, outer), act(), *([nn.Dropout(dropout)] if dropout else [])]
    return parts


def mlp(sizes: Sequence[int] = (784, 512, 512), classes: int = 10) -> Any:
    """Linear layers with ReLU between."""
    return nn.Sequential(*_layers(sizes), nn.Linear(sizes[-1], classes))


class _NeuMF(nn.Module):
    def __init__(
        self, users: int, items: int, factors: int, sizes: Sequence[int], dropout: float = 0.0
    ) -> None:
        super().__init__()
        tables = (users, items)
        self.products = nn.ModuleList([nn.Embedding(n, factors) for n in tables])
        self.deep = nn.ModuleList([nn.Embedding(n, sizes[0] // 2) for n in tables])
        self.layers = nn.Sequential(*_layers(sizes, dropout=dropout))
        self.head = nn.Linear(factors + sizes[-1], 1)

    def forward(self, user: Any, item: Any) -> Any:
        product = self.products[0](user) * self.products[1](item)
        deep = self.layers(torch.cat([self.deep[0](user), self.deep[1](item)], -1))
        return self.head(torch.cat([product, deep], -1))


def neumf(users: int = 6040, items: int = 3706, factors: int = 32, layers: int = 3) -> Any:
    """He et al., 2017 (arXiv:1708.05031); the default sizes are those of MovieLens-1M."""
    return _NeuMF(users, items, factors, [factors << i for i in range(layers, -1, -1)])


def neumf_wide(users: int = 138493, items: int = 26744) -> Any:
    """The same for MovieLens-20M as NVIDIA's trainer has it: 64 factors, vectors of 128 into
    layers of 256, 256, 128 and 64, with dropout."""
    return _NeuMF(users, items, 64, (256, 256, 128, 64), dropout=0.5)


class _Dlrm(nn.Module):
    """Dense features through a network, sparse ones through tables, and products of pairs."""

    def __init__(self, tables: Sequence[int], width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, width) for size in tables)
        self.bottom = nn.Sequential(*_layers((13, 512, 256, width)))
        count = len(tables) + 1
        sizes = (count * (count - 1) // 2 + width + 1, 1024, 1024, 512, 256)
        self.top = nn.Sequential(*_layers(sizes), nn.Linear(256, 1))

    def forward(self, dense: Any, sparse: Any) -> Any:
        x = self.bottom(dense)
        rows = [table(sparse[:, n]) for n, table in enumerate(self.tables)]
        vectors = torch.stack([x, *rows], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        count = vectors.shape[1]
        pairs = products[:, : count * (count - 1) // 2]
        return self.top(torch.cat([x, pairs, x[:, :1]], -1))


def dlrm(rows: int = 300000, tables: int = 26, width: int = 128) -> Any:
    """Naumov et al., 2019 (arXiv:1906.00091), the layers of NVIDIA's trainer; tables of one size
    that together have as many rows as Criteo's with rare values left out."""
    return _Dlrm((rows,) * tables, width)


def autoencoder(items: int = 20108, hidden: int = 200) -> Any:
    """Recommendation by an autoencoder over all items a user rated; the items are those of
    MovieLens-20M as Liang et al., 2018 (arXiv:1802.05814) prepare it."""
    return nn.Sequential(
        nn.Dropout(0.5), nn.Linear(items, hidden), nn.Tanh(), nn.Linear(hidden, items)
    )


def _shared(sizes: Sequence[int]) -> Any:
    """The same small network for each point."""
    parts: list[Any] = []
    for inner, outer in pairwise(sizes):
        parts += [nn.Conv1d(inner, outer, 1), nn.BatchNorm1d(outer), nn.ReLU(inplace=True)]
    return nn.Sequential(*parts)


def _normed(sizes: Sequence[int]) -> list[Any]:
    parts: list[Any] = []
    for inner, outer in pairwise(sizes):
        parts += [nn.Linear(inner, outer), nn.BatchNorm1d(outer), nn.ReLU(inplace=True)]
    return parts


class _Transform(nn.Module):
    """A matrix that turns the points, learned from the points."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.points = _shared((size, 64, 128, 1024))
        self.matrix = nn.Sequential(*_normed((1024, 512, 256)), nn.Linear(256, size * size))

    def forward(self, x: Any) -> Any:
        matrix = self.matrix(self.points(x).amax(-1)).unflatten(-1, (self.size, self.size))
        return torch.bmm(matrix, x)


def pointnet(classes: int = 40) -> Any:
    """Qi et al., 2016 (arXiv:1612.00593), classification."""

    class Most(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.amax(-1)

    return nn.Sequential(
        _Transform(3),
        _shared((3, 64, 64)),
        _Transform(64),
        _shared((64, 64, 128, 1024)),
        Most(),
        *_normed((1024, 512, 256)),
        nn.Dropout(0.3),
        nn.Linear(256, classes),
    )


class _Gin(nn.Module):
    def __init__(self, width: int, layers: int, kinds: int, tasks: int) -> None:
        super().__init__()
        self.atoms = nn.Embedding(kinds, width)
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [
                    nn.Linear(width, 2 * width),
                    nn.BatchNorm1d(2 * width),
                    nn.Linear(2 * width, width),
                    nn.BatchNorm1d(width),
                ]
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, tasks)

    def forward(self, atoms: Any, bonds: Any) -> Any:
        x = self.atoms(atoms)
        for rise, first, fall, second in self.layers:
            y = (x + torch.bmm(bonds, x)).flatten(0, 1)
            y = second(fall(F.relu(first(rise(y)))))
            x = F.relu(y).unflatten(0, (-1, atoms.shape[1]))
        return self.head(x.mean(1))


def gin(width: int = 300, layers: int = 5, kinds: int = 119, tasks: int = 128) -> Any:
    """Xu et al., 2018 (arXiv:1810.00826), with the sizes of ogbg-molpcba. The batch is one of
    graphs: each is padded to the same number of nodes and has a dense adjacency matrix."""
    return _Gin(width, layers, kinds, tasks)


class _ActorCritic(nn.Module):
    def __init__(self, body: Any, actor: Any, critic: Any) -> None:
        super().__init__()
        self.body, self.actor, self.critic = body, actor, critic

    def forward(self, seen: Any) -> Any:
        x = self.body(seen)
        return self.actor(x), self.critic(x)


def ppo(seen: int = 8, actions: int = 4, width: int = 64) -> Any:
    """Schulman et al., 2017 (arXiv:1707.06347): two MLPs; LunarLander has 8 values, 4 actions."""

    def network(out: int) -> Any:
        return nn.Sequential(*_layers((seen, width, width), nn.Tanh), nn.Linear(width, out))

    return _ActorCritic(nn.Identity(), network(actions), network(1))


class _Td3(nn.Module):
    def __init__(self, seen: int, actions: int, width: int) -> None:
        super().__init__()
        hidden = (width, width)
        last = nn.Linear(width, actions)
        self.actor = nn.Sequential(*_layers((seen, *hidden)), last, nn.Tanh())
        self.critics = nn.ModuleList(
            nn.Sequential(*_layers((seen + actions, *hidden)), nn.Linear(width, 1))
            for _ in range(2)
        )
        self.slow_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.slow_critics = copy.deepcopy(self.critics).requires_grad_(False)

    def forward(self, seen: Any, action: Any) -> Any:
        if not self.training:
            return self.actor(seen)
        with torch.no_grad():
            later = torch.cat([seen, self.slow_actor(seen)], -1)
            goal = torch.minimum(*(critic(later) for critic in self.slow_critics))
        taken = torch.cat([seen, action], -1)
        wanted = torch.cat([seen, self.actor(seen)], -1)
        return [critic(taken) - goal for critic in self.critics] + [self.critics[0](wanted)]


def td3(seen: int = 24, actions: int = 4, width: int = 256) -> Any:
    """Fujimoto et al., 2018 (arXiv:1802.09477): an actor, two critics and their slow copies;
    BipedalWalker has 24 values and 4 actions."""
    return _Td3(seen, actions, width)


def atari_network(actions: int = 6, *, critic: bool = False) -> Any:
    """Mnih et al., 2015 (Nature 518): four frames of 84×84; with a critic it is the A2C one."""
    body = nn.Sequential(
        nn.Conv2d(4, 32, 8, 4),
        nn.ReLU(inplace=True),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(inplace=True),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(3136, 512),
        nn.ReLU(inplace=True),
    )
    if critic:
        return _ActorCritic(body, nn.Linear(512, actions), nn.Linear(512, 1))
    return nn.Sequential(body, nn.Linear(512, actions))


class _A3c(nn.Module):
    def __init__(self, actions: int) -> None:
        super().__init__()
        parts: list[Any] = []
        for inner in (1, 32, 32, 32):
            parts += [nn.Conv2d(inner, 32, 3, 2, 1), nn.ELU()]
        self.body = nn.Sequential(*parts, nn.Flatten())
        self.memory = nn.LSTM(32 * 3 * 3, 256, batch_first=True)
        self.actor, self.critic = nn.Linear(256, actions), nn.Linear(256, 1)

    def forward(self, frame: Any) -> Any:
        x, _ = self.memory(self.body(frame)[:, None])
        return self.actor(x[:, 0]), self.critic(x[:, 0])


def a3c(actions: int = 6) -> Any:
    """Mnih et al., 2016 (arXiv:1602.01783) with an LSTM, one frame of 42×42."""
    return _A3c(actions)
