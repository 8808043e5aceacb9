"""What an ATen operator is and how much it computes, from shapes and groups alone.

The names are those PyTorch dispatches. Sizes are plain numbers, so the rules can be tested without
PyTorch and reused by other front ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

__all__ = ["kind_of", "macs_of"]

Shape = Sequence[int]

_EXACT = {
    "mm": "linear",
    "addmm": "linear",
    "addmv": "linear",
    "mv": "linear",
    "_scaled_mm": "linear",
    "_grouped_mm": "linear",
    "_scaled_grouped_mm": "linear",
    "bmm": "matmul",
    "baddbmm": "matmul",
    "dot": "matmul",
    "embedding": "embedding",
    "embedding_bag": "embedding",
    "embedding_dense_backward": "embedding",
    "mkldnn_rnn_layer": "recurrent",
    "mkldnn_rnn_layer_backward": "recurrent",
    "sum": "reduce",
    "mean": "reduce",
    "amax": "reduce",
    "amin": "reduce",
    "max": "reduce",
    "min": "reduce",
    "argmax": "reduce",
    "var_mean": "reduce",
    "var": "reduce",
    "std": "reduce",
    "linalg_vector_norm": "reduce",
    "norm": "reduce",
    "cumsum": "reduce",
}
_PARTS = (
    ("scaled_dot_product", "attention"),
    ("_flash_attention", "attention"),
    ("_efficient_attention", "attention"),
    ("batch_norm", "norm"),
    ("layer_norm", "norm"),
    ("group_norm", "norm"),
    ("rms_norm", "norm"),
    ("softmax", "softmax"),
    ("nll_loss", "loss"),
    ("mse_loss", "loss"),
    ("smooth_l1", "loss"),
    ("binary_cross_entropy", "loss"),
    ("huber_loss", "loss"),
    ("ctc_loss", "loss"),
    ("pool", "pool"),
    ("upsample", "pool"),
    ("relu", "activation"),
    ("gelu", "activation"),
    ("silu", "activation"),
    ("sigmoid", "activation"),
    ("tanh", "activation"),
    ("hardswish", "activation"),
    ("hardtanh", "activation"),
    ("hardsigmoid", "activation"),
    ("mish", "activation"),
    ("elu", "activation"),
    ("softplus", "activation"),
    ("threshold", "activation"),
    ("glu", "activation"),
    ("dropout", "elementwise"),
    ("bernoulli", "elementwise"),
)
_COPIES = frozenset(
    [
        "clone",
        "copy_",
        "_to_copy",
        "cat",
        "stack",
        "index",
        "index_put",
        "index_put_",
        "_index_put_impl_",
        "gather",
        "scatter",
        "scatter_add",
        "scatter_add_",
        "index_select",
        "index_add",
        "index_add_",
        "roll",
        "flip",
        "repeat",
        "constant_pad_nd",
        "reflection_pad2d",
        "reflection_pad1d",
        "replication_pad2d",
        "pixel_shuffle",
        "pixel_unshuffle",
        "im2col",
        "col2im",
        "select_backward",
        "slice_backward",
        "fill_",
        "zero_",
        "zeros",
        "zeros_like",
        "full",
        "full_like",
        "ones",
        "ones_like",
        "new_zeros",
        "new_empty_strided",
        "new_full",
        "select_scatter",
        "slice_scatter",
        "as_strided_scatter",
        "split_with_sizes_copy",
        "masked_fill",
        "masked_fill_",
        "where",
        "grid_sampler_2d",
        "grid_sampler_2d_backward",
        "sort",
        "topk",
        "arange",
        "empty_like",
        "empty",
        "index_select_backward",
        "reflection_pad2d_backward",
        "repeat_interleave",
        "tril",
        "triu",
    ]
)


def kind_of(name: str, weight: Shape | None = None, groups: int = 1) -> str:
    """The kind of an operator; a convolution's depends on its weight (out, in/groups, k…)."""
    if name in ("convolution", "convolution_backward"):
        if groups > 1:
            return "depthwise" if weight is not None and 1 in weight[:2] else "grouped"
        return "pointwise" if weight is not None and prod(weight[2:]) == 1 else "conv"
    if name in _EXACT:
        return _EXACT[name]
    if name in _COPIES:
        return "copy"
    for part, kind in _PARTS:
        if part in name:
            return kind
    return "elementwise"


def macs_of(
    name: str,
    shapes: Sequence[Shape],
    out: Shape,
    *,
    transposed: bool = False,
    computes: int = 1,
) -> int:
    """Multiply-accumulates of one operator from the shapes of its tensor arguments.

    `computes` says how many of a convolution's two gradients are asked for.
    """
    if name == "convolution":
        data, weight = shapes[0], shapes[1]
        positions = data if transposed else out
        return positions[0] * prod(positions[2:]) * prod(weight)
    if name == "convolution_backward":
        grad, data, weight = shapes[0], shapes[1], shapes[2]
        positions = data if transposed else grad
        return computes * positions[0] * prod(positions[2:]) * prod(weight)
    if name in ("mm", "bmm", "_scaled_mm"):
        return prod(out) * shapes[0][-1]
    if name in ("_grouped_mm", "_scaled_grouped_mm"):
        return _grouped(shapes[0], shapes[1])
    if name in ("addmm", "baddbmm"):
        return prod(out) * shapes[1][-1]
    if name in ("mv", "dot"):
        return prod(shapes[0])
    if name == "addmv":
        return prod(shapes[1])
    if "scaled_dot_product" in name:
        return _attention(name, shapes)
    if name == "mkldnn_rnn_layer":
        data, w_in, w_hidden = shapes[0], shapes[1], shapes[2]
        return prod(data[:-1]) * (prod(w_in) + prod(w_hidden))
    if name == "mkldnn_rnn_layer_backward":
        data, w_in, w_hidden = shapes[0], shapes[1], shapes[2]
        return 2 * prod(data[:-1]) * (prod(w_in) + prod(w_hidden))
    return 0


def _attention(name: str, shapes: Sequence[Shape]) -> int:
    """Two products forward; five backward, because the scores are computed again."""
    backward = "backward" in name
    query, key, value = shapes[1:4] if backward else shapes[:3]
    rows = prod(query[:-1])
    scores, mixing = rows * key[-2] * query[-1], rows * key[-2] * value[-1]
    return 3 * scores + 2 * mixing if backward else scores + mixing


def _grouped(left: Shape, right: Shape) -> int:
    """Products of experts, each with its part of the rows: a row meets one expert's matrix. Where
    the experts are an axis of both, or of neither (gradients of weights), it is one product."""
    if len(left) == 3 and len(right) == 3:
        return prod(left) * right[-1]
    if len(left) == 3:  # (experts, m, k) by (k, all rows)
        return prod(left[1:]) * right[-1]
    return prod(left) * right[-1]
