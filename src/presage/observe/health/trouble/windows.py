"""The latest telemetry of all workers as arrays, so that one operation looks at all of them.

Of each worker there are two windows: the latest samples as they are, and the whole run in samples
that are further apart the longer it lasts. Nothing is judged here.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from presage.telemetry.rows import Row

__all__ = ["FIELDS", "Bools", "Floats", "Ints", "WorkerWindows"]

Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Ints: TypeAlias = npt.NDArray[np.int64]

FIELDS = (
    *("at", "cpu_s", "cpu_cores", "rss_mib", "read_bytes", "write_bytes", "gpu_util_pct"),
    *("gpu_memory_mib", "step", "stopped", "wait_s", "disk_free_mib", "disk_total_mib"),
    *("tcp_sent", "tcp_resent", "gpu_xid", "gpu_ecc_errors"),
)
"""Of a row; `seen` comes after them: when the row was read, where it was the newest."""
_SEEN = len(FIELDS)
_PLACE = {name: k for k, name in enumerate((*FIELDS, "seen"))}
_TAKE = tuple(Row._fields.index(name) for name in FIELDS)

WorkerKey: TypeAlias = tuple[str, int, str]
"""Job, attempt, name of the worker."""


class WorkerWindows:
    """Rings of samples, one of each kind for a worker."""

    LENGTH = 64

    def __init__(self) -> None:
        self.slots: dict[WorkerKey, int] = {}
        self._free: list[int] = []
        self._fine = self._empty(0)
        self._coarse = self._empty(0)
        self._count = np.zeros(0, dtype=np.int64)
        """Samples ever, of each slot."""
        self._kept = np.zeros(0, dtype=np.int64)
        self._stride = np.ones(0, dtype=np.int64)

    def _empty(self, slots: int) -> Floats:
        return np.full((slots, self.LENGTH, len(FIELDS) + 1), np.nan)

    def __len__(self) -> int:
        return len(self._count)

    def add(self, key: WorkerKey, row: Row, seen: float = np.nan) -> None:
        """Take in a row; `seen` is when, if it is the newest of its worker."""
        slot = self.slots.get(key)
        if slot is None:
            slot = self._open(key)
        values = [row[k] for k in _TAKE]
        sample = np.array([*values, seen], dtype=np.float64)  # None is NaN
        count = int(self._count[slot])
        self._fine[slot, count % self.LENGTH] = sample
        stride = int(self._stride[slot])
        if count % stride == 0:
            kept = int(self._kept[slot])
            if kept == self.LENGTH:  # from now on half as often
                half = self.LENGTH // 2
                self._coarse[slot, :half] = self._coarse[slot, ::2]
                self._coarse[slot, half:] = np.nan
                self._stride[slot], kept = 2 * stride, half
            if count % int(self._stride[slot]) == 0:
                self._coarse[slot, kept] = sample
                kept += 1
            self._kept[slot] = kept
        self._count[slot] = count + 1

    def drop(self, job: str, attempt: int, worker: str) -> None:
        """Forget a worker."""
        slot = self.slots.pop((job, attempt, worker), None)
        if slot is not None:
            self._fine[slot] = self._coarse[slot] = np.nan
            self._count[slot] = self._kept[slot] = 0
            self._stride[slot] = 1
            self._free.append(slot)

    def _open(self, key: WorkerKey) -> int:
        if not self._free:
            more = max(16, len(self))
            self._free = list(range(len(self) + more - 1, len(self) - 1, -1))
            self._fine = np.concatenate([self._fine, self._empty(more)])
            self._coarse = np.concatenate([self._coarse, self._empty(more)])
            self._count = np.append(self._count, np.zeros(more, dtype=np.int64))
            self._kept = np.append(self._kept, np.zeros(more, dtype=np.int64))
            self._stride = np.append(self._stride, np.ones(more, dtype=np.int64))
        slot = self.slots[key] = self._free.pop()
        return slot

    # -- reading --------------------------------------------------------------------------------

    @property
    def counts(self) -> Ints:
        """Samples of each slot so far."""
        return self._count

    def recent(self, *names: str, last: int = LENGTH) -> list[Floats]:
        """The latest samples of all slots, oldest first; NaN where there are fewer."""
        n = len(self)
        places = (self._count[:, None] - last + np.arange(last)) % self.LENGTH
        samples = []
        missing = np.arange(last)[None, :] < last - np.minimum(self._count, last)[:, None]
        for name in names:
            values = self._fine[np.arange(n)[:, None], places, _PLACE[name]]
            values[missing] = np.nan
            samples.append(values)
        return samples

    def recent_of(self, slot: int, *names: str) -> list[Floats]:
        """The latest samples of one slot, oldest first."""
        count = int(self._count[slot])
        last = min(count, self.LENGTH)
        places = (count - last + np.arange(last)) % self.LENGTH
        return [self._fine[slot, places, _PLACE[name]] for name in names]

    def whole(self, *names: str) -> tuple[Ints, list[Floats]]:
        """How many samples of its whole run each slot has, and these; NaN behind the last."""
        return self._kept, [self._coarse[:, :, _PLACE[name]] for name in names]
