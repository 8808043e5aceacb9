"""From the deciding thread to those who wait on an asyncio loop: answers to requests, and word
that something was committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from presage.control.kernel import Answers

__all__ = ["News"]

_AT_ONCE = 2
"""Requests that are answered in one go."""


class News:
    """What the deciding loop says. `loop` is set where the asyncio loop is run."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[asyncio.Future[None]] = []

    def answer(self, answers: Answers) -> None:
        """Pass on answers, all of them in one go; called by the deciding loop."""
        self._soon(_deliver, self.loop, answers)

    def committed(self) -> None:
        """Wake all waiters; called by the deciding loop."""
        if self._waiting:
            self._soon(self._wake)

    async def wait(self, timeout: float) -> None:
        """Wait until something was committed, or for so long."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await asyncio.wait([future], timeout=timeout)
        future.cancel()
        if future in self._waiting:
            self._waiting.remove(future)

    def _soon(self, do: Callable[..., None], *arguments: Any) -> None:
        if self.loop is not None:
            with suppress(RuntimeError):  # it is closed: the server ends, and nobody waits
                self.loop.call_soon_threadsafe(do, *arguments)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


def _deliver(loop: asyncio.AbstractEventLoop, answers: list[tuple[Any, Exception | None]]) -> None:
    """Answer requests, on the thread that they wait on: a few at a time, so that a crowd of them
    lets others through between."""
    if len(answers) > _AT_ONCE:
        loop.call_soon(_deliver, loop, answers[_AT_ONCE:])
    for ticket, error in answers[:_AT_ONCE]:
        if ticket.done():
            continue
        if error is None:
            ticket.set_result(None)
        else:
            ticket.set_exception(error)
