"""Samples a tree of processes at a steady rate, in a thread of its own.

Counters (CPU time, bytes) are kept as they were read; rates are made of them afterwards.
"""

from __future__ import annotations

import time
from array import array
from math import nan
from threading import Event, Thread

import numpy as np
import numpy.typing as npt
import psutil

from presage.telemetry.nvml import GpuProbe
from presage.telemetry.processes import ProcessTree
from presage.telemetry.rows import Row

__all__ = ["COLUMNS", "Sampler"]

COLUMNS = tuple(name for name in Row._fields if name != "worker")
"""Of the samples; `at` is seconds since the start."""

_LOOK_EVERY_S = 0.25
_LOOK_SHARE = 0.005
"""Looking for new processes gets at most this share of a core."""


class Sampler:
    """Samples a tree `hz` times a second from `start` to `stop`. Ticks are at whole multiples of
    the period after the start: lateness does not add up, and a tick that is missed is skipped."""

    def __init__(self, pid: int, hz: float, gpus: GpuProbe | None = None) -> None:
        self._tree = ProcessTree(pid)
        self._period_s = 1 / hz
        self._gpus = gpus
        self._columns = [array("d") for _ in COLUMNS]
        self._stop = Event()
        self._thread = Thread(target=self._run, name="presage-sampler", daemon=True)
        self.cpu_s = 0.0
        """CPU time that sampling itself took."""

    def start(self) -> None:
        """Begin, in a thread of its own."""
        self._thread.start()

    def stop(self) -> dict[str, npt.NDArray[np.float64]]:
        """End, and hand over the samples by column; NaN for what was not measured."""
        self._stop.set()
        self._thread.join()
        return {
            name: np.asarray(column) for name, column in zip(COLUMNS, self._columns, strict=True)
        }

    def _run(self) -> None:
        start = time.monotonic()
        next_look = tick = 0.0
        while not self._stop.is_set():
            now = time.monotonic() - start
            if now >= next_look:
                self._tree.find()
                cost = time.monotonic() - start - now
                next_look = now + max(_LOOK_EVERY_S, cost / _LOOK_SHARE)
            self._sample(start)
            self.cpu_s = time.thread_time()
            behind = time.monotonic() - start
            tick = max(tick + 1, behind // self._period_s + 1)
            self._stop.wait(tick * self._period_s - behind)

    def _sample(self, start: float) -> None:
        row = self._tree.row(time.monotonic() - start, gpus=self._gpus)
        if not row.processes:
            return
        if net := psutil.net_io_counters(nowrap=False):  # 64 bits do not wrap
            row = row._replace(net_sent_bytes=net.bytes_sent, net_received_bytes=net.bytes_recv)
        for name, column in zip(COLUMNS, self._columns, strict=True):
            value = getattr(row, name)
            column.append(nan if value is None else value)
