"""The burst network: against PyTorch's own modules, by hand, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from presage.foresee.bursts import BurstNet, GnnKind
from presage.foresee.bursts._passes import NumpyOps, _gru, _set2set, layers
from presage.foresee.bursts.net import shapes
from presage.model.errors import BundleError, UserError


def arrays(kind: GnnKind = GnnKind.GCN, seed: int = 0, tuned: bool = False) -> dict[str, Any]:
    chance = np.random.default_rng(seed)
    return {
        name: (0.15 * chance.standard_normal(shape)).astype(np.float32)
        for name, shape in shapes(kind, tuned).items()
    }


def graphs(batch: int, nodes: int, seed: int = 1) -> tuple[Any, Any]:
    chance = np.random.default_rng(seed)
    upper = np.triu(chance.random((batch, nodes, nodes)) < 0.3, 1)
    return chance.random((batch, nodes, 3)), (upper | upper.swapaxes(1, 2)).astype(float)


def reference(given: dict[str, Any], x: Any, adj: Any) -> Any:
    """The published pass, with PyTorch's modules for GRU, LSTM and linear layers."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    gru, lstm = nn.GRU(64, 64), nn.LSTM(128, 64, batch_first=True)
    dense = [nn.Linear(128, 64), nn.Linear(64, 64), nn.Linear(64, 12)]
    names = {"gru.gru": gru, "graph_read_out.set2set.lstm": lstm}
    names |= {f"graph_read_out.mlp.fully_connected.{i}.linear": one for i, one in enumerate(dense)}
    for prefix, module in names.items():
        start = f"{prefix}."
        module.load_state_dict(
            {k.removeprefix(start): torch.tensor(v) for k, v in given.items() if start in k}
        )
    x, adj = (torch.tensor(each, dtype=torch.float32) for each in (x, adj))
    batch, nodes, _ = x.shape
    looped = adj + torch.eye(nodes)
    root = torch.diag_embed(looped.sum(-1).pow(-0.5))
    spread = root @ looped @ root
    for layer in [0] + [1] * (nodes // 2 - 1):
        w, b = (torch.tensor(given[f"conv_layers.{layer}.{name}"]) for name in "Wb")
        y = F.leaky_relu(spread @ (x @ w) + b)
        flat = F.pad(x, (0, 64 - x.shape[-1])).reshape(1, batch * nodes, 64)
        x = gru(flat, y.reshape(1, batch * nodes, 64))[1].reshape(batch, nodes, 64)
    state, asked = (
        (torch.zeros(1, batch, 64), torch.zeros(1, batch, 64)),
        torch.zeros(batch, 1, 128),
    )
    for _ in range(nodes):
        q, state = lstm(asked, state)
        share = torch.softmax(x @ q.transpose(1, 2), 1)
        asked = torch.cat([q, (share * x).sum(1, keepdim=True)], -1)
    out = asked[:, 0]
    for i, one in enumerate(dense):
        out = F.relu(one(out)) if i < 2 else F.leaky_relu(one(out))
    return out.detach().numpy()


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 9, 40])
def test_it_equals_pytorchs_modules(nodes: int, batch: int) -> None:
    given = arrays()
    x, adj = graphs(batch, nodes)
    ours = BurstNet.from_arrays(given).forward(x, adj)
    assert ours.shape == (batch, 12)
    np.testing.assert_allclose(ours, reference(given, x, adj), atol=1e-5)
    assert batch == 1 or np.ptp(ours, axis=0).max() > 1e-6  # it does look at the graph


def test_any_arrays_of_that_shape_are_taken() -> None:
    """Lists, single precision, tensors, and views whose numbers are not side by side."""
    import torch

    given = arrays()
    x, adj = graphs(2, 7)
    net = BurstNet.from_arrays(given)
    expected = net.forward(x, adj)
    turned = {name: np.asfortranarray(array) for name, array in given.items()}
    doubled = {name: np.repeat(array, 2, axis=0)[::2] for name, array in given.items()}
    listed = {name: array.tolist() for name, array in given.items()}
    learned = {name: torch.nn.Parameter(torch.tensor(array)) for name, array in given.items()}
    for form in (turned, doubled, listed, learned):
        np.testing.assert_allclose(BurstNet.from_arrays(form).forward(x, adj), expected)
    np.testing.assert_allclose(net.forward(x.tolist(), adj.astype(bool).tolist()), expected)
    wide = np.repeat(x, 2, axis=2)[:, :, ::2]
    np.testing.assert_allclose(net.forward(wide, adj.swapaxes(1, 2)), expected)
    single = net.forward(x.astype(np.float32), adj.astype(np.float32))
    np.testing.assert_allclose(single, expected, atol=1e-4)


def test_features_are_taken_as_they_are() -> None:
    given = arrays()
    x, adj = graphs(2, 12)
    large = x * [1e8, 300, 5]
    ours = BurstNet.from_arrays(given).forward(large, adj)
    np.testing.assert_allclose(ours, reference(given, large, adj), rtol=1e-4)


def test_it_has_as_many_parameters_as_published() -> None:
    assert BurstNet.from_arrays(arrays()).parameters == 92_236


def test_a_gcn_layer_by_hand() -> None:
    """Two nodes with an edge: A + I is all ones, every degree 2, so both become the mean."""
    given = {name: np.zeros_like(array) for name, array in arrays().items()}
    given["conv_layers.0.W"][0, 0] = 1.0
    given["conv_layers.0.b"][0] = -3.0
    from presage.foresee.bursts._passes import _gcn, _normalised

    ops, adj = NumpyOps(), np.array([[[0.0, 1.0], [1.0, 0.0]]])
    links = _normalised(ops, adj)
    np.testing.assert_allclose(links, 0.5)
    x = np.array([[[2.0, 9, 9], [6.0, 9, 9]]])
    y = _gcn(ops, given, "conv_layers.0", x, links)
    np.testing.assert_allclose(y[0, :, 0], 1.0)  # (2 + 6) / 2 − 3
    given["conv_layers.0.b"][0] = -5.0
    np.testing.assert_allclose(_gcn(ops, given, "conv_layers.0", x, links)[0, :, 0], -0.01)


def test_the_gru_holds_the_layers_output_and_is_given_the_old_embedding() -> None:
    """With a wide open update gate the state stays; with a shut one the new is made of the
    input."""
    given = {name: np.zeros_like(array) for name, array in arrays().items()}
    old, output = np.full((1, 1, 64), 0.5), np.full((1, 1, 64), 7.0)
    given["gru.gru.bias_ih_l0"][64:128] = 40.0
    np.testing.assert_allclose(_gru(NumpyOps(), given, old, output), 7.0)
    given["gru.gru.bias_ih_l0"][64:128] = -40.0
    given["gru.gru.weight_ih_l0"][128:] = np.eye(64)
    np.testing.assert_allclose(_gru(NumpyOps(), given, old, output), np.tanh(0.5))


def test_set2set_by_hand() -> None:
    """All weights zero: the query is sigmoid(0) · tanh(0) = 0, so all nodes answer alike."""
    given = {name: np.zeros_like(array) for name, array in arrays().items()}
    x = np.zeros((1, 3, 64))
    x[0, :, 0] = [1.0, 2.0, 6.0]
    out = _set2set(NumpyOps(), given, x, 3)
    np.testing.assert_allclose(out[0, :64], 0.0)
    np.testing.assert_allclose(out[0, 64], 3.0)


def test_half_of_the_shared_layers_are_tuned() -> None:
    assert layers(8, tuned=False) == ["conv_layers.0", *["conv_layers.1"] * 3]
    assert layers(10, tuned=True) == [
        "conv_layers.0",
        *["conv_layers.1"] * 2,
        *["conv_layers.2"] * 2,
    ]
    assert layers(1, tuned=True) == ["conv_layers.0"]


def test_a_tuned_layer_that_starts_as_a_copy_changes_nothing() -> None:
    given = arrays()
    copied = given | {f"conv_layers.2.{name}": given[f"conv_layers.1.{name}"] for name in "Wb"}
    x, adj = graphs(2, 11)
    plain = BurstNet.from_arrays(given).forward(x, adj)
    np.testing.assert_array_equal(BurstNet.from_arrays(copied).forward(x, adj), plain)
    copied["conv_layers.2.b"] = copied["conv_layers.2.b"] + 0.3
    assert np.abs(BurstNet.from_arrays(copied).forward(x, adj) - plain).max() > 1e-4


@pytest.mark.parametrize("kind", GnnKind)
def test_the_order_of_nodes_does_not_matter(kind: GnnKind) -> None:
    net = BurstNet.from_arrays(arrays(kind), kind)
    x, adj = graphs(2, 7)
    order = np.random.default_rng(3).permutation(7)
    moved = net.forward(x[:, order], adj[:, order][:, :, order])
    np.testing.assert_allclose(moved, net.forward(x, adj), atol=1e-12)


def test_what_does_not_fit_is_named() -> None:
    given = arrays()
    with pytest.raises(BundleError, match=r"lacks the parameters gru\.gru\.bias_hh_l0"):
        BurstNet.from_arrays({k: v for k, v in given.items() if k != "gru.gru.bias_hh_l0"})
    with pytest.raises(BundleError, match=r"conv_layers\.0\.W has shape \(4, 64\)"):
        BurstNet.from_arrays(given | {"conv_layers.0.W": np.zeros((4, 64))})
    turned = "graph_read_out.mlp.fully_connected.0.linear.weight"
    with pytest.raises(BundleError, match=r"graph_read_out\.mlp\..*\.0\.linear\.weight has shape"):
        BurstNet.from_arrays(given | {turned: given[turned].T})
    with pytest.raises(BundleError, match=r"conv_layers\.1\.b holds no numbers"):
        BurstNet.from_arrays(given | {"conv_layers.1.b": ["a"] * 64})
    with pytest.raises(BundleError, match=r"gru\.gru\.weight_ih_l0 holds no numbers"):
        BurstNet.from_arrays(given | {"gru.gru.weight_ih_l0": [[1.0], [2.0, 3.0]]})
    x, adj = graphs(2, 5)
    with pytest.raises(UserError, match="are numbers"):
        BurstNet.from_arrays(given).forward([[[1.0, 2.0, 3.0], [4.0]]], adj)
    with pytest.raises(UserError, match=r"\(B, N, 3\)"):
        BurstNet.from_arrays(given).forward(x[0], adj[0])
    with pytest.raises(UserError, match=r"\(B, N, N\)"):
        BurstNet.from_arrays(given).forward(x, adj[:, :4, :4])
