"""How tests wait: for the thing itself, never for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["PATIENCE_S", "eventually", "run_apart"]

PATIENCE_S = 400.0
"""Far longer than anything here takes: a test fails because something does not happen, never
because a busy machine takes long."""
_T = TypeVar("_T")


def eventually(ask: Callable[[], _T], timeout_s: float = PATIENCE_S) -> _T:
    """The first answer that is true (polling); AssertionError with the last one when time is
    up."""
    end, pause_s = time.monotonic() + timeout_s, 0.005
    while True:
        found = ask()
        if found:
            return found
        assert time.monotonic() < end, f"not within {timeout_s:g} s: {found!r}"
        time.sleep(pause_s)
        pause_s = min(0.1, 1.2 * pause_s)


def run_apart(task: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine in a thread of its own: a browser that another test of the same worker has
    open keeps an event loop running in the main one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, task).result()
