"""ONNX operators that change shapes, pick and join."""

from __future__ import annotations

from math import ceil, prod
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from presage.foresee.graph._onnx_node import OnnxNode, Operator, argument, axes_of, ints, operator

__all__ = ["SHAPES"]

SHAPES: dict[str, Operator] = {}


@operator(SHAPES, "Reshape")
def _reshape(node: OnnxNode, args: list[Any]) -> Any:
    x, target = args[0], ints(node, args[1])
    if not node.get("allowzero", 0):
        target = [x.shape[i] if n == 0 else n for i, n in enumerate(target)]
    if node.fixed_batch and -1 in target[1:]:
        target[0] = x.shape[0] if target[0] == node.fixed_batch else target[0]
    elif node.fixed_batch and -1 not in target and prod(target) != x.numel():
        target[0] = -1  # the file's number was made for its own batch
    return x.reshape(target)


@operator(SHAPES, "Flatten")
def _flatten(node: OnnxNode, args: list[Any]) -> Any:
    x = args[0]
    axis = node.get("axis", 1)
    axis = axis + x.dim() if axis < 0 else axis
    if axis == 1:
        return x.flatten(1) if x.dim() > 1 else x.unsqueeze(1)
    return x.reshape(prod(x.shape[:axis]), -1)


@operator(SHAPES, "Transpose")
def _transpose(node: OnnxNode, args: list[Any]) -> Any:
    return args[0].permute(node.get("perm", list(reversed(range(args[0].dim())))))


@operator(SHAPES, "Squeeze")
def _squeeze(node: OnnxNode, args: list[Any]) -> Any:
    axes = axes_of(node, args)
    if axes is None:
        axes = [i for i, n in enumerate(args[0].shape) if n == 1]
    return args[0].squeeze(tuple(axes))


@operator(SHAPES, "Unsqueeze")
def _unsqueeze(node: OnnxNode, args: list[Any]) -> Any:
    x, axes = args[0], axes_of(node, args) or []
    rank = x.dim() + len(axes)
    for axis in sorted(a % rank for a in axes):
        x = x.unsqueeze(axis)
    return x


@operator(SHAPES, "Concat")
def _concat(node: OnnxNode, args: list[Any]) -> Any:
    axis = node.get("axis")
    fixed = node.fixed_batch
    if fixed == 1 and axis % args[0].dim() != 0:  # a constant that was made for the fixed batch
        batch = max(x.shape[0] for x in args)
        args = [x.expand(batch, *x.shape[1:]) if x.shape[0] == 1 else x for x in args]
    return torch.cat(args, axis)


@operator(SHAPES, "Split")
def _split(node: OnnxNode, args: list[Any]) -> Any:
    x, axis = args[0], node.get("axis", 0)
    given = argument(args, 1)
    sizes = ints(node, given) if given is not None else node.get("split")
    if sizes is None:
        sizes = ceil(x.shape[axis] / node.get("num_outputs", len(node.outputs)))
    return tuple(torch.split(x, sizes, axis))


@operator(SHAPES, "Slice")
def _slice(node: OnnxNode, args: list[Any]) -> Any:
    x = args[0]
    if len(args) > 1:
        starts, ends = ints(node, args[1]), ints(node, args[2])
        axes = axes_of(node, args, 3)
        steps = ints(node, args[4]) if argument(args, 4) is not None else None
    else:
        starts, ends, axes, steps = node.get("starts"), node.get("ends"), node.get("axes"), None
    for i, start in enumerate(starts):
        axis, step = (axes[i] if axes else i), (steps[i] if steps else 1)
        if step < 0:
            picked = list(range(x.shape[axis]))[slice(start, ends[i], step)]
            x = x.index_select(axis, torch.tensor(picked))
            continue
        index = [slice(None)] * x.dim()
        index[axis] = slice(start, ends[i], step)
        x = x[tuple(index)]
    return x


@operator(SHAPES, "Gather")
def _gather(node: OnnxNode, args: list[Any]) -> Any:
    x, index = args[0], args[1]
    axis = node.get("axis", 0) % x.dim()
    if axis == 0 and x.dim() == 2 and x.is_floating_point() and index.dim():
        return F.embedding(index, x)
    picked = x.index_select(axis, index.reshape(-1))
    return picked.reshape((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))


@operator(SHAPES, "GatherElements")
def _gather_elements(node: OnnxNode, args: list[Any]) -> Any:
    return torch.gather(args[0], node.get("axis", 0), args[1])


@operator(SHAPES, "ScatterND")
def _scatter_nd(node: OnnxNode, args: list[Any]) -> Any:
    index = args[1]
    return args[0].index_put(tuple(index[..., i] for i in range(index.shape[-1])), args[2])


@operator(SHAPES, "Expand")
def _expand(node: OnnxNode, args: list[Any]) -> Any:
    shape = torch.broadcast_shapes(tuple(args[0].shape), tuple(ints(node, args[1])))
    return args[0].expand(shape)


@operator(SHAPES, "Tile")
def _tile(node: OnnxNode, args: list[Any]) -> Any:
    return args[0].repeat(ints(node, args[1]))


@operator(SHAPES, "Pad")
def _pad(node: OnnxNode, args: list[Any]) -> Any:
    x = args[0]
    pads = ints(node, args[1]) if len(args) > 1 else list(node.get("pads"))
    axes = axes_of(node, args, 3) or list(range(x.dim()))
    sides = {axis % x.dim(): (pads[i], pads[i + len(axes)]) for i, axis in enumerate(axes)}
    order = [side for axis in reversed(range(x.dim())) for side in sides.get(axis, (0, 0))]
    mode = {"edge": "replicate"}.get(node.get("mode", "constant"), node.get("mode", "constant"))
    if mode != "constant":
        while len(order) > 2 and order[-2:] == [0, 0]:
            order = order[:-2]
    return F.pad(x, order, mode=mode)


@operator(SHAPES, "DepthToSpace")
def _depth_to_space(node: OnnxNode, args: list[Any]) -> Any:
    return F.pixel_shuffle(args[0], node.get("blocksize"))


@operator(SHAPES, "SpaceToDepth")
def _space_to_depth(node: OnnxNode, args: list[Any]) -> Any:
    return F.pixel_unshuffle(args[0], node.get("blocksize"))


@operator(SHAPES, "ConstantOfShape")
def _constant_of_shape(node: OnnxNode, args: list[Any]) -> Any:
    value = node.get("value")
    filled = np.full(ints(node, args[0]), 0.0 if value is None else value.item())
    return torch.from_numpy(filled.astype(np.float32 if value is None else value.dtype))


@operator(SHAPES, "Range")
def _range(node: OnnxNode, args: list[Any]) -> Any:
    start, stop, step = (np.asarray(value).item() for value in args)
    return torch.arange(start, stop, step)


@operator(SHAPES, "OneHot")
def _one_hot(node: OnnxNode, args: list[Any]) -> Any:
    return F.one_hot(args[0], ints(node, args[1])[0]).to(args[2].dtype)
