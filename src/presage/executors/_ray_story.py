"""What the server's side of a run on Ray writes down: events, progress, wishes and samples.

All of it is in files, in the form that guardians of the executor `local` use, so that the same
reader understands it. What was written by a process that died is not written twice.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from presage.executors._plan import Places

__all__ = ["Story"]

Mark = tuple[str, str | None, int | None]
"""What tells an event of a run from the others."""


class Story:
    """What is told of one run."""

    def __init__(self, places: Places, directory: Path, job: str, attempt: int) -> None:
        self._places = places
        self._directory = directory
        self._about = {"job": job, "attempt": attempt}
        self._telemetry = places.job(job) / "telemetry" / f"{attempt}.jsonl"
        self._unwritten = b""
        self._told = self._what_was_told()
        self._sampled = self._what_was_sampled()

    @property
    def over(self) -> bool:
        """Whether the last event is written."""
        return any(kind in ("JobExited", "LaunchFailed") for kind, *_ in self._told)

    def tell(self, kind: str, **fields: Any) -> None:
        """Add an event unless there is one like it: of the same kind, stage and resize."""
        event = {"type": kind, **self._about, **fields}
        if _mark(event) not in self._told:
            self._told.add(_mark(event))
            self._unwritten += json.dumps({**event, "when": time.time()}).encode() + b"\n"
            self.flush()

    def flush(self) -> bool:
        """Bring events to disk; False when there is no room, and then nothing was written."""
        if not self._unwritten:
            return True  # whoever heard of the last one may have removed the directory
        try:
            with (self._directory / "events.jsonl").open("ab", buffering=0) as file:
                size = file.seek(0, os.SEEK_END)
                if file.write(self._unwritten) != len(self._unwritten):
                    file.truncate(size)
                    return False
                os.fsync(file.fileno())
        except OSError:
            return False
        self._unwritten = b""
        self._wake()
        return True

    def progress(self, report: dict[str, Any]) -> None:
        """Pass on what the training reports."""
        self._replace("progress.json", report)

    def request(self, workers: int) -> None:
        """Pass on how many workers the training asks for."""
        self._replace("request.json", workers)

    def samples(self, chunk: bytes) -> None:
        """Add samples to the telemetry of the job, but those that were added before."""
        new = []
        for line in chunk.splitlines():
            with suppress(ValueError):
                sample = json.loads(line)
                if sample["at"] > self._sampled.get(sample["worker"], 0.0):
                    self._sampled[sample["worker"]] = sample["at"]
                    new.append(line + b"\n")
        with suppress(OSError):
            self._telemetry.parent.mkdir(parents=True, exist_ok=True)
            with self._telemetry.open("ab") as file:
                file.writelines(new)

    # -- helpers --------------------------------------------------------------------------------

    def _replace(self, name: str, body: Any) -> None:
        with suppress(OSError):
            new = (self._directory / name).with_suffix(".new")
            new.write_text(json.dumps(body))
            new.replace(self._directory / name)
            self._wake()

    def _wake(self) -> None:
        """Tell the executor, if one listens, that there is something to read."""
        with suppress(OSError):
            fd = os.open(self._places.wake, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(fd, f"{self._about['job']}/{self._about['attempt']}\n".encode())
            finally:
                os.close(fd)

    def _what_was_told(self) -> set[Mark]:
        told = set()
        with suppress(OSError):
            for line in (self._directory / "events.jsonl").read_bytes().splitlines():
                with suppress(ValueError):
                    told.add(_mark(json.loads(line)))
        return told

    def _what_was_sampled(self) -> dict[str, float]:
        found: dict[str, float] = {}
        with suppress(OSError):
            for line in self._telemetry.read_bytes().splitlines():
                with suppress(ValueError):
                    sample = json.loads(line)
                    found[sample["worker"]] = sample["at"]
        return found


def _mark(event: dict[str, Any]) -> Mark:
    return event["type"], event.get("stage"), event.get("number")
