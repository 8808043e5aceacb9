"""Kinds and multiply-accumulates from shapes alone, against loops that count them one by one."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.foresee.graph.operators import kind_of, macs_of
from presage.foresee.graph.opgraph import KINDS


def convolved(data: tuple[int, ...], channels: int, kernel: int, groups: int) -> tuple[int, int]:
    """Multiply-accumulates of a convolution without padding, counted, and its width."""
    batch, inside, side, _ = data
    width = side - kernel + 1
    counted = 0
    for _sample, out, _y, _x in product(range(batch), range(channels), range(width), range(width)):
        group = out // (channels // groups)
        counted += sum(kernel * kernel for c in range(inside) if c // (inside // groups) == group)
    return counted, width


@given(
    groups=st.integers(1, 4),
    inside=st.integers(1, 3),
    outside=st.integers(1, 3),
    kernel=st.sampled_from([1, 3]),
    side=st.integers(3, 5),
)
def test_a_convolution_is_what_counting_gives(
    groups: int, inside: int, outside: int, kernel: int, side: int
) -> None:
    data = (2, groups * inside, side, side)
    weight = (groups * outside, inside, kernel, kernel)
    counted, width = convolved(data, weight[0], kernel, groups)
    out = (2, weight[0], width, width)
    assert macs_of("convolution", [data, weight], out) == counted
    both = macs_of("convolution_backward", [out, data, weight], data, computes=2)
    assert both == 2 * counted
    assert macs_of("convolution_backward", [out, data, weight], data, computes=1) == counted


def test_grouping_divides_the_work() -> None:
    whole = macs_of("convolution", [(1, 64, 8, 8), (64, 64, 3, 3)], (1, 64, 8, 8))
    grouped = macs_of("convolution", [(1, 64, 8, 8), (64, 16, 3, 3)], (1, 64, 8, 8))
    depthwise = macs_of("convolution", [(1, 64, 8, 8), (64, 1, 3, 3)], (1, 64, 8, 8))
    assert (whole, grouped, depthwise) == (64 * 64 * 9 * 64, whole // 4, whole // 64)


def test_a_transposed_convolution_works_on_its_input() -> None:
    """Every input position is multiplied with the whole kernel, however large the output is."""
    data, weight, out = (2, 6, 5, 5), (6, 3, 4, 4), (2, 3, 10, 10)
    expected = 2 * 25 * 6 * 3 * 16
    assert macs_of("convolution", [data, weight], out, transposed=True) == expected
    backward = macs_of(
        "convolution_backward", [out, data, weight], data, transposed=True, computes=2
    )
    assert backward == 2 * expected


@pytest.mark.parametrize(
    ("name", "shapes", "out", "expected"),
    [
        ("mm", [(3, 5), (5, 7)], (3, 7), 105),
        ("addmm", [(7,), (3, 5), (5, 7)], (3, 7), 105),
        ("bmm", [(2, 3, 5), (2, 5, 7)], (2, 3, 7), 210),
        ("baddbmm", [(2, 3, 7), (2, 3, 5), (2, 5, 7)], (2, 3, 7), 210),
        ("mv", [(3, 5), (5,)], (3,), 15),
        ("addmv", [(3,), (3, 5), (5,)], (3,), 15),
        ("dot", [(5,), (5,)], (), 5),
        ("relu", [(3, 5)], (3, 5), 0),
        ("mkldnn_rnn_layer", [(4, 2, 8), (64, 8), (64, 16)], (4, 2, 16), 8 * (512 + 1024)),
    ],
)
def test_products(
    name: str, shapes: list[tuple[int, ...]], out: tuple[int, ...], expected: int
) -> None:
    assert macs_of(name, shapes, out) == expected


def test_a_linear_layer_goes_back_at_twice_the_cost() -> None:
    """One product for the gradient of the input, one for that of the weight."""
    batch, inside, outside = 11, 5, 7
    forward = macs_of("addmm", [(outside,), (batch, inside), (inside, outside)], (batch, outside))
    to_input = macs_of("mm", [(batch, outside), (outside, inside)], (batch, inside))
    to_weight = macs_of("mm", [(outside, batch), (batch, inside)], (outside, inside))
    assert to_input + to_weight == 2 * forward


def test_attention_is_two_products_forward_and_five_back() -> None:
    query, key, value = (2, 4, 10, 16), (2, 4, 12, 16), (2, 4, 12, 20)
    scores, mixing = 2 * 4 * 10 * 12 * 16, 2 * 4 * 10 * 12 * 20
    name = "_scaled_dot_product_flash_attention_for_cpu"
    assert macs_of(name, [query, key, value], (2, 4, 10, 20)) == scores + mixing
    gradient = (2, 4, 10, 20)
    backward = macs_of(f"{name}_backward", [gradient, query, key, value], query)
    assert backward == 3 * scores + 2 * mixing


@pytest.mark.parametrize(
    ("name", "weight", "groups", "kind"),
    [
        ("convolution", (64, 32, 3, 3), 1, "conv"),
        ("convolution", (64, 32, 1, 1), 1, "pointwise"),
        ("convolution", (64, 8, 3, 3), 4, "grouped"),
        ("convolution", (64, 1, 3, 3), 64, "depthwise"),
        ("convolution_backward", (64, 1, 3, 3), 64, "depthwise"),
        ("convolution", (8, 4, 5), 1, "conv"),
        ("addmm", None, 1, "linear"),
        ("bmm", None, 1, "matmul"),
        ("_scaled_dot_product_flash_attention_for_cpu", None, 1, "attention"),
        ("native_layer_norm_backward", None, 1, "norm"),
        ("_log_softmax_backward_data", None, 1, "softmax"),
        ("nll_loss_forward", None, 1, "loss"),
        ("max_pool2d_with_indices", None, 1, "pool"),
        ("threshold_backward", None, 1, "activation"),
        ("embedding_dense_backward", None, 1, "embedding"),
        ("var_mean", None, 1, "reduce"),
        ("copy_", None, 1, "copy"),
        ("add", None, 1, "elementwise"),
    ],
)
def test_kinds(name: str, weight: tuple[int, ...] | None, groups: int, kind: str) -> None:
    assert kind_of(name, weight, groups) == kind
    assert kind in KINDS
