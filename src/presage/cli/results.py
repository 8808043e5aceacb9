"""`presage results`: what a job made, listed or brought here."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from presage.cli._output import print_json, progress, say
from presage.client import Client, to_json
from presage.model.answers import ResultFile, ResultsPage, ResultsSummary
from presage.model.errors import UserError
from presage.model.words import count_text, size_text

__all__ = ["results", "results_line"]


def results(
    id: Annotated[str, typer.Argument(metavar="ID", help="A job.")],
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATHS]...", help="Files, directories or patterns; else all."),
    ] = None,
    get: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Bring them into DIR; again continues what is left."),
    ] = None,
    list: Annotated[bool, typer.Option("--list", help="List them; that is the default.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """List the files that a job made, or bring them here with --get."""
    if get is not None and list:
        raise UserError("give --get or --list, not both")
    with Client() as client:
        page = client.results(id, paths or ())
        if paths and not page.files:
            raise UserError(f"job {page.id} has no result {', '.join(paths)}")
        if get is not None:
            brought = _bring(client, page, get, paths or [])
    if json:
        body = to_json(page)
        print_json(body if get is None else {**body, "to": str(get), "brought": brought})
    elif get is not None:
        typer.echo(f"{count_text(page.count, 'file')}, {size_text(page.bytes)} in {get}")
    else:
        _print(page)
    _say_left_out(page)


def _bring(client: Client, page: ResultsPage, to: Path, paths: list[str]) -> int:
    came, new = 0, set()
    with progress(f"{size_text(page.bytes)}") as report:

        def told(file: ResultFile, count: int) -> None:
            nonlocal came
            came += count
            new.add(file.path)
            report(came, page.bytes)

        client.job(page.id).download(to, *paths, told=told)
    return len(new)


def _print(page: ResultsPage) -> None:
    if not page.files and page.removed_at is not None:
        when = time.strftime("%Y-%m-%d", time.localtime(page.removed_at))
        say(f"the results of job {page.id} were removed on {when}, as this server's rules say")
        return
    if not page.files:
        say(f"job {page.id} has no results")
        return
    widest = max(len(size_text(file.bytes)) for file in page.files)
    for file in page.files:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(file.changed_at))
        typer.echo(f"{size_text(file.bytes):>{widest}}  {when}  {file.path}")
    where = f"; also at {page.url}" if page.url else ""
    say(
        f"{count_text(page.count, 'file')}, {size_text(page.bytes)}{where}; "
        f"bring them here with: presage results {page.id} --get DIR"
    )


def _say_left_out(page: ResultsPage) -> None:
    for file in page.left_out:
        why = "more than the job may keep" if file.why == "limit" else file.why
        say(f"left out: {file.path}, {size_text(file.bytes)}: {why}")
    if page.more_left_out:
        say(f"left out: {count_text(page.more_left_out, 'more file')}")


def results_line(job_id: str, made: ResultsSummary) -> str:
    """What a job made, and where: for the commands that say how it ended."""
    out = f", {count_text(made.left_out, 'file')} left out" if made.left_out else ""
    also = f"; also at {made.url}" if made.url else ""
    what = f"{count_text(made.files, 'file')}, {size_text(made.bytes)}{out}"
    return f"{what}: presage results {job_id}{also}"
