"""The forward pass of a burst network, written once for NumPy arrays and for PyTorch tensors.

Weights are a mapping by the names of the published parameters; `Ops` holds the few functions that
the two libraries spell differently, so that what is trained is what answers. Nothing here is
fitted, read or normalised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

__all__ = [
    "HIDDEN",
    "PUBLISHED",
    "SLOPE",
    "Form",
    "GnnKind",
    "NumpyOps",
    "Ops",
    "forward",
    "layers",
]

HIDDEN = 64
SLOPE = 0.01
"""Of LeakyReLU, as PyTorch has it."""
_ATTENTION_SLOPE = 0.2
_NOWHERE = -1e30

Weights = Mapping[str, Any]


class GnnKind(StrEnum):
    """How a node hears of its neighbours; the rest of the network is the same."""

    GCN = "gcn"
    """Their mean, weighed by degrees (Kipf and Welling): the published network."""
    GIN = "gin"
    """Their sum, through two layers (Xu et al.)."""
    GAT = "gat"
    """A mean weighed by what both ends hold, one head (Veličković et al.)."""
    MPNN = "mpnn"
    """The mean of messages made of both ends (Gilmer et al.)."""


@dataclass(frozen=True, slots=True)
class Form:
    """How deep a network is and how it is read; as published without anything given."""

    depth: int | None = None
    """Layers in all; None: half as many as there are nodes."""
    rounds: int | None = None
    """Of Set2Set; None: as many as there are nodes."""
    attentive: bool = True
    """Set2Set; else the mean and the most of all nodes."""


PUBLISHED = Form()


class Ops(Protocol):
    """What NumPy and PyTorch spell differently."""

    def tanh(self, x: Any) -> Any: ...
    def relu(self, x: Any) -> Any: ...
    def leaky(self, x: Any, slope: float) -> Any: ...
    def softmax(self, x: Any, axis: int) -> Any: ...
    def join(self, parts: list[Any], axis: int) -> Any: ...
    def zeros(self, like: Any, *shape: int) -> Any: ...
    def eye(self, like: Any, size: int) -> Any: ...
    def most(self, x: Any) -> Any: ...


class NumpyOps:
    """The functions of `Ops` for NumPy arrays."""

    def tanh(self, x: Any) -> Any:
        return np.tanh(x)

    def relu(self, x: Any) -> Any:
        return np.maximum(x, 0)

    def leaky(self, x: Any, slope: float) -> Any:
        return np.where(x > 0, x, slope * x)

    def softmax(self, x: Any, axis: int) -> Any:
        powers = np.exp(x - x.max(axis=axis, keepdims=True))
        return powers / powers.sum(axis=axis, keepdims=True)

    def join(self, parts: list[Any], axis: int) -> Any:
        return np.concatenate(parts, axis=axis)

    def zeros(self, like: Any, *shape: int) -> Any:
        return np.zeros(shape, like.dtype)

    def eye(self, like: Any, size: int) -> Any:
        return np.eye(size, dtype=like.dtype)

    def most(self, x: Any) -> Any:
        return x.max(1)


def layers(nodes: int, tuned: bool, depth: int | None = None) -> list[str]:
    """The names of the layers that a graph of so many nodes goes through: N // 2 in all, the first
    one always. After a transfer the later half of the shared ones has weights of its own."""
    shared = max(nodes // 2 if depth is None else depth, 1) - 1
    own = shared // 2 if tuned else 0
    return ["conv_layers.0", *["conv_layers.1"] * (shared - own), *["conv_layers.2"] * own]


def forward(
    ops: Ops, weights: Weights, x: Any, adj: Any, kind: GnnKind, form: Form = PUBLISHED
) -> Any:
    """(B, 12) for features (B, N, 3) and adjacencies (B, N, N) without self-loops."""
    prepare, convolve = _KINDS[kind]
    links = prepare(ops, adj)
    for name in layers(adj.shape[-1], "conv_layers.2.b" in weights, form.depth):
        y = convolve(ops, weights, name, x, links)
        x = _gru(ops, weights, _padded(ops, x), y)
    if not form.attentive:
        return _mlp(ops, weights, ops.join([x.mean(1), ops.most(x)], -1))
    return _mlp(ops, weights, _set2set(ops, weights, x, form.rounds or x.shape[1]))


def _padded(ops: Ops, x: Any) -> Any:
    lacking = HIDDEN - x.shape[-1]
    if not lacking:
        return x
    return ops.join([x, ops.zeros(x, *x.shape[:-1], lacking)], -1)


# -- how nodes hear of each other -----------------------------------------------------------------


def _normalised(ops: Ops, adj: Any) -> Any:
    """D^-1/2 (A + I) D^-1/2, with D the sums of the rows of A + I."""
    looped = adj + ops.eye(adj, adj.shape[-1])
    root = looped.sum(-1) ** -0.5
    return root[..., :, None] * looped * root[..., None, :]


def _gcn(ops: Ops, w: Weights, name: str, x: Any, links: Any) -> Any:
    return ops.leaky(links @ (x @ w[f"{name}.W"]) + w[f"{name}.b"], SLOPE)


def _as_given(ops: Ops, adj: Any) -> Any:
    return adj


def _gin(ops: Ops, w: Weights, name: str, x: Any, links: Any) -> Any:
    mixed = (1 + w[f"{name}.eps"]) * x + links @ x
    inner = ops.relu(mixed @ w[f"{name}.W"] + w[f"{name}.b"])
    return ops.leaky(inner @ w[f"{name}.W2"] + w[f"{name}.b2"], SLOPE)


def _barred(ops: Ops, adj: Any) -> Any:
    """0 where a node hears another or itself, else far below."""
    heard = adj + ops.eye(adj, adj.shape[-1])
    return (heard <= 0) * _NOWHERE


def _gat(ops: Ops, w: Weights, name: str, x: Any, links: Any) -> Any:
    value = x @ w[f"{name}.W"]
    own, other = value @ w[f"{name}.own"], value @ w[f"{name}.other"]
    score = ops.leaky(own[..., :, None] + other[..., None, :], _ATTENTION_SLOPE)
    return ops.leaky(ops.softmax(score + links, -1) @ value + w[f"{name}.b"], SLOPE)


def _shares(ops: Ops, adj: Any) -> Any:
    """Each row divided by its sum; a node without neighbours hears nothing."""
    sums = adj.sum(-1)
    return adj / (sums + (sums == 0))[..., None]


def _mpnn(ops: Ops, w: Weights, name: str, x: Any, links: Any) -> Any:
    own, other = x @ w[f"{name}.own"], x @ w[f"{name}.other"]
    said = ops.relu(own[..., :, None, :] + other[..., None, :, :] + w[f"{name}.said"])
    heard = (links[..., None] * said).sum(-2)
    return ops.leaky(x @ w[f"{name}.W"] + heard @ w[f"{name}.heard"] + w[f"{name}.b"], SLOPE)


_KINDS: dict[GnnKind, tuple[Callable[..., Any], Callable[..., Any]]] = {
    GnnKind.GCN: (_normalised, _gcn),
    GnnKind.GIN: (_as_given, _gin),
    GnnKind.GAT: (_barred, _gat),
    GnnKind.MPNN: (_shares, _mpnn),
}


# -- what all kinds share -------------------------------------------------------------------------


def _sigmoid(ops: Ops, x: Any) -> Any:
    return 0.5 * (1 + ops.tanh(0.5 * x))  # does not overflow


def _gates(w: Weights, cell: str, x: Any, state: Any, count: int) -> tuple[list[Any], list[Any]]:
    """What the input and the state have to say to each gate."""
    given = x @ w[f"{cell}.weight_ih_l0"].T + w[f"{cell}.bias_ih_l0"]
    held = state @ w[f"{cell}.weight_hh_l0"].T + w[f"{cell}.bias_hh_l0"]
    width = given.shape[-1] // count
    cuts = [slice(at * width, (at + 1) * width) for at in range(count)]
    return [given[..., cut] for cut in cuts], [held[..., cut] for cut in cuts]


def _gru(ops: Ops, w: Weights, x: Any, state: Any) -> Any:
    """One step with the gates in PyTorch's order: reset, update, new."""
    (r_in, z_in, n_in), (r_held, z_held, n_held) = _gates(w, "gru.gru", x, state, 3)
    reset, update = _sigmoid(ops, r_in + r_held), _sigmoid(ops, z_in + z_held)
    new = ops.tanh(n_in + reset * n_held)
    return (1 - update) * new + update * state


def _set2set(ops: Ops, w: Weights, x: Any, rounds: int) -> Any:
    """In each round ask with the LSTM's output and read what answers best."""
    batch, _, width = x.shape
    hidden = cell = ops.zeros(x, batch, width)
    asked = ops.zeros(x, batch, 2 * width)
    for _ in range(rounds):
        given, held = _gates(w, "graph_read_out.set2set.lstm", asked, hidden, 4)
        i, f, g, o = (a + b for a, b in zip(given, held, strict=True))
        cell = _sigmoid(ops, f) * cell + _sigmoid(ops, i) * ops.tanh(g)
        hidden = _sigmoid(ops, o) * ops.tanh(cell)
        share = ops.softmax(x @ hidden[..., None], 1)
        asked = ops.join([hidden, (share * x).sum(1)], -1)
    return asked


def _mlp(ops: Ops, w: Weights, x: Any) -> Any:
    for at in range(3):
        name = f"graph_read_out.mlp.fully_connected.{at}.linear"
        x = x @ w[f"{name}.weight"].T + w[f"{name}.bias"]
        x = ops.relu(x) if at < 2 else ops.leaky(x, SLOPE)
    return x
