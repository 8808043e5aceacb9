"""How fast an iterable of batches hands them out: reads the clock around a user's input pipeline.

It only takes batches, counts samples, and asks the kernel how long the processes that made them
computed and how long they waited for a core that others had; what follows from that is worked out
elsewhere.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from presage.model.errors import UserError

__all__ = [
    "BatchMakers",
    "CoreTime",
    "TimedBatch",
    "core_time",
    "samples_in",
    "time_batches",
]


class CoreTime(NamedTuple):
    """What a process had of the cores so far, in seconds; of its main thread."""

    computed_s: float
    waited_s: float
    """Ready to compute, while others had the cores."""


class TimedBatch(NamedTuple):
    """A batch that came, and what its makers did meanwhile."""

    seconds: float
    samples: int
    waited_s: float
    """The taker, or its worker processes on average, for a core."""
    computed_s: float
    """All of them together."""


def core_time(pid: int | None = None) -> CoreTime:
    """Of this process, or another; nothing where the kernel does not tell."""
    try:
        told = Path(f"/proc/{pid or 'self'}/schedstat").read_text().split()
        return CoreTime(int(told[0]) / 1e9, int(told[1]) / 1e9)
    except (OSError, ValueError, IndexError):
        return CoreTime(0.0, 0.0)


class BatchMakers:
    """The process that takes batches, and its workers."""

    def __init__(self) -> None:
        self._before: dict[int, CoreTime] = {os.getpid(): core_time()}

    def since(self) -> tuple[float, float]:
        """Seconds waited (its own, or the mean of the workers' if that is more: they wait side by
        side) and computed by all of them, since this was last asked; a worker that is new counts
        from its start."""
        pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
        now = {pid: core_time(pid) for pid in pids if pid is not None}
        waited, computed = [], 0.0
        for pid, after in now.items():
            before = self._before.get(pid, CoreTime(0.0, 0.0))
            waited.append(after.waited_s - before.waited_s)
            computed += after.computed_s - before.computed_s
        self._before = now
        own, others = waited[0], waited[1:]
        return max(own, sum(others) / len(others) if others else 0.0), computed


def time_batches(loader: Iterable[Any], batches: int, most_s: float) -> list[TimedBatch]:
    """Seconds until each batch came, and its samples: as many as asked for, or those that came in
    the time. An iterable that ends is gone through again, as a training does."""
    found: list[TimedBatch] = []
    start = last = time.perf_counter()
    makers, again = BatchMakers(), True
    while again and len(found) < batches and last - start < most_s:
        before = len(found)
        for batch in loader:
            now = time.perf_counter()
            found.append(TimedBatch(now - last, samples_in(batch), *makers.since()))
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
