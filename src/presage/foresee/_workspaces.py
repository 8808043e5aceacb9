"""What cuDNN takes for a moment while it tries ways to compute a convolution.

One way goes through Fourier transforms and keeps the spectra of all filters. For many channels
that is far more than the tensors, whatever the batch. It is tried once for each unlike convolution
(`torch.backends.cudnn.benchmark`) and given back, so a measurement shows it only now and then.
Sizes follow from shapes alone; that spectra are kept twice is inferred from measured runs (see
docs/reference/measurements.md). How often it is seen is learned elsewhere.
"""

from __future__ import annotations

import numpy as np

from presage.foresee.graph.opgraph import KINDS, OpGraph
from presage.learn import Floats

__all__ = ["tried_workspaces"]

_MIB = 1 << 20
_GRIDS = np.array([16, 32, 64, 128, 256])
"""Sides of the squares that cuDNN transforms; an image is padded to the next one."""
_SPECTRUM = 2 * 8
"""Bytes for each frequency of a filter: a complex number, twice."""
_ROOM_MIB = 38 * 1024
"""What tensors and a workspace can have on a GPU of 40 GiB, where the measurements were made;
what does not fit is not tried."""


def tried_workspaces(graph: OpGraph, batch: float, alive: Floats) -> tuple[float, float]:
    """The most MiB in use while a workspace is tried, and the MiB of all such workspaces.

    `alive` has the bytes of the tensors that are there while each operator runs.
    """
    at, layers = _unstrided(graph)
    inputs, outputs, height, width, kernel = layers.T
    reach = np.maximum(height, width) + kernel - 1
    grid = _GRIDS[np.minimum(np.searchsorted(_GRIDS, reach), len(_GRIDS) - 1)]
    size = _SPECTRUM * grid * (grid // 2 + 1) * inputs * outputs / _MIB
    in_use = alive[at] / _MIB + size
    possible = (reach <= _GRIDS[-1]) & (in_use <= _ROOM_MIB)
    _, first = np.unique(layers, axis=0, return_index=True)
    return (
        float(in_use[possible].max(initial=0.0)),
        float(np.where(possible, size, 0.0)[first].sum()),
    )


def _unstrided(graph: OpGraph) -> tuple[np.ndarray[tuple[int], np.dtype[np.intp]], Floats]:
    """Which operators are forward convolutions of images without stride and groups, and of each
    the channels in and out, the height, the width and the side of its kernel.

    The kernel follows from the work: with stride 1 there are as many positions in as out, so a
    position reads the channels, and each output of it costs channels times the kernel's area.
    """
    dense = [KINDS.index("conv"), KINDS.index("pointwise")]
    image = np.array([len(shape) == 4 for shape in graph.shapes], bool)
    at = np.flatnonzero((graph.phase == 0) & image & np.isin(graph.kind, dense))
    shapes = np.abs(np.array([graph.shapes[i] for i in at], np.float64).reshape(-1, 4))
    images, outputs, height, width = shapes.T
    positions = images * height * width
    inputs = graph.read[at, 1] / positions
    area = graph.macs[at, 1] / np.maximum(positions * outputs * inputs, 1)
    kernel = np.round(np.sqrt(area))
    pointwise = graph.kind[at] == KINDS.index("pointwise")
    kept = (np.abs(area - kernel**2) < 0.01) & (kernel % 2 == 1) & ((kernel == 1) == pointwise)
    return at[kept], np.stack([inputs, outputs, height, width, kernel], axis=1)[kept]
