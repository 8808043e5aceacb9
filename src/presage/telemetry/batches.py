"""How fast an iterable of batches hands them out: reads the clock around a user's input pipeline.

It only takes batches, counts samples, and asks the kernel how long the processes that made them
computed and how long they waited for a core that others had; what follows from that is worked out
elsewhere.
"""

from __future__ import annotations

import multiprocessing
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
    """What a process had of the cores so far, in seconds."""

    computed_s: float
    """All its threads: one of a worker's hands its batches over."""
    waited_s: float
    """Its main thread: ready to compute, while others had the cores."""


class TimedBatch(NamedTuple):
    """A batch that came, and what its makers did meanwhile."""

    seconds: float
    samples: int
    waited_s: float
    """The taker, or its worker processes on average if that is more, for a core."""
    computed_s: float
    """All of them together."""
    taking_s: float = 0.0
    """Of what was computed, what it took the taker."""


def core_time(pid: int | None = None) -> CoreTime:
    """Of this process, or another; nothing where the kernel does not tell."""
    place = Path(f"/proc/{pid or 'self'}")
    try:
        waited = int((place / "schedstat").read_text().split()[1])
        computed = sum(map(_computed_ns, (place / "task").iterdir()))
        return CoreTime(computed / 1e9, waited / 1e9)
    except (OSError, ValueError, IndexError):
        return CoreTime(0.0, 0.0)


def _computed_ns(thread: Path) -> int:
    try:
        return int((thread / "schedstat").read_text().split()[0])
    except OSError:  # it ended meanwhile
        return 0


class BatchMakers:
    """The process that takes batches, and its workers."""

    def __init__(self) -> None:
        self._workers: dict[int, CoreTime] = {}
        self._own = core_time()

    @property
    def have_workers(self) -> bool:
        """Whether processes besides the taker were there when this was last asked."""
        return bool(self._workers)

    def since(self) -> tuple[float, float, float]:
        """Seconds since this was last asked: waited for a core (the taker, or the workers on
        average if that is more: they wait side by side), computed by all of them, and by the taker
        alone. A worker that is new counts from its start, and asking does not count."""
        own = core_time()
        children = (child.pid for child in multiprocessing.active_children())
        workers = {pid: core_time(pid) for pid in children if pid is not None}
        waited, taking = _passed(self._own, own)[::-1]
        others = [_passed(self._workers.get(pid), after) for pid, after in workers.items()]
        if others:
            waited = max(waited, sum(other.waited_s for other in others) / len(others))
        computed = taking + sum(other.computed_s for other in others)
        self._workers, self._own = workers, core_time()
        return waited, computed, taking


def _passed(before: CoreTime | None, after: CoreTime) -> CoreTime:
    if before is None:
        return after
    computed = max(0.0, after.computed_s - before.computed_s)  # threads may have ended
    return CoreTime(computed, after.waited_s - before.waited_s)


def time_batches(loader: Iterable[Any], batches: int, most_s: float) -> list[TimedBatch]:
    """Seconds until each batch came, and its samples: as many as asked for, or those that came in
    the time. An iterable that ends is gone through again, as a training does."""
    timed: list[TimedBatch] = []
    start = last = time.perf_counter()
    makers, again = BatchMakers(), True
    while again and len(timed) < batches and last - start < most_s:
        before = len(timed)
        for batch in loader:
            now = time.perf_counter()
            timed.append(TimedBatch(now - last, samples_in(batch), *makers.since()))
            last = now if makers.have_workers else time.perf_counter()  # they did not stop
            if len(timed) >= batches or last - start >= most_s:
                break
        again = len(timed) > before and iter(loader) is not loader
    return timed


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
