"""What each ONNX operator does, in PyTorch: shapes and work, operator by operator.

A value is a tensor, or a NumPy array if it is known without running the model (shapes, axes).
Weights have no values, so what an operator does to the order of gates or columns is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from presage.foresee.graph._onnx_node import (
    DTYPES,
    OnnxNode,
    Operator,
    argument,
    axes_of,
    ints,
    operator,
)
from presage.foresee.graph._onnx_shapes import SHAPES
from presage.model.errors import GraphError

__all__ = ["KNOWN_ARGUMENTS", "OPERATORS"]

OPERATORS: dict[str, Operator] = dict(SHAPES)

KNOWN_ARGUMENTS: dict[str, tuple[int, ...]] = {
    "Reshape": (1,),
    "Expand": (1,),
    "Tile": (1,),
    "Squeeze": (1,),
    "Unsqueeze": (1,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Pad": (1, 2, 3),
    "Resize": (1, 2, 3),
    "Upsample": (1,),
    "TopK": (1,),
    "Range": (0, 1, 2),
    "ConstantOfShape": (0,),
    "OneHot": (1,),
    "CumSum": (1,),
    "Trilu": (1,),
    "Clip": (1, 2),
    "Dropout": (1, 2),
    "ReduceMean": (1,),
    "ReduceSum": (1,),
    "ReduceMax": (1,),
    "ReduceMin": (1,),
    "ReduceProd": (1,),
    "ReduceL2": (1,),
    "ReduceSumSquare": (1,),
}
"""Arguments that say how to compute rather than what with; they must not depend on data."""

# -- element by element

_UNARY: dict[str, Callable[[Any], Any]] = {
    "Abs": torch.abs,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "HardSwish": F.hardswish,
    "Identity": lambda x: x,
    "IsNaN": torch.isnan,
    "Log": torch.log,
    "Mish": F.mish,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Round": torch.round,
    "Selu": F.selu,
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Softplus": F.softplus,
    "Softsign": F.softsign,
    "Sqrt": torch.sqrt,
    "Tanh": torch.tanh,
}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": torch.add,
    "And": torch.logical_and,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Max": torch.maximum,
    "Min": torch.minimum,
    "Mod": torch.remainder,
    "Mul": torch.mul,
    "Or": torch.logical_or,
    "Pow": torch.pow,
    "PRelu": lambda x, slope: torch.where(x > 0, x, x * slope),
    "Sub": torch.sub,
    "Sum": torch.add,
    "Xor": torch.logical_xor,
}


@operator(OPERATORS, *_UNARY)
def _unary(node: OnnxNode, args: list[Any]) -> Any:
    return _UNARY[node.name](args[0])


@operator(OPERATORS, *_BINARY)
def _binary(node: OnnxNode, args: list[Any]) -> Any:
    value = args[0]
    for other in args[1:]:
        value = _BINARY[node.name](value, other)
    return value


@operator(OPERATORS, "Div")
def _div(node: OnnxNode, args: list[Any]) -> Any:
    whole = not args[0].is_floating_point() and not args[1].is_floating_point()
    return torch.div(args[0], args[1], rounding_mode="trunc" if whole else None)


@operator(OPERATORS, "Mean")
def _mean(node: OnnxNode, args: list[Any]) -> Any:
    return sum(args[1:], args[0]) / len(args)


@operator(OPERATORS, "LeakyRelu")
def _leaky(node: OnnxNode, args: list[Any]) -> Any:
    return F.leaky_relu(args[0], node.get("alpha", 0.01))


@operator(OPERATORS, "Elu")
def _elu(node: OnnxNode, args: list[Any]) -> Any:
    return F.elu(args[0], node.get("alpha", 1.0))


@operator(OPERATORS, "HardSigmoid")
def _hard_sigmoid(node: OnnxNode, args: list[Any]) -> Any:
    return F.hardsigmoid(args[0])


@operator(OPERATORS, "Gelu", "FastGelu")
def _gelu(node: OnnxNode, args: list[Any]) -> Any:
    return F.gelu(args[0], approximate=node.get("approximate", "none"))


@operator(OPERATORS, "Clip")
def _clip(node: OnnxNode, args: list[Any]) -> Any:
    low, high = argument(args, 1), argument(args, 2)
    least = node.get("min") if low is None else np.asarray(low).item()
    most = node.get("max") if high is None else np.asarray(high).item()
    if (least, most) in ((0, 6), (-1, 1)):
        return F.hardtanh(args[0], least, most)
    return args[0] if least is None and most is None else torch.clamp(args[0], least, most)


@operator(OPERATORS, "Dropout")
def _dropout(node: OnnxNode, args: list[Any]) -> Any:
    ratio = argument(args, 1)
    share = node.get("ratio", 0.5) if ratio is None else float(np.asarray(ratio).item())
    out = F.dropout(args[0], share, node.training)
    return (out, torch.ones_like(args[0], dtype=torch.bool)) if len(node.outputs) > 1 else out


@operator(OPERATORS, "Cast")
def _cast(node: OnnxNode, args: list[Any]) -> Any:
    number = node.get("to")
    if number not in DTYPES:
        raise GraphError(f"a Cast of the file is to element type {number}, which is not supported")
    return args[0].to(getattr(torch, DTYPES[number]))


@operator(OPERATORS, "CastLike")
def _cast_like(node: OnnxNode, args: list[Any]) -> Any:
    return args[0].to(args[1].dtype)


@operator(OPERATORS, "Where")
def _where(node: OnnxNode, args: list[Any]) -> Any:
    return torch.where(*args)


# -- layers


def _spatial(
    node: OnnxNode, x: Any, kernel: Sequence[int], *, value: float = 0.0
) -> tuple[Any, list[int]]:
    """The input, padded if its two sides differ, and the padding that is left for the layer."""
    count = len(kernel)
    strides = node.get("strides", [1] * count)
    dilations = node.get("dilations", [1] * count)
    pads = list(node.get("pads", [0] * (2 * count)))
    auto = node.get("auto_pad", "NOTSET")
    if auto.startswith("SAME"):
        pads = [0] * (2 * count)
        for i, size in enumerate(x.shape[2:]):
            reach = (kernel[i] - 1) * dilations[i] + 1
            need = max(0, (ceil(size / strides[i]) - 1) * strides[i] + reach - size)
            small, large = need // 2, need - need // 2
            pads[i], pads[i + count] = (small, large) if auto == "SAME_UPPER" else (large, small)
    if pads[:count] == pads[count:]:
        return x, pads[:count]
    order = [side for i in reversed(range(count)) for side in (pads[i], pads[i + count])]
    return F.pad(x, order, value=value), [0] * count


@operator(OPERATORS, "Conv")
def _conv(node: OnnxNode, args: list[Any]) -> Any:
    x, weight, bias = args[0], args[1], argument(args, 2)
    kernel = list(weight.shape[2:])
    x, pads = _spatial(node, x, kernel)
    ones = [1] * len(kernel)
    layer = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(kernel)]
    strides, dilations = node.get("strides", ones), node.get("dilations", ones)
    return layer(x, weight, bias, strides, pads, dilations, node.get("group", 1))


@operator(OPERATORS, "ConvTranspose")
def _conv_transpose(node: OnnxNode, args: list[Any]) -> Any:
    x, weight, bias = args[0], args[1], argument(args, 2)
    count = weight.dim() - 2
    ones, pads = [1] * count, node.get("pads", [0] * (2 * count))
    layer = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}[count]
    extra = list(node.get("output_padding", [0] * count))
    return layer(
        x,
        weight,
        bias,
        node.get("strides", ones),
        pads[:count],
        extra,
        node.get("group", 1),
        node.get("dilations", ones),
    )


@operator(OPERATORS, "Gemm")
def _gemm(node: OnnxNode, args: list[Any]) -> Any:
    a = args[0].t() if node.get("transA", 0) else args[0]
    b = args[1] if node.get("transB", 0) else args[1].t()
    bias = argument(args, 2)
    if bias is None or bias.dim() == 1:
        return F.linear(a, b, bias)
    return F.linear(a, b) + bias


@operator(OPERATORS, "MatMul")
def _matmul(node: OnnxNode, args: list[Any]) -> Any:
    return torch.matmul(args[0], args[1])


@operator(OPERATORS, "Einsum")
def _einsum(node: OnnxNode, args: list[Any]) -> Any:
    return torch.einsum(node.get("equation"), *args)


@operator(OPERATORS, "Attention")
def _attention(node: OnnxNode, args: list[Any]) -> Any:
    query, key, value = args[:3]
    flat = query.dim() == 3
    if flat:
        heads, shared = node.get("q_num_heads"), node.get("kv_num_heads")
        query = query.unflatten(-1, (heads, -1)).transpose(1, 2)
        key, value = (t.unflatten(-1, (shared, -1)).transpose(1, 2) for t in (key, value))
    out = F.scaled_dot_product_attention(
        query, key, value, enable_gqa=query.shape[1] != key.shape[1]
    )
    return out.transpose(1, 2).flatten(2) if flat else out


@operator(OPERATORS, "LSTM", "GRU", "RNN")
def _recurrent(node: OnnxNode, args: list[Any]) -> Any:
    x, w, r, bias = args[0], args[1], args[2], argument(args, 3)
    batch_first = bool(node.get("layout", 0))
    ways, hidden = w.shape[0], r.shape[-1]
    weights: list[Any] = []
    for way in range(ways):
        weights += [w[way], r[way]]
        if bias is not None:
            weights += list(bias[way].chunk(2))
    batch = x.shape[0] if batch_first else x.shape[1]
    start = torch.zeros(ways, batch, hidden, dtype=x.dtype, device=x.device)
    common = (weights, bias is not None, 1, 0.0, node.training, ways == 2, batch_first)
    if node.name == "LSTM":
        out, last, cell = torch._VF.lstm(x, (start, start.clone()), *common)
        ends = [last, cell]
    else:
        layer = torch._VF.gru if node.name == "GRU" else torch._VF.rnn_tanh
        out, last = layer(x, start, *common)
        ends = [last]
    out = out.unflatten(-1, (ways, hidden))
    if batch_first:
        return (out, *(end.transpose(0, 1) for end in ends))
    return (out.transpose(1, 2), *ends)


@operator(OPERATORS, "BatchNormalization")
def _batch_norm(node: OnnxNode, args: list[Any]) -> Any:
    x, weight, bias, mean, var = args[:5]
    return F.batch_norm(x, mean, var, weight, bias, node.training, eps=node.get("epsilon", 1e-5))


@operator(OPERATORS, "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
def _layer_norm(node: OnnxNode, args: list[Any]) -> Any:
    x = args[0]
    shape = x.shape[node.get("axis", -1) % x.dim() :]
    if node.name == "LayerNormalization":
        return F.layer_norm(x, shape, args[1], argument(args, 2), node.get("epsilon", 1e-5))
    return F.rms_norm(x, shape, args[1], node.get("epsilon", 1e-5))


@operator(OPERATORS, "InstanceNormalization")
def _instance_norm(node: OnnxNode, args: list[Any]) -> Any:
    return F.instance_norm(args[0], weight=args[1], bias=args[2])


@operator(OPERATORS, "GroupNormalization")
def _group_norm(node: OnnxNode, args: list[Any]) -> Any:
    groups, weight, bias = node.get("num_groups"), args[1], args[2]
    if weight.shape[0] != args[0].shape[1]:  # one value for each group, before opset 21
        times = args[0].shape[1] // weight.shape[0]
        weight, bias = weight.repeat_interleave(times), bias.repeat_interleave(times)
    return F.group_norm(args[0], groups, weight, bias)


@operator(OPERATORS, "LRN")
def _lrn(node: OnnxNode, args: list[Any]) -> Any:
    return F.local_response_norm(args[0], node.get("size"))


@operator(OPERATORS, "LpNormalization")
def _lp_norm(node: OnnxNode, args: list[Any]) -> Any:
    return F.normalize(args[0], p=node.get("p", 2), dim=node.get("axis", -1))


@operator(OPERATORS, "Softmax", "LogSoftmax")
def _softmax(node: OnnxNode, args: list[Any]) -> Any:
    axis = node.get("axis", -1 if node.opset >= 13 else 1)
    layer = torch.softmax if node.name == "Softmax" else torch.log_softmax
    return layer(args[0], axis)


@operator(OPERATORS, "MaxPool", "AveragePool")
def _pool(node: OnnxNode, args: list[Any]) -> Any:
    kernel = node.get("kernel_shape")
    count, most = len(kernel), node.name == "MaxPool"
    x, pads = _spatial(node, args[0], kernel, value=float("-inf") if most else 0.0)
    strides, rounded = node.get("strides", [1] * count), bool(node.get("ceil_mode", 0))
    if most:
        layer = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[count]
        return layer(x, kernel, strides, pads, node.get("dilations", [1] * count), rounded)
    layer = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}[count]
    return layer(x, kernel, strides, pads, rounded, bool(node.get("count_include_pad", 0)))


@operator(OPERATORS, "GlobalAveragePool", "GlobalMaxPool")
def _global_pool(node: OnnxNode, args: list[Any]) -> Any:
    axes = tuple(range(2, args[0].dim()))
    if node.name == "GlobalMaxPool":
        return args[0].amax(axes, keepdim=True)
    return args[0].mean(axes, keepdim=True)


@operator(OPERATORS, "Resize", "Upsample")
def _resize(node: OnnxNode, args: list[Any]) -> Any:
    x, sizes = args[0], argument(args, 3)
    scales = argument(args, 1 if node.name == "Upsample" else 2)
    if sizes is not None and np.size(sizes):
        target = ints(node, sizes)[2:]
    else:
        given = np.atleast_1d(np.asarray(scales if scales is not None else node.get("scales")))
        target = [int(n * s) for n, s in zip(x.shape[2:], given[2:].tolist(), strict=True)]
    flat = {1: "linear", 2: "bilinear", 3: "trilinear"}.get(x.dim() - 2, "nearest")
    modes = {"nearest": "nearest", "linear": flat, "cubic": "bicubic"}
    return F.interpolate(x, size=target, mode=modes[node.get("mode", "nearest")])


# -- sums and orders


@operator(
    OPERATORS,
    "ReduceMean",
    "ReduceSum",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL2",
    "ReduceSumSquare",
)
def _reduce(node: OnnxNode, args: list[Any]) -> Any:
    x, keep = args[0], bool(node.get("keepdims", 1))
    axes = axes_of(node, args)
    if axes is None:
        if node.get("noop_with_empty_axes", 0):
            return x
        axes = list(range(x.dim()))
    if node.name == "ReduceProd":
        for axis in sorted((a % x.dim() for a in axes), reverse=True):
            x = x.prod(axis, keepdim=keep)
        return x
    if node.name == "ReduceSumSquare":
        return (x * x).sum(axes, keepdim=keep)
    layer: dict[str, Callable[..., Any]] = {
        "ReduceMean": torch.mean,
        "ReduceSum": torch.sum,
        "ReduceMax": torch.amax,
        "ReduceMin": torch.amin,
        "ReduceL2": torch.linalg.vector_norm,
    }
    return layer[node.name](x, dim=axes, keepdim=keep)


@operator(OPERATORS, "ArgMax", "ArgMin")
def _arg(node: OnnxNode, args: list[Any]) -> Any:
    layer = torch.argmax if node.name == "ArgMax" else torch.argmin
    return layer(args[0], node.get("axis", 0), keepdim=bool(node.get("keepdims", 1)))


@operator(OPERATORS, "TopK")
def _topk(node: OnnxNode, args: list[Any]) -> Any:
    return tuple(torch.topk(args[0], ints(node, args[1])[0], node.get("axis", -1)))


@operator(OPERATORS, "CumSum")
def _cumsum(node: OnnxNode, args: list[Any]) -> Any:
    return torch.cumsum(args[0], ints(node, args[1])[0])


@operator(OPERATORS, "Trilu")
def _trilu(node: OnnxNode, args: list[Any]) -> Any:
    by = argument(args, 1)
    layer = torch.triu if node.get("upper", 1) else torch.tril
    return layer(args[0], 0 if by is None else ints(node, by)[0])
