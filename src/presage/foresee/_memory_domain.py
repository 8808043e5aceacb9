"""How like the measured runs a job is: image models in fp32, 8 to 128 samples, on an A100.

Each way in which a job differs adds to its distance; the words say which. Nothing is learned here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from presage.foresee.gpus import Gpu
from presage.foresee.graph.opgraph import CONVOLUTIONS, KINDS, OpGraph
from presage.model.setup import Setup

__all__ = ["Likeness", "likeness"]

_PARAMS = (3e5, 2e9)
_BATCHES = (4.0, 160.0)
_MEASURED_GPUS = ("a100-40g", "a100-80g", "a100-pcie-80g")
_PRECISIONS = {"fp32": 0.0, "tf32": 0.0, "amp": 0.2, "amp-bf16": 0.2, "amp_bf16": 0.2}
_HALF = 0.25
_FADES = 2.0
"""The learned term is gone at a distance of 1 ÷ this."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """How far a job is from what was measured."""

    distance: float
    """From 0 to 1."""
    words: str

    @property
    def weight(self) -> float:
        """Of what was learned there, from 1 to 0."""
        return max(0.0, 1.0 - _FADES * self.distance)


def likeness(graph: OpGraph, batch: float, gpu: Gpu, setup: Setup) -> Likeness:
    """Compare a job with the measured ones."""
    far: list[tuple[float, str]] = [
        _kind(graph),
        _beyond(float(graph.params), _PARAMS, 0.5, "parameters"),
        _beyond(batch, _BATCHES, 0.15, "samples at once"),
        _device(gpu),
        *_run(graph, setup),
    ]
    near = float(np.prod([1 - each for each, _ in far]))
    named = [words for each, words in far if each > 0]
    words = "like the measured runs (image models trained in fp32 on an A100)"
    if named:
        words = "measured were image models trained in fp32 on an A100; here: " + ", ".join(named)
    return Likeness(round(1 - near, 4), words)


def _kind(graph: OpGraph) -> tuple[float, str]:
    shapes = [spec.shape for spec in graph.inputs]
    if len(shapes) == 1 and len(shapes[0]) == 3 and shapes[0][0] <= 16:
        return 0.0, ""
    kinds = [KINDS.index(kind) for kind in CONVOLUTIONS]
    if np.isin(graph.kind, kinds).any():
        return 0.3, "other inputs than images"
    return 0.5, "no image model"


def _beyond(value: float, known: tuple[float, float], each: float, what: str) -> tuple[float, str]:
    """`each` for a factor of ten beyond what was measured."""
    low, high = known
    tens = max(np.log10(low / max(value, 1e-9)), np.log10(value / high), 0.0)
    words = f"{'more' if value > high else 'fewer'} {what}"
    return float(min(tens * each, 0.9)), words


def _device(gpu: Gpu) -> tuple[float, str]:
    if gpu.name in _MEASURED_GPUS:
        return 0.0, ""
    if gpu.architecture.startswith(("cdna", "rdna")):
        return 0.4, "a GPU of another maker"
    return 0.1, f"a {gpu.name}"


def _run(graph: OpGraph, setup: Setup) -> list[tuple[float, str]]:
    precision = str(graph.options.get("precision", setup.precision))
    return [
        (_PRECISIONS.get(precision, _HALF), precision),
        (0.3 * setup.inference, "inference"),
        (0.1 * (setup.checkpoint != "none"), "checkpointing"),
        (0.3 * setup.compile, "torch.compile"),
        (0.2 * (setup.gpus > 1), f"{setup.gpus} GPUs"),
        (0.2 * (setup.offload != "none"), "offloading"),
        (0.3 * (setup.quant != "none"), "quantised weights"),
    ]
