"""What a worker uses of its GPUs, as its guardian reads it; nothing here changes a device.

Standard library, and NVML's binding where there is a GPU: it is imported for the first worker that
has one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from presage.nvml import GpuProbe

__all__ = ["GpuReader", "visible_here"]

_PATIENCE_S = 2.0
"""A driver that takes longer to answer is not asked again: the guardian has other things to do."""


def visible_here() -> list[str]:
    """What CUDA calls the devices of this machine that are ours, in order; empty if all are."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return [name.strip() for name in names if name.strip()]


class GpuReader:
    """Reads the GPUs of one worker."""

    def __init__(self, devices: str, binding: str) -> None:
        if binding not in sys.path:
            sys.path.append(binding)  # the guardian has only the standard library on its path
        from presage.nvml import open_gpus

        self._probe: GpuProbe | None = open_gpus(devices)[0]

    def read(self, pids: Collection[int]) -> dict[str, Any]:
        """Of the worker's processes: how busy their devices are, in percent, the memory they hold
        on the fullest one and, if others are there too, that. Empty when nobody knows."""
        if self._probe is None:
            return {}
        asked = time.monotonic()
        now = self._probe.read(pids)
        if time.monotonic() - asked > _PATIENCE_S:
            self._probe = None
        if now.util_pct != now.util_pct:  # the driver did not answer
            return {}
        found = {
            "gpu_util_pct": round(now.util_pct, 1),
            "gpu_memory_mib": round(now.fullest_mib, 1),
        }
        return {**found, "gpu_shared": True} if now.shared else found
