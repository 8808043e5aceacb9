"""Shares of GPUs at a site: what its queues say of them, and what its executor can guarantee. It
enforces nothing."""

from __future__ import annotations

from presage.control.site.settings import Settings
from presage.executors.node.shares.methods import check_guarantees
from presage.manifest import Manifest
from presage.manifest.shares import ShareDefaults, demanded, with_share_defaults
from presage.model.errors import PresageError, UserError

__all__ = ["SiteShares"]


class SiteShares:
    """What becomes of the shares of GPUs in a manifest."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __call__(self, manifest: Manifest) -> Manifest:
        """With what its queue says; raises UserError for what cannot be enforced here."""
        if not any(role.resources.gpu for role in manifest.all_roles.values()):
            return manifest
        settings = self._settings
        others = {"ray": settings.ray, "kubernetes": settings.kubernetes, "slurm": settings.slurm}
        for kind, link in others.items():
            if link is not None:
                raise UserError(
                    f"gpu: is not enforced by the executor {kind}, only by `--executor local`; "
                    "ask for gpus: instead"
                )
        try:
            by = f"shares by {settings.shares.method}"
            check_guarantees(demanded(manifest), settings.shares.gives, by)
        except PresageError as error:
            raise UserError(str(error)) from None
        return with_share_defaults(manifest, self.defaults(manifest.queue))

    def defaults(self, queue: str) -> ShareDefaults:
        """What a queue gives."""
        known = self._settings.queues.get(queue)
        if known is None:
            return ShareDefaults()
        return ShareDefaults(known.gpu.request, known.gpu.limit, known.gpu.memory)

    def soft(self, queue: str) -> bool:
        """Whether shares of a queue may pass their limits while nobody else wants the GPU."""
        known = self._settings.queues.get(queue)
        return known is not None and not known.gpu.hard

    def weight(self, queue: str) -> float:
        """The part that shares of a queue get of what nobody's request covers."""
        known = self._settings.queues.get(queue)
        return 1.0 if known is None else known.gpu.weight
