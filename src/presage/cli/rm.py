"""`presage rm`: removes what is kept of jobs that are over."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from presage.cli._output import print_json, say
from presage.cli.sweep import every_member
from presage.client import Client, to_json
from presage.manifest.quantities import duration_s
from presage.model.answers import Removal
from presage.model.errors import UserError
from presage.model.words import count_text, size_text

__all__ = ["rm"]


def rm(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Jobs that are over.")
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="All your jobs that have been over for so long: 30d."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be removed; remove nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Remove logs, results, checkpoints, telemetry and work folders of jobs that are over."""
    if bool(ids) == (older_than is not None):
        raise UserError("name jobs, or give --older-than 30d; one of them")
    seconds = _seconds(older_than) if older_than is not None else None
    with Client() as client:
        ids = every_member(client, ids or ())
        removal = client.remove(ids, older_than_s=seconds, dry_run=True)
        if not dry_run and removal.removed:
            _ask(removal, yes)
            removal = client.remove([job.id for job in removal.removed])
    if json:
        print_json(to_json(removal))
        return
    if not removal.removed:
        say("nothing to remove")
        return
    for job in removal.removed:
        typer.echo(f"{job.id} {job.status} {size_text(job.bytes)}")
    verb = "would remove" if dry_run else "removed"
    say(f"{verb} {count_text(len(removal.removed), 'job')}, {size_text(removal.bytes)}")


def _seconds(text: str) -> float:
    try:
        return duration_s(text)
    except ValueError as error:
        raise UserError(f"--older-than: {error}") from None


def _ask(removal: Removal, yes: bool) -> None:
    """Go on if somebody agrees; in a pipe nobody can."""
    if yes:
        return
    jobs = removal.removed
    what = f"{count_text(len(jobs), 'job')}, {size_text(removal.bytes)}"
    if not sys.stdin.isatty():
        raise UserError(f"this would remove {what} for good; give --yes to do it")
    for job in jobs[:20]:
        say(f"{job.id} {job.status} {size_text(job.bytes)}")
    if len(jobs) > 20:
        say(f"and {len(jobs) - 20} more")
    if not typer.confirm(f"Remove {what} for good?", err=True):
        raise typer.Exit(1)
