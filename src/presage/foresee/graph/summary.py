"""What a graph adds up to: totals, and what each kind of operator has of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from presage.foresee.graph.opgraph import KINDS, PHASES, OpGraph

__all__ = ["ELEMENT_BYTES", "moved_bytes", "short", "summarize"]

ELEMENT_BYTES = {
    "float64": 8,
    "int64": 8,
    "float32": 4,
    "int32": 4,
    "float16": 2,
    "bfloat16": 2,
    "bool": 1,
    "int8": 1,
    "uint8": 1,
}


def moved_bytes(graph: OpGraph, batch: float) -> npt.NDArray[np.float64]:
    """Bytes that each operator reads and writes; what it reads is taken to be of the type that it
    writes."""
    width = np.array([ELEMENT_BYTES.get(dtype, 4) for dtype in graph.dtypes], np.float64)
    moved: npt.NDArray[np.float64] = graph.at(graph.read + graph.written, batch) * width
    return moved


def summarize(graph: OpGraph, batch: int = 1) -> dict[str, Any]:
    """Totals of a graph and of its kinds at a batch, ready for JSON. FLOPs are two for each
    multiply-accumulate; `per_sample` counts the forward pass alone."""
    macs, moved = graph.at(graph.macs, batch), moved_bytes(graph, batch)
    per_sample = graph.forward_macs()
    phases = {
        name: {
            "operators": int((graph.phase == i).sum()),
            "macs": float(macs[graph.phase == i].sum()),
            "bytes": float(moved[graph.phase == i].sum()),
        }
        for i, name in enumerate(PHASES)
    }
    kinds: list[dict[str, Any]] = [
        {
            "kind": name,
            "operators": int(mine.sum()),
            "macs": float(macs[mine].sum()),
            "macs_share": float(macs[mine].sum() / macs.sum()) if macs.sum() else 0.0,
            "bytes": float(moved[mine].sum()),
        }
        for i, name in enumerate(KINDS)
        if (mine := graph.kind == i).any()
    ]
    kinds.sort(key=lambda row: (-row["macs"], -row["bytes"]))
    return {
        "name": graph.name,
        "inputs": [str(spec) for spec in graph.inputs],
        "batch": batch,
        "options": graph.options,
        "params": graph.params,
        "trainable": graph.trainable,
        "per_sample": {
            "macs": per_sample,
            "flops": 2 * per_sample,
            "activations": graph.activations(),
        },
        "operators": len(graph),
        "macs": float(macs.sum()),
        "bytes": float(moved.sum()),
        "phases": phases,
        "kinds": kinds,
        "notes": list(graph.notes),
        "signature": graph.signature(),
    }


def short(value: float, unit: str = "") -> str:
    """A number for people: `4.089 G`, `512 B`."""
    for limit, sign in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:,.4g} {sign}{unit}"
    return f"{value:,.0f} {unit}".rstrip()
