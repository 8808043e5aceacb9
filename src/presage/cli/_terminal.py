"""The terminal of a command that is attached to a job: raw while it lasts, its signals and its
size passed on, its settings given back whatever happens."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from presage.client import Attached
from presage.executors.node import frames

__all__ = ["PASSED_ON", "on_a_terminal", "raw", "size", "told_of", "write"]

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH)


def on_a_terminal() -> bool:
    """Whether a person types here and reads here."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def size() -> tuple[int, int]:
    """Rows and columns."""
    terminal = shutil.get_terminal_size()
    return max(1, terminal.lines), max(1, terminal.columns)


@contextmanager
def raw() -> Iterator[None]:
    """Every key goes on as it is, Ctrl-C and Ctrl-Z among them."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd, termios.TCSADRAIN)  # what was typed ahead stays
        yield
    finally:
        with suppress(termios.error):
            termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextmanager
def told_of(attached: Attached) -> Iterator[None]:
    """Signals to this process are told to the pump of what is attached, at once."""

    def ignore(number: int, frame: FrameType | None) -> None: ...

    before = {number: signal.signal(number, ignore) for number in PASSED_ON}
    woken = signal.set_wakeup_fd(attached.wake_write, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)


def write(gone: Callable[[], None]) -> Callable[[bytes, bytes], None]:
    """Writes output where it belongs; `gone` is called when nobody reads it any more."""

    def put(kind: bytes, data: bytes) -> None:
        fd = 2 if kind == frames.STDERR else 1
        try:
            while data:
                data = data[os.write(fd, data) :]
        except BrokenPipeError:
            gone()

    return put
