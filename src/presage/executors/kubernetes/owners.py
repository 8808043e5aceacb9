"""Reads the objects that say how many pods belong together, and believes them for a moment.

It only reads; what a gang is, `gangs` says.
"""

from __future__ import annotations

import logging
import time

from presage.executors.kubernetes.api import KubeApi, Resource
from presage.executors.kubernetes.gangs import ObjectRef
from presage.executors.kubernetes.reading import Json
from presage.model.errors import KubernetesError

__all__ = ["FRESH_S", "Owners"]

log = logging.getLogger("presage.kubernetes")

FRESH_S = 2.0
"""How long it is believed what an object says, or that there is none."""
_MOST = 10_000


class Owners:
    """Objects by name; for one thread."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._found: dict[ObjectRef, tuple[Json | None, float]] = {}

    def find(self, ref: ObjectRef) -> Json | None:
        """An object; None when it is not there, or when we may not read it."""
        known, now = self._found.get(ref), time.monotonic()
        if known is not None and now - known[1] < FRESH_S:
            return known[0]
        group, _, version = ref.api_version.rpartition("/")
        kind = Resource(f"{ref.kind.lower()}s", group, version)
        there = None
        try:
            there = self._api.get(kind, ref.name, ref.namespace)
        except KubernetesError as error:
            log.info("%s %s: %s", ref.kind, ref.name, error)
        if len(self._found) > _MOST:
            self._found.clear()
        self._found[ref] = there, now
        return there
