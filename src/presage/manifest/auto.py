"""`memory: auto`, `gpus: auto`: numbers in their place, from what was foreseen of the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from presage.manifest.quantities import AUTO
from presage.manifest.schema import Manifest, RoleManifest, WorkerResources
from presage.model.errors import ManifestError

__all__ = ["Needs", "resolved", "says_auto"]

_SPARE = 1.15
"""Given on top of what memory is foreseen at the 90 % quantile."""
_ROUND_MIB = 64
_PARTS = (0.25, 0.5)
"""Parts of a GPU that are given; a job that needs more gets a whole one."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What is known of one worker; None for what is not."""

    memory_mib: float | None = None
    """Of the machine, at the 90 % quantile."""
    sized_mib: float | None = None
    """The same as its history says: what it should get, spare room included."""
    gpu_memory_mib: float | None = None
    """At the 90 % quantile."""
    utilization: float | None = None
    """Share of a GPU, 0 to 1."""
    gpu_room_mib: float | None = None
    """Memory of the smallest GPU that it may get; None if no GPU tells."""


def says_auto(manifest: Manifest) -> bool:
    """Whether anything is left to be foreseen."""
    return any(_autos(role.resources) for role in manifest.all_roles.values())


def resolved(manifest: Manifest, foreseen: Needs) -> Manifest:
    """The manifest with numbers; `ManifestError` where nothing is known that would give one."""
    if manifest.roles is not None:
        roles: Mapping[str, RoleManifest] = {
            name: role.model_copy(
                update={"resources": _numbers(role.resources, foreseen, manifest.share)}
            )
            for name, role in manifest.roles.items()
        }
        return manifest.model_copy(update={"roles": roles})
    if manifest.resources is None:
        return manifest
    return manifest.model_copy(
        update={"resources": _numbers(manifest.resources, foreseen, manifest.share)}
    )


def _autos(asked: WorkerResources) -> list[str]:
    keys = ("memory", "gpus", "gpu_memory")
    return [key for key in keys if getattr(asked, key) == AUTO]


def _numbers(asked: WorkerResources, foreseen: Needs, share: bool) -> WorkerResources:
    numbers: dict[str, object] = {}
    for key in _autos(asked):
        if key == "memory" and foreseen.sized_mib is not None:
            numbers[key] = _rounded(foreseen.sized_mib)
        elif key == "memory":
            numbers[key] = _mib(foreseen.memory_mib, key)
        elif key == "gpu_memory":
            numbers[key] = _mib(foreseen.gpu_memory_mib, key)
        else:
            numbers[key] = _gpus(foreseen, share)
    return asked.model_copy(update=numbers)


def _mib(known: float | None, key: str) -> str:
    if known is None:
        raise _unknown(key, "512Mi")
    return _rounded(known * _SPARE)


def _rounded(mib: float) -> str:
    return f"{_ROUND_MIB * ceil(mib / _ROUND_MIB)}Mi"


def _gpus(foreseen: Needs, share: bool) -> int | float:
    if foreseen.utilization is None:
        raise _unknown("gpus", "1")
    need = foreseen.utilization
    if foreseen.gpu_memory_mib is not None and foreseen.gpu_room_mib:
        need = max(need, foreseen.gpu_memory_mib / foreseen.gpu_room_mib)
        if need > 1 and foreseen.gpu_memory_mib > foreseen.gpu_room_mib:
            raise ManifestError(
                f"gpus: auto: one worker needs {foreseen.gpu_memory_mib / 1024:.1f} GiB of GPU "
                f"memory and the GPUs here have {foreseen.gpu_room_mib / 1024:.1f}; use a smaller "
                "batch or another gpu_type"
            )
    parts = [part for part in _PARTS if need <= part] if share else []
    return parts[0] if parts else 1


def _unknown(key: str, example: str) -> ManifestError:
    return ManifestError(
        f"{key}: auto: nothing is known of this job yet; name its model (model: zoo:resnet50), "
        f"run it once with a number, or give one ({key}: {example})"
    )
