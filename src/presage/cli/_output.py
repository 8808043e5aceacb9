"""What commands print: progress and notes go to stderr, results to stdout.

On a terminal, long work has a bar with an estimate of its end; in a pipe or a file it leaves one
plain line for each step. Nothing here knows what is being done.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from presage.model.errors import UserError

__all__ = ["check_directory", "check_file", "print_json", "print_table", "progress", "say"]

Report = Callable[[int, int], None]


def print_json(value: object) -> None:
    """One JSON object on stdout."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


def print_table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table that fits the terminal, or 80 columns: the last cells are cut, the others stay
    whole, and a column that says nothing is left out."""
    from rich.console import Console
    from rich.table import Column, Table

    last = len(heads) - 1
    shown = [k for k in range(last) if any(str(row[k]) for row in rows)]
    sizes = [max(len(heads[k]), *(len(str(row[k])) for row in rows)) for k in shown]
    console = Console()
    most = max(12, console.width - sum(sizes) - 2 * len(sizes))
    table = Table(
        *(Column(heads[k], no_wrap=True) for k in (*shown, last)), box=None, pad_edge=False
    )
    for row in rows:
        text = str(row[last])
        cut = text if len(text) <= most else f"{text[: most - 1]}…"
        table.add_row(*(row[k] for k in shown), cut)
    console.print(table)


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
