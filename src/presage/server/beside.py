"""A thread beside the deciding loop: it looks every so often while this server decides, and what
goes wrong in one look does not end the next. It never touches the state; it asks the loop."""

from __future__ import annotations

import logging
import threading

from presage.model.errors import PresageError
from presage.server.live import Live

__all__ = ["Beside"]


class Beside:
    """Work that is off the deciding path; a subclass says in `look` what to do."""

    def __init__(self, live: Live, name: str, every_s: float) -> None:
        self._live = live
        self._every_s = every_s
        self._log = logging.getLogger(f"presage.{name}")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"presage-{name}", daemon=True)

    def start(self) -> None:
        """Begin to look whenever this server decides."""
        self._thread.start()

    def stop(self) -> None:
        """End soon."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def look(self) -> None:
        """One look."""
        raise NotImplementedError

    def not_leading(self) -> None:
        """Another server decides: forget what belongs to its turn."""

    def _work(self) -> None:
        while not self._stopping.wait(self._every_s):
            if not self._live.leading.is_set():
                self.not_leading()
                continue
            try:
                self.look()
            except PresageError as error:
                self._log.warning("not this time: %s", error)
            except Exception:
                self._log.exception("one look failed; the next one is tried")
