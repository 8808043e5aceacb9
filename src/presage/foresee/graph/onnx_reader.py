"""An ONNX file to a graph: its nodes are run by PyTorch on tensors without values, so training
numbers come the same way as for any other model. Weights are not loaded; nothing in the file runs.
"""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from presage.foresee.graph.opgraph import InputSpec, OpGraph
from presage.model.errors import GraphError, MissingExtra

if TYPE_CHECKING:
    from presage.foresee.graph._onnx_node import OnnxNode

__all__ = ["read_onnx"]

_MOST_BYTES = 2 << 30  # what a Protocol Buffers message can hold
_KNOWN_ELEMENTS = 4096
"""Whole numbers up to this many are read: shapes and axes, not data."""
_DOMAINS = ("", "ai.onnx", "com.microsoft")

Array = npt.NDArray[Any]


def read_onnx(
    path: Path,
    *,
    inputs: tuple[InputSpec, ...] | None = None,
    **options: Any,
) -> OpGraph:
    """The graph of the model in a file. `inputs` replaces sizes that the file leaves open;
    `options` are those of `trace`."""
    from presage.foresee.graph.torch_trace import trace

    if importlib.util.find_spec("onnx") is None:
        raise MissingExtra("onnx", "reading an ONNX file")
    model = _parse(path, _load(path))
    specs = _choose(path, model, inputs)
    try:
        graph = trace(
            lambda: _module(model),
            specs,
            name=path.stem,
            **options,
        )
    except GraphError as error:
        if not model.batch:
            raise
        raise GraphError(
            f"{error}. The file fixes the batch at {model.batch}: export it with a dynamic one"
        ) from None
    return replace(graph, notes=graph.notes + model.notes)


@dataclass(frozen=True, slots=True)
class _OnnxModel:
    """What a file says."""

    nodes: tuple[OnnxNode, ...]
    inputs: dict[str, tuple[list[int | str], str]]
    """Name to sizes (a text for one that is open) and type of elements."""
    outputs: tuple[str, ...]
    weights: dict[str, tuple[tuple[int, ...], str]]
    """Name to shape and type of elements."""
    statistics: frozenset[str]
    """Those of the weights that batch normalization keeps rather than learns."""
    constants: dict[str, Array]
    batch: int
    """The batch that the file fixes, or 0."""
    notes: tuple[str, ...]


def _load(path: Path) -> Any:
    import onnx

    try:
        size = path.stat().st_size
    except OSError as error:
        raise GraphError(f"{path} cannot be read: {error.strerror}") from None
    if size > _MOST_BYTES:
        raise GraphError(f"{path} is larger than 2 GiB: export it with external data")
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # the parser's own kinds of error differ between releases
        kind = type(error).__name__
        raise GraphError(f"{path} is not an ONNX file, or it is damaged ({kind})") from None
    if not model.graph.node:
        raise GraphError(f"{path} is not an ONNX file, or it has no operators")
    return _checked(path, model)


def _checked(path: Path, model: Any) -> Any:
    """The model after ONNX's own checks, with its functions written out and shapes filled in."""
    import onnx
    from onnx import inliner, shape_inference

    try:
        if model.functions:
            model = inliner.inline_local_functions(model)
        if not _external(model):
            onnx.checker.check_model(model)
    except Exception as error:  # as above
        line = (str(error).strip().splitlines() or ["no message"])[0][:160]
        raise GraphError(f"{path} is not a valid ONNX model: {line}") from None
    with suppress(Exception):  # shapes are a help, not a need: the model is run for them
        return shape_inference.infer_shapes(model)
    return model


def _external(model: Any) -> bool:
    """Whether weights are in other files; ONNX's check would ask for those."""
    return any(tensor.data_location == 1 for tensor in model.graph.initializer)


def _parse(path: Path, model: Any) -> _OnnxModel:
    from presage.foresee.graph._onnx_node import DTYPES
    from presage.foresee.graph._onnx_operators import KNOWN_ARGUMENTS

    opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=1)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    inputs = {}
    for value in model.graph.input:
        if value.name in tensors:
            continue
        kind = value.type.tensor_type
        if kind.elem_type not in DTYPES:
            raise GraphError(f"{path}: the input {value.name} is not a tensor of numbers")
        sizes: list[int | str] = [
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?"
            for dim in kind.shape.dim
        ]
        inputs[value.name] = (sizes, DTYPES[kind.elem_type])
    if not inputs:
        raise GraphError(f"{path} has no inputs")
    batch = _fixed_batch(inputs)
    nodes, constants = [], {}
    for node in model.graph.node:
        made = _node(path, node, opset, batch)
        if made.name == "Constant":
            constants[made.outputs[0]] = _constant(path, made)
        else:
            nodes.append(made)
    known = {
        node.inputs[i]
        for node in nodes
        for i in KNOWN_ARGUMENTS.get(node.name, ())
        if i < len(node.inputs)
    }
    weights = {}
    for name, tensor in tensors.items():
        shape, kind = tuple(tensor.dims), DTYPES.get(tensor.data_type, "")
        if not kind:
            raise GraphError(f"{path}: the weight {name} has an element type we do not know")
        if kind.startswith(("float", "bfloat")) and np.prod(shape) > 1 and name not in known:
            weights[name] = (shape, kind)
        else:
            constants[name] = _array(path, tensor, kind)
    norms = [node for node in nodes if node.name == "BatchNormalization"]
    return _OnnxModel(
        nodes=tuple(nodes),
        inputs=inputs,
        outputs=tuple(value.name for value in model.graph.output),
        weights=weights,
        statistics=frozenset(name for node in norms for name in node.inputs[3:5]),
        constants=constants,
        batch=batch,
        notes=(f"the file fixes the batch at {batch}; shapes were adapted",) if batch else (),
    )


def _fixed_batch(inputs: dict[str, tuple[list[int | str], str]]) -> int:
    """The first size of every input, if they all are the same number."""
    firsts = {sizes[0] for sizes, _ in inputs.values() if sizes}
    only = firsts.pop() if len(firsts) == 1 else 0
    return only if isinstance(only, int) else 0


def _node(path: Path, node: Any, opset: int, batch: int) -> OnnxNode:
    import onnx

    from presage.foresee.graph._onnx_node import OnnxNode
    from presage.foresee.graph._onnx_operators import OPERATORS

    known = {*OPERATORS, "Constant", "Shape", "Size"}
    if node.op_type not in known or node.domain not in _DOMAINS:
        near = get_close_matches(node.op_type, known, n=1, cutoff=0.8)
        hint = f" (known is {near[0]})" if near and near[0] != node.op_type else ""
        domain = f" of {node.domain}" if node.domain else ""
        raise GraphError(f"{path}: the operator {node.op_type}{domain} is not supported{hint}")
    attributes: dict[str, Any] = {}
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        elif isinstance(value, onnx.TensorProto):
            value = onnx.numpy_helper.to_array(value)
        attributes[attribute.name] = value
    return OnnxNode(
        node.op_type,
        tuple(node.input),
        tuple(node.output),
        attributes,
        opset,
        fixed_batch=batch,
    )


def _constant(path: Path, node: OnnxNode) -> Array:
    kinds = {"value_int": np.int64, "value_ints": np.int64}
    for name, value in node.attributes.items():
        if name == "value":
            return np.asarray(value)
        if name.startswith(("value_int", "value_float")):
            return np.asarray(value, kinds.get(name, np.float32))
    raise GraphError(f"{path}: a Constant of the file holds no numbers")


def _array(path: Path, tensor: Any, kind: str) -> Array:
    """A small constant with its values; of a large one only the shape is kept."""
    import onnx

    shape = tuple(tensor.dims)
    if tensor.data_location == 1 or np.prod(shape) > _KNOWN_ELEMENTS:
        return np.zeros(shape, "float32" if kind == "bfloat16" else kind)
    try:
        return np.asarray(onnx.numpy_helper.to_array(tensor))
    except (ValueError, TypeError) as error:
        raise GraphError(f"{path}: the constant {tensor.name} is damaged: {error}") from None


def _choose(
    path: Path, model: _OnnxModel, given: tuple[InputSpec, ...] | None
) -> tuple[InputSpec, ...]:
    """The inputs without their batch: from the file, or what the user says."""
    if given is not None:
        if len(given) != len(model.inputs):
            names = ", ".join(model.inputs)
            raise GraphError(f"{path} has {len(model.inputs)} inputs ({names}): give as many")
        return given
    specs = []
    for name, (sizes, kind) in model.inputs.items():
        open_sizes = [str(size) for size in sizes[1:] if not isinstance(size, int) or size < 1]
        if open_sizes or not sizes:
            raise GraphError(
                f"{path} leaves sizes of the input {name} open ({', '.join(open_sizes) or 'all'}):"
                " add --input with one sample's sizes, like 128:int64"
            )
        specs.append(InputSpec(tuple(int(size) for size in sizes[1:]), kind))
    return tuple(specs)


def _module(model: _OnnxModel) -> Any:
    """A torch module that runs the nodes in their order."""
    import torch

    class OnnxModule(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.places: dict[str, str] = {}
            for number, (name, (shape, kind)) in enumerate(model.weights.items()):
                tensor = torch.empty(shape, dtype=getattr(torch, kind))
                place = self.places[name] = f"weight{number}"
                if name in model.statistics:
                    self.register_buffer(place, tensor)
                else:
                    self.register_parameter(place, torch.nn.Parameter(tensor))

        def forward(self, *data: Any) -> Any:
            values: dict[str, Any] = dict(model.constants)
            values |= {name: getattr(self, place) for name, place in self.places.items()}
            values |= zip(model.inputs, data, strict=True)
            return _run(model, values, training=self.training)

    return OnnxModule()


def _run(model: _OnnxModel, values: dict[str, Any], *, training: bool) -> Any:
    """Every node in order; a value is let go after its last reader."""
    last = {name: i for i, node in enumerate(model.nodes) for name in node.inputs}
    for i, node in enumerate(model.nodes):
        try:
            args = [values[name] if name else None for name in node.inputs]
        except KeyError as error:
            raise GraphError(
                f"a {node.name} of the file reads {error}, which nobody made"
            ) from None
        made = _evaluate(replace(node, training=training), args)
        values.update(zip(node.outputs, made, strict=False))
        del args, made
        for name in node.inputs:
            if last.get(name) == i and name not in model.outputs:
                values.pop(name, None)
        for name in node.outputs:
            if name not in last and name not in model.outputs:
                values.pop(name, None)
    return tuple(values[name] for name in model.outputs)


def _evaluate(node: OnnxNode, args: list[Any]) -> tuple[Any, ...]:
    """The outputs of a node. What is known without running the model is computed with real values
    and stays out of the graph."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    from presage.foresee.graph._onnx_operators import KNOWN_ARGUMENTS, OPERATORS

    if node.name in ("Shape", "Size"):
        shape = np.asarray(args[0].shape, np.int64)
        cut = shape[node.get("start", 0) : node.get("end", len(shape))]
        return (cut if node.name == "Shape" else np.asarray(shape.prod()),)
    operator = OPERATORS[node.name]
    known = KNOWN_ARGUMENTS.get(node.name, ())
    if all(isinstance(arg, np.ndarray) or arg is None for arg in args):
        with _disable_current_modes():
            made = operator(node, [_tensor(torch, a, i in known) for i, a in enumerate(args)])
            parts = made if isinstance(made, tuple) else (made,)
            return tuple(np.asarray(part.detach()) for part in parts)
    made = operator(node, [_tensor(torch, a, i in known) for i, a in enumerate(args)])
    return made if isinstance(made, tuple) else (made,)


def _tensor(torch: Any, value: Any, known: bool) -> Any:
    return value if known or not isinstance(value, np.ndarray) else torch.from_numpy(value.copy())
