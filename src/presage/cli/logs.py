"""`presage logs`: what the workers of a job wrote, live or after the end."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from presage.cli._input import JobId
from presage.cli._output import say
from presage.cli.sweep import print_logs
from presage.client import Client
from presage.model.answers import JobStatus, LogPiece

__all__ = ["logs"]


def logs(
    id: JobId,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Go on until the job is over; waits for one that is queued."
        ),
    ] = False,
    worker: Annotated[
        str | None,
        typer.Option(help="A rank, or a role and a number: ps-0.", show_default="all"),
    ] = None,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Which run of the job.", show_default="the latest")
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option(min=0, help="Only the last lines of each worker.", show_default="all"),
    ] = None,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", "-t", help="The time before each line.")
    ] = False,
) -> None:
    """Print what the workers of a job wrote.

    Of several, each line begins with the name of its worker.
    """
    with Client() as client:
        if client.is_array(id):
            print_logs(client, id, follow, worker)
            return
        job = client.job(id)
        _say_if_it_waits(job.info, follow)
        printer = _Printer(timestamps, follow)
        asked = client.log_pieces(job.id, worker, follow=follow, attempt=attempt, tail=tail)
        for piece in asked:
            printer.take(piece)
        printer.end()
        if follow and job.refresh().status == "HALTED":
            say(f"{job.id} is HALTED; have it go on with: presage resume {job.id}")


def _say_if_it_waits(job: JobStatus, follow: bool) -> None:
    if job.status != "QUEUED":
        return
    why = f": {job.reason.text}" if job.reason.text else ""
    if follow:
        say(f"{job.id} is QUEUED{why}; waiting for it to start")
    elif not job.attempt:
        say(f"{job.id} has not started yet{why}; -f waits for it")


class _Printer:
    """Writes pieces to stdout: as they come if one worker wrote them, else line by line."""

    def __init__(self, timestamps: bool, follow: bool) -> None:
        self._timestamps, self._follow = timestamps, follow
        self._begun: dict[str, tuple[bytes, float | None]] = {}
        """The line that each worker has begun, and when."""
        self._attempt = 0
        self._fresh = True
        """Whether the next byte begins a line."""
        self._prefixed = False

    def take(self, piece: LogPiece) -> None:
        """Print a piece, or keep it until its line is whole."""
        if piece.attempt != self._attempt:
            if self._attempt:
                self.end()
                say(f"attempt {piece.attempt}")
            self._attempt = piece.attempt
        self._prefixed = self._prefixed or piece.workers > 1
        text = piece.text.encode("utf-8", "surrogateescape")
        if not (self._prefixed or self._timestamps):
            self._write(text)
            return
        before, at = self._begun.pop(piece.worker, (b"", piece.at))
        *lines, rest = (before + text).split(b"\n")
        for line in lines:
            self._line(piece.worker, line, at)
            at = piece.at
        if rest:
            self._begun[piece.worker] = rest, at if not lines else piece.at
        self._flush()

    def end(self) -> None:
        """Print lines that were begun."""
        for worker, (line, at) in self._begun.items():
            self._line(worker, line, at)
        self._begun.clear()
        self._flush()

    def _line(self, worker: str, line: bytes, at: float | None) -> None:
        if not self._fresh:  # a second worker came while the first was in a line
            self._write(b"\n")
        head = ""
        if self._timestamps:
            moment = time.localtime(at) if at is not None else None
            head = (time.strftime("%Y-%m-%dT%H:%M:%S", moment) if moment else "-") + " "
        if self._prefixed:
            head += f"{worker} | "
        self._write(head.encode() + line + b"\n", flush=False)

    def _write(self, text: bytes, flush: bool = True) -> None:
        sys.stdout.buffer.write(text)
        self._fresh = text.endswith(b"\n") or (self._fresh and not text)
        if flush:
            self._flush()

    def _flush(self) -> None:
        sys.stdout.buffer.flush()
