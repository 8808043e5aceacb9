"""What commands print: progress and notes go to stderr, results to stdout.

On a terminal, long work has a bar with an estimate of its end; in a pipe or a file it leaves one
plain line for each step. Nothing here knows what is being done.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from presage.model.errors import UserError

__all__ = ["check_directory", "check_file", "print_json", "progress", "say"]

Report = Callable[[int, int], None]


def print_json(value: object) -> None:
    """One JSON object on stdout."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


def say(text: str) -> None:
    """A line for people, beside the results."""
    typer.echo(text, err=True)


@contextmanager
def progress(title: str) -> Iterator[Report]:
    """A function to call with (done, total); it draws a bar if stderr is a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total: None
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    text = TextColumn("{task.description}", markup=False)
    with Progress(text, *columns, console=console, refresh_per_second=4, transient=True) as bar:
        task = bar.add_task(title, total=None)
        latest = -1

        def report(done: int, total: int) -> None:
            nonlocal latest
            if done != latest:
                latest = done
                bar.update(task, completed=done, total=total)

        yield report


def check_file(path: Path, option: str) -> None:
    """Refuse a file that could not be written, before any work is done."""
    if path.is_dir():
        raise UserError(f"{option} {path} is a directory; name a file")
    _check_writable(path.parent, option)


def check_directory(path: Path, option: str) -> None:
    """Refuse a directory that is not there and could not be made, before any work is done."""
    if path.exists() and not path.is_dir():
        raise UserError(f"{option} {path} is not a directory")
    _check_writable(path if path.is_dir() else path.parent, option)


def _check_writable(directory: Path, option: str) -> None:
    if not directory.is_dir():
        raise UserError(f"{option}: the directory {directory} does not exist; make it first")
    if not os.access(directory, os.W_OK):
        raise UserError(f"{option}: the directory {directory} cannot be written to")
