"""Shares of GPUs: what a queue says where a manifest leaves it out, and what manifests demand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from presage.manifest.quantities import memory
from presage.manifest.schema import GpuShareManifest, Manifest, WorkerResources
from presage.model.errors import ManifestError

__all__ = ["ShareDefaults", "demanded", "with_share_defaults"]


@dataclass(frozen=True, slots=True)
class ShareDefaults:
    """What workers of a queue get that ask for `gpu:` and leave it out; None for nothing."""

    request: float | None = None
    limit: float | None = None
    memory: str | None = None
    """As people write it."""


def with_share_defaults(manifest: Manifest, given: ShareDefaults) -> Manifest:
    """The manifest with what its queue gives; ManifestError where something is missing still, or
    a default and what was written do not go together."""
    if not any(role.resources.gpu for role in manifest.all_roles.values()):
        return manifest

    def filled(asked: WorkerResources) -> WorkerResources:
        return asked if asked.gpu is None else _filled(asked, asked.gpu, given, manifest.queue)

    return _each(manifest, filled)


def demanded(manifest: Manifest) -> frozenset[str]:
    """The guarantees that shares in it demand."""
    asked = [role.resources.gpu for role in manifest.all_roles.values()]
    return frozenset(one for share in asked if share is not None for one in share.guarantee)


def _each(manifest: Manifest, change: Callable[[WorkerResources], WorkerResources]) -> Manifest:
    if manifest.roles is not None:
        roles = {
            name: role.model_copy(update={"resources": change(role.resources)})
            for name, role in manifest.roles.items()
        }
        return manifest.model_copy(update={"roles": roles})
    assert manifest.resources is not None
    return manifest.model_copy(update={"resources": change(manifest.resources)})


def _filled(
    asked: WorkerResources, share: GpuShareManifest, given: ShareDefaults, queue: str
) -> WorkerResources:
    request = given.request if share.request is None else share.request
    limit = given.limit if share.limit is None else share.limit
    if request is None:
        raise ManifestError(
            f"gpu: request is missing: write the part of a GPU that a worker needs, such as "
            f"gpu: {{request: 0.3}}; queue {queue} has no default"
        )
    if limit is not None and request > limit:
        # What was written counts; a default goes along with it.
        if share.request is not None and share.limit is None:
            limit = request
        elif share.limit is not None and share.request is None:
            request = limit
    held = share.memory or asked.gpu_memory or (memory(given.memory) if given.memory else None)
    made = share.model_copy(update={"request": request, "limit": limit, "memory": held})
    return asked.model_copy(
        update={"gpu": made, "gpus": request if request < 1 else 1, "gpu_memory": held}
    )
