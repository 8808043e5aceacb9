"""What a job uses of NVIDIA GPUs, read through NVML (`nvidia-ml-py`).

A device counts as used when a process of the job is on it. Inside a container NVML may not know
our process ids; then a device counts as used when its memory grew since the job started.

Besides NVML's binding this needs the standard library alone: the guardian of a run reads GPUs too.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from presage.telemetry.rows import Row

__all__ = ["GpuProbe", "GpuReading", "binding_here", "open_gpus", "visible_here"]

_MIB = 1 << 20
_MOST_EVENTS = 16
"""Errors that are taken in at one look."""
_PATIENCE_S = 2.0
"""A driver that takes longer to answer is not asked again: who asks has other things to do."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """The devices that a job uses, at one moment."""

    util_pct: float
    """The mean over the devices."""
    memory_mib: float
    """On all of them."""
    fullest_mib: float
    """On the one where the job holds most."""
    shared: bool
    """Whether a process of somebody else is on one of them."""
    memory_util_pct: float = 0.0
    """How much of the time their memory was read or written, the mean over them."""
    xid: int | None = None
    """The latest error that the driver reported for one of the visible devices."""
    ecc_errors: int | None = None
    """Memory errors of the visible devices that could not be corrected, since the driver
    started."""

    def add_to(self, row: Row) -> Row:
        """A row of telemetry with what was read."""
        return row._replace(
            gpu_util_pct=self.util_pct,
            gpu_memory_mib=self.fullest_mib,
            gpu_total_mib=self.memory_mib,
            gpu_shared=self.shared,
            gpu_xid=self.xid,
            gpu_ecc_errors=self.ecc_errors,
            memory_util_pct=self.memory_util_pct,
        )


@dataclass(frozen=True, slots=True)
class _NvmlDevice:
    index: int
    handle: Any
    name: str
    used_before: int
    others_before: bool


def visible_here() -> list[str]:
    """What CUDA calls the devices of this machine that are ours, in order; empty if all are."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return [name.strip() for name in names if name.strip()]


def open_gpus(
    visible: str | None = None, binding: str | None = None
) -> tuple[GpuProbe | None, str]:
    """A probe of the visible GPUs, named as in CUDA_VISIBLE_DEVICES (or by that variable); without
    one, the reason in a sentence. A guardian has only the standard library on its path, and says
    where NVML's binding is."""
    if visible is None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if binding is not None and binding not in sys.path:
        sys.path.append(binding)
    try:
        import pynvml
    except ImportError:
        return None, "GPUs are not read: pip install 'presage[gpu]'"
    try:
        pynvml.nvmlInit()
        devices = _visible(pynvml, visible)
    except pynvml.NVMLError as error:
        return None, f"GPUs are not read: {error}"
    if not devices:
        pynvml.nvmlShutdown()
        return None, "GPUs are not read: none is visible"
    return GpuProbe(pynvml, devices), ""


@cache
def binding_here() -> str | None:
    """The folder that NVML's binding is imported from, if it finds GPUs on this machine."""
    probe, _ = open_gpus()
    if probe is None:
        return None
    probe.close()
    import pynvml

    return str(Path(pynvml.__file__).parent)


class GpuProbe:
    """Reads the devices until it is closed; `used` are those that the job was seen on."""

    def __init__(self, nvml: Any, devices: list[_NvmlDevice]) -> None:
        self._nvml = nvml
        self._devices = devices
        self._slow = False
        self._errors = _DeviceErrors(nvml, devices)
        self.used: set[int] = set()

    @property
    def name(self) -> str:
        """The name of the first device that was used."""
        return next((item.name for item in self._devices if item.index in self.used), "")

    @property
    def driver(self) -> str:
        """The version of the driver."""
        return _text(self._nvml.nvmlSystemGetDriverVersion())

    def devices(self) -> list[tuple[str, int]]:
        """Name and memory in MiB of every visible device."""
        totals = [self._nvml.nvmlDeviceGetMemoryInfo(item.handle).total for item in self._devices]
        names = [item.name for item in self._devices]
        return [(name, int(total) // _MIB) for name, total in zip(names, totals, strict=True)]

    def read(self, pids: Collection[int]) -> GpuReading | None:
        """What the processes use now; None when the driver does not answer."""
        if self._slow:
            return None
        asked = time.monotonic()
        try:
            seen = [(item, *self._job_on(item, pids)) for item in self._devices]
            used = [item for item, memory, _ in seen if memory > 0]
            rates = [self._nvml.nvmlDeviceGetUtilizationRates(item.handle) for item in used]
        except self._nvml.NVMLError:
            return None
        finally:
            self._slow = time.monotonic() - asked > _PATIENCE_S
        self.used |= {item.index for item in used}
        held = [memory / _MIB for _, memory, _ in seen]
        shared = any(others for _, memory, others in seen if memory > 0)
        count = max(1, len(rates))
        busy, moving = sum(r.gpu for r in rates) / count, sum(r.memory for r in rates) / count
        xid, ecc_errors = self._errors.read()
        return GpuReading(busy, sum(held), max(held), shared, moving, xid, ecc_errors)

    def close(self) -> None:
        """Let go of the driver."""
        self._nvml.nvmlShutdown()

    def _job_on(self, device: _NvmlDevice, pids: Collection[int]) -> tuple[int, bool]:
        """Bytes that the job holds on a device, and whether others are on it."""
        running = self._nvml.nvmlDeviceGetComputeRunningProcesses(device.handle)
        mine = [process for process in running if process.pid in pids]
        grown = self._nvml.nvmlDeviceGetMemoryInfo(device.handle).used - device.used_before
        if mine:
            known = [process.usedGpuMemory for process in mine]
            held = grown if None in known else sum(known)
            return max(held, 1), len(running) > len(mine)
        foreign_ids = bool(running) and not any(_is_ours(process.pid) for process in running)
        if foreign_ids and not device.others_before and grown > _MIB:
            return grown, False
        return 0, bool(running)


class _DeviceErrors:
    """Errors that the driver reports of devices. A driver that cannot tell says nothing."""

    def __init__(self, nvml: Any, devices: list[_NvmlDevice]) -> None:
        self._nvml, self._devices = nvml, devices
        self._xid: int | None = None
        self._events: Any = None
        try:
            self._events = nvml.nvmlEventSetCreate()
            for item in devices:
                kind = nvml.nvmlEventTypeXidCriticalError
                nvml.nvmlDeviceRegisterEvents(item.handle, kind, self._events)
        except nvml.NVMLError:
            self._events = None

    def read(self) -> tuple[int | None, int | None]:
        """The latest Xid, and the memory errors that were not corrected."""
        for _ in range(_MOST_EVENTS if self._events is not None else 0):
            try:
                self._xid = int(self._nvml.nvmlEventSetWait_v2(self._events, 0).eventData)
            except self._nvml.NVMLError:  # there is no other
                break
        counts = []
        for item in self._devices:
            try:
                counts.append(
                    self._nvml.nvmlDeviceGetTotalEccErrors(
                        item.handle,
                        self._nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                        self._nvml.NVML_VOLATILE_ECC,
                    )
                )
            except self._nvml.NVMLError:  # the card has no ECC
                continue
        return self._xid, sum(counts) if counts else None


def _visible(nvml: Any, wanted: str | None) -> list[_NvmlDevice]:
    """The devices in the order in which CUDA would number them."""
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    chosen = list(range(len(handles)))
    if wanted is not None:
        names = [(str(i), _text(nvml.nvmlDeviceGetUUID(handles[i]))) for i in chosen]
        chosen = [i for word in wanted.split(",") for i in chosen if _names(word, names[i])]
    return [_device(nvml, i, handles[i]) for i in chosen]


def _device(nvml: Any, index: int, handle: Any) -> _NvmlDevice:
    used = nvml.nvmlDeviceGetMemoryInfo(handle).used
    others = bool(nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    return _NvmlDevice(index, handle, _text(nvml.nvmlDeviceGetName(handle)), used, others)


def _names(word: str, names: tuple[str, str]) -> bool:
    """CUDA takes an index, or the beginning of a UUID."""
    word = word.strip()
    return word == names[0] or (word.startswith("GPU-") and names[1].startswith(word))


def _is_ours(pid: int) -> bool:
    """Whether the process id means anything on this side of a container's wall."""
    return Path(f"/proc/{pid}").exists()


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
