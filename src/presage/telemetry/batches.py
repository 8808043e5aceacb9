"""How fast an iterable of batches hands them out: reads the clock around a user's input pipeline.

It only takes batches and counts samples; what follows from the times is worked out elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from presage.model.errors import UserError

__all__ = ["samples_in", "time_batches"]


def time_batches(loader: Iterable[Any], batches: int, most_s: float) -> list[tuple[float, int]]:
    """Seconds until each batch came, and its samples: as many as asked for, or those that came in
    the time. An iterable that ends is gone through again, as a training does."""
    found: list[tuple[float, int]] = []
    start = last = time.perf_counter()
    again = True
    while again and len(found) < batches and last - start < most_s:
        before = len(found)
        for batch in loader:
            now = time.perf_counter()
            found.append((now - last, samples_in(batch)))
            last = now
            if len(found) >= batches or last - start >= most_s:
                break
        again = len(found) > before and iter(loader) is not loader
    return found


def samples_in(batch: Any) -> int:
    """The samples of a batch: the first size of its first array, or how many a list holds."""
    if isinstance(batch, Mapping):
        batch = next(iter(batch.values()), None)
    elif isinstance(batch, tuple) and batch:
        batch = batch[0]  # samples and labels
        if isinstance(batch, list | tuple) and batch:
            return len(batch)
    if isinstance(batch, list) and batch and _size(batch[0]) is not None:
        batch = batch[0]  # arrays, as PyTorch collates samples and labels
    size = _size(batch)
    if size is None and hasattr(batch, "__len__"):
        size = len(batch)
    if not size:
        raise UserError(
            f"a batch is a {type(batch).__name__} without a size: hand out arrays whose first "
            "size is the batch, or lists of samples"
        )
    return size


def _size(value: Any) -> int | None:
    """The first size of an array."""
    shape = getattr(value, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) else None
