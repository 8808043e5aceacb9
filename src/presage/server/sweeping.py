"""Has the server remove, in the background, what its settings do not keep."""

from __future__ import annotations

import asyncio
import logging
import time

from presage.control.retention import KeepRule
from presage.model.errors import PresageError
from presage.server.service import Service

__all__ = ["sweep_for_ever"]

log = logging.getLogger("presage.retention")

_EVERY_S = 3600.0


async def sweep_for_ever(service: Service) -> None:
    """At the start and then every hour; only the server that decides does it."""
    if all(rule == KeepRule() for rule in service.settings.retention.values()):
        return
    next_at = 0.0
    while True:
        await asyncio.sleep(0.2 if next_at == 0.0 else 5.0)
        if not service.live.leading.is_set() or time.monotonic() < next_at:
            continue
        try:
            await asyncio.to_thread(service.retention.sweep, time.time())
        except (OSError, PresageError) as error:
            log.warning("nothing more is removed this time: %s", error)
        next_at = time.monotonic() + _EVERY_S
