"""How a run gets other workers: by a new set of pods that goes on from the checkpoint, in the same
attempt.

The present pods stand still after one step where their program hears of that (`presage.job`), and
are ended; then those of the new size are made. Word is passed in the directory for progress, which
is on the storage that server and pods share: without such storage no checkpoint would outlive a
pod either, and runs keep their size. This part remembers and passes word; `run.PodRun` talks to
the cluster.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from presage.executors.node import messages as msg
from presage.executors.node.wire import MessageError, loads, read_bounded
from presage.model.cluster import Worker

__all__ = ["SizeChange"]

_TAKEN = "request.taken"
_FIRST_STEP_S = 2.0
"""A program that has not done its first step by then is taken to hear of nothing."""


class SizeChange:
    """What the workers of a run are to become, and what its program wishes."""

    def __init__(self, place: Path) -> None:
        self._place = place
        """Where `presage.job` in the pods reads and leaves word."""
        self.number = 0
        """How often the run has got other workers."""
        self.asked: tuple[Worker, ...] | None = None
        """What it was told to become and has not begun with."""
        self.next: tuple[Worker, ...] | None = None
        """What it is becoming; written down, so that there is no way back."""
        self.owed = False
        """Whether it is to be said that it has the workers that it was to have."""
        self._still_by: float | None = None
        self._told = False
        """Whether its program was told to stand still."""
        self._looked = False

    def prepare(self) -> None:
        """Have the directory there, for pods of any user."""
        with suppress(OSError):
            self._place.mkdir(parents=True, exist_ok=True)
            self._place.chmod(0o1777)

    @property
    def begun(self) -> bool:
        """Whether the present workers were told to stand still."""
        return self._still_by is not None

    def stands_still(self, workers: int, then: int, grace_s: float) -> bool:
        """Whether the present workers stand still, or need not be waited for any longer; they are
        told to as soon as they listen."""
        number, now = self.number + 1, time.monotonic()
        if self._still_by is None:
            self._still_by = now + _FIRST_STEP_S
        if not self._told and (self._place / msg.STEPPING).exists():
            self._told, self._still_by = True, now + grace_s
            with suppress(OSError):
                msg.say(self._place, msg.HOLD, msg.Word(number=number, workers=then))
        words = (msg.hear(self._place, f"held-{rank}") for rank in range(workers))
        held = all(word is not None and word.number == number for word in words)
        return held or now >= self._still_by

    def done(self, became: Sequence[Worker]) -> None:
        """The present workers are gone: those to come must not find what these were told."""
        for name in (msg.HOLD, msg.STOP_AT, msg.AGREED, msg.STEPPING):
            with suppress(OSError):
                (self._place / name).unlink(missing_ok=True)
        if self.asked is not None and set(self.asked) == set(became):
            self.asked = None  # it was asked for again meanwhile
        self.number, self.next, self.owed = self.number + 1, None, True
        self._still_by, self._told = None, False

    def wish(self) -> int | None:
        """How many workers the program asks for, once. The next server is told again, unless
        this one calls `wish_is_safe`."""
        try:
            if (self._place / msg.SizeRequest.FILE).exists():
                (self._place / msg.SizeRequest.FILE).replace(self._place / _TAKEN)
            elif self._looked:
                return None
            return loads(msg.SizeRequest, read_bounded(self._place / _TAKEN)).workers
        except (OSError, MessageError):
            return None
        finally:
            self._looked = True

    def wish_is_safe(self) -> None:
        """What the program asked for is written down elsewhere."""
        with suppress(OSError):
            (self._place / _TAKEN).unlink(missing_ok=True)

    def remove(self) -> None:
        """The run is over."""
        home = self._place.parent
        shutil.rmtree(home, ignore_errors=True)
        with suppress(OSError):
            home.parent.rmdir()
