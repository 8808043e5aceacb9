"""What a policy of one's own did wrong: counted, logged and shown, while another one decides."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

__all__ = ["PolicyMistakes"]

log = logging.getLogger("presage.policy")

_SAID_S = 60.0
"""How long the same mistake is not logged again."""
_SHOWN_S = 3600.0
"""How long an alert tells of the latest one."""


class PolicyMistakes:
    """Passes in which a policy raised. Any thread may call it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._clock = clock
        self._lock = threading.Lock()
        self._latest: tuple[str, float] | None = None
        self._logged: tuple[str, float] | None = None

    def note(self, text: str) -> None:
        """It raised; another policy decided the pass."""
        now = self._clock()
        with self._lock:
            self.count += 1
            self._latest = text, now
            said = self._logged
            if said is not None and said[0] == text and now - said[1] < _SAID_S:
                return
            self._logged = text, now
        log.error("%s; its pass was decided first come, first served", text)

    def alerts(self) -> list[str]:
        """What an operator should know."""
        with self._lock:
            latest, count = self._latest, self.count
        if latest is None or self._clock() - latest[1] > _SHOWN_S:
            return []
        times = "once" if count == 1 else f"{count:,} times"
        return [
            f"The {latest[0]}. It raised {times} since the server started; such passes are "
            "decided first come, first served."
        ]
