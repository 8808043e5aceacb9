"""Logs of pods, read from their kubelets into the data directory while they are written.

A thread follows each worker. Where the kubelet cannot be asked, the log says so in one line: a job
runs without its log being read. A log that grows too long is cut, as elsewhere.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from presage.executors.kubernetes.api import KubeApi
from presage.executors.kubernetes.monitor import Key
from presage.executors.kubernetes.pods import COMPANION, MAIN
from presage.executors.node.log_times import LogTimes
from presage.executors.node.messages import StepWord
from presage.executors.node.wire import MessageError, loads
from presage.executors.node.worker import cut_log
from presage.layout import Layout
from presage.model.errors import KubernetesError
from presage.telemetry.rows import Row, parse

__all__ = ["Hear", "LogReaders"]

_REMOVED = re.compile(rb"rpc error: code = NotFound desc = [^\n]*container[^\n]*not found\n?")
"""What a kubelet writes at the end of a log whose container was removed meanwhile."""
_TRIES = 5
_PAUSE_S = 0.3
_LONGEST_PAUSE_S = 2.0

Hear: TypeAlias = Callable[[StepWord | Row], None]
"""Gets what a step beside a worker says: how far the job is, and what it uses."""


class LogReaders:
    """The threads that read logs. Any thread may ask."""

    def __init__(self, api: KubeApi, layout: Layout, namespace: str, log_cap: int) -> None:
        self._api = api
        self._layout = layout
        self._namespace = namespace
        self._cap = log_cap
        self._reading: dict[tuple[Key, str], threading.Thread] = {}
        self._closed = threading.Event()

    def follow(self, key: Key, worker: str, pod: str, base: int = 0) -> None:
        """Read the log of a worker's pod to its end, which begins `base` bytes into ours; again
        changes nothing."""
        mark = (key, worker)
        if mark in self._reading:
            return
        path = self._layout.log(*key, worker)
        thread = threading.Thread(
            target=self._read, args=(pod, path, base), name=f"log-{pod}", daemon=True
        )
        self._reading[mark] = thread
        thread.start()

    def listen(self, key: Key, worker: str, pod: str, hear: Hear) -> None:
        """Hear what the step beside a worker says; again changes nothing. What cannot be heard is
        told by its last word."""
        mark = (key, f"{COMPANION} {worker}")
        if mark not in self._reading:
            thread = threading.Thread(target=self._hear, args=(pod, hear), daemon=True)
            self._reading[mark] = thread
            thread.start()

    def are_in(self, key: Key) -> bool:
        """Whether everything that was followed of a run is read."""
        return not any(
            thread.is_alive() for (run, _), thread in list(self._reading.items()) if run == key
        )

    def forget(self, key: Key) -> None:
        """A run is over."""
        for mark in [mark for mark in list(self._reading) if mark[0] == key]:
            self._reading.pop(mark, None)

    def close(self) -> None:
        """Read no more."""
        self._closed.set()

    def _hear(self, pod: str, hear: Hear) -> None:
        rest, had = b"", 0

        def listen() -> None:
            nonlocal rest, had
            known = had
            for part in self._api.follow_log(pod, self._namespace, container=COMPANION):
                new, known = part[known:], max(0, known - len(part))
                had += len(new)
                *lines, rest = (rest + new).split(b"\n")
                for line in lines:
                    with suppress(MessageError):
                        hear(_said(line))
                if self._closed.is_set():
                    return

        self._insist(listen, lambda: had)

    def _read(self, pod: str, path: Path, base: int) -> None:
        trouble = self._insist(
            lambda: self._copy(pod, path, _had(path, base)), lambda: _had(path, base)
        )
        if trouble and not self._closed.is_set():
            with path.open("ab") as log:
                log.write(f"[presage: the log cannot be read: {trouble}]\n".encode())

    def _insist(self, read: Callable[[], None], had: Callable[[], int]) -> str:
        """Read to the end, through connections that break: as long as it takes while the API
        server is away, a few times where it answers that it cannot. What was wrong at last."""
        tries = 0
        while True:
            before = had()
            try:
                read()
                return ""
            except KubernetesError as error:
                if had() > before:
                    tries = 0
                tries += error.status != 0
                pause_s = min(_LONGEST_PAUSE_S, _PAUSE_S * 2**tries)
                gone = error.status == 404 or tries >= _TRIES
                if gone or self._closed.wait(pause_s):
                    return str(error)

    def _copy(self, pod: str, path: Path, had: int) -> None:
        """Append what is printed from now on, and what was before, but for the bytes we have."""
        times = LogTimes(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        for part in self._api.follow_log(pod, self._namespace, container=MAIN):
            if self._closed.is_set():
                return
            if _REMOVED.fullmatch(part):
                continue
            skipped, had = part[:had], max(0, had - len(part))
            new = part[len(skipped) :]
            with path.open("ab") as log:
                log.write(new)
                size = log.tell()
            with suppress(OSError):
                if size > self._cap:
                    kept, note = cut_log(path, self._cap)
                    times.cut(size - kept, note)
                else:
                    times.note(size, time.time())


def _said(line: bytes) -> StepWord | Row:
    """What a line of a step says; raises MessageError."""
    with suppress(ValueError):
        return parse(line)
    return loads(StepWord, line)


def _had(path: Path, base: int) -> int:
    """How much of a pod's log we have."""
    return max(0, path.stat().st_size - base) if path.exists() else 0
