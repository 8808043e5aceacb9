"""Runs advisors: a thread for each, which looks every so often while this server decides.

What goes wrong in one look does not end the next. No thread here touches the state; it asks the
loop.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from presage.control.advisors import Advisor, FollowsLease, Telemetry
from presage.control.kernel import Live
from presage.model.errors import PresageError

__all__ = ["Runner"]

_FIRST_S = 1.0
"""Nobody waits longer for its first look."""
_STOP_S = 30.0


class Runner:
    """The threads of some advisors."""

    def __init__(
        self,
        live: Live,
        advisors: Sequence[Advisor],
        telemetry: Telemetry,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._live, self._telemetry, self._clock = live, telemetry, clock
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._work, args=(one,), name=f"presage-{one.name}", daemon=True
            )
            for one in advisors
        ]

    def start(self) -> None:
        """Begin to look whenever this server decides."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End after the present looks."""
        self._stopping.set()
        until = time.monotonic() + _STOP_S
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=max(0.0, until - time.monotonic()))

    def _work(self, advisor: Advisor) -> None:
        log = logging.getLogger(f"presage.{advisor.name}")
        pause_s = min(_FIRST_S, advisor.every_s)
        while not self._stopping.wait(pause_s):
            leading = self._live.leading.is_set()
            try:
                if leading:
                    for fact in advisor.look(self._clock(), self._live.read, self._telemetry):
                        self._live.submit(_Unheard(), fact, None, None)
                elif isinstance(advisor, FollowsLease):
                    advisor.not_leading()
            except (PresageError, OSError) as error:
                log.warning("not this time: %s", error)
            except Exception:
                log.exception("one look failed; the next one is tried")
            pause_s = advisor.every_s if leading else min(_FIRST_S, advisor.every_s)


class _Unheard:
    """The ticket of a fact whose answer nobody waits for."""

    def done(self) -> bool:
        return False

    def set_result(self, result: None) -> None: ...

    def set_exception(self, error: Exception) -> None: ...
