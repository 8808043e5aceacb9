"""One operator of an ONNX file, and what every operator needs to read its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from presage.model.errors import GraphError

__all__ = ["DTYPES", "OnnxNode", "Operator", "argument", "axes_of", "ints", "operator"]

DTYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    16: "bfloat16",
}
"""Element types by their number in ONNX."""


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """One operator of a file."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    opset: int
    training: bool = False
    fixed_batch: int = 0
    """The batch that the file was exported with, if it has one."""

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.attributes.get(name, default)


Operator = Callable[[OnnxNode, list[Any]], Any]


def operator(table: dict[str, Operator], *names: str) -> Callable[[Operator], Operator]:
    """Enter a function in a table under these names."""

    def register(function: Operator) -> Operator:
        for name in names:
            table[name] = function
        return function

    return register


def ints(node: OnnxNode, value: Any) -> list[int]:
    """Whole numbers that are known without running the model."""
    if isinstance(value, torch.Tensor) and type(value) is not torch.Tensor:
        raise GraphError(f"a {node.name} of the file depends on data: shapes must be known")
    return [int(n) for n in np.atleast_1d(np.asarray(value))]


def argument(args: Sequence[Any], index: int) -> Any:
    """An argument, or None if it was left out."""
    return args[index] if index < len(args) else None


def axes_of(node: OnnxNode, args: Sequence[Any], index: int = 1) -> list[int] | None:
    """Axes, an attribute in old files and an argument in new ones."""
    given = argument(args, index)
    axes = ints(node, given) if given is not None else node.get("axes")
    return list(axes) if axes is not None and len(axes) else None
