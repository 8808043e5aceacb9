"""`presage reproduce`: run a published experiment here and put the paper's figures beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from presage.cli._output import check_file, print_json, progress, say
from presage.page import write_page
from presage.reproduce import EXPERIMENTS, data_directory, reproduction_page
from presage.reproduce import reproduce as run
from presage.reproduce.result import Reproduction, figure, verdict

__all__ = ["reproduce"]


def reproduce(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(EXPERIMENTS)}.")],
    data: Annotated[
        Path | None,
        typer.Option(
            help="Directory of the public data.",
            show_default="$PRESAGE_DATA, else ../shared/data",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Repeats of what is drawn at random.")] = 5,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write one HTML page.")] = None,
) -> None:
    """Run the published experiment NAME here, the paper's table beside ours."""
    if html is not None:
        check_file(html, "--html")
    with progress(f"reproducing {name}") as report:
        result = run(name, data_directory(data), seeds=seeds, progress=report)
    if html is not None:
        write_page(html, reproduction_page(result))
        say(f"page written to {html}")
    if json:
        print_json(result.to_json())
    elif html is None:
        _show(result)


def _show(result: Reproduction) -> None:
    typer.echo(f"{result.title}\n{result.source}\n")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    table.add_column("", no_wrap=False)
    for head in ("paper", "ours", "target", ""):
        table.add_column(head, justify="right", no_wrap=True)
    for line in result.lines:
        ours, paper = figure(line.ours, line.unit), figure(line.paper, line.unit)
        table.add_row(line.what, paper, ours, line.target, verdict(line))
    Console(highlight=False).print(table)
    for text in result.differs:
        typer.echo(f"- {text}")
