"""`BurstNet`: the network that foresees bursts from a grouped graph, from plain arrays.

It is the published one (Driple, SIGMETRICS 2022) for any weights of its shape; what the text
leaves open was settled by the total of 92,236 parameters:

- every part has its biases: 3·64 + 64 and 64·64 + 64 for the two graph layers; a GRU 64 → 64 and
  an LSTM 128 → 64 with PyTorch's two bias vectors each (24,960 and 49,664); an MLP of 8,256 +
  4,160 + 780. Without the biases of the GRU, say, it would be 91,852.
- the first layer counts among the N // 2, so the shared one is used N // 2 − 1 times; a graph of
  one to three nodes goes through the first alone.
- the GRU takes the old embedding as its input (three features and 61 zeros at first) and the
  layer's output as its state; so both sizes are 64.
- D is made of the sums of the rows of A + I, on both sides.
- Set2Set makes N rounds, from zeros; its LSTM reads question and answer (128), and its query is
  the new output. LeakyReLU has PyTorch's slope of 0.01.

The authors' weights give, for GPU memory utilization, GPU utilization, receive and transmit in
this order, idle duration, burst duration and amount; ours give `TARGETS`. After a transfer there
is a `conv_layers.2`: the later half of the shared layers. Nothing here scales what goes in or out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from presage.foresee.bursts._passes import HIDDEN, PUBLISHED, Form, GnnKind, NumpyOps, forward
from presage.learn import Floats
from presage.model.errors import BundleError, UserError

__all__ = ["FEATURES", "OUTPUTS", "BurstNet", "shapes"]

FEATURES, OUTPUTS = 3, 12
_OPS = NumpyOps()


def shapes(kind: GnnKind = GnnKind.GCN, tuned: bool = False) -> dict[str, tuple[int, ...]]:
    """Every parameter by its name, with its shape; `tuned` networks have a layer more."""
    out: dict[str, tuple[int, ...]] = {}
    for layer in range(3 if tuned else 2):
        inner = HIDDEN if layer else FEATURES
        sizes = _LAYER[kind](inner)
        out |= {f"conv_layers.{layer}.{name}": size for name, size in sizes.items()}
    for cell, inner, gates in (
        ("gru.gru", HIDDEN, 3 * HIDDEN),
        ("graph_read_out.set2set.lstm", 2 * HIDDEN, 4 * HIDDEN),
    ):
        out[f"{cell}.weight_ih_l0"] = (gates, inner)
        out[f"{cell}.weight_hh_l0"] = (gates, HIDDEN)
        out[f"{cell}.bias_ih_l0"] = out[f"{cell}.bias_hh_l0"] = (gates,)
    for at, (inner, outer) in enumerate(
        ((2 * HIDDEN, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, OUTPUTS))
    ):
        name = f"graph_read_out.mlp.fully_connected.{at}.linear"
        out[f"{name}.weight"], out[f"{name}.bias"] = (outer, inner), (outer,)
    return out


_LAYER: dict[GnnKind, Any] = {
    GnnKind.GCN: lambda n: {"W": (n, HIDDEN), "b": (HIDDEN,)},
    GnnKind.GIN: lambda n: {
        **{"W": (n, HIDDEN), "b": (HIDDEN,), "eps": ()},
        **{"W2": (HIDDEN, HIDDEN), "b2": (HIDDEN,)},
    },
    GnnKind.GAT: lambda n: {
        **{"W": (n, HIDDEN), "b": (HIDDEN,), "own": (HIDDEN,), "other": (HIDDEN,)},
    },
    GnnKind.MPNN: lambda n: {
        **{"W": (n, HIDDEN), "b": (HIDDEN,), "own": (n, HIDDEN), "other": (n, HIDDEN)},
        **{"said": (HIDDEN,), "heard": (HIDDEN, HIDDEN)},
    },
}


@dataclass(frozen=True, slots=True, eq=False)
class BurstNet:
    """A network as arrays by the names of its parameters; it needs NumPy alone."""

    arrays: dict[str, Floats]
    kind: GnnKind = GnnKind.GCN
    form: Form = PUBLISHED

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[str, npt.ArrayLike],
        kind: GnnKind = GnnKind.GCN,
        form: Form = PUBLISHED,
    ) -> Self:
        """The network with these parameters; one that lacks or has another shape is named."""
        wanted = shapes(kind, tuned="conv_layers.2.b" in arrays)
        if lacking := [name for name in wanted if name not in arrays]:
            raise BundleError(f"the network lacks the parameters {', '.join(lacking)}")
        kept = {name: _numbers(name, arrays[name]) for name in wanted}
        for name, shape in wanted.items():
            if kept[name].shape != shape:
                raise BundleError(f"{name} has shape {kept[name].shape} where {shape} is expected")
        return cls(kept, kind, form)

    @property
    def parameters(self) -> int:
        """How many numbers it has."""
        return sum(array.size for array in self.arrays.values())

    def forward(self, x: npt.ArrayLike, adj: npt.ArrayLike) -> Floats:
        """(B, 12) for features (B, N, 3) and adjacencies (B, N, N) without self-loops, both taken
        as they are."""
        try:
            nodes, links = np.asarray(x, np.float64), np.asarray(adj, np.float64)
        except (TypeError, ValueError):
            raise UserError("features and adjacencies are numbers, of one shape each") from None
        fits = nodes.ndim == links.ndim == 3 and nodes.shape[2] == FEATURES
        if not fits or links.shape != (*nodes.shape[:2], nodes.shape[1]) or not nodes.shape[1]:
            raise UserError(
                f"features are (B, N, {FEATURES}) and adjacencies (B, N, N), not {nodes.shape} "
                f"and {links.shape}"
            )
        out: Floats = forward(_OPS, self.arrays, nodes, links, self.kind, self.form)
        return out


def _numbers(name: str, given: Any) -> Floats:
    """A parameter as an array; one that PyTorch still learns is taken as it is now."""
    try:
        return np.asarray(given.detach() if hasattr(given, "detach") else given, np.float64)
    except (TypeError, ValueError):
        raise BundleError(f"{name} holds no numbers that make an array") from None
