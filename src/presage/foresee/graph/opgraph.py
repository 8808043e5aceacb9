"""`OpGraph`: what one training step (or one inference) of a model does, operator by operator.

Sizes are polynomials in the batch, so one graph answers for every batch size: column k of `macs`,
`read` and `written` holds the coefficient of batch to the power k. Nothing here needs PyTorch.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from presage.model.errors import GraphError

__all__ = ["CONVOLUTIONS", "KINDS", "PHASES", "ROLES", "InputSpec", "OpGraph", "Tensors"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

PHASES = ("forward", "backward", "optimizer")
KINDS = (
    "conv",
    "pointwise",
    "depthwise",
    "grouped",
    "linear",
    "matmul",
    "attention",
    "recurrent",
    "embedding",
    "norm",
    "activation",
    "softmax",
    "pool",
    "elementwise",
    "reduce",
    "copy",
    "loss",
    "update",
    "other",
)
CONVOLUTIONS = ("conv", "pointwise", "depthwise", "grouped")
ROLES = ("weight", "buffer", "gradient", "state", "input", "saved", "transient")
"""What a tensor is for. `saved` ones are made in the forward pass and needed by the backward."""

_POWERS = 3
_FORMAT = 1
_FLOATS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_INTS = {"int64": 8, "int32": 4, "bool": 1}


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input of a model, without its batch dimension."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    below: int = 2
    """Whole numbers are drawn from 0 to this, exclusive (a vocabulary)."""

    @classmethod
    def parse(cls, text: str) -> tuple[InputSpec, ...]:
        """`3x224x224`, `128:int64`, or several with commas between."""
        return tuple(cls._parse_one(part) for part in text.split(","))

    @classmethod
    def _parse_one(cls, text: str) -> InputSpec:
        size, _, dtype = text.strip().partition(":")
        dtype = dtype or "float32"
        try:
            shape = tuple(int(part) for part in size.lower().split("x"))
        except ValueError:
            shape = (0,)
        if any(part < 1 for part in shape) or dtype not in _FLOATS | _INTS:
            raise GraphError(
                f"'{text}' is not an input shape: write one sample's sizes without the batch, "
                "like 3x224x224, or 128:int64 for 128 token numbers"
            )
        return cls(shape, dtype)

    def __str__(self) -> str:
        size = "x".join(map(str, self.shape))
        return size if self.dtype == "float32" else f"{size}:{self.dtype}"


@dataclass(frozen=True, slots=True)
class Tensors:
    """The storages of a step: bytes as `scale * batch ** power`, made by operator `born` and gone
    before operator `died` runs.

    `born` is -1 for what is there before the first operator; `died` of what outlives the step is
    the operator count.
    """

    born: Ints
    died: Ints
    scale: Floats
    power: Ints
    role: Ints
    """Index into ROLES."""

    def __len__(self) -> int:
        return len(self.born)

    def bytes(self, batch: float) -> Floats:
        """Size of each at a batch."""
        sizes: Floats = self.scale * np.power(float(batch), self.power)
        return sizes


@dataclass(frozen=True, slots=True)
class OpGraph:
    """Operators in the order they run, their edges, and the tensors that live between them."""

    name: str
    operators: tuple[str, ...]
    kind: Ints
    """Index into KINDS."""
    phase: Ints
    """Index into PHASES."""
    shapes: tuple[tuple[int, ...], ...]
    """Of the first output; a dimension that is the batch is -1, a multiple m of it is -m."""
    dtypes: tuple[str, ...]
    macs: Floats
    """Multiply-accumulates: (operators, powers of the batch)."""
    read: Floats
    """Elements read."""
    written: Floats
    """Elements written."""
    weights: Floats
    """Parameter elements read by each operator."""
    edges: Ints
    """(edges, 2): from an operator to one that reads what it wrote."""
    tensors: Tensors
    params: int
    trainable: int
    inputs: tuple[InputSpec, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    """How it was made: optimizer, precision, inference, accumulate, checkpointing."""
    notes: tuple[str, ...] = ()
    """Approximations a reader should know of."""

    def __len__(self) -> int:
        return len(self.operators)

    def at(self, column: Floats, batch: float) -> Floats:
        """A column of polynomials at a batch."""
        values: Floats = column @ np.power(float(batch), np.arange(_POWERS))
        return values

    def forward_macs(self) -> float:
        """Multiply-accumulates of the forward pass for one sample."""
        return float(self.at(self.macs, 1)[self.phase == 0].sum())

    def activations(self) -> float:
        """Elements that convolutions, linear layers and products write in the forward pass of one
        sample; the scores inside an attention are counted too, as timm does."""
        forward = self.phase == 0
        layers = [KINDS.index(k) for k in (*CONVOLUTIONS, "linear", "matmul", "attention")]
        total = float(self.written[forward & np.isin(self.kind, layers), 1].sum())
        for i in np.flatnonzero(forward & (self.kind == KINDS.index("attention"))):
            total += self.macs[i, 1] / (2 * abs(self.shapes[i][-1]))
        return total

    def signature(self) -> str:
        """The same for the same computation, whatever the model is called."""
        digest = hashlib.sha256()
        text = json.dumps([self.operators, self.shapes, self.dtypes, self.options], default=str)
        digest.update(text.encode())
        digest.update(np.ascontiguousarray(self.macs).tobytes())
        return digest.hexdigest()[:16]

    # -- on disk: one compressed NumPy archive, without pickles

    def to_bytes(self) -> bytes:
        """A self-contained archive."""
        meta = {
            "format": _FORMAT,
            "name": self.name,
            "operators": self.operators,
            "shapes": self.shapes,
            "dtypes": self.dtypes,
            "params": self.params,
            "trainable": self.trainable,
            "inputs": [[list(i.shape), i.dtype, i.below] for i in self.inputs],
            "options": self.options,
            "notes": self.notes,
        }
        text = np.frombuffer(json.dumps(meta, separators=(",", ":")).encode(), np.uint8)
        file = io.BytesIO()
        t = self.tensors
        np.savez_compressed(
            file,
            meta=text,
            kind=self.kind.astype(np.int8),
            phase=self.phase.astype(np.int8),
            macs=self.macs,
            read=self.read,
            written=self.written,
            weights=self.weights,
            edges=self.edges.astype(np.int32),
            born=t.born.astype(np.int32),
            died=t.died.astype(np.int32),
            scale=t.scale,
            power=t.power.astype(np.int8),
            role=t.role.astype(np.int8),
        )
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> OpGraph:
        """Read what `to_bytes` wrote."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                return cls._from_arrays({name: arrays[name] for name in arrays.files})
        except (OSError, KeyError, ValueError, TypeError, zipfile.BadZipFile) as error:
            raise GraphError(f"not a graph that Presage wrote: {error}") from None

    @classmethod
    def _from_arrays(cls, a: dict[str, Any]) -> OpGraph:
        meta = json.loads(a["meta"].tobytes())
        if meta["format"] != _FORMAT:
            raise ValueError(f"format {meta['format']}, this release reads {_FORMAT}")
        return cls(
            name=str(meta["name"]),
            operators=tuple(map(str, meta["operators"])),
            kind=a["kind"].astype(np.int64),
            phase=a["phase"].astype(np.int64),
            shapes=tuple(tuple(int(n) for n in shape) for shape in meta["shapes"]),
            dtypes=tuple(map(str, meta["dtypes"])),
            macs=a["macs"],
            read=a["read"],
            written=a["written"],
            weights=a["weights"],
            edges=a["edges"].astype(np.int64).reshape(-1, 2),
            tensors=Tensors(
                a["born"].astype(np.int64),
                a["died"].astype(np.int64),
                a["scale"],
                a["power"].astype(np.int64),
                a["role"].astype(np.int64),
            ),
            params=int(meta["params"]),
            trainable=int(meta["trainable"]),
            inputs=tuple(InputSpec(tuple(s), d, b) for s, d, b in meta["inputs"]),
            options=dict(meta["options"]),
            notes=tuple(map(str, meta["notes"])),
        )


def input_elements(inputs: Sequence[InputSpec]) -> int:
    """Elements of one sample over all inputs."""
    return int(sum(np.prod(spec.shape, dtype=np.int64) for spec in inputs))
