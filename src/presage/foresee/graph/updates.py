"""What an optimizer's step adds to a graph: its passes, what it keeps and what it makes for a
moment. One place for traced graphs and for those that are given another optimizer afterwards.
"""

from __future__ import annotations

import numpy as np

from presage.learn import Floats
from presage.model.optimizers import OptimizerMemory

__all__ = ["update_storages", "update_traffic"]


def update_storages(
    optimizer: OptimizerMemory, sizes: Floats, numbers: Floats
) -> tuple[Floats, Floats]:
    """Bytes of what is kept, and of what lives while the optimizer steps; from the bytes and the
    elements of each trained parameter. State in managed memory leaves the GPU: it is not there."""
    kept = [np.repeat(sizes, int(optimizer.values))]
    if optimizer.fixed_bytes:
        kept.append(np.ceil(numbers * optimizer.fixed_bytes))
    if optimizer.paged:
        kept = []
    made = []
    if optimizer.foreach_values:
        made.append(sizes * optimizer.foreach_values)
    if optimizer.largest_values:
        made.append(np.array([numbers.max(initial=0.0) * 4 * optimizer.largest_values]))
    nothing = sizes[:0]
    return np.concatenate([nothing, *kept]), np.concatenate([nothing, *made])


def update_traffic(optimizer: OptimizerMemory, total: float) -> list[tuple[float, float]]:
    """Elements read and written by each pass over all parameters."""
    if optimizer.passes == 1 and optimizer.values:  # fused: everything is read once
        return [((2 + optimizer.values) * total, (1 + optimizer.values) * total)]
    return [((1.0 + (optimizer.values > 0)) * total, total)] * optimizer.passes
